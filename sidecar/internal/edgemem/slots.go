package edgemem

import (
	"time"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

// blankAfter is the age at which a free slot is blanked, so that the proxy gets its memory back.
const blankAfter = time.Second

// maxStale bounds the bytes in slots that no bucket names any more: beyond, they are blanked at any age. It leaves room
// for a version of the largest object.
const maxStale = 4 * limits.MaxBody

// slotSize is what a filled slot takes besides its body, about as in the store that takes most.
const slotSize = 256

// slots assigns slots to bodies. Free slots are reused in the order in which they became free, so that a reader with an
// old copy of a bucket has the most time. A new slot is added only if none is free.
type slots struct {
	bytes []uint32 // by slot: how many shared memory has there, with slotSize
	stale uint64   // how many of them are in slots that no bucket names
	free  []freeSlot
	head  int // of free
	// blanked is the index in free of the first slot not yet checked for blanking; those before it are blank.
	blanked int
	// An earlier epoch may have filled the slots below filledBefore; those below blankedTo are blank. All must be before
	// one gets a body. They need no memory until they are taken: the number is the edge's, which may be wrong.
	blankedTo, filledBefore uint32
	restarted               time.Time
}

type freeSlot struct {
	slot  uint32
	since time.Time
}

// take returns a free slot.
func (s *slots) take() uint32 {
	if s.head == len(s.free) {
		s.bytes = append(s.bytes, 0)
		return uint32(len(s.bytes) - 1)
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

// write records that a slot gets a body, which a bucket will name.
func (s *slots) write(slot uint32, bytes int) {
	s.stale -= uint64(s.bytes[slot])
	s.bytes[slot] = slotSize + uint32(bytes)
}

// release frees a slot that was never written.
func (s *slots) release(slot uint32) {
	s.free = append(s.free, freeSlot{slot, time.Now()})
}

// releaseWritten frees a slot that no bucket names any more.
func (s *slots) releaseWritten(slot uint32) {
	s.stale += uint64(s.bytes[slot])
	s.release(slot)
}

// nextBlank returns a slot to blank now; call blank when it is done. It returns false if there is none.
func (s *slots) nextBlank(now time.Time) (uint32, bool) {
	if s.blankedTo < s.filledBefore {
		return s.blankedTo, now.Sub(s.restarted) >= blankAfter
	}
	for ; s.blanked < len(s.free); s.blanked++ {
		f := s.free[s.blanked]
		if now.Sub(f.since) < blankAfter && s.stale <= maxStale {
			return 0, false
		}
		if s.bytes[f.slot] > 0 {
			return f.slot, true
		}
	}
	return 0, false
}

// blank records that a slot that no bucket names is blank.
func (s *slots) blank(slot uint32) {
	if s.blankedTo < s.filledBefore { // nextBlank returns no other slots before
		s.blankedTo = slot + 1
		return
	}
	s.stale -= uint64(s.bytes[slot])
	s.bytes[slot] = 0
}

// restart forgets all slots. Those below before, which an earlier epoch may have filled, are to be blanked.
func (s *slots) restart(before uint32) { *s = slots{filledBefore: before, restarted: time.Now()} }

// count returns the number of slots that may be filled.
func (s *slots) count() int { return max(len(s.bytes), int(s.filledBefore)) }

func (s *slots) freeCount() int { return s.count() - len(s.bytes) + len(s.free) - s.head }
