package edgemem

import (
	"slices"

	"go.opentelemetry.io/otel/trace"
)

// maxTraced bounds the traces that wait for a batch; further ones get none.
const maxTraced = 64

// traced is a trace that waits for the batch after which everything before after was taken.
type traced struct {
	span  trace.SpanContext
	after mark
}

// Trace makes the batch after which the edge has everything that has changed so far part of a trace.
func (m *Memory) Trace(span trace.SpanContext) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.traced) < maxTraced {
		m.traced = append(m.traced, traced{span, m.mark()})
	}
}

// takeTraces removes and returns the traces that the batch is the last of.
func (m *Memory) takeTraces() (spans []trace.SpanContext) {
	for len(m.traced) > 0 && len(m.superseded) == 0 && m.passed(m.traced[0].after) {
		spans = append(spans, m.traced[0].span)
		m.traced = slices.Delete(m.traced, 0, 1)
	}
	return spans
}

// deferTraces makes all waiting traces wait for what is in the queues now, as [Memory.deferPending] does.
func (m *Memory) deferTraces() {
	for i := range m.traced {
		m.traced[i].after = m.mark()
	}
}
