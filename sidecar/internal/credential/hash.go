package credential

import (
	"context"
	"errors"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/passhash"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/sidecar/internal/tracing"
)

// hash runs bcrypt for the attempt, unless another sidecar has done so or is doing it, and returns the answer. It is
// the work of one flight: all waiting callers get the answer, and each of them checks that it is still valid.
func (v *Verifier) hash(ctx context.Context, a attempt, f *flight) Result {
	c, ok := v.question(&a)
	if !ok {
		return unavailable(isUnsure) // no caller uses this answer: they start over
	}
	if m := v.Fleet.Find(ctx, c); m != nil {
		return v.conclude(&a, m, byFleet)
	}
	wanted := func() bool { return f.wanted() && v.current(&a) }
	for patience := maxAwait; ; {
		r, others := v.work(ctx, a, c, wanted, patience > 0)
		if !others {
			return r
		}
		// The worker was returned, because waiting needs no CPU.
		began := time.Now()
		ctx, cancel := context.WithTimeout(ctx, patience)
		m := v.Fleet.Await(ctx, c, wanted)
		cancel()
		if m != nil {
			return v.conclude(&a, m, byFleet)
		}
		patience -= time.Since(began) // without the time in our own queue
		if !wanted() {
			return unavailable(isUnsure) // no caller uses this answer: they have gone, or start over
		}
	}
}

// work waits for a worker and runs bcrypt. others: the attempt is patient, and another sidecar is running bcrypt for
// it, so work did not.
func (v *Verifier) work(ctx context.Context, a attempt, c *Question, wanted func() bool,
	patient bool) (r Result, others bool) {
	w := &waiter{device: a.id, source: a.source, class: v.class(&a), wanted: wanted}
	_, queued := tracing.Child(ctx, "queue")
	err := v.pool.enter(w)
	queued.End()
	if errors.Is(err, errOverload) {
		return unavailable(isOverloaded), false
	} else if err != nil {
		return unavailable(isUnsure), false // no caller uses this answer: they have gone, or start over
	}
	defer v.pool.leave(w)
	// While this attempt waited, the record may have changed, or another flight may have found the right secret.
	waited := a
	if r, done := v.settle(&waited); done {
		return r, false
	}
	if waited.generation != a.generation {
		return unavailable(isUnsure), false // no caller uses this answer: they start over
	}
	shared, end := v.Fleet.Begin(ctx, c)
	switch {
	case shared != nil:
		return v.conclude(&a, shared, byFleet), false
	case end == nil && patient:
		return Result{}, true
	case end == nil:
		end = func(*Match) {}
	}
	var m *Match
	began := time.Now()
	for _, hash := range waited.toTry {
		if v.matches(ctx, hash, a.secret, w.pace) {
			m = v.match(hash)
			break
		}
	}
	w.ran, w.matched = time.Since(began), m != nil
	if m == nil {
		v.failed(&a)
	}
	r = v.conclude(&a, m, byBcrypt)
	end(m)
	return r, false
}

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

// matches runs bcrypt once; pace is nil, or as for Compare.
func (v *Verifier) matches(ctx context.Context, hash, secret string, pace <-chan bool) bool {
	_, span := tracing.Child(ctx, "bcrypt")
	started := time.Now()
	err := v.Compare(hash, secret, pace)
	span.End()
	tracing.Observe(v.metrics.BcryptSeconds, time.Since(started).Seconds(), span)
	result := "match"
	switch {
	case errors.Is(err, passhash.ErrMismatch):
		result = "mismatch"
	case err != nil:
		result = "error" // passhash can run every hash that contract.CheckHash accepts, but gh1
		v.log.Error("bcrypt failed", "error", err)
	}
	v.metrics.Bcrypt.WithLabelValues(result).Inc()
	return err == nil
}

// conclude returns the answer for the attempt with match m, nil for none. reason tells who found m.
func (v *Verifier) conclude(a *attempt, m *Match, reason Reason) Result {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	if a.asks {
		return v.concludeAsked(a, m, now, reason)
	}
	r := v.recordOf(a.id, now)
	if r == nil || r.generation != a.generation {
		return unavailable(isUnsure) // no caller uses this answer: they start over
	}
	if m != nil {
		r.resolve(a.digest, m, now.Add(v.PinTTL))
	} else {
		r.refute(a.digest)
	}
	switch {
	case r.refusal != "":
		return unavailable(isUnsure) // in doubt: this counts if the record is applied again
	case !r.notAfter.IsZero() && !now.Before(r.notAfter):
		return v.deny(a, now, isExpired)
	case m == nil:
		return v.wrong(a, r, now, reason)
	}
	v.meet(r, a.id, a.source)
	v.upgrade(a, r, m.Hash)
	return v.allow(a, r, r.old(m.Hash), now, reason)
}

// resolve stores that a secret matches, until most at the latest: m may come from a sidecar with other settings or
// another clock.
func (r *record) resolve(d digest, m *Match, most time.Time) {
	until := earlier(m.Until, most)
	for i := range r.hashes {
		if h := &r.hashes[i]; h.text == m.Hash {
			h.resolved, h.digest, h.pinnedUntil = true, d, until
		}
	}
}
