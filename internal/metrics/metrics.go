// Package metrics defines the sidecar's metrics, except those of the edge's memory (package edgemem). Label sets are
// closed and all series exist from the start, so that rates are right from the first event. docs/monitoring.md lists
// the metrics for operators; a test compares the two.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// BreakReason is the evidence that an event, or Redis's data, has a different history.
type BreakReason string

// The reasons.
const (
	// BreakDigest is an event with a digest that differs from the digest of the write with the event's number.
	BreakDigest BreakReason = "digest"
	// BreakHistory is a position of Redis at which a different write has the sidecar's last number.
	BreakHistory BreakReason = "history"
)

// Metrics are the sidecar's metrics, in their own registry.
type Metrics struct {
	// Registry has all metrics, and the metrics of Go's runtime and of the process.
	Registry *prometheus.Registry

	// Events, catch-ups and the connection to Redis.
	Events      *prometheus.CounterVec // result
	Corrupt     *prometheus.CounterVec // kind, reason
	Catchups    *prometheus.CounterVec // reason
	Members     prometheus.Counter
	Resyncs     *prometheus.CounterVec // reason
	Snapshots   *prometheus.CounterVec // result
	Breaks      *prometheus.CounterVec // reason: a BreakReason
	Evicts      *prometheus.GaugeVec   // keys
	RedisFill   prometheus.Gauge
	RedisAhead  prometheus.Gauge
	RedisEmpty  prometheus.Gauge
	RedisErrors prometheus.Counter
	Redis       *prometheus.HistogramVec // call
	Propagation prometheus.Histogram
	Connected   prometheus.Gauge
	Seq         prometheus.Gauge
	InStep      prometheus.Gauge

	// The object cache.
	Applied       *prometheus.CounterVec // result
	Evicted       *prometheus.CounterVec // reason
	Purged        *prometheus.CounterVec // kind
	CachedObjects prometheus.Gauge
	CachedLeftOut prometheus.Gauge
	CachedBytes   prometheus.Gauge
	CachedBudget  prometheus.Gauge

	// Credentials.
	Credentials   prometheus.Gauge
	Refused       *prometheus.CounterVec // reason
	Bcrypt        *prometheus.CounterVec // result
	BcryptSeconds prometheus.Histogram
	BcryptRunning prometheus.Gauge
	BcryptQueued  prometheus.Gauge
	HashersKilled prometheus.Counter
	Verifications *prometheus.CounterVec // outcome, reason
	Guesses       *prometheus.CounterVec // network
	Denies        *prometheus.CounterVec // result
	Shared        *prometheus.CounterVec // result
	Sessions      *prometheus.CounterVec // result
	Upgrades      *prometheus.CounterVec // result
	LastSeen      *prometheus.CounterVec // result

	// The authority, for devices without a record.
	AuthorityCalls   *prometheus.CounterVec // result
	AuthoritySeconds prometheus.Histogram
	AuthorityBroken  prometheus.Gauge
	Invalidations    *prometheus.CounterVec // result

	// The pushes.
	Pushes      *prometheus.CounterVec // result
	PushOps     prometheus.Counter
	PushBytes   prometheus.Counter
	PushSeconds prometheus.Histogram
	Epochs      *prometheus.CounterVec // reason
	PushAcked   prometheus.Gauge

	// The API.
	Requests            *prometheus.CounterVec   // call, result
	VerificationSeconds *prometheus.HistogramVec // outcome
	Fetches             *prometheus.CounterVec   // result
	FetchSeconds        prometheus.Histogram

	// The spans of traces.
	Spans *prometheus.CounterVec // result
}

