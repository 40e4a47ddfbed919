package edgemem

import (
	"slices"

	"go.opentelemetry.io/otel/trace"
)

// maxTraced bounds the traces that wait for a batch; further traces are dropped.
const maxTraced = 64

// pendingTrace is a trace that waits for the batch after which everything before after was taken.
type pendingTrace struct {
	span  trace.SpanContext
	after queueMark
}

// TraceChanges makes the batch that completes all changes so far at the edge part of a trace.
func (m *Memory) TraceChanges(span trace.SpanContext) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pendingTraces) < maxTraced {
		m.pendingTraces = append(m.pendingTraces, pendingTrace{span, m.currentMark()})
	}
}

// takeTraces removes and returns the traces completed by this batch.
func (m *Memory) takeTraces() (spans []trace.SpanContext) {
	for len(m.pendingTraces) > 0 && len(m.superseded) == 0 && m.hasTaken(m.pendingTraces[0].after) {
		spans = append(spans, m.pendingTraces[0].span)
		m.pendingTraces = slices.Delete(m.pendingTraces, 0, 1)
	}
	return spans
}

// deferTraces makes all waiting traces wait for what is in the queues now, as [Memory.deferPending] does.
func (m *Memory) deferTraces() {
	for i := range m.pendingTraces {
		m.pendingTraces[i].after = m.currentMark()
	}
}
