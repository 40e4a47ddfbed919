package inspect

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

const (
	// sampleEvery is the interval of samples, sampled their number: 15 minutes.
	sampleEvery = 5 * time.Second
	maxSamples  = 180
	// maxCounters bounds the edge's response with counters, bytes.
	maxCounters = 4 << 20
)

// sample is the state at one time; NaN is unknown.
type sample struct {
	at time.Time
	// hits is the share of the requests under cache rules that the edge answered, since the sample before.
	hits     float64
	bcryptMS float64            // mean time of a run since the sample before
	lagS     float64            // age of the in-step time at the edge
	queue    float64            // verifications that wait for a worker
	budget   float64            // share in use
	verifies float64            // verifications per second
	totals   map[string]float64 // see [Inspector.collectTotals]
}

// history is the past, safe for concurrent use.
type history struct {
	mu   sync.Mutex
	past // +checklocks:mu
}

// past has the last samples, and what the next sample is compared with.
type past struct {
	samples    []sample
	edge       map[string]float64 // the edge's counters at the last sample; nil: unknown
	growthPerS map[string]float64 // their growth per second
	own        map[string]float64 // the sidecar's counters
	at         time.Time
	since      time.Time // the edge has been in step since; zero: it isn't

	heap                        float64 // how full Envoy's is, percent; 0: unknown
	traps, clockSteps, refusals float64 // since the start
}

// edgeRates returns the growth of the edge's counters per second.
func (h *history) edgeRates() map[string]float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.growthPerS
}

// inStepSince returns since when the edge has been in step, to a sample; zero: it isn't, or since unknown.
func (h *history) inStepSince() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.since
}

// heapFull returns how full Envoy's heap is, in percent; 0: unknown.
func (h *history) heapFull() float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.heap
}

// Names of counters in a sample's totals without a metric.
const (
	traps      = "traps"       // VMs of the filter that were started again after a trap or panic, or not
	refusals   = "refusals"    // filters that Envoy read and refused
	clockSteps = "clock steps" // of this machine
)

// collectTotals returns the sidecar's counters together with traps, clock steps and refusals.
// +checklocks:i.history.mu
func (i *Inspector) collectTotals(own map[string]float64) map[string]float64 {
	all := maps.Clone(own)
	all[traps], all[clockSteps], all[refusals] = i.history.traps, i.history.clockSteps, i.history.refusals
	return all
}

// listSamples returns the samples, oldest first.
func (h *history) listSamples() []sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]sample(nil), h.samples...)
}

