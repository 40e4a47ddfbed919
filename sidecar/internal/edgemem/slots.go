package edgemem

import "time"

// blankAfter is the age at which a free slot is blanked, so that the proxy gets its memory back.
const blankAfter = time.Second

// slots assigns slots to bodies. Free slots are reused in the order in which they became free, so that a reader with an
// old copy of a bucket has the most time. A new slot is added only if none is free.
type slots struct {
	filled []bool // by slot: shared memory may have bytes there
	free   []freeSlot
	head   int // of free
	// blanked is the index in free of the first slot not yet checked for blanking; those before it are blank.
	blanked int
}

type freeSlot struct {
	slot  uint32
	since time.Time
}

// take returns a free slot.
func (s *slots) take() uint32 {
	if s.head == len(s.free) {
		s.filled = append(s.filled, false)
		return uint32(len(s.filled) - 1)
	}
	slot := s.free[s.head].slot
	s.head++
	s.blanked = max(s.blanked, s.head)
	if s.head > 1024 && s.head > len(s.free)/2 {
		s.free = s.free[:copy(s.free, s.free[s.head:])]
		s.blanked -= s.head
		s.head = 0
	}
	return slot
}

// release frees a slot that nothing names any more.
func (s *slots) release(slot uint32) {
	s.free = append(s.free, freeSlot{slot, time.Now()})
}

// nextBlank returns a slot to blank now; call blank when it is done. It returns false if there is none.
func (s *slots) nextBlank(now time.Time) (uint32, bool) {
	for ; s.blanked < len(s.free); s.blanked++ {
		f := s.free[s.blanked]
		if now.Sub(f.since) < blankAfter {
			return 0, false
		}
		if s.filled[f.slot] {
			return f.slot, true
		}
	}
	return 0, false
}

func (s *slots) blank(slot uint32) {
	s.filled[slot] = false
	s.blanked++
}

// restart forgets all slots. Slots below before, which an earlier epoch may have filled, become free.
func (s *slots) restart(before uint32) {
	*s = slots{filled: make([]bool, before), free: make([]freeSlot, before)}
	now := time.Now()
	for i := range before {
		s.filled[i] = true
		s.free[i] = freeSlot{i, now}
	}
}

func (s *slots) freeCount() int { return len(s.free) - s.head }
