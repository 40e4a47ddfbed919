// Package breaker skips calls to a service that fails, so that not each of them waits for its timeout.
package breaker

import (
	"sync"
	"time"
)

// Pause is the time without calls after failed ones. Then one call tries.
const Pause = time.Second

// Breaker is the state of one kind of calls to one service. Its zero value breaks at the first failure. It is safe for
// concurrent use.
type Breaker struct {
	// After is how many calls must fail in a row; 0: one.
	After int

	mu     sync.Mutex // protects all below
	failed int        // in a row
	broken bool
	next   time.Time // while broken: when the next call may be made
}

// Try reports whether a call may be made now. Call [Breaker.Done] after it.
func (b *Breaker) Try(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.broken {
		return true
	}
	if now.Before(b.next) {
		return false
	}
	b.next = now.Add(Pause) // this call tries, others are skipped
	return true
}

// Done records the result of a call. It reports whether that broke or mended the circuit.
func (b *Breaker) Done(failed bool, now time.Time) (changed bool) {
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
