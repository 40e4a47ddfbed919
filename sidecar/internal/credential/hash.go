package credential

import (
	"context"
	"errors"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// hash runs bcrypt for the attempt and answers it. It is one flight: the answer is for
// all who wait, each of whom checks that it still counts.
func (v *Verifier) hash(a attempt) Result {
	ctx, cancel := context.WithTimeout(context.Background(), hashTimeout)
	defer cancel()
	free, err := v.pool.enter(ctx)
	switch {
	case errors.Is(err, errOverload):
		return unavailable("overload")
	case err != nil:
		return unavailable("timeout")
	}
	defer free()
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
	return v.settle(&a, "")
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
		return v.deny(a, now, "bcrypt")
	}
	for i := range r.hashes {
		if h := &r.hashes[i]; h.bcrypt == matched {
			h.resolved, h.digest, h.pinnedUntil = true, a.digest, now.Add(v.PinTTL)
		}
	}
	return v.allow(a, r, now, "bcrypt")
}
