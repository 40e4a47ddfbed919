package policy

// Counter is a counter of requests; its name is that of an Envoy counter.
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
	CacheFetch
	AuthAllow
	AuthGrace
	AuthDeny
	AuthForbidden
	AuthUnavailable
	AuthVerify
	AuthRefresh
	SessionIssued
	CallFailed
	BatchApplied
	BatchRefused
	// Counters is their number, including None.
	Counters
)

var counterNames = [Counters]string{
	None:             "",
	CacheHit:         "gatehouse.cache_hit",
	CacheNotModified: "gatehouse.cache_not_modified",
	CacheMiss:        "gatehouse.cache_miss",
	CacheStale:       "gatehouse.cache_stale",
	CacheStaleServed: "gatehouse.cache_stale_served",
	CacheBypass:      "gatehouse.cache_bypass",
	CacheFetch:       "gatehouse.cache_fetch",
	AuthAllow:        "gatehouse.auth_allow",
	AuthGrace:        "gatehouse.auth_grace",
	AuthDeny:         "gatehouse.auth_deny",
	AuthForbidden:    "gatehouse.auth_forbidden",
	AuthUnavailable:  "gatehouse.auth_unavailable",
	AuthVerify:       "gatehouse.auth_verify",
	AuthRefresh:      "gatehouse.auth_refresh",
	SessionIssued:    "gatehouse.session_issued",
	CallFailed:       "gatehouse.call_failed",
	BatchApplied:     "gatehouse.batch_applied",
	BatchRefused:     "gatehouse.batch_refused",
}

// String returns the counter's name in Envoy, after the prefix "wasmcustom.".
func (c Counter) String() string { return counterNames[c] }