// New returns the metrics in a new registry.
func New() *Metrics {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	f := factory{r}
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "gatehouse_clock_timestamp_seconds", Help: "The sidecar's clock, unix time.",
	}, func() float64 { return float64(time.Now().UnixMilli()) / 1000 }))
	return &Metrics{
		Registry: r,

		Events: f.counterVec("gatehouse_events_total", "Events received from Redis.",
			"result", "applied", "duplicate", "gap", "corrupt", "foreign", "mistrusted"),
		Corrupt: f.corruptVec(),
		Catchups: f.counterVec("gatehouse_catchups_total", "Catch-ups with the change log, by reason.",
			"reason", "connected", "gap", "overflow", "data_epoch", "comparison", "chain", "demand"),
		Members: f.newCounter("gatehouse_catchup_members_total", "Members of the change log read by catch-ups."),
		Resyncs: f.counterVec("gatehouse_full_resyncs_total", "Catch-ups that read a whole shard.",
			"reason", "start", "lost", "restarted", "trimmed", "unsure", "demand"),
		Snapshots: f.counterVec("gatehouse_snapshots_total", "Snapshots to start from, by shard.",
			"result", "applied", "refused"),
		Breaks: f.counterVec("gatehouse_chain_breaks_total",
			"Events and positions of Redis that were rejected because they do not match the chain: forged, or Redis lost "+
				"writes.", "reason", string(BreakDigest), string(BreakHistory)),
		Evicts: f.gaugeVec("gatehouse_redis_evicts", "1 if maxmemory-policy lets Redis evict such keys.",
			"keys", "any", "expiring"),
		RedisFill: f.newGauge("gatehouse_redis_memory_ratio",
			"The part of maxmemory that Redis uses, of the fullest shard's; 0 without a limit."),
		RedisAhead: f.newGauge("gatehouse_redis_clock_ahead_seconds",
			"How far Redis's clock is ahead of the sidecar's, below 0 if it is behind; of the shard where they differ most."),
		RedisEmpty: f.newGauge("gatehouse_redis_empty",
			"Shards of Redis that are empty or lack keys, which is not believed: they may have lost everything."),
		RedisErrors: f.newCounter("gatehouse_redis_errors_total", "Failed calls to Redis and lost subscriptions."),
		Redis: f.histogramVec("gatehouse_redis_seconds", "Round trips to Redis: of a command, or of a pipeline.",
			roundTrips, "call", "command", "pipeline"),
		Propagation: f.newHistogram("gatehouse_propagation_seconds",
			"Time from a write in Redis to the edge's acknowledgement of a batch with it, of writes that came as events.",
			propagations),
		Connected: f.newGauge("gatehouse_redis_connected", "1 while subscribed and caught up with every shard of Redis."),
		Seq:       f.newGauge("gatehouse_redis_seq", "The last sequence number applied; with several shards, the sum."),
		InStep: f.newGauge("gatehouse_in_step_timestamp_seconds",
			"When the sidecar was last in step with all shards of Redis, unix time."),

		Applied: f.counterVec("gatehouse_objects_applied_total", "Versions of objects, by result.",
			"result", "stored", "deleted", "not_newer", "unchanged", "not_admitted", "too_large", "expired", "purged"),
		Purged: f.counterVec("gatehouse_objects_purged_total",
			"Objects that purges removed from the edge, or made stale (soft).", "kind", "hard", "soft"),
		Evicted: f.counterVec("gatehouse_evictions_total", "Objects removed from the edge that Redis still has.",
			"reason", "budget", "expired"),
		CachedObjects: f.newGauge("gatehouse_object_cache_objects", "Objects that the edge should hold."),
		CachedLeftOut: f.newGauge("gatehouse_object_cache_left_out_objects",
			"Objects in Redis for which the edge had no room."),
		CachedBytes:  f.newGauge("gatehouse_object_cache_bytes", "Bytes of the memory budget that objects take."),
		CachedBudget: f.newGauge("gatehouse_object_cache_budget_bytes", "The memory budget, --memory.bytes."),

		Credentials: f.newGauge("gatehouse_credentials", "Credential records, without tombstones."),
		Refused: f.counterVec("gatehouse_credentials_refused_total",
			"Credential records that cannot authenticate their device.", "reason", "corrupt", "cost", "pepper"),
		Bcrypt: f.counterVec("gatehouse_bcrypt_total", "Runs of bcrypt.", "result", "match", "mismatch", "error"),
		BcryptSeconds: f.newHistogram("gatehouse_bcrypt_seconds", "Time of one run of bcrypt.",
			[]float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5}),
		BcryptRunning: f.newGauge("gatehouse_bcrypt_running", "Runs of bcrypt in progress."),
		BcryptQueued:  f.newGauge("gatehouse_bcrypt_queued", "Verifications that wait for a worker."),
		HashersKilled: f.newCounter("gatehouse_hashers_killed_total",
			"Processes of bcrypt that were killed because they gave no answer in time."),
		Verifications: f.rawCounterVec("gatehouse_verifications_total", "Verifications, by outcome and reason.",
			"outcome", "reason"),
		Sessions: f.counterVec("gatehouse_sessions_total", "Credentials shown for a token, by result.",
			"result", "issued", "refused", "unavailable"),
		Upgrades: f.counterVec("gatehouse_credential_upgrades_total",
			"Hashes that the sidecar would replace by gh1, by result.", "result", "upgraded", "stale", "dropped", "error"),
		LastSeen: f.counterVec("gatehouse_last_seen_total",
			"Devices whose last authentication was to be written to Redis, by result.",
			"result", "written", "failed", "dropped"),
		AuthorityCalls: f.counterVec("gatehouse_authority_calls_total", "Questions to the authority, by result.",
			"result", "allow", "deny", "error", "timeout", "malformed", "skipped", "busy"),
		AuthoritySeconds: f.newHistogram("gatehouse_authority_seconds",
			"Time of a question to the authority, with its retry.", calls),
		AuthorityBroken: f.newGauge("gatehouse_authority_broken",
			"1 while calls of the authority are skipped, because it failed several times in a row."),
		Invalidations: f.counterVec("gatehouse_invalidations_total", "Invalidations that the authority sent, by result.",
			"result", "written", "malformed", "unauthorized", "limited", "failed"),
		Guesses: f.counterVec("gatehouse_guesses_limited_total",
			"Secrets of devices with too many wrong ones from one network, by whether the device authenticated from there "+
				"before.", "network", "own", "other"),
		Denies: f.counterVec("gatehouse_deny_verdicts_total", "Deny verdicts, by result.",
			"result", "stored", "first", "limited"),
		Shared: f.counterVec("gatehouse_shared_verdicts_total",
			"Reads and writes of verdicts shared with other sidecars, by result.", "result", "hit", "miss",
			"waited", "stored", "invalid", "skipped", "error"),

		Pushes: f.counterVec("gatehouse_pushes_total", "Batches sent to the edge.",
			"result", "ok", "conflict", "rival", "refused", "error"),
		PushOps:   f.newCounter("gatehouse_push_operations_total", "Records in acknowledged batches."),
		PushBytes: f.newCounter("gatehouse_push_bytes_total", "Bytes of acknowledged batches."),
		PushSeconds: f.newHistogram("gatehouse_push_seconds", "Time from sending a batch to its acknowledgement.",
			[]float64{.0002, .0005, .001, .002, .005, .01, .02, .05, .1, .5, 1, 5, 30}),
		Epochs: f.counterVec("gatehouse_epochs_total", "Epochs begun: full pushes to the edge.",
			"reason", "start", "empty", "rival", "demand", "error"),
		PushAcked: f.newGauge("gatehouse_push_acknowledged_timestamp_seconds",
			"When the edge last acknowledged a batch, unix time."),

		Requests: f.requestsVec(),
		VerificationSeconds: f.histogramVec("gatehouse_verification_seconds", "Time of a verify call, without its transport.",
			calls, "outcome", "allow", "deny", "unavailable"),
		Fetches: f.counterVec("gatehouse_fetches_total", "Fetch calls, by where the object was found.",
			"result", "cache", "redis", "absent", "remembered_absent", "error"),
		FetchSeconds: f.newHistogram("gatehouse_fetch_seconds", "Time of a fetch call, without its transport.", calls),

		Spans: f.counterVec("gatehouse_spans_total", "Spans of traces, by result.",
			"result", "exported", "failed", "dropped"),
	}
}

