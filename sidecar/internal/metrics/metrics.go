// Package metrics defines all metrics of the sidecar. Label sets are closed and
// all their series exist from the start, so that a rate is right from the first event on.
// sidecar/README.md lists them for operators; a test compares.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/image"
)

// BreakReason says what was of another history.
type BreakReason string

// The reasons.
const (
	// BreakDigest is an event whose digest is not that of the write with its number.
	BreakDigest BreakReason = "digest"
	// BreakFormat is an event of format 1 in a shard that has a chain: of an old writer, or forged.
	BreakFormat BreakReason = "format"
	// BreakHistory is a position of Redis that has another write at our number.
	BreakHistory BreakReason = "history"
)

// Metrics are the sidecar's metrics, in a registry of their own.
type Metrics struct {
	// Registry has them all, and those of Go's runtime and of the process.
	Registry *prometheus.Registry

	// Events: what came from Redis.
	Events      *prometheus.CounterVec // result
	Corrupt     *prometheus.CounterVec // kind, reason
	Catchups    *prometheus.CounterVec // reason
	Members     prometheus.Counter
	Resyncs     prometheus.Counter
	Breaks      *prometheus.CounterVec // reason: a BreakReason
	Evicts      *prometheus.GaugeVec   // keys
	RedisErrors prometheus.Counter
	Connected   prometheus.Gauge
	Seq         prometheus.Gauge
	InStep      prometheus.Gauge

	// The mirror.
	Applied       *prometheus.CounterVec // result
	Evicted       *prometheus.CounterVec // reason
	MirrorObjects prometheus.Gauge
	MirrorLeftOut prometheus.Gauge
	MirrorBytes   prometheus.Gauge
	MirrorBudget  prometheus.Gauge
	Collisions    prometheus.Counter

	// Credentials.
	Credentials   prometheus.Gauge
	Refused       *prometheus.CounterVec // reason
	Bcrypt        *prometheus.CounterVec // result
	BcryptSeconds prometheus.Histogram
	BcryptRunning prometheus.Gauge
	BcryptQueued  prometheus.Gauge
	HashersKilled prometheus.Counter
	Verifications *prometheus.CounterVec // outcome, reason
	Denies        *prometheus.CounterVec // result
	Shared        *prometheus.CounterVec // result
	Sessions      *prometheus.CounterVec // result

	// The push.
	Pushes      *prometheus.CounterVec // result
	PushOps     prometheus.Counter
	PushBytes   prometheus.Counter
	PushSeconds prometheus.Histogram
	Epochs      *prometheus.CounterVec // reason
	PushAcked   prometheus.Gauge

	// The API.
	Requests *prometheus.CounterVec // call, result
	Fetches  *prometheus.CounterVec // result
}

