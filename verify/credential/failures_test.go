package credential

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailures(3, time.Minute)
		expect := func(key uint64, want time.Duration) {
			t.Helper()
			if got := f.retryAfter(key); got != want {
				t.Errorf("wait of %d: got %v, want %v", key, got, want)
			}
		}
		for range 3 {
			expect(1, 0)
			f.addFailure(1)
		}
		expect(1, 20*time.Second)
		expect(2, 0)
		f.addFailure(1) // concurrent with the third
		expect(1, 20*time.Second)
		time.Sleep(20 * time.Second)
		expect(1, 0)
		f.addFailure(1)
		expect(1, 20*time.Second)
		time.Sleep(time.Minute)
		expect(1, 0)
		if !f.isSuspect(1) || f.isSuspect(2) {
			t.Error("suspect is not who has failed")
		}
		time.Sleep(suspectFor)
		if f.isSuspect(1) {
			t.Error("still suspect")
		}
		f.addFailure(1)
		set := f.findSlot(1) // +checklocksignore: nothing is concurrent
		// The clock was two hours ahead.
		set.tatMS, set.lastMS = set.tatMS+2*time.Hour.Milliseconds(), set.lastMS+2*time.Hour.Milliseconds()
		if expect(1, 0); f.isSuspect(1) {
			t.Error("suspect of a failure to come")
		}
		f.addFailure(1)
		f.addFailure(1)
		f.addFailure(1)
		expect(1, 20*time.Second) // by the current clock
		none := newFailures(0, time.Minute)
		for range 100 {
			none.addFailure(1)
		}
		if got := none.retryAfter(1); got != 0 || !none.isSuspect(1) {
			t.Errorf("without a limit: wait %v, suspect %v", got, none.isSuspect(1))
		}
	})
}

// TestFailuresAreBounded floods the table with keys that fail once each: the table keeps its size, and the keys of
// frequent failures.
func TestFailuresAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no time passes
		f := newFailures(5, time.Minute)
		const often = 7
		for range 5 {
			f.addFailure(often)
		}
		for key := range uint64(500_000) {
			f.addFailure(key*2654435761 + 1)
		}
		if got := f.retryAfter(often); got != 12*time.Second {
			t.Errorf("wait %v, want 12s: the flood made it forget", got)
		}
		if got := len(f.sets); got != failureSets { // +checklocksignore: nothing is concurrent
			t.Errorf("%d sets, want %d", got, failureSets)
		}
	})
}

// TestFailuresGrow: a table of few keys is small, and keeps all of them while it grows.
func TestFailuresGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailures(1, time.Hour)
		const keys = 4000
		for key := range uint64(keys) {
			f.addFailure(key*2654435761 + 1)
		}
		time.Sleep(2 * suspectFor) // each key is still limited
		for key := range uint64(keys) {
			f.addFailure(key*40503 + 1<<40)
		}
		for key := range uint64(keys) {
			if f.retryAfter(key*2654435761+1) == 0 || f.retryAfter(key*40503+1<<40) == 0 {
				t.Fatalf("key %d is forgotten", key)
			}
		}
		if got := len(f.sets); got >= failureSets { // +checklocksignore: nothing is concurrent
			t.Errorf("%d sets for %d keys", got, 2*keys)
		}
	})
}

func TestDenies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s denyFilter
		d := func(i int) digest { return digest{0: byte(i), 1: byte(i >> 8), 8: byte(i), 9: byte(i >> 8), 15: 1} }
		expect := func(i int, costly bool, want denyFate) {
			t.Helper()
			if got := s.decideFate(d(i), time.Now(), costly); got != want {
				t.Errorf("deny of %d: %s, want %s", i, got, want)
			}
		}
		expect(1, false, "first")
		expect(1, false, "stored")
		expect(2, true, "stored")
		for i := range denyRate - 2 {
			expect(1000+i, true, "stored")
		}
		expect(3, true, "limited")
		expect(4, false, "first")
		expect(4, false, "limited")
		time.Sleep(time.Second)
		expect(4, false, "stored")
	})
}
