package credential

import (
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics"
)

// Limits bound wrong secrets; 0 means no limit.
type Limits struct {
	DeviceFailures int           // from a single source for a single device, within Window
	SourceFailures int           // from a single source for all devices, within Window; beyond it, bcrypt doesn't run
	Window         time.Duration // a failure is forgiven every Window/limit
}

// maxLookups bounds the lookups of shared verdicts per second, for attempts from a source beyond its limit.
const maxLookups = 25

// Throttle limits an edge's wrong secrets, and knows which sources have failed lately at the edge. Who has the edge's
// socket can invent devices and sources, so failures at an edge delay nobody at another edge. It is safe for concurrent
// use.
type Throttle struct {
	limits           Limits
	metrics          *metrics.Metrics
	sources          *sources
	pool             *pool
	queue            *edgeQueue
	byPair, bySource *failures
	lookups          *failures // lookups of shared verdicts, by sources over their limit; nil: nothing is shared
	names            failureNames
}

func newThrottle(l Limits, s *sources, p *pool, sharing bool, m *metrics.Metrics) *Throttle {
	t := &Throttle{limits: l, metrics: m, sources: s, pool: p, queue: p.newEdge(),
		byPair: newFailures(l.DeviceFailures, l.Window), bySource: newFailures(l.SourceFailures, l.Window)}
	if sharing {
		t.lookups = newFailures(maxLookups, time.Second)
	}
	return t
}

// pairKey returns the key of the attempt's device and source in byPair.
func (t *Throttle) pairKey(a *attempt) uint64 { return t.sources.pairKey(a.id, a.source) }

// classify returns the attempt's class. A device that authenticated from its source before has the best class, unless
// it has lately sent more wrong secrets than the limit for other devices allows.
func (t *Throttle) classify(a *attempt) class {
	switch {
	case a.familiar && t.byPair.retryAfter(t.pairKey(a)) == 0:
		return familiar
	case a.familiar || t.isSuspect(a):
		return suspect
	}
	return clean
}

// isSuspect reports whether the attempt's source has lately sent wrong secrets. Without a limit for sources it returns
// false: all devices may share a source.
func (t *Throttle) isSuspect(a *attempt) bool {
	return a.source != 0 && t.limits.SourceFailures > 0 && t.bySource.isSuspect(uint64(a.source))
}

// sourceDelay returns how long the limit of its source delays the attempt: 0 for a device that authenticated from the
// source before, so that nobody can lock the device out, and 0 for an unknown source, which all devices may share.
func (t *Throttle) sourceDelay(a *attempt) time.Duration {
	if a.familiar || a.source == 0 {
		return 0
	}
	return t.bySource.retryAfter(uint64(a.source))
}

// refuseSource returns the answer to an attempt that must wait because of its source.
func (t *Throttle) refuseSource(a *attempt, wait time.Duration) Result {
	return Result{Outcome: wire.Unavailable, Reason: reasonLimited, RetryAfter: max(wait, retryAfter),
		ThrottleFor: t.throttleFor(a, t.bySource.retryAfter(uint64(a.source)))}
}

// delaySuspect returns r, the answer to an attempt, with a longer Retry-After if r is no verdict and the source has
// failed lately.
func (t *Throttle) delaySuspect(a *attempt, r Result) Result {
	if (r.Outcome == wire.Unavailable || r.Outcome == wire.Away) && !a.familiar && t.isSuspect(a) {
		r.Outcome, r.RetryAfter, r.ThrottleFor = wire.Unavailable, suspectAfter, t.throttleFor(a, suspectAfter)
	}
	return r
}

// throttleFor returns how long the edge can refuse new devices from the attempt's source without a call, because bcrypt
// would not run for most of these devices. With shared verdicts the time is short: another sidecar may know a device.
func (t *Throttle) throttleFor(a *attempt, limit time.Duration) time.Duration {
	if t.lookups != nil {
		return min(limit, t.lookups.retryAfter(uint64(a.source)))
	}
	return limit
}

// admitLookup reports whether a shared verdict may be looked up for an attempt beyond a limit, and counts the lookup.
func (t *Throttle) admitLookup(a *attempt) bool {
	if t.lookups == nil || t.lookups.retryAfter(uint64(a.source)) > 0 {
		return false
	}
	t.lookups.addFailure(uint64(a.source))
	return true
}

// Labels of metrics: the origin of guesses.
const (
	ownNetwork   = "own" // the device authenticated from this network before
	otherNetwork = "other"
)

// guessDelay returns how long the limit of its device and source delays the attempt. It is 0 as in sourceDelay, except
// for a secret that is known to be wrong: the right secret passes, so a limit on wrong secrets doesn't lock the device
// out.
func (t *Throttle) guessDelay(a *attempt) time.Duration {
	if a.source == 0 || a.familiar && !a.wrong {
		return 0
	}
	return t.byPair.retryAfter(t.pairKey(a))
}

// limitGuess returns the answer to an attempt that guessDelay delays; false: the attempt needn't wait.
func (t *Throttle) limitGuess(a *attempt) (r Result, limited bool) {
	if wait := t.guessDelay(a); wait > 0 {
		return t.refuseGuess(a, wait), true
	}
	return Result{}, false
}

// refuseGuess returns the answer to an attempt that must wait because of guesses. Unless the device authenticated from
// the network before, the edge refuses all secrets of the device meanwhile, also the right secret: an answer to the
// right secret would reveal it.
func (t *Throttle) refuseGuess(a *attempt, wait time.Duration) Result {
	r := Result{Outcome: wire.Throttled, Reason: reasonLimited, RetryAfter: max(wait, retryAfter), ThrottleFor: wait}
	network := otherNetwork
	if a.familiar {
		r.Outcome, r.ThrottleFor, network = wire.Unavailable, 0, ownNetwork
	}
	t.metrics.Guesses.WithLabelValues(network).Inc()
	return r
}

// countFailure counts a wrong secret that cost bcrypt.
func (t *Throttle) countFailure(a *attempt) {
	t.countGuess(a)
	t.blameSource(a)
}

// countGuess counts a wrong secret for its device and source.
func (t *Throttle) countGuess(a *attempt) {
	if a.source != 0 {
		t.byPair.addFailure(t.pairKey(a))
	}
}

// blameSource counts a wrong secret for its source, and names the failure for operators. Its caller must not hold
// [Devices]' lock, which the pool takes under its own.
func (t *Throttle) blameSource(a *attempt) {
	if a.source == 0 {
		return
	}
	if !a.familiar && t.limits.SourceFailures > 0 {
		t.bySource.addFailure(uint64(a.source))
		t.pool.demoteSource(t.queue, a.source)
	}
	t.nameFailure(a)
}