// New makes them.
func New() *Metrics {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	f := factory{r}
	return &Metrics{
		Registry: r,

		Events:      f.vector("gatehouse_events_total", "Events received from Redis.", "result", "applied", "duplicate", "gap", "corrupt", "foreign", "mistrusted"),
		Corrupt:     f.corrupt(),
		Catchups:    f.vector("gatehouse_catchups_total", "Catch-ups with the change log, by what they were started for.", "reason", "connected", "gap", "overflow", "epoch", "comparison", "chain"),
		Members:     f.counter("gatehouse_catchup_members_total", "Members of the change log read by catch-ups."),
		Resyncs:     f.counter("gatehouse_full_resyncs_total", "Catch-ups that read everything: at start, and when Redis lost data, was restarted or failed over."),
		Breaks:      f.vector("gatehouse_chain_breaks_total", "What was of another history than ours: forged, or Redis lost writes. It was not believed.", "reason", string(BreakDigest), string(BreakFormat), string(BreakHistory)),
		Evicts:      f.gauges("gatehouse_redis_evicts", "1 where the maxmemory-policy of Redis lets it evict such keys.", "keys", "any", "expiring"),
		RedisErrors: f.counter("gatehouse_redis_errors_total", "Failed calls to Redis and lost subscriptions."),
		Connected:   f.gauge("gatehouse_redis_connected", "1 while subscribed to Redis and caught up, with every shard."),
		Seq:         f.gauge("gatehouse_redis_seq", "The last sequence number applied; of several shards, their sum."),
		InStep:      f.gauge("gatehouse_in_step_timestamp_seconds", "When the sidecar was last in step with Redis, unix time."),

		Applied:       f.vector("gatehouse_objects_applied_total", "Versions of objects, by what became of them.", "result", "stored", "deleted", "not_newer", "unchanged", "not_admitted", "too_large", "expired"),
		Evicted:       f.vector("gatehouse_evictions_total", "Objects removed from the edge although Redis has them.", "reason", "budget", "expired"),
		MirrorObjects: f.gauge("gatehouse_mirror_objects", "Objects that the edge should hold."),
		MirrorLeftOut: f.gauge("gatehouse_mirror_left_out_objects", "Objects that Redis has and the edge had no room for."),
		MirrorBytes:   f.gauge("gatehouse_mirror_bytes", "What they take of the memory budget."),
		MirrorBudget:  f.gauge("gatehouse_mirror_budget_bytes", "The memory budget, --memory.bytes."),
		Collisions:    f.counter("gatehouse_key_collisions_total", "Objects written or read while Redis has another one whose key is the same to the edge."),

		Credentials:   f.gauge("gatehouse_credentials", "Credential records, without tombstones."),
		Refused:       f.vector("gatehouse_credentials_refused_total", "Credential records that can let nobody in.", "reason", "corrupt", "cost", "permissions"),
		Bcrypt:        f.vector("gatehouse_bcrypt_total", "Runs of bcrypt.", "result", "match", "mismatch", "error"),
		BcryptSeconds: f.histogram("gatehouse_bcrypt_seconds", "Time of one run of bcrypt.", .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5),
		BcryptRunning: f.gauge("gatehouse_bcrypt_running", "Runs of bcrypt under way."),
		BcryptQueued:  f.gauge("gatehouse_bcrypt_queued", "Verifications that wait for a worker."),
		HashersKilled: f.counter("gatehouse_hashers_killed_total", "Processes of bcrypt that gave no answer in time, and were killed."),
		Verifications: f.verifications(),
		Sessions:      f.vector("gatehouse_sessions_total", "Credentials shown for a token, by what they got.", "result", "issued", "refused", "unavailable"),
		Denies:        f.vector("gatehouse_deny_verdicts_total", "Deny verdicts, by what became of them.", "result", "stored", "first", "limited"),
		Shared:        f.vector("gatehouse_shared_verdicts_total", "Verdicts shared with other sidecars, by what became of asking or telling.", "result", "hit", "miss", "waited", "stored", "invalid", "skipped", "error"),

		Pushes:      f.vector("gatehouse_pushes_total", "Batches sent to the edge.", "result", "ok", "conflict", "rival", "refused", "error"),
		PushOps:     f.counter("gatehouse_push_operations_total", "Records in acknowledged batches."),
		PushBytes:   f.counter("gatehouse_push_bytes_total", "Bytes of acknowledged batches."),
		PushSeconds: f.histogram("gatehouse_push_seconds", "Time from sending a batch to its acknowledgement.", .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .5, 1, 5, 30),
		Epochs:      f.vector("gatehouse_epochs_total", "Epochs begun: everything is pushed again.", "reason", "start", "empty", "rival", "permissions", "error"),
		PushAcked:   f.gauge("gatehouse_push_acknowledged_timestamp_seconds", "When the edge last acknowledged a batch, unix time."),

		Requests: f.requests(),
		Fetches:  f.vector("gatehouse_fetches_total", "Fetch calls, by where the answer came from.", "result", "mirror", "redis", "absent", "remembered_absent", "error"),
	}
}

// WatchImage adds what there is to say of the image, which is asked once for all of it.
func (m *Metrics) WatchImage(stats func() image.Stats) {
	m.Registry.MustRegister(imageCollector(stats))
}

// imageCollector is the counts of an image as metrics.
type imageCollector func() image.Stats

type imageMetric struct {
	description *prometheus.Desc
	kind        prometheus.ValueType
	value       func(s *image.Stats) float64
}

