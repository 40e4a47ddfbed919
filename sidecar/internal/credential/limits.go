package credential

import (
	"context"
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// classify returns the attempt's class. A device that authenticated from its source before has the best class, unless
// it has lately sent more wrong secrets than the limit for other devices allows.
func (v *Verifier) classify(a *attempt) class {
	switch {
	case a.familiar && v.byPair.retryAfter(v.sources.pairKey(a.id, a.source)) == 0:
		return familiar
	case a.familiar || v.isSuspect(a):
		return suspect
	}
	return clean
}

// isSuspect reports whether the attempt's source has lately sent wrong secrets. Without a limit for sources it returns
// false: all devices may share a source.
func (v *Verifier) isSuspect(a *attempt) bool {
	return a.source != 0 && v.SourceFailures > 0 && v.bySource.isSuspect(uint64(a.source))
}

// maxLookups bounds the lookups of shared verdicts per second, for attempts from a source beyond its limit.
const maxLookups = 25

// findShared looks for a shared verdict on an attempt beyond a limit. The limit is for attempts that cost bcrypt. Other
// sidecars often know a good device behind a NAT; at this sidecar, the device may have authenticated before.
func (v *Verifier) findShared(ctx context.Context, a *attempt) (Result, bool) {
	key := uint64(a.source)
	if v.lookups == nil || v.lookups.retryAfter(key) > 0 {
		return Result{}, false
	}
	v.lookups.addFailure(key)
	if a.byAuthority {
		v.countCall(a.id, 1)
		defer v.countCall(a.id, -1)
	}
	c, ok := v.newQuestion(a)
	if !ok {
		return Result{}, false
	}
	m := v.Fleet.Find(ctx, c)
	if m == nil {
		v.countGuess(a) // or the lookups would be guesses without a limit
		return Result{}, false
	}
	return v.concludeAttempt(a, m, reasonShared), true
}

// sourceDelay returns how long the limit of its source delays the attempt: 0 for a device that authenticated from the
// source before, so that nobody can lock the device out, and 0 for an unknown source, which all devices may share.
func (v *Verifier) sourceDelay(a *attempt) time.Duration {
	if a.familiar || a.source == 0 {
		return 0
	}
	return v.bySource.retryAfter(uint64(a.source))
}

// Labels of metrics: the origin of guesses.
const (
	ownNetwork   = "own" // the device authenticated from this network before
	otherNetwork = "other"
)

// guessDelay returns how long the limit of its device and source delays the attempt. It is 0 as in sourceDelay, except
// for a secret that is known to be wrong: the right secret passes, so a limit on wrong secrets doesn't lock the device
// out.
func (v *Verifier) guessDelay(a *attempt) time.Duration {
	if a.source == 0 || a.familiar && !a.wrong {
		return 0
	}
	return v.byPair.retryAfter(v.sources.pairKey(a.id, a.source))
}

// refuseGuess returns the answer to an attempt that must wait because of guesses. Unless the device authenticated from
// the network before, the edge refuses all secrets of the device meanwhile, also the right secret: an answer to the
// right secret would reveal it.
func (v *Verifier) refuseGuess(a *attempt, wait time.Duration) Result {
	r := Result{Outcome: wire.Throttled, Reason: reasonLimited, RetryAfter: max(wait, retryAfter), ThrottleFor: wait}
	network := otherNetwork
	if a.familiar {
		r.Outcome, r.ThrottleFor, network = wire.Unavailable, 0, ownNetwork
	}
	v.metrics.Guesses.WithLabelValues(network).Inc()
	return r
}

// countFailure counts a wrong secret that cost bcrypt.
func (v *Verifier) countFailure(a *attempt) {
	v.countGuess(a)
	v.blameSource(a)
}

// countGuess counts a wrong secret for its device and source.
func (v *Verifier) countGuess(a *attempt) {
	if a.source != 0 {
		v.byPair.addFailure(v.sources.pairKey(a.id, a.source))
	}
}

// blameSource counts a wrong secret for its source, and names the failure for operators.
func (v *Verifier) blameSource(a *attempt) {
	if a.source == 0 {
		return
	}
	if !a.familiar && v.SourceFailures > 0 {
		v.bySource.addFailure(uint64(a.source))
		v.pool.demoteSource(a.source)
	}
	v.nameFailure(a)
}