// Run takes samples until ctx ends.
func (i *Inspector) Run(ctx context.Context) error {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		i.takeSample(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// takeSample takes one sample.
func (i *Inspector) takeSample(ctx context.Context) {
	edge := i.readEdgeCounters(ctx)
	now := time.Now()
	gauges, own := i.gatherMetrics()
	h := &i.history
	h.mu.Lock()
	defer h.mu.Unlock()
	seconds := now.Sub(h.at).Seconds()
	h.countIncidents(now, edge)
	rate := growthRates(h.own, own, seconds)
	s := sample{
		at: now, hits: math.NaN(), bcryptMS: 1000 * sumSeries(rate, "gatehouse_bcrypt_seconds_sum") / sumSeries(rate,
			"gatehouse_bcrypt_seconds_count"),
		lagS:     math.NaN(),
		queue:    gauges["gatehouse_bcrypt_queued"],
		budget:   gauges["gatehouse_object_cache_bytes"] / gauges["gatehouse_object_cache_budget_bytes"],
		verifies: sumSeries(rate, "gatehouse_verifications_total"), totals: i.collectTotals(own),
	}
	if inStep := i.Memory.Stats().InStepMS; inStep != 0 {
		s.lagS = math.Max(0, float64(now.UnixMilli()-inStep)/1000)
	}
	switch inStep := s.lagS <= late && gauges["gatehouse_redis_connected"] == 1; {
	case !inStep:
		h.since = time.Time{}
	case h.since.IsZero():
		h.since = now
	}
	h.growthPerS = nil
	if edge != nil && h.edge != nil {
		h.growthPerS = growthRates(h.edge, edge, seconds)
		var answered, all float64
		for _, r := range groupByRule(h.growthPerS) {
			answered, all = answered+r.Answered, all+r.Answered+r.Upstream
		}
		s.hits = answered / all // NaN without requests
	}
	h.edge, h.own, h.at = edge, own, now
	if len(h.samples) == maxSamples {
		h.samples = append(h.samples[:0], h.samples[1:]...)
	}
	h.samples = append(h.samples, s)
}

// countIncidents counts traps, refusals and steps of the clock since the sample before.
func (h *past) countIncidents(now time.Time, edge map[string]float64) {
	if step := now.Round(0).Sub(h.at.Round(0)) - now.Sub(h.at); !h.at.IsZero() && step.Abs() > clockStep {
		h.clockSteps++
	}
	h.heap = edge[heapPressure]
	delete(edge, heapPressure) // not a counter
	if h.edge != nil && edge != nil {
		for name, value := range edge {
			switch grown := max(0, value-h.edge[name]); {
			case isReload(name):
				h.traps += grown
			case isRefusal(name):
				h.refusals += grown
			}
		}
	}
}

const (
	// clockStep is the difference between the clock and the elapsed time, between two samples, from which on the clock
	// counts as stepped.
	clockStep = time.Second
	// heapPressure is a gauge of Envoy.
	heapPressure = "envoy_overload_envoy_resource_monitors_fixed_heap_pressure"
)

// isReload reports whether name is a counter of VMs that Envoy restarted, or failed to restart, after a trap or panic.
func isReload(name string) bool {
	return name == "gatehouse_panics_total" || strings.HasSuffix(name, "_vm_reload_success") ||
		strings.HasSuffix(name, "_vm_reload_failure")
}

// isRefusal reports whether name is a counter of filters that Envoy read and refused.
func isRefusal(name string) bool {
	name, _, _ = strings.Cut(name, "{")
	return strings.HasPrefix(name, "envoy_extension_config_discovery") && strings.HasSuffix(name, "_update_rejected")
}

// The edge's counters of requests, see docs/monitoring.md.
const (
	cacheRequests = "gatehouse_cache_requests_total"
	authRequests  = "gatehouse_auth_requests_total"
	wouldDeny     = "gatehouse_would_deny_requests_total"
	wouldHit      = "gatehouse_would_hit_requests_total"
)

// growthRates returns the growth per second of each counter, from 0 for a counter that was set back.
func growthRates(before, after map[string]float64, seconds float64) map[string]float64 {
	rates := make(map[string]float64, len(after))
	for name, value := range after {
		if last := before[name]; before != nil && value >= last {
			rates[name] = (value - last) / seconds
		}
	}
	return rates
}

// sumSeries returns the sum of a counter over all labels.
func sumSeries(values map[string]float64, name string) (sum float64) {
	for full, value := range values {
		if rest, found := strings.CutPrefix(full, name); found && (rest == "" || rest[0] == '{') {
			sum += value
		}
	}
	return sum
}

// readEdgeCounters reads Gatehouse's counters, and the counters that [past.countIncidents] needs, from Envoy or, at
// nginx's path, from nginx; nil on failure.
func (i *Inspector) readEdgeCounters(ctx context.Context) map[string]float64 {
	ctx, cancel := context.WithTimeout(ctx, sampleEvery/2)
	defer cancel()
	for _, path := range []string{envoyCounters, "/metrics"} {
		if values, err := fetchCounters(ctx, "http://"+i.EdgeAdmin+path); err == nil {
			return values
		}
	}
	return nil
}

const envoyCounters = "/stats/prometheus?filter=" +
	"%5E(wasm%7Cdynamicmodulescustom%7Coverload.envoy.resource_monitors.fixed_heap.pressure" +
	"%7Cextension_config_discovery.*update_rejected)"

func fetchCounters(ctx context.Context, url string) (map[string]float64, error) {
	body, err := fetchBody(ctx, url, maxCounters)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	values := map[string]float64{}
	for name, family := range families {
		for _, m := range family.GetMetric() {
			switch {
			case m.GetCounter() != nil && (strings.HasPrefix(name, prefix) || isReload(name) || isRefusal(name)):
				values[name+formatLabels(m)] = m.GetCounter().GetValue()
			case name == heapPressure:
				values[name] = m.GetGauge().GetValue()
			}
		}
	}
	return values, nil
}
