// Package tracing sends spans of the sidecar's work to an OpenTelemetry collector, by OTLP over HTTP.
//
// A trace that a client began continues here if the edge forwards its traceparent; a part of the calls without one
// begin a trace. Spans never contain a device, a secret, a cache key or a value from Redis.
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/gatehouse/gatehouse/internal/metrics"
)

// Attributes of spans.
const (
	RequestID = attribute.Key("gatehouse.request_id") // the edge's, as in its access log
	Outcome   = attribute.Key("gatehouse.outcome")    // of a verification
	Reason    = attribute.Key("gatehouse.reason")     // of the outcome, as in gatehouse_verifications_total
	Coalesced = attribute.Key("gatehouse.coalesced")  // true: answered by the work for an earlier request
	FoundIn   = attribute.Key("gatehouse.found_in")   // of a fetched object, as in gatehouse_fetches_total
	Kind      = attribute.Key("gatehouse.kind")       // of an applied record: object or credential
	Ops       = attribute.Key("gatehouse.operations") // in a batch
	Bytes     = attribute.Key("gatehouse.bytes")      // of a batch
)

// scope is the name of the tracer.
const scope = "github.com/gatehouse/gatehouse/sidecar"

// stopTimeout bounds the export of the last spans when the sidecar stops.
const stopTimeout = 2 * time.Second

// Config says where traces go.
type Config struct {
	Endpoint string  // URL of a collector's OTLP receiver; "": there are no traces
	Ratio    float64 // of the traces that begin here, 0 to 1
	Version  string  // of the sidecar
}

// New returns the tracer, and a function that exports the last spans and stops.
func New(c Config, m *metrics.Metrics, log *slog.Logger) (trace.Tracer, func(), error) {
	if c.Endpoint == "" {
		return noop.NewTracerProvider().Tracer(scope), func() {}, nil
	}
	client, err := newClient(c.Endpoint)
	if err != nil {
		return nil, nil, fmt.Errorf("trace.endpoint: %w", err)
	}
	provider := sdk.NewTracerProvider(
		sdk.WithSampler(newSampler(c.Ratio)),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", "gatehouse-sidecar"),
			attribute.String("service.version", c.Version))),
		sdk.WithSpanProcessor(newQueue(client, m, log)),
	)
	stop := func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log.Debug("the last spans were not exported", "error", err)
		}
	}
	return provider.Tracer(scope), stop, nil
}

// StartChild starts a span within the span in ctx. If the parent is not recorded, the child isn't either.
func StartChild(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, trace.SpanFromContext(context.Background())
	}
	return parent.TracerProvider().Tracer(scope).Start(ctx, name, options...)
}

// Link records that the work for an earlier request, of span work, also answers the request of span waiting: both spans
// get a link. The SDK bounds the links of a span, to 128.
func Link(waiting, work trace.Span) {
	waiting.SetAttributes(Coalesced.Bool(true))
	if of := work.SpanContext(); of.IsSampled() {
		waiting.AddLink(trace.Link{SpanContext: of})
	}
	if of := waiting.SpanContext(); of.IsSampled() {
		work.AddLink(trace.Link{SpanContext: of})
	}
}

// Observe adds a value to a histogram, with the trace as the exemplar if the span is sampled. The span may have ended.
func Observe(h prometheus.Histogram, value float64, span trace.Span) {
	if of := span.SpanContext(); of.IsSampled() {
		h.(prometheus.ExemplarObserver).ObserveWithExemplar(value, prometheus.Labels{"trace_id": of.TraceID().String()})
		return
	}
	h.Observe(value)
}