// Bounds of the histograms' classic buckets, in seconds.
var (
	// calls range from an answer out of memory to an answer that waited for bcrypt.
	calls        = []float64{.0001, .0005, .001, .005, .01, .05, .1, .25, .5, 1, 2.5, 5, 10}
	roundTrips   = []float64{.0002, .0005, .001, .002, .005, .01, .02, .05, .1, .5, 1, 5, 20}
	propagations = []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 5, 30, 120}
)

type factory struct{ r *prometheus.Registry }

func (f factory) newCounter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	f.r.MustRegister(c)
	return c
}

func (f factory) newGauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	f.r.MustRegister(g)
	return g
}

// counterVec returns a counter with one label, initialized with all values of the label.
func (f factory) counterVec(name, help, label string, values ...string) *prometheus.CounterVec {
	v := f.rawCounterVec(name, help, label)
	for _, value := range values {
		v.WithLabelValues(value)
	}
	return v
}

func (f factory) rawCounterVec(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	f.r.MustRegister(v)
	return v
}

func (f factory) gaugeVec(name, help, label string, values ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{label})
	f.r.MustRegister(v)
	for _, value := range values {
		v.WithLabelValues(value)
	}
	return v
}

func (f factory) newHistogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(histogramOpts(name, help, buckets))
	f.r.MustRegister(h)
	return h
}

func (f factory) histogramVec(name, help string, buckets []float64, label string,
	values ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(histogramOpts(name, help, buckets), []string{label})
	f.r.MustRegister(v)
	for _, value := range values {
		v.WithLabelValues(value)
	}
	return v
}

// histogramOpts returns the options of a classic histogram that is a native histogram as well, which Prometheus reads
// if configured to.
func histogramOpts(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}
}

func (f factory) corruptVec() *prometheus.CounterVec {
	v := f.rawCounterVec("gatehouse_corrupt_total", "Malformed records and events from Redis.", "kind", "reason")
	for _, kind := range []string{"object", "credential", "purge", "event", "member"} {
		for _, reason := range []string{"missing", "unknown", "malformed", "limit", "conflict", "format"} { // contract.Reason
			v.WithLabelValues(kind, reason)
		}
	}
	return v
}

func (f factory) requestsVec() *prometheus.CounterVec {
	v := f.rawCounterVec("gatehouse_api_requests_total", "Calls from the edge.", "call", "result")
	for _, call := range []string{"verify", "session", "jwks", "fetch", "hits"} {
		for _, result := range []string{"ok", "malformed", "unavailable"} {
			v.WithLabelValues(call, result)
		}
	}
	return v
}
