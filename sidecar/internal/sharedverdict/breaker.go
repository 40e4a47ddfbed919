package sharedverdict

import (
	"sync"
	"time"
)

// pause is the time without calls after a failed one. Then one call tries, so that an unavailable Redis costs one
// callTimeout per pause, not one per verification.
const pause = time.Second

// breaker is the state of one kind of calls to one shard. It is safe for concurrent use.
type breaker struct {
	mu     sync.Mutex // protects all below
	broken bool       // the last call failed
	next   time.Time  // while broken: when the next call may be made
}

// try reports whether a call may be made now.
func (b *breaker) try(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.broken {
		return true
	}
	if now.Before(b.next) {
		return false
	}
	b.next = now.Add(pause) // this call tries, others are skipped
	return true
}

// done records the result of a call. It returns changed if earlier ones had the other result.
func (b *breaker) done(failed bool, now time.Time) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	changed = b.broken != failed
	b.broken = failed
	if failed {
		b.next = now.Add(pause)
	}
	return changed
}
