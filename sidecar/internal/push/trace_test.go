package push_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"net/http"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/push"
)

// TestTrace pushes the changes of two traces in one batch, which fails at first: the span of the batch that is
// acknowledged has ended when the edge has both, and belongs to both traces.
func TestTrace(t *testing.T) {
	p := newProxy(t)
	recorder := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder), sdk.WithSampler(sdk.ParentBased(sdk.NeverSample())))
	memory := edgemem.New(edgemem.Config{Objects: 100, Verdicts: 100})
	synced := make(chan struct{})
	close(synced)
	pusher := push.New(memory.AddEdge(), p.socket, synced, metrics.New(), provider.Tracer(""),
		slog.New(slog.DiscardHandler))

	var ids [2]trace.TraceID
	for i, key := range []string{"/a", "/b"} {
		ids[i][0] = byte(i + 1)
		memory.PutObject(new(object(key, 1)))
		memory.TraceChanges(trace.NewSpanContext(trace.SpanContextConfig{TraceID: ids[i], SpanID: trace.SpanID{byte(i + 1)},
			TraceFlags: trace.FlagsSampled}))
	}
	failures := 0
	p.fault = func(w http.ResponseWriter, _ func() (int, []byte)) bool {
		if failures++; failures == 2 { // the first push asks for the state
			http.Error(w, "no", http.StatusServiceUnavailable)
			return true
		}
		return false
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = pusher.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })

	await.Until(t, "the objects at the edge", func() bool { return p.version("/a") == 1 && p.version("/b") == 1 })
	await.Until(t, "a span", func() bool { return len(recorder.Ended()) > 0 })
	cancel()
	running.Wait()
	spans := recorder.Ended()
	if len(spans) != 1 {
		t.Fatalf("got the spans %v, want one: batches of other changes have none", spans)
	}
	span := spans[0]
	if span.Name() != "push" || span.SpanContext().TraceID() != ids[0] || len(span.Links()) != 1 ||
		span.Links()[0].SpanContext.TraceID() != ids[1] {
		t.Errorf("got %s of the trace %s with the links %v, want the first trace and a link to the second",
			span.Name(), span.SpanContext().TraceID(), span.Links())
	}
	if span.Status().Code == codes.Ok {
		t.Errorf("got the status %v", span.Status())
	}
}
