package breaker

import (
	"testing"
	"time"
)

func TestBreaker(t *testing.T) {
	begin := time.Now()
	var b Breaker
	for i, step := range []struct {
		at    time.Duration
		do    string // try, or the result of a call
		wants bool   // the call may be made; the result changed
	}{
		{0, "try", true},
		{0, "well", false},
		{1, "failed", true},
		{2, "failed", false}, // a running call fails, too
		{Pause + 1, "try", false},
		{Pause + 2, "try", true}, // one call tries,
		{Pause + 3, "try", false},
		{Pause + 4, "failed", false},
		{2*Pause + 3, "try", false},
		{2*Pause + 4, "try", true},
		{2*Pause + 5, "well", true},
		{2*Pause + 6, "try", true}, // all calls are made
		{2*Pause + 6, "try", true},
	} {
		now := begin.Add(step.at)
		got := false
		switch step.do {
		case "try":
			got = b.AllowCall(now)
		default:
			got = b.RecordResult(step.do == "failed", now)
		}
		if got != step.wants {
			t.Errorf("step %d, %s at %v: %v, want %v", i, step.do, step.at, got, step.wants)
		}
	}
}

func TestBreaksAfter(t *testing.T) {
	now := time.Now()
	b := Breaker{After: 3}
	for i, failed := range []bool{true, true, false, true, true, true} {
		if changed := b.RecordResult(failed, now); changed != (i == 5) {
			t.Errorf("call %d: changed is %v", i, changed)
		}
		if got := b.AllowCall(now); got != (i < 5) {
			t.Errorf("call %d: the next may be made: %v", i, got)
		}
	}
	if !b.RecordResult(false, now) || !b.AllowCall(now) {
		t.Error("a good call did not mend it")
	}
}
