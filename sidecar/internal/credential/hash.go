package credential

import (
	"context"
	"errors"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/passhash"
	"github.com/gatehouse/gatehouse/sidecar/internal/tracing"
)

// verifyHash returns the answer for the attempt by bcrypt: of this sidecar, or of a sidecar that has run or is running
// bcrypt for the attempt. It is the work of a flight: all waiting callers get the answer, and each caller checks that
// the answer is still valid.
func (v *Verifier) verifyHash(ctx context.Context, a attempt, f *flight) Result {
	c, ok := v.newQuestion(&a)
	if !ok {
		return unavailable(reasonUnsure) // no caller uses this answer: callers start over
	}
	if m := v.Fleet.Find(ctx, c); m != nil {
		return v.concludeAttempt(&a, m, reasonShared)
	}
	wanted := func() bool { return f.isWanted() && v.isCurrent(&a) }
	for patience := fleetPatience; ; {
		r, otherRuns := v.runBcrypt(ctx, a, c, wanted, patience > 0)
		if !otherRuns {
			return r
		}
		// The worker was returned, because waiting needs no CPU.
		began := time.Now()
		ctx, cancel := context.WithTimeout(ctx, patience)
		m := v.Fleet.Await(ctx, c, wanted)
		cancel()
		if m != nil {
			return v.concludeAttempt(&a, m, reasonShared)
		}
		patience -= time.Since(began) // without the time in this sidecar's queue
		if !wanted() {
			return unavailable(reasonUnsure) // no caller uses this answer: callers have gone, or start over
		}
	}
}

// runBcrypt waits for a worker and runs bcrypt. It returns otherRuns, without a run of its own, if the attempt is
// patient and another sidecar is running bcrypt for it.
func (v *Verifier) runBcrypt(ctx context.Context, a attempt, c *Question, wanted func() bool,
	patient bool) (r Result, otherRuns bool) {
	w := &waiter{device: a.id, source: a.source, class: v.classify(&a), wanted: wanted}
	_, queued := tracing.StartChild(ctx, "queue")
	err := v.pool.acquireWorker(w)
	queued.End()
	if errors.Is(err, errOverload) {
		return unavailable(reasonOverload), false
	} else if err != nil {
		return unavailable(reasonUnsure), false // no caller uses this answer: callers have gone, or start over
	}
	defer v.pool.releaseWorker(w)
	// While this attempt waited, the record may have changed, or another flight may have found the right secret.
	waited := a
	if r, done := v.decideAndBlame(&waited); done {
		return r, false
	}
	if waited.generation != a.generation {
		return unavailable(reasonUnsure), false // no caller uses this answer: callers start over
	}
	shared, end := v.Fleet.Begin(ctx, c)
	switch {
	case shared != nil:
		return v.concludeAttempt(&a, shared, reasonShared), false
	case end == nil && patient:
		return Result{}, true
	case end == nil:
		end = func(*Match) {}
	}
	var m *Match
	began := time.Now()
	for _, hash := range waited.toTry {
		if v.compareHash(ctx, hash, a.secret, w.pace) {
			m = v.newMatch(hash)
			break
		}
	}
	w.ran, w.matched = time.Since(began), m != nil
	if m == nil {
		v.countFailure(&a)
	}
	r = v.concludeAttempt(&a, m, reasonBcrypt)
	end(m)
	return r, false
}

// compareHash runs bcrypt once; pace is nil, or as for Config.Compare.
func (v *Verifier) compareHash(ctx context.Context, hash, secret string, pace <-chan bool) bool {
	_, span := tracing.StartChild(ctx, "bcrypt")
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

// concludeAttempt stores match m, nil for none, and returns the answer for the attempt. reason names the finder of m.
func (v *Verifier) concludeAttempt(a *attempt, m *Match, reason Reason) Result {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	if a.byAuthority {
		return v.concludeAuthority(a, m, now, reason)
	}
	r := v.currentRecord(a.id, now)
	if r == nil || r.generation != a.generation {
		return unavailable(reasonUnsure) // no caller uses this answer: callers start over
	}
	if m != nil {
		r.storeMatch(a.digest, m, now.Add(v.PinTTL))
	} else {
		r.addRefuted(a.digest)
	}
	switch {
	case r.refusal != "":
		return unavailable(reasonUnsure) // in doubt: the match counts if the record is applied again
	case !r.notAfter.IsZero() && !now.Before(r.notAfter):
		return v.deny(a, now, reasonExpired)
	case m == nil:
		return v.denyWrong(a, r, now, reason)
	}
	v.recordSource(r, a.id, a.source)
	v.offerUpgrade(a, r, m.Hash)
	return v.allow(a, r, r.isOldHash(m.Hash), now, reason)
}

// storeMatch stores that a secret matches, until latest at most: m may come from a sidecar with other settings or
// another clock.
func (r *record) storeMatch(d digest, m *Match, latest time.Time) {
	until := earlier(m.Until, latest)
	for i := range r.hashes {
		if h := &r.hashes[i]; h.text == m.Hash {
			h.resolved, h.digest, h.pinnedUntil = true, d, until
		}
	}
}
