package publisher

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Metrics are the program's metrics, in a separate registry. docs/publish-http.md lists the metrics; a test compares.
type Metrics struct {
	// Registry has the program's metrics, and the metrics of Go's runtime and of the process.
	Registry *prometheus.Registry

	Requests *prometheus.CounterVec   // route, result
	Seconds  *prometheus.HistogramVec // route
	Records  *prometheus.CounterVec   // operation, result
	Bytes    *prometheus.CounterVec   // direction
	Tokens   prometheus.Gauge
	Reloads  *prometheus.CounterVec // result
}

// results are the values of the label result for requests and records.
var results = []string{"ok", "unauthorized", "refused", "limited", "unavailable"}

// resultLabel returns the label for a status.
func resultLabel(status int) string {
	switch {
	case status < 400:
		return "ok"
	case status == 401:
		return "unauthorized"
	case status == 429:
		return "limited"
	case status < 500:
		return "refused"
	}
	return "unavailable"
}

// NewMetrics returns metrics with all series.
func NewMetrics() *Metrics {
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		Requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gatehouse_publisher_requests_total", Help: "Requests answered."}, []string{"route", "result"}),
		Seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gatehouse_publisher_request_seconds", Help: "Time from the request's headers to its answer.",
			Buckets: prometheus.ExponentialBuckets(.001, 4, 8)}, []string{"route"}),
		Records: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gatehouse_publisher_records_total", Help: "Writes and reads of one object, and purges."},
			[]string{"operation", "result"}),
		Bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gatehouse_publisher_bytes_total", Help: "Bytes of requests' bodies, and of objects that were read."},
			[]string{"direction"}),
		Tokens: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "gatehouse_publisher_tokens", Help: "Tokens of the teams."}),
		Reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gatehouse_publisher_reloads_total", Help: "Changes of the file of teams that were read."},
			[]string{"result"}),
	}
	for _, result := range results {
		for _, route := range []string{"objects", "batch", "purge", "other"} {
			m.Requests.WithLabelValues(route, result)
			m.Seconds.WithLabelValues(route)
		}
		for _, operation := range []string{"get", "put", "delete", "purge"} {
			m.Records.WithLabelValues(operation, result)
		}
	}
	for _, result := range []string{"ok", "error"} {
		m.Reloads.WithLabelValues(result)
	}
	for _, direction := range []string{"published", "read"} {
		m.Bytes.WithLabelValues(direction)
	}
	m.Registry.MustRegister(m.Requests, m.Seconds, m.Records, m.Bytes, m.Tokens, m.Reloads, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}
