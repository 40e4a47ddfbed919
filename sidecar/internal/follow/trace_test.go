package follow_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/follow"
)

// TestTrace publishes within a trace: the event continues the trace, and passes its span to the push. An event's grant
// is read from Redis first, so it has no push.
func TestTrace(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		s.put(t, "/before") // the first write makes the data epoch, which a catch-up reads
		recorder := tracetest.NewSpanRecorder()
		tracer := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder),
			sdk.WithSampler(sdk.ParentBased(sdk.NeverSample()))).Tracer("")
		var mu sync.Mutex
		var pushed []trace.SpanID
		objectSink, deviceSink := newSink(), newSink()
		client := redis.NewClient(&redis.Options{Addr: s.line.Address(), MaxRetries: -1, DialTimeout: time.Second})
		f := follow.New(follow.Config{
			Objects: objects{objectSink}, Credentials: credentials{deviceSink}, Purges: purges{newSink()},
			Clock: new(clock), Tracer: tracer,
			Trace: func(of trace.SpanContext) {
				mu.Lock()
				defer mu.Unlock()
				pushed = append(pushed, of.SpanID())
			},
		}, client, metrics.New(), slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = f.Run(ctx) })
		t.Cleanup(func() { cancel(); running.Wait(); client.Close() })
		<-f.Synced()

		within := func(id byte) context.Context {
			return trace.ContextWithRemoteSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
				TraceID: trace.TraceID{id}, SpanID: trace.SpanID{id}, TraceFlags: trace.FlagsSampled,
			}))
		}
		for i, write := range []func(context.Context) error{
			func(ctx context.Context) error {
				_, err := s.publish.Put(ctx, publish.Object{Key: "/a", Body: []byte("a"), ContentType: "text/plain"})
				return err
			},
			func(ctx context.Context) error {
				_, err := s.publish.PutDevice(ctx, publish.Device{ID: "d", Secret: "s", Cost: 4})
				return err
			},
			func(ctx context.Context) error { _, err := s.publish.RevokeDevice(ctx, "d"); return err },
		} {
			if err := write(within(byte(i + 1))); err != nil {
				t.Fatal(err)
			}
		}
		s.put(t, "/untraced")
		await.Until(t, "the last write", func() bool { return objectSink.version("/untraced") == 1 })
		spans := recorder.Ended()
		if len(spans) != 3 {
			t.Fatalf("got %d spans, want one for each traced write", len(spans))
		}
		var want []trace.SpanID
		for i, span := range spans {
			if id := (trace.TraceID{byte(i + 1)}); span.Name() != "apply" || span.SpanContext().TraceID() != id ||
				span.Parent().SpanID() != (trace.SpanID{byte(i + 1)}) {
				t.Errorf("got %s of %s, child of %s; want apply of %s", span.Name(), span.SpanContext().TraceID(),
					span.Parent().SpanID(), id)
			}
			if i != 1 {
				want = append(want, span.SpanContext().SpanID())
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if len(pushed) != 2 || pushed[0] != want[0] || pushed[1] != want[1] {
			t.Errorf("got pushes of the spans %v, want %v", pushed, want)
		}
	})
}
