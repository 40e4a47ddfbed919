package credential

import (
	"context"
	"crypto/hmac"
	"errors"
	mathrand "math/rand/v2"
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/passhash"
	"github.com/gatehouse/gatehouse/internal/tracing"
)

// pinJitter is the maximum fraction by which a pin is shorter than PinTTL.
const pinJitter = 0.25

// settleByRecord settles an attempt of a device with record r.
// +checklocks:v.Devices.mu
func (v *Verifier) settleByRecord(a *attempt, r *record, now time.Time) (Result, bool) {
	a.generation, a.familiar = r.generation, slices.Contains(r.sources, a.source)
	if contract.Mistyped(a.secret) {
		return v.verdicts.deny(a, r, now, reasonMalformed), true
	}
	for i := range r.hashes {
		h := &r.hashes[i]
		switch {
		case h.pepper != nil:
			if !h.pepper.Matches(h.text, a.secret) {
				continue
			}
			// No limit: nobody can guess a generated secret.
			h.resolved, h.digest = true, a.digest
			v.recordSource(r, a.id, a.source)
			return v.verdicts.allow(a, r, r.isOldHash(h.text), now, reasonGH1), true
		case !h.resolved:
			a.toTry = append(a.toTry, h.text)
		case !hmac.Equal(h.digest[:], a.digest[:]):
			a.wrong = true // another secret matches this hash
		default:
			a.toTry, a.wrong = []string{h.text}, false
			if !now.Before(h.pinnedUntil) {
				return Result{}, false
			}
			if r, limited := v.limitGuess(a); limited {
				return r, true
			}
			v.recordSource(r, a.id, a.source)
			v.offerUpgrade(a, r, h.text)
			return v.verdicts.allow(a, r, r.isOldHash(h.text), now, reasonPin), true
		}
	}
	for i := range r.refuted {
		if hmac.Equal(r.refuted[i][:], a.digest[:]) {
			return v.verdicts.denyWrong(a, r, now, reasonRefuted), true
		}
	}
	if len(a.toTry) > 0 {
		return Result{}, false
	}
	return v.denyResolved(a, r, now), true
}

// denyResolved counts and denies a wrong secret of a device whose right secrets are all known or gh1.
// +checklocks:v.Devices.mu
func (v *Verifier) denyResolved(a *attempt, r *record, now time.Time) Result {
	// Nobody can guess a secret of gh1: a limit would only lock the device out.
	guessable := slices.ContainsFunc(r.hashes, func(h hash) bool { return h.pepper == nil })
	wait := time.Duration(0)
	if guessable {
		if wait = v.guessDelay(a); wait > 0 && !a.familiar {
			return v.refuseGuess(a, wait) // not stored as refuted: a deny would reveal the wrong secret
		}
		v.countGuess(a)
	}
	r.addRefuted(a.digest)
	a.isFreeGuess = true
	denied := v.verdicts.denyWrong(a, r, now, reasonResolved)
	if !guessable || a.familiar || v.Config.DeviceFailures == 0 {
		denied.ThrottleFor = ownThrottle
	}
	if wait > 0 {
		v.metrics.Guesses.WithLabelValues(ownNetwork).Inc()
	}
	return denied
}

// verifyByHash returns the answer for the attempt by bcrypt: by a run for this edge or another edge, or of a sidecar
// that runs or has run bcrypt for the attempt. It is the work of a flight: all waiting callers get the answer, and each
// caller checks that the answer is still valid. wanted reports whether a caller still waits for the answer.
func (v *Verifier) verifyByHash(ctx context.Context, a attempt, wanted func() bool) Result {
	c, ok := v.newQuestion(&a)
	if !ok {
		return unavailable(reasonUnsure) // no caller uses this answer: callers start over
	}
	if m := v.findInFleet(ctx, c); m != nil {
		return v.conclude(&a, m, reasonShared)
	}
	for patience := fleetPatience; ; {
		// While another edge or sidecar runs bcrypt, this attempt has no worker, because waiting needs no CPU.
		r, other := v.runBcrypt(ctx, a, c, wanted, patience > 0)
		if other == nil {
			return r
		}
		<-other.done
		if other.isDecided {
			return other.result
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(ctx, patience)
		m := v.Fleet.Await(ctx, c, wanted)
		cancel()
		if m != nil {
			return v.conclude(&a, m, reasonShared)
		}
		patience -= time.Since(began) // without the time in this sidecar's queue
		if !wanted() {
			return unavailable(reasonUnsure) // no caller uses this answer: callers have gone, or start over
		}
	}
}

// runBcrypt waits for a worker and runs bcrypt. Without a run of its own, it returns the run for the attempt: another
// edge's, or, for a patient attempt that another sidecar is running bcrypt for, its own, which ended undecided.
func (v *Verifier) runBcrypt(ctx context.Context, a attempt, c *Question, wanted func() bool,
	patient bool) (r Result, other *run) {
	w := &waiter{edge: v.queue, device: a.id, source: a.source, class: v.classify(&a), wanted: wanted}
	_, queued := tracing.StartChild(ctx, "queue")
	err := v.pool.acquireWorker(w)
	queued.End()
	if errors.Is(err, errOverload) {
		return unavailable(reasonOverload), nil
	} else if err != nil {
		return unavailable(reasonUnsure), nil // no caller uses this answer: callers have gone, or start over
	}
	defer v.pool.releaseWorker(w)
	run, isNew := v.runs.begin(a.flightKey(), w.class) // before the question whether an earlier run found the verdict
	if !isNew {
		return Result{}, run
	}
	defer func() { v.runs.end(run, r, other == nil) }()
	// While this attempt waited, the record may have changed, or another flight may have found the right secret.
	waited := a
	if r, known := v.findVerdict(&waited); known {
		return r, nil
	}
	if waited.generation != a.generation {
		return unavailable(reasonUnsure), nil // no caller uses this answer: callers start over
	}
	shared, end := v.Fleet.Begin(ctx, c)
	switch {
	case shared != nil:
		return v.conclude(&a, shared, reasonShared), nil
	case end == nil && patient:
		return Result{}, run
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
	r = v.conclude(&a, m, reasonBcrypt)
	end(m)
	return r, nil
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

// newMatch returns the match that bcrypt has just found. Jitter spreads the expiry of secrets that were confirmed at
// the same time.
func (c *Config) newMatch(hash string) *Match {
	life := time.Duration(float64(c.PinTTL) * (1 - pinJitter*mathrand.Float64()))
	return &Match{Hash: hash, Until: time.Now().Add(life)}
}

// concludeByHash is conclude for a device with record r.
// +checklocks:v.Devices.mu
func (v *Verifier) concludeByHash(a *attempt, r *record, m *Match, now time.Time, reason Reason) Result {
	if m != nil {
		r.storeMatch(a.digest, m, now.Add(v.PinTTL))
	} else {
		r.addRefuted(a.digest)
	}
	switch {
	case r.refusal != "":
		return unavailable(reasonUnsure) // in doubt: the match counts if the record is applied again
	case !r.notAfter.IsZero() && !now.Before(r.notAfter):
		return v.verdicts.deny(a, r, now, reasonExpired)
	case m == nil:
		return v.verdicts.denyWrong(a, r, now, reason)
	}
	v.recordSource(r, a.id, a.source)
	v.offerUpgrade(a, r, m.Hash)
	return v.verdicts.allow(a, r, r.isOldHash(m.Hash), now, reason)
}
