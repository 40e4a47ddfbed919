package credential

import (
	"context"
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// class returns the attempt's class. A device that authenticated from its source before has the best one, unless it has
// lately sent more wrong secrets than the limit for other devices allows.
func (v *Verifier) class(a *attempt) class {
	switch {
	case a.familiar && v.byPair.retryAfter(v.sources.pair(a.id, a.source)) == 0:
		return familiar
	case a.familiar || v.suspect(a):
		return suspect
	}
	return clean
}

// suspect reports whether the attempt's source has lately sent wrong secrets. Without a limit for sources it returns
// false: all devices may share one.
func (v *Verifier) suspect(a *attempt) bool {
	return a.source != 0 && v.SourceFailures > 0 && v.bySource.suspect(uint64(a.source))
}

// maxLookups is the maximum number of lookups of shared verdicts in a second, for attempts from one source beyond its
// limit.
const maxLookups = 25

// elsewhere looks for a shared verdict on an attempt beyond a limit. The limit is for attempts that cost bcrypt. Other
// sidecars often know a good device behind a NAT, or it authenticated at this one before.
func (v *Verifier) elsewhere(ctx context.Context, a *attempt) (Result, bool) {
	key := uint64(a.source)
	if v.lookups == nil || v.lookups.retryAfter(key) > 0 {
		return Result{}, false
	}
	v.lookups.add(key)
	if a.asks {
		v.calling(a.id, 1)
		defer v.calling(a.id, -1)
	}
	c, ok := v.question(a)
	if !ok {
		return Result{}, false
	}
	m := v.Fleet.Find(ctx, c)
	if m == nil {
		v.count(a) // or the lookups would be guesses without a limit
		return Result{}, false
	}
	return v.conclude(a, m, byFleet), true
}

// limited returns how long the limit of its source makes the attempt wait: 0 for a device that authenticated from there
// before, so that nobody can lock it out, and 0 for an unknown source, which all devices may share.
func (v *Verifier) limited(a *attempt) time.Duration {
	if a.familiar || a.source == 0 {
		return 0
	}
	return v.bySource.retryAfter(uint64(a.source))
}

// Labels of metrics: where guesses come from.
const (
	ownNetwork   = "own" // the device authenticated from there before
	otherNetwork = "other"
)

// guesses returns how long the limit of its device and source makes the attempt wait. It is 0 as in limited, but for a
// device whose right secret is another one: that one passes, so a limit on others doesn't lock it out.
func (v *Verifier) guesses(a *attempt) time.Duration {
	if a.source == 0 || a.familiar && !a.wrong {
		return 0
	}
	return v.byPair.retryAfter(v.sources.pair(a.id, a.source))
}

// guessed returns the answer to an attempt that must wait because of guesses. Unless the device authenticated from
// there before, the edge refuses all of its secrets meanwhile, also the right one, whose answer would tell that it is.
func (v *Verifier) guessed(a *attempt, wait time.Duration) Result {
	r := Result{Outcome: wire.Throttled, Reason: isOverLimit, RetryAfter: max(wait, retryAfter), ThrottleFor: wait}
	network := otherNetwork
	if a.familiar {
		r.Outcome, r.ThrottleFor, network = wire.Unavailable, 0, ownNetwork
	}
	v.metrics.Guesses.WithLabelValues(network).Inc()
	return r
}

// failed counts a wrong secret that cost bcrypt.
func (v *Verifier) failed(a *attempt) {
	v.count(a)
	v.blame(a)
}

// count counts a wrong secret for its device.
func (v *Verifier) count(a *attempt) {
	if a.source != 0 {
		v.byPair.add(v.sources.pair(a.id, a.source))
	}
}

// blame counts a wrong secret for its source, and lists it for operators.
func (v *Verifier) blame(a *attempt) {
	if a.source == 0 {
		return
	}
	if !a.familiar && v.SourceFailures > 0 {
		v.bySource.add(uint64(a.source))
		v.pool.demote(a.source)
	}
	v.name(a)
}
