package edgemem_test

import (
	"fmt"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
)

func spanOf(id byte) trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{id}, SpanID: trace.SpanID{id}})
}

// TestTrace: a trace gets the first batch after which the edge has the traced change.
func TestTrace(t *testing.T) {
	for _, reset := range []bool{false, true} {
		t.Run(fmt.Sprintf("new epoch %v", reset), func(t *testing.T) {
			m := newEdge(edgemem.Config{Objects: 400})
			m.Reset(nil)
			for more := true; more; {
				_, taken := m.TakeBatch(nil)
				m.MarkAcked()
				more = taken.More
			}
			const objects = 5 // each fills a batch
			for i := range objects {
				m.PutObject(new(object(fmt.Sprint("/", i), 3, limits.MaxBody-100)))
			}
			m.TraceChanges(spanOf(1))
			if reset {
				m.Reset(nil)
			}
			batches := 0
			for {
				_, taken := m.TakeBatch(nil)
				batches++
				m.MarkAcked()
				if len(taken.Traces) > 0 != taken.Drained {
					t.Fatalf("batch %d: got the traces %v, drained %v", batches, taken.Traces, taken.Drained)
				}
				if taken.Drained {
					if !taken.Traces[0].Equal(spanOf(1)) {
						t.Errorf("got %v", taken.Traces)
					}
					break
				}
			}
			if batches < objects {
				t.Errorf("got %d batches, want %d: the test is for several", batches, objects)
			}
			if _, taken := m.TakeBatch(nil); len(taken.Traces) != 0 {
				t.Error("a later batch has the trace, too")
			}
		})
	}
}

func TestTracesAreBounded(t *testing.T) {
	m := newEdge(edgemem.Config{})
	m.Reset(nil)
	for range 1000 {
		m.TraceChanges(spanOf(1))
	}
	if _, taken := m.TakeBatch(nil); len(taken.Traces) != 64 {
		t.Errorf("got %d traces, want 64", len(taken.Traces))
	}
}
