package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/internal/operatorapi"
)

const critical, warning = "critical", "warning"

// findProblems returns the present deviations, the worst first.
func (i *Inspector) findProblems(s *operatorapi.Status, values map[string]float64,
	devicesOverflowed bool) []operatorapi.Problem {
	list := []operatorapi.Problem{}
	check := func(bad bool, severity, format string, args ...any) {
		if bad {
			list = append(list, operatorapi.Problem{Severity: severity, Text: fmt.Sprintf(format, args...)})
		}
	}
	failure, cause := i.Failure(), ""
	if failure != "" {
		cause = ": " + failure
	}
	empty := values["gatehouse_redis_empty"]
	check(empty > 0, critical, "Redis is empty or has lost keys (shards: %.0f), so the edge keeps what it has%s", empty,
		cmp.Or(cause, ". Restore or publish its data, or run `gatehousectl accept-loss` to drop everything"))
	check(!s.Redis.Connected && empty == 0, critical,
		"Redis is not followed: no revocation arrives, and after max_staleness requests for objects go upstream%s", cause)
	for _, reason := range i.Ready() {
		known := len(list) > 0 && failure != "" && strings.HasSuffix(reason, failure)
		check(!known, critical, "not ready: %s", reason)
	}
	check(s.Redis.Connected && s.Redis.InStepAge > late, critical, "not in step with Redis for %.0f s%s",
		s.Redis.InStepAge, cause)
	check(s.Edge.Epoch != "" && s.Edge.AcknowledgedAge > late, critical, "the edge has not acknowledged a push for %.0f s",
		s.Edge.AcknowledgedAge)
	for _, e := range s.Edges {
		check(e.Problem != "", warning, "edge %s: %s", e.Name, e.Problem)
	}
	check(values[`gatehouse_redis_evicts{keys="any"}`] == 1, critical,
		"Redis may evict records: set maxmemory-policy noeviction")
	check(s.Edge.HeapFull > 75, warning,
		"Envoy's heap is %.0f %% full: from 80 %% on it resets the largest streams, at 98 %% it rejects all requests",
		s.Edge.HeapFull)
	fill := values["gatehouse_redis_memory_ratio"]
	check(fill >= 1, critical, "Redis is full (out of memory): it stores nothing, only deletions and revocations "+
		"succeed. Raise maxmemory, or remove objects")
	check(fill > 0.9 && fill < 1, warning, "Redis has used %.0f %% of maxmemory: when it is full, it stores nothing",
		100*fill)
	ahead := values["gatehouse_redis_clock_ahead_seconds"]
	check(ahead > 1, warning, "Redis's clock is %.0f s ahead of this machine's: a restart of the sidecar prolongs "+
		"objects with a ttl", ahead)
	check(ahead < -1, warning, "Redis's clock is %.0f s behind this machine's: objects with a ttl end as much too early",
		-ahead)
	check(s.Edge.AcknowledgedAge >= 0 && s.Edge.AcknowledgedAge <= late && s.Edge.InStepAge > late,
		warning, "the edge is %.0f s behind: %d buckets wait to be pushed", s.Edge.InStepAge, s.Edge.Waiting)
	check(s.Bcrypt.Queued >= float64(s.Bcrypt.Queue)/2, warning,
		"%.0f verifications wait for bcrypt, at most %d can: requests get a 503", s.Bcrypt.Queued, s.Bcrypt.Queue)
	check(s.Objects.LeftOut > 0, warning, "the edge has no room for %.0f objects: raise memory.bytes or memory.objects",
		s.Objects.LeftOut)
	check(s.Objects.LeftOut == 0 && s.Objects.Bytes > 0.9*s.Objects.Budget, warning,
		"objects take %.0f %% of their budget", 100*s.Objects.Bytes/s.Objects.Budget)
	check(values[`gatehouse_redis_evicts{keys="expiring"}`] == 1, warning,
		"Redis may evict tombstones and shared verdicts: set maxmemory-policy noeviction")
	for _, sentence := range i.Degraded() {
		check(true, warning, "%s", sentence)
	}
	check(devicesOverflowed, warning,
		"the edge has no room for the list of all devices, and asks for each unknown one: raise memory.verdicts")
	check(len(list) == 0 && !s.InStep, warning, "the edge is not in step with Redis yet")
	return list
}

const (
	verifications = "gatehouse_verifications_total"
	unavailable   = verifications + `{outcome="unavailable",reason=`
	// unavailableFor is the period over which the share of unavailable verifications counts. A share over
	// maxUnavailable is a problem.
	unavailableFor = 5 * time.Minute
	maxUnavailable = 0.05
)

