package edge

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/edge/policy"
)

const named = `{"credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"}, "default": "deny", "rules": [
	{"name": "telemetry", "match": {"prefix": "/v1/telemetry"}, "auth": {}},
	{"match": {"prefix": "/v1/products/"}, "cache": {"on_miss": "fetch"}},
	{"name": "session", "match": {"path": "/v1/session", "methods": ["POST"]}, "session": "issue"}]}`

// TestManyCounters: a tick defines the counters of a few rules, because that takes time.
func TestManyCounters(t *testing.T) {
	const all = 1000
	rules := make([]string, all)
	for i := range rules {
		rules[i] = fmt.Sprintf(`{"match": {"path": "/%d"}, "cache": {}}`, i)
	}
	e := emulate(t, `{"rules": [`+strings.Join(rules, ",")+`]}`)
	defined, ticks := 0, 1
	for ; e.vm.defined <= all; ticks++ {
		if n := len(e.stats) - defined; n > 100 {
			t.Fatalf("tick %d defines %d counters, want few", ticks, n)
		}
		defined = len(e.stats)
		e.tick()
	}
	if want := 5*all + 4; len(e.stats) != want || ticks > 100 {
		t.Errorf("got %d counters after %d ticks, want %d within 100", len(e.stats), ticks, want)
	}
}

// TestCounters: a rule has its own counters, under the rule's name; the possible counters exist before the first
// request.
func TestCounters(t *testing.T) {
	e := emulate(t, named)
	want := map[string]uint64{}
	for rule, counters := range map[string][]policy.Counter{
		"none": {policy.AuthForbidden, policy.CallFailed, policy.BatchApplied, policy.BatchRefused},
		"telemetry": {policy.AuthAllow, policy.AuthDeny, policy.AuthForbidden, policy.AuthUnavailable,
			policy.AuthThrottled, policy.CallVerify, policy.CallRefresh},
		"1": {policy.CacheHit, policy.CacheNotModified, policy.CacheMiss, policy.CacheStale,
			policy.CacheBypass, policy.CallFetch},
		"session": {policy.AuthDeny, policy.AuthUnavailable, policy.AuthThrottled, policy.CallVerify, policy.SessionIssued},
	} {
		for _, c := range counters {
			want[c.StatName(rule)] = 0
		}
	}
	if !maps.Equal(e.counts, want) {
		t.Fatalf("at first: got %v, want %v", slices.Sorted(maps.Keys(e.counts)), slices.Sorted(maps.Keys(want)))
	}
	putObject(e, "/v1/products/1", 10)
	putVerdict(e, e.clock+60_000)
	send(e, "/v1/products/1")
	send(e, "/v1/products/1")
	send(e, "/v1/products/1", [2]string{"if-none-match", "*"})
	send(e, "/v1/telemetry")
	send(e, "/v1/telemetry", [2]string{"x-device-token", "twice"})
	send(e, "/open")
	e.mute = true
	send(e, "/v1/telemetry")
	e.mute, e.full = false, true
	send(e, "/v1/products/2")
	e.tick()
	for name, n := range map[string]uint64{
		"gatehouse.rule=.=1;.;outcome=.=hit;.;cache_requests_total":           2,
		"gatehouse.rule=.=1;.;outcome=.=not_modified;.;cache_requests_total":  1,
		"gatehouse.rule=.=1;.;outcome=.=miss;.;cache_requests_total":          1,
		"gatehouse.rule=.=1;.;call=.=fetch;.;calls_total":                     1,
		"gatehouse.rule=.=telemetry;.;outcome=.=allow;.;auth_requests_total":  1,
		"gatehouse.rule=.=telemetry;.;outcome=.=deny;.;auth_requests_total":   1,
		"gatehouse.rule=.=none;.;outcome=.=forbidden;.;auth_requests_total":   1,
		"gatehouse.rule=.=none;.;outcome=.=unavailable;.;auth_requests_total": 1,
		"gatehouse.calls_failed_total":                                        1,
	} {
		want[name] = n
	}
	if !maps.Equal(e.counts, want) {
		t.Errorf("got %v, want %v", e.counts, want)
	}
}
