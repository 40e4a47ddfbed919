package credential_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/gatehouse/gatehouse/internal/tracing"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// TestTrace verifies a credential for two requests at once: the work is in the trace of the first request, and both
// requests' spans link to each other. No span has the device or its secret.
func TestTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		f := start(credential.Config{PinTTL: time.Hour, Workers: 1, Compare: bcryptAfter(ended)})
		f.Apply(device("the-device", 1, "the-secret"))
		recorder := tracetest.NewSpanRecorder()
		tracer := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder)).Tracer("")
		var requests sync.WaitGroup
		verify := func() trace.SpanContext {
			ctx, span := tracer.Start(t.Context(), "verify")
			requests.Go(func() {
				f.Verify(ctx, "the-device", "the-secret")
				span.End()
			})
			synctest.Wait()
			return span.SpanContext()
		}
		first, second := verify(), verify()
		requests.Go(func() { f.Verify(context.Background(), "the-device", "the-secret") }) // without a trace
		synctest.Wait()
		close(ended)
		requests.Wait()
		synctest.Wait()

		spans := map[string]sdk.ReadOnlySpan{}
		for _, span := range recorder.Ended() {
			name := span.Name()
			if span.SpanContext().Equal(second) {
				name = "second"
			}
			spans[name] = span
			for _, a := range span.Attributes() {
				if v := a.Value.AsString(); v == "the-device" || v == "the-secret" {
					t.Errorf("%s has %s=%s", name, a.Key, v)
				}
			}
		}
		work := spans["verification"]
		if work == nil || spans["queue"] == nil || spans["bcrypt"] == nil || len(spans) != 5 {
			t.Fatalf("got the spans %v, want verify, second, verification, queue and bcrypt", spans)
		}
		if work.Parent().SpanID() != first.SpanID() {
			t.Error("the work is not of the first request")
		}
		for _, name := range []string{"queue", "bcrypt"} {
			if spans[name].Parent().SpanID() != work.SpanContext().SpanID() {
				t.Errorf("%s is not part of the work", name)
			}
		}
		links := func(span sdk.ReadOnlySpan, to trace.SpanContext) bool {
			return len(span.Links()) == 1 && span.Links()[0].SpanContext.SpanID() == to.SpanID()
		}
		if !links(work, second) || !links(spans["second"], work.SpanContext()) {
			t.Errorf("got the links %v and %v, want the work and the second request to link to each other",
				work.Links(), spans["second"].Links())
		}
		for _, want := range []struct {
			span      sdk.ReadOnlySpan
			attribute attribute.KeyValue
		}{
			{work, tracing.Outcome.String("allow")}, {work, tracing.Reason.String("bcrypt")},
			{spans["second"], tracing.Coalesced.Bool(true)},
		} {
			if !slices.Contains(want.span.Attributes(), want.attribute) {
				t.Errorf("%s has no %v: %v", want.span.Name(), want.attribute, want.span.Attributes())
			}
		}
	})
}
