package inspect

import (
	"slices"
	"testing"
)

// TestRulesOf: the page shows each rule's requests per second by outcome, and the changes that trials would make.
func TestRulesOf(t *testing.T) {
	got := groupByRule(map[string]float64{
		`gatehouse_cache_requests_total{outcome="hit",rule="a"}`:            1,
		`gatehouse_cache_requests_total{outcome="not_modified",rule="a"}`:   2,
		`gatehouse_cache_requests_total{outcome="miss",rule="a"}`:           4,
		`gatehouse_auth_requests_total{outcome="allow",rule="a"}`:           8,
		`gatehouse_auth_requests_total{outcome="deny",rule="a"}`:            16,
		`gatehouse_auth_requests_total{outcome="throttled",rule="a"}`:       32,
		`gatehouse_would_deny_requests_total{outcome="deny",rule="b"}`:      1,
		`gatehouse_would_deny_requests_total{outcome="throttled",rule="b"}`: 2,
		`gatehouse_would_hit_requests_total{outcome="same",rule="b"}`:       4,
		`gatehouse_would_hit_requests_total{outcome="different",rule="b"}`:  8,
		`gatehouse_would_hit_requests_total{outcome="no_etag",rule="b"}`:    16,
		`gatehouse_calls_total{call="fetch",rule="c"}`:                      1,
	})
	want := []ruleRates{{Name: "a", Answered: 3, Upstream: 4, Allowed: 8, Refused: 16, Unavailable: 32},
		{Name: "b", WouldDeny: 3, WouldHit: 28, Different: 8}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
