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

// TraceChanges makes the batch that completes all changes so far at an edge part of a trace, for each edge.
func (m *Memory) TraceChanges(span trace.SpanContext) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.all {
		if len(o.pendingTraces) < maxTraced {
			o.pendingTraces = append(o.pendingTraces, pendingTrace{span, o.currentMark()})
		}
	}
}

// takeTraces removes and returns the traces completed by this batch.
func (o *outbox) takeTraces() (spans []trace.SpanContext) {
	for len(o.pendingTraces) > 0 && len(o.superseded) == 0 && o.hasTaken(o.pendingTraces[0].after) {
		spans = append(spans, o.pendingTraces[0].span)
		o.pendingTraces = slices.Delete(o.pendingTraces, 0, 1)
	}
	return spans
}
