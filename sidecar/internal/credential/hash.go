package credential

import (
	"errors"
	mathrand "math/rand/v2"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// hash runs bcrypt for the attempt and answers it. It is the work of one flight: the
// answer is for all who wait, each of whom checks that it still counts.
func (v *Verifier) hash(a attempt, f *flight) Result {
	w := &waiter{device: a.id, source: a.source, class: v.class(&a), wanted: func() bool { return f.wanted() && v.current(&a) }}
	if err := v.pool.enter(w); errors.Is(err, errOverload) {
		return unavailable("overload")
	} else if err != nil {
		return unavailable("timeout")
	}
	defer v.pool.leave()
	// While this one waited, the record may have changed or another flight may have found
	// the right secret.
	waited := a
	if r, done := v.decide(&waited); done {
		return r
	}
	if waited.generation != a.generation {
		return unavailable("timeout") // nobody takes it: the callers start over
	}
	for _, hash := range waited.toTry {
		if v.matches(hash, a.secret) {
			return v.settle(&a, hash)
		}
	}
	v.failed(&a)
	return v.settle(&a, "")
}

// class is what the attempt deserves. A device that was let in from its source goes
// first, unless it has lately shown more wrong secrets than others may.
func (v *Verifier) class(a *attempt) class {
	switch {
	case a.known && v.byPair.wait(v.sources.pair(a.id, a.source)) == 0:
		return known
	case a.known || a.source != 0 && v.bySource.suspect(uint64(a.source)):
		return suspect
	}
	return clean
}

// limited is how long the attempt has to wait for other reasons than a busy pool. A device
// that was let in from its source never has to, so that nobody can lock it out; nor has
// who comes from nowhere, because that may be anybody.
func (v *Verifier) limited(a *attempt) time.Duration {
	if a.known || a.source == 0 {
		return 0
	}
	return max(v.byPair.wait(v.sources.pair(a.id, a.source)), v.bySource.wait(uint64(a.source)))
}

// failed counts a wrong secret that has cost bcrypt.
func (v *Verifier) failed(a *attempt) {
	if a.source == 0 {
		return
	}
	v.byPair.add(v.sources.pair(a.id, a.source))
	if !a.known {
		v.bySource.add(uint64(a.source))
		v.pool.demote(a.source)
	}
}

// matches runs bcrypt once.
func (v *Verifier) matches(hash, secret string) bool {
	started := time.Now()
	err := bcrypt.CompareHashAndPassword([]byte(hash), []byte(secret))
	v.metrics.BcryptSeconds.Observe(time.Since(started).Seconds())
	result := "match"
	switch {
	case errors.Is(err, bcrypt.ErrMismatchedHashAndPassword):
		result = "mismatch"
	case err != nil:
		result = "error" // what contract.CheckHash lets through, bcrypt reads
		v.log.Error("bcrypt failed", "error", err)
	}
	v.metrics.Bcrypt.WithLabelValues(result).Inc()
	return err == nil
}

// settle answers the attempt after bcrypt; matched is the hash that matched, or empty.
func (v *Verifier) settle(a *attempt, matched string) Result {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	r := v.records[a.id]
	if r == nil || r.generation != a.generation {
		return unavailable("timeout") // nobody takes it: the callers start over
	}
	if !r.notAfter.IsZero() && !now.Before(r.notAfter) {
		return v.deny(a, now, "expired")
	}
	if matched == "" {
		r.refute(a.digest)
		return v.deny(a, now, "bcrypt")
	}
	r.meet(a.source)
	// Secrets that were confirmed at one time are not all due at one time.
	pinned := now.Add(time.Duration(float64(v.PinTTL) * (1 - pinJitter*mathrand.Float64())))
	for i := range r.hashes {
		if h := &r.hashes[i]; h.bcrypt == matched {
			h.resolved, h.digest, h.pinnedUntil = true, a.digest, pinned
		}
	}
	return v.allow(a, r, now, "bcrypt")
}
