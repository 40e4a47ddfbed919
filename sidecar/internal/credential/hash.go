package credential

import (
	"context"
	"errors"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/passhash"
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
