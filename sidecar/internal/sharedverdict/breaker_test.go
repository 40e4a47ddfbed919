package sharedverdict

import (
	"testing"
	"time"
)

func TestBreaker(t *testing.T) {
	begin := time.Now()
	var b breaker
	for i, step := range []struct {
		at    time.Duration
		do    string // try, or the result of a call
		wants bool   // the call may be made; the result changed
	}{
		{0, "try", true},
		{0, "well", false},
		{1, "failed", true},
		{2, "failed", false}, // a running call fails, too
		{pause + 1, "try", false},
		{pause + 2, "try", true}, // one call tries,
		{pause + 3, "try", false},
		{pause + 4, "failed", false},
		{2*pause + 3, "try", false},
		{2*pause + 4, "try", true},
		{2*pause + 5, "well", true},
		{2*pause + 6, "try", true}, // all calls are made
		{2*pause + 6, "try", true},
	} {
		now := begin.Add(step.at)
		got := false
		switch step.do {
		case "try":
			got = b.try(now)
		default:
			got = b.done(step.do == "failed", now)
		}
		if got != step.wants {
			t.Errorf("step %d, %s at %v: %v, want %v", i, step.do, step.at, got, step.wants)
		}
	}
}
