package credential

import (
	"sync"
	"time"
)

// A table of failures grows to 65,536 slots of 24 bytes.
const (
	minFailureSets = 1 << 4
	failureSets    = 1 << 14
	failureWays    = 4
	// A key is suspect for suspectFor after its last failure.
	suspectFor = 10 * time.Minute
)

// failures limits failed attempts per key (GCRA): limit at once, then one per interval. The table's memory is bounded.
// An attacker with very many keys can only displace keys with fewer failures: the sources of good devices are in their
// records.
type failures struct {
	limit    int64         // 0: none
	interval time.Duration // a failure is forgiven every interval

	mu   sync.Mutex
	sets [][failureWays]failure // a power of two; +checklocks:mu
	// +checklocks:mu
	running map[uint64]int // number of running attempts, by key
}

// failure is a slot of the table; a free slot has key 0.
type failure struct {
	key    uint64
	tatMS  int64 // GCRA's theoretical arrival time, unix ms: when all failures are forgiven
	lastMS int64 // the last failure, unix ms
}

// newFailures returns a table that limits failures to limit per window; 0 means no limit.
func newFailures(limit int, window time.Duration) *failures {
	f := &failures{limit: int64(limit), sets: make([][failureWays]failure, minFailureSets), running: make(map[uint64]int)}
	if limit > 0 {
		f.interval = max(window/time.Duration(limit), time.Millisecond)
	}
	return f
}

// retryAfter returns how long key must wait before its next attempt, 0 for no wait.
func (f *failures) retryAfter(key uint64) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.delayAfter(key, 0)
}

// beginAttempt counts a running attempt of key until endAttempt. It counts nothing and returns false if failures of all
// running attempts would exceed the limit.
func (f *failures) beginAttempt(key uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.delayAfter(key, f.running[key]) > 0 {
		return false
	}
	f.running[key]++
	return true
}

// endAttempt ends an attempt of beginAttempt. If the attempt failed, call addFailure before endAttempt.
func (f *failures) endAttempt(key uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running[key]--; f.running[key] == 0 {
		delete(f.running, key)
	}
}

// isFull reports whether beginAttempt would return false.
func (f *failures) isFull(key uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.delayAfter(key, f.running[key]) > 0
}

// delayAfter returns retryAfter's delay after the given number of further failures.
// +checklocks:f.mu
func (f *failures) delayAfter(key uint64, more int) time.Duration {
	if f.limit == 0 {
		return 0
	}
	used := time.Duration(0)
	if at := f.findSlot(key); at != nil {
		used = max(time.Duration(at.tatMS-time.Now().UnixMilli())*time.Millisecond, 0)
	}
	if used > time.Duration(f.limit+1)*f.interval {
		used = 0 // impossible: the clock was set back by an unknown time
	}
	return min(max(used+time.Duration(int64(more)-f.limit+1)*f.interval, 0), f.interval)
}

// isSuspect reports whether key failed within suspectFor.
func (f *failures) isSuspect(key uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := f.findSlot(key)
	if at == nil {
		return false
	}
	since := time.Now().UnixMilli() - at.lastMS
	return 0 <= since && since < suspectFor.Milliseconds()
}

// addFailure counts a failure of key.
func (f *failures) addFailure(key uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now().UnixMilli()
	at := f.findSlot(key)
	if at == nil {
		at = f.chooseSlot(key, now)
		*at = failure{key: key}
	}
	// Concurrent attempts may exceed the limit, but must not extend the delay.
	latest := now + (time.Duration(f.limit) * f.interval).Milliseconds()
	at.tatMS = min(max(at.tatMS, now)+f.interval.Milliseconds(), latest)
	at.lastMS = now
}

// forgetKey forgets all failures of key.
func (f *failures) forgetKey(key uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at := f.findSlot(key); at != nil {
		*at = failure{}
	}
}

// findSlot returns the slot of key, nil for none.
// +checklocks:f.mu
func (f *failures) findSlot(key uint64) *failure {
	set := &f.sets[key%uint64(len(f.sets))]
	for i := range set {
		if set[i].key == key {
			return &set[i]
		}
	}
	return nil
}

// chooseSlot returns a free slot for key, otherwise, in a table that can't grow, the slot of the key with the fewest
// failures.
// +checklocks:f.mu
func (f *failures) chooseSlot(key uint64, nowMS int64) *failure {
	set := &f.sets[key%uint64(len(f.sets))]
	canGrow := len(f.sets) < failureSets
	least := &set[0]
	for i := range set {
		at := &set[i]
		if at.key == 0 || nowMS-at.lastMS >= suspectFor.Milliseconds() && !(canGrow && at.tatMS > nowMS) {
			return at
		}
		if at.tatMS < least.tatMS || at.tatMS == least.tatMS && at.lastMS < least.lastMS {
			least = at
		}
	}
	if canGrow {
		f.grow()
		return f.chooseSlot(key, nowMS)
	}
	return least
}

// grow doubles the table: each key stays in its set, or moves to the same place of the set's new half.
// +checklocks:f.mu
func (f *failures) grow() {
	n := len(f.sets)
	f.sets = append(f.sets, make([][failureWays]failure, n)...)
	for i := range n {
		for j, at := range f.sets[i] {
			if to := at.key % uint64(2*n); to != uint64(i) && at.key != 0 {
				f.sets[to][j], f.sets[i][j] = at, failure{}
			}
		}
	}
}
