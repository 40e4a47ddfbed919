package tracing

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/gatehouse/gatehouse/internal/metrics"
)

const (
	// maxQueued bounds the spans that wait for the collector, some 2 MiB. Further spans are dropped.
	maxQueued = 2048
	// exportEvery is the maximum time that a span waits for the rest of its batch.
	exportEvery = time.Second
	// exportTimeout bounds the export of a batch, with its retries.
	exportTimeout = 5 * time.Second
)

// queue exports ended spans in batches, in the background. A queue never blocks: spans without room are dropped. The
// SDK's processor does the same, but doesn't count dropped spans.
type queue struct {
	sdk.SpanProcessor
	exporter *exporter
}

func newQueue(to sdk.SpanExporter, m *metrics.Metrics, log *slog.Logger) *queue {
	e := &exporter{SpanExporter: to, metrics: m, log: log}
	return &queue{sdk.NewBatchSpanProcessor(e, sdk.WithMaxQueueSize(maxQueued), sdk.WithBatchTimeout(exportEvery),
		sdk.WithExportTimeout(exportTimeout)), e}
}

// OnEnd implements [sdk.SpanProcessor].
func (q *queue) OnEnd(s sdk.ReadOnlySpan) {
	if q.exporter.queued.Add(1) > maxQueued {
		q.exporter.queued.Add(-1)
		q.exporter.metrics.Spans.WithLabelValues("dropped").Inc()
		return
	}
	q.SpanProcessor.OnEnd(s)
}

// exporter counts exported spans, and logs when exports begin to fail and when they work again.
type exporter struct {
	sdk.SpanExporter
	metrics *metrics.Metrics
	log     *slog.Logger
	queued  atomic.Int64
	failing bool // of the goroutine that exports
}

// ExportSpans implements [sdk.SpanExporter].
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	e.queued.Add(-int64(len(spans)))
	err := e.SpanExporter.ExportSpans(ctx, spans)
	result := "exported"
	if err != nil {
		result = "failed"
	}
	e.metrics.Spans.WithLabelValues(result).Add(float64(len(spans)))
	switch {
	case err != nil && !e.failing:
		e.log.Warn("traces can't be exported: they are dropped until the collector answers", "error", err)
	case err == nil && e.failing:
		e.log.Info("traces are exported again")
	}
	e.failing = err != nil
	return nil // already logged
}