var imageMetrics = []imageMetric{
	imageGauge("objects", "Objects in the image of the edge's memory.", func(s *image.Stats) int { return s.Objects }),
	imageGauge("dirty_buckets", "Buckets that changed and were not sent yet.", func(s *image.Stats) int { return s.DirtyBuckets }),
	imageGauge("body_slots", "Body slots that this memory has ever had.", func(s *image.Stats) int { return s.Slots }),
	imageGauge("free_body_slots", "Body slots that wait to be used again.", func(s *image.Stats) int { return s.FreeSlots }),
	imageGauge("places", "Keys of shared memory that were written; fixed soon after start, but for body slots.", func(s *image.Stats) int { return s.Places }),
	imageGauge("permissions", "Permission names that the edge knows, at most 64.", func(s *image.Stats) int { return s.Permissions }),
	imageGauge("devices", "Registered devices that the edge knows of; fewer than those that may come in if there are too many for memory.verdicts.", func(s *image.Stats) int { return s.Devices }),
	imageGauge("allow_verdicts", "Allow verdicts stored at the edge.", func(s *image.Stats) int { return s.Allows }),
	imageGauge("deny_verdicts", "Deny verdicts stored at the edge.", func(s *image.Stats) int { return s.Denies }),
	{
		prometheus.NewDesc("gatehouse_image_in_step_timestamp_seconds", "As of when the edge is told that it is in step with Redis, unix time.", nil, nil),
		prometheus.GaugeValue, func(s *image.Stats) float64 { return float64(s.InStepMS) / 1000 },
	},
	{
		prometheus.NewDesc("gatehouse_image_verdicts_evicted_total", "Verdicts dropped before they expired, for lack of room.", nil, nil),
		prometheus.CounterValue, func(s *image.Stats) float64 { return float64(s.EvictedVerdicts) },
	},
}

func imageGauge(name, help string, value func(s *image.Stats) int) imageMetric {
	return imageMetric{
		prometheus.NewDesc("gatehouse_image_"+name, help, nil, nil),
		prometheus.GaugeValue, func(s *image.Stats) float64 { return float64(value(s)) },
	}
}

// Describe implements [prometheus.Collector].
func (imageCollector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, m := range imageMetrics {
		descriptions <- m.description
	}
}

// Collect implements [prometheus.Collector].
func (c imageCollector) Collect(metrics chan<- prometheus.Metric) {
	s := c()
	for _, m := range imageMetrics {
		metrics <- prometheus.MustNewConstMetric(m.description, m.kind, m.value(&s))
	}
}

type factory struct{ r *prometheus.Registry }

func (f factory) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	f.r.MustRegister(c)
	return c
}

func (f factory) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	f.r.MustRegister(g)
	return g
}

// vector is a counter with one label, whose values are all given.
func (f factory) vector(name, help, label string, values ...string) *prometheus.CounterVec {
	v := f.vectors(name, help, label)
	for _, value := range values {
		v.WithLabelValues(value)
	}
	return v
}

func (f factory) vectors(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	f.r.MustRegister(v)
	return v
}

func (f factory) gauges(name, help, label string, values ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{label})
	f.r.MustRegister(v)
	for _, value := range values {
		v.WithLabelValues(value)
	}
	return v
}

func (f factory) histogram(name, help string, buckets ...float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	f.r.MustRegister(h)
	return h
}

func (f factory) corrupt() *prometheus.CounterVec {
	v := f.vectors("gatehouse_corrupt_total", "Records and events from Redis that were refused.", "kind", "reason")
	for _, kind := range []string{"object", "credential", "event", "member"} {
		for _, reason := range []contract.Reason{
			contract.ReasonMissing, contract.ReasonUnknown, contract.ReasonMalformed,
			contract.ReasonLimit, contract.ReasonConflict, contract.ReasonFormat,
		} {
			v.WithLabelValues(kind, string(reason))
		}
	}
	return v
}

func (f factory) verifications() *prometheus.CounterVec {
	v := f.vectors("gatehouse_verifications_total", "Verifications, by outcome and by what decided.", "outcome", "reason")
	for outcome, reasons := range map[string][]string{
		"allow":       {"bcrypt", "pin", "shared", "session"},
		"deny":        {"unknown", "revoked", "disabled", "expired", "malformed", "refused_record", "bcrypt", "resolved", "refuted", "session"},
		"unavailable": {"starting", "permissions", "overload", "limited", "timeout"},
	} {
		for _, reason := range reasons {
			v.WithLabelValues(outcome, reason)
		}
	}
	return v
}

func (f factory) requests() *prometheus.CounterVec {
	v := f.vectors("gatehouse_api_requests_total", "Calls from the edge.", "call", "result")
	for _, call := range []string{"verify", "session", "jwks", "fetch", "hits"} {
		for _, result := range []string{"ok", "malformed", "unavailable"} {
			v.WithLabelValues(call, result)
		}
	}
	return v
}
