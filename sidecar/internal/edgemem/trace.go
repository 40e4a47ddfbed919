package edgemem

import "go.opentelemetry.io/otel/trace"

// maxTraced bounds the traces that wait for a batch; further ones get none.
const maxTraced = 64

// traced is a trace that waits for the batch after which the queues have nothing of what they had when it came.
type traced struct {
	span              trace.SpanContext
	objects, verdicts uint64 // pushed to the queues by then
}

// Trace makes the batch after which the edge has everything that has changed so far part of a trace.
func (m *Memory) Trace(span trace.SpanContext) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.traced) < maxTraced {
		m.traced = append(m.traced, traced{span, m.dirty.pushed, m.verdicts.dirty.pushed})
	}
}

// takeTraces removes and returns the traces that the batch is the last of.
func (m *Memory) takeTraces() (spans []trace.SpanContext) {
	for len(m.traced) > 0 && len(m.superseded) == 0 && m.dirty.popped >= m.traced[0].objects &&
		m.verdicts.dirty.popped >= m.traced[0].verdicts {
		spans = append(spans, m.traced[0].span)
		m.traced = m.traced[1:]
	}
	return spans
}
