package policy

import "strings"

// Counter is a counter of a VM. In Prometheus, a counter is one time series for each rule, or one in all.
type Counter uint8

// The counters of the filter.
const (
	None Counter = iota
	CacheHit
	CacheNotModified
	CacheMiss
	CacheStale
	CacheStaleServed
	CacheBypass
	AuthAllow
	AuthGrace
	AuthDeny
	AuthForbidden
	AuthUnavailable
	AuthThrottled
	// WouldDeny to WouldThrottle count requests that pass because a rule isn't enforced: in order, AuthDeny to
	// AuthThrottled of an enforced rule.
	WouldDeny
	WouldForbid
	WouldBeUnavailable
	WouldThrottle
	// The following count requests that pass, but would be answered by an enforced cache: see [CompareETags].
	WouldHitSame
	WouldHitDifferent
	WouldHitNoETag
	WouldHitNotCompared
	CallFetch
	CallVerify
	CallRefresh
	// The following are not by rule.
	SessionIssued
	CallFailed
	BatchApplied
	BatchRefused
	// Counters is their number, including None.
	Counters
)

// ByRule reports whether the counter has a series for each rule.
func (c Counter) ByRule() bool { return c < SessionIssued }

// NoRule is the index of a rule for requests that no rule governs. Their counters and access logs have the rule
// noRuleName; no rule may have this name.
const (
	NoRule     = -1
	noRuleName = "none"
)

// series is the metric of a counter and, if the metric has several counters, the label of the counter.
type series struct{ metric, label, value string }

var counterSeries = [Counters]series{
	CacheHit:            {"cache_requests_total", "outcome", "hit"},
	CacheNotModified:    {"cache_requests_total", "outcome", "not_modified"},
	CacheMiss:           {"cache_requests_total", "outcome", "miss"},
	CacheStale:          {"cache_requests_total", "outcome", "stale"},
	CacheStaleServed:    {"cache_requests_total", "outcome", "stale_served"},
	CacheBypass:         {"cache_requests_total", "outcome", "bypass"},
	AuthAllow:           {"auth_requests_total", "outcome", "allow"},
	AuthGrace:           {"auth_requests_total", "outcome", "grace"},
	AuthDeny:            {"auth_requests_total", "outcome", "deny"},
	AuthForbidden:       {"auth_requests_total", "outcome", "forbidden"},
	AuthUnavailable:     {"auth_requests_total", "outcome", "unavailable"},
	AuthThrottled:       {"auth_requests_total", "outcome", "throttled"},
	CallFetch:           {"calls_total", "call", "fetch"},
	WouldDeny:           {"would_deny_requests_total", "outcome", "deny"},
	WouldForbid:         {"would_deny_requests_total", "outcome", "forbidden"},
	WouldBeUnavailable:  {"would_deny_requests_total", "outcome", "unavailable"},
	WouldThrottle:       {"would_deny_requests_total", "outcome", "throttled"},
	WouldHitSame:        {"would_hit_requests_total", "outcome", "same"},
	WouldHitDifferent:   {"would_hit_requests_total", "outcome", "different"},
	WouldHitNoETag:      {"would_hit_requests_total", "outcome", "no_etag"},
	WouldHitNotCompared: {"would_hit_requests_total", "outcome", "not_compared"},
	CallVerify:          {"calls_total", "call", "verify"},
	CallRefresh:         {"calls_total", "call", "refresh"},
	SessionIssued:       {"sessions_issued_total", "", ""},
	CallFailed:          {"calls_failed_total", "", ""},
	BatchApplied:        {"batches_total", "result", "applied"},
	BatchRefused:        {"batches_total", "result", "refused"},
}

// String returns a short name: cache_hit, calls_fetch, sessions_issued.
func (c Counter) String() string {
	s := &counterSeries[c]
	if s.label == "" {
		return strings.TrimSuffix(s.metric, "_total")
	}
	family, _, _ := strings.Cut(s.metric, "_")
	return family + "_" + s.value
}

// StatName returns the name of a rule's counter in Envoy's stats, after the prefix "wasmcustom.". Labels have the form
// of Istio's own metrics, from which Envoy's stats_tags extract them; docs/decisions/module.md says why.
func (c Counter) StatName(rule string) string {
	s := &counterSeries[c]
	name := "gatehouse."
	if c.ByRule() {
		name += formatLabel("rule", rule)
	}
	if s.label != "" {
		name += formatLabel(s.label, s.value)
	}
	return name + s.metric
}

func formatLabel(name, value string) string { return name + "=.=" + value + ";.;" }

// RuleName returns a rule's name by index, "none" for [NoRule].
func (c *Config) RuleName(rule int) string {
	if rule == NoRule {
		return noRuleName
	}
	return c.Rules[rule].Name
}

// hasAuthTrial reports whether some rule or default isn't enforced.
func (c *Config) hasAuthTrial() bool {
	for host := NoVirtualHost; host < len(c.VirtualHosts); host++ {
		if tries, _ := c.findEnforcement(c.HostRules(host)); tries {
			return true
		}
	}
	return false
}

// ExpectsCounter reports whether requests of a rule, or of [NoRule], commonly increment a counter: the series should
// exist before the first request.
func (c *Config) ExpectsCounter(rule int, counter Counter) bool {
	if rule == NoRule {
		return counter == AuthForbidden || counter == CallFailed || counter == BatchApplied || counter == BatchRefused ||
			counter == WouldForbid && c.hasAuthTrial()
	}
	r := &c.Rules[rule]
	switch counter {
	case CacheMiss, CacheStale, CacheBypass:
		return r.Cache != nil
	case CacheHit, CacheNotModified:
		return r.isServed()
	case CacheStaleServed:
		return r.isServed() && c.ServeStale
	case CallFetch:
		return r.isServed() && r.Cache.Fetch
	case WouldHitSame, WouldHitDifferent, WouldHitNoETag, WouldHitNotCompared:
		return r.Cache != nil && r.Cache.Trial
	case AuthAllow, CallRefresh:
		return r.Auth != nil
	case AuthForbidden:
		return r.Auth != nil && !r.Auth.Trial
	case AuthGrace:
		return r.Auth != nil && c.VerdictGrace > 0
	case WouldDeny, WouldForbid, WouldBeUnavailable, WouldThrottle:
		return r.isAuthTrial()
	case AuthDeny, AuthUnavailable, AuthThrottled:
		return r.enforcesAuth()
	case CallVerify:
		return r.NeedsCredential()
	case SessionIssued:
		return r.IssueSession
	}
	return false
}