// incident is a kind of problem that is shown for 15 minutes.
type incident struct {
	counters []string // prefixes of their names
	text     string   // with the number
}

// incidents are sorted by precedence among incidents of the same time: a step of the clock may cause the rest.
var incidents = []incident{
	{[]string{clockSteps}, "this machine's clock was stepped %.0f times: what has a lifetime ends too early or too late"},
	{[]string{`gatehouse_pushes_total{result="rival"}`},
		"another sidecar pushed to this edge, met %.0f times: run one sidecar for each edge"},
	{[]string{`gatehouse_full_resyncs_total{reason="lost"}`, `gatehouse_full_resyncs_total{reason="restarted"}`},
		"Redis lost data, or may have: %.0f shards were read again. The sidecar's log has what is missing"},
	{[]string{`gatehouse_chain_breaks_total{reason="digest"}`, `gatehouse_chain_breaks_total{reason="history"}`},
		"%.0f events don't match the writes in Redis: it lost writes, or somebody forges them. The sidecar's log names them"},
	{[]string{"gatehouse_corrupt_total"},
		"%.0f records or events in Redis are malformed, or gone: the sidecar's log names them"},
	{[]string{"gatehouse_credentials_refused_total"},
		"%.0f device records can't authenticate their device: the sidecar's log names them"},
	{[]string{"gatehouse_guesses_limited_total"},
		"somebody guesses secrets of devices: %.0f guesses were beyond the limit. `gatehousectl held` lists the devices " +
			"and networks"},
	{[]string{traps}, "the filter trapped or panicked, and %.0f of its VMs were started again: Envoy's log says why"},
	{[]string{refusals}, "Envoy refused %.0f changes of the rules, and goes on with the earlier ones: its log says why"},
}

// recentIncidents returns what happened in the last 15 minutes, the latest first. own has the sidecar's counters.
func (i *Inspector) recentIncidents(own map[string]float64) []operatorapi.Problem {
	i.history.mu.Lock()
	now := i.collectTotals(own)
	i.history.mu.Unlock()
	return listIncidents(i.history.listSamples(), now)
}

func listIncidents(samples []sample, now map[string]float64) (problems []operatorapi.Problem) {
	kinds := incidents
	if text := unavailableText(samples, now); text != "" {
		kinds = append(slices.Clip(kinds), incident{[]string{unavailable}, text})
	}
	current, last := time.Now(), map[string]time.Time{}
	for _, kind := range kinds {
		total := sumByPrefix(now, kind.counters)
		n := total - sumByPrefix(countersBefore(samples, maxSamples), kind.counters)
		if n <= 0 {
			continue
		}
		at := current
		for _, s := range slices.Backward(samples) {
			if sumByPrefix(s.totals, kind.counters) < total {
				break
			}
			at = s.at
		}
		text := fmt.Sprintf(kind.text+", last at %s UTC", n, at.UTC().Format(time.TimeOnly))
		problems, last[text] = append(problems, operatorapi.Problem{Severity: warning, Text: text}), at
	}
	slices.SortStableFunc(problems, func(a, b operatorapi.Problem) int { return last[b.Text].Compare(last[a.Text]) })
	return problems
}

// unavailableText returns the text of a problem if too large a part of the last verifications got a 503.
func unavailableText(samples []sample, now map[string]float64) string {
	before := countersBefore(samples, int(unavailableFor/sampleEvery))
	grown := func(name string) float64 {
		return sumByPrefix(now, []string{name}) - sumByPrefix(before, []string{name})
	}
	if grown(unavailable) <= maxUnavailable*grown(verifications) {
		return ""
	}
	reason := ""
	for name := range now {
		if strings.HasPrefix(name, unavailable) && (reason == "" || grown(name) > grown(reason)) {
			reason = name
		}
	}
	return fmt.Sprintf("%%.0f verifications got a 503, most of them because of %s", labelValue(reason, "reason"))
}

// countersBefore returns the counters n samples ago; nil, like all zero, if the sidecar is younger.
func countersBefore(samples []sample, n int) map[string]float64 {
	if len(samples) < n {
		return nil
	}
	return samples[len(samples)-n].totals
}

// sumByPrefix returns the sum of the counters whose names have any of the prefixes.
func sumByPrefix(values map[string]float64, prefixes []string) (all float64) {
	for name, value := range values {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			all += value
		}
	}
	return all
}
