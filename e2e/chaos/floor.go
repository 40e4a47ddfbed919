package chaos

import (
	"slices"
	"time"
)

// floor is the versions seen of one key through one edge: later answers must not be older. Answers overlap, and the
// order of two decisions is known only if one answer began after the other had ended. So floor is a step function of
// the times at which answers ended.
type floor struct {
	steps []step // ascending in both
}

type step struct {
	end     time.Duration
	version uint64
	gone    bool // the version before this one was seen to be gone
}

// maxStepAge bounds the steps: steps that ended maxStepAge before the newest are dropped, since no request takes so
// long.
const maxStepAge = time.Minute

// lastBefore returns the highest step that ended before start.
func (f *floor) lastBefore(start time.Duration) step {
	for i := len(f.steps) - 1; i >= 0; i-- {
		if f.steps[i].end < start {
			return f.steps[i]
		}
	}
	return step{}
}

// addStep records an answer. Answers are added about in the order of their ends.
func (f *floor) addStep(s step) {
	at := len(f.steps)
	for at > 0 && f.steps[at-1].end > s.end {
		at--
	}
	if at > 0 && f.steps[at-1].version >= s.version {
		return
	}
	after := at // those that ended later with lower versions
	for after < len(f.steps) && f.steps[after].version <= s.version {
		after++
	}
	f.steps = slices.Replace(f.steps, at, after, s)
	old := 0
	for old+1 < len(f.steps) && f.steps[old+1].end < s.end-maxStepAge {
		old++
	}
	f.steps = slices.Delete(f.steps, 0, old)
}
