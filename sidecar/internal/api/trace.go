package api

import (
	"log/slog"
	"net/http"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/internal/tracing"
)

// maxLogged bounds the logged decisions per second.
const maxLogged = 100

// traceCall returns a call's handler within a span, in the client's trace if the edge forwards its traceparent.
func (s *Server) traceCall(call string, handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := s.tracer.Start(ctx, call, trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		if id := requestID(r); id != "" {
			span.SetAttributes(tracing.RequestID.String(id))
		}
		handle(w, r.WithContext(ctx))
	}
}

// requestID returns the id of the request at the edge, "" if the edge forwards none.
func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); limits.ValidRequestID(id) {
		return id
	}
	return ""
}

// recordDecision records the decision of a call in the call's span, and with debug logs in a line.
func (s *Server) recordDecision(r *http.Request, call, outcome, reason string) {
	ctx := r.Context()
	span := trace.SpanFromContext(ctx)
	span.SetAttributes(tracing.Outcome.String(outcome))
	if reason != "" {
		span.SetAttributes(tracing.Reason.String(reason))
	}
	if !s.log.Enabled(ctx, slog.LevelDebug) || !s.logLimiter.Allow() {
		return
	}
	traceID := ""
	if of := span.SpanContext(); of.HasTraceID() {
		traceID = of.TraceID().String()
	}
	s.log.Debug("call answered", "call", call, "outcome", outcome, "reason", reason, "request_id", requestID(r),
		"trace_id", traceID)
}
