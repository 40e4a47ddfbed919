// Package breaker skips calls to a failing service, so that not each call waits for its timeout.
package breaker

import (
	"sync"
	"time"
)

// Pause is the time without calls after a failure. After the pause a single call tries.
const Pause = time.Second

// Breaker is the state of one kind of calls to a service. The zero value breaks at the first failure. A Breaker is safe
// for concurrent use.
type Breaker struct {
	// After is how many calls must fail in a row to break the circuit; 0: one.
	After int

	mu     sync.Mutex // protects all below
	failed int        // in a row
	broken bool
	next   time.Time // while broken: when the next call may be made
}

// AllowCall reports whether a call may be made now. After the call, call [Breaker.RecordResult].
func (b *Breaker) AllowCall(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.broken {
		return true
	}
	if now.Before(b.next) {
		return false
	}
	b.next = now.Add(Pause) // this call tries, all others are skipped
	return true
}

// RecordResult records the result of a call, and reports whether the result broke or mended the circuit.
func (b *Breaker) RecordResult(failed bool, now time.Time) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.broken
	if !failed {
		b.failed, b.broken = 0, false
		return before
	}
	b.failed++
	if b.broken = b.broken || b.failed >= b.After; b.broken {
		b.next = now.Add(Pause)
	}
	return b.broken != before
}
