package chaos

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestFloor compares floor with a scan of all added steps.
func TestFloor(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var f floor
	var all []step
	for i := range 5000 {
		// Answers are added slightly out of order.
		s := step{end: at(i*3 + random.IntN(20)), version: uint64(i/10 + random.IntN(8))}
		f.addStep(s)
		all = append(all, s)
		start := at(i*3 - random.IntN(200))
		want := uint64(0)
		for _, s := range all {
			if s.end < start {
				want = max(want, s.version)
			}
		}
		if got := f.lastBefore(start).version; got != want {
			t.Fatalf("after %d answers, before %v: got version %d, want %d", i+1, start, got, want)
		}
	}
}

func TestFloorIsBounded(t *testing.T) {
	var f floor
	for i := range uint64(1000) {
		f.addStep(step{end: time.Duration(i) * time.Second, version: i})
	}
	if len(f.steps) > 70 {
		t.Errorf("got %d steps, want what the last minute has", len(f.steps))
	}
	if got := f.lastBefore(time.Hour).version; got != 999 {
		t.Errorf("got version %d, want 999", got)
	}
}
