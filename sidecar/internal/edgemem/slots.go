package edgemem

import (
	"time"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

// blankAfter is the age at which a free slot is blanked, which returns memory to the proxy.
const blankAfter = time.Second

// maxUnnamed bounds the bytes in slots that no bucket names any more; beyond the bound, slots are blanked at any age.
// The bound leaves room for a version of the largest object.
const maxUnnamed = 4 * limits.MaxBody

// slotSize is the overhead of a filled slot, about as in the most expensive store.
const slotSize = 256

// slots assigns slots to bodies. Free slots are reused in the order in which they became free, which gives a reader
// with an old copy of a bucket the most time. A new slot is added only if none is free.
type slots struct {
	bytes        []uint32 // in shared memory, by slot, slotSize included
	unnamedBytes uint64   // sum of bytes of the slots that no bucket names
	free         []freeSlot
	head         int // of free
	// nextUnchecked is the index in free of the first slot not yet checked for blanking; all slots before are blank.
	nextUnchecked int
	// An earlier epoch may have filled the slots below filledBefore, all of which must be blanked before a slot gets a
	// body. Slots below blankedTo are blank already. Slots need no memory until acquired, because filledBefore is the
	// edge's number and may be wrong.
	blankedTo, filledBefore uint32
	restarted               time.Time
}

type freeSlot struct {
	slot  uint32
	since time.Time
}

// acquireSlot returns a free slot.
func (s *slots) acquireSlot() uint32 {
	if s.head == len(s.free) {
		s.bytes = append(s.bytes, 0)
		return uint32(len(s.bytes) - 1)
	}
	slot := s.free[s.head].slot
	s.head++
	s.nextUnchecked = max(s.nextUnchecked, s.head)
	if s.head > 1024 && s.head > len(s.free)/2 {
		s.free = s.free[:copy(s.free, s.free[s.head:])]
		s.nextUnchecked -= s.head
		s.head = 0
	}
	return slot
}

// recordBody records the size of a body that fills a slot. A bucket will name the slot.
func (s *slots) recordBody(slot uint32, bytes int) {
	s.unnamedBytes -= uint64(s.bytes[slot])
	s.bytes[slot] = slotSize + uint32(bytes)
}

// releaseSlot frees a slot that was never written.
func (s *slots) releaseSlot(slot uint32) {
	s.free = append(s.free, freeSlot{slot, time.Now()})
}

// releaseWritten frees a slot that no bucket names any more.
func (s *slots) releaseWritten(slot uint32) {
	s.unnamedBytes += uint64(s.bytes[slot])
	s.releaseSlot(slot)
}

// nextToBlank returns a slot to blank now, false if none is due. The caller then calls markBlank.
func (s *slots) nextToBlank(now time.Time) (uint32, bool) {
	if s.blankedTo < s.filledBefore {
		return s.blankedTo, now.Sub(s.restarted) >= blankAfter
	}
	for ; s.nextUnchecked < len(s.free); s.nextUnchecked++ {
		f := s.free[s.nextUnchecked]
		if now.Sub(f.since) < blankAfter && s.unnamedBytes <= maxUnnamed {
			return 0, false
		}
		if s.bytes[f.slot] > 0 {
			return f.slot, true
		}
	}
	return 0, false
}

// markBlank records that a slot without a name in any bucket is blank.
func (s *slots) markBlank(slot uint32) {
	if s.blankedTo < s.filledBefore { // until then nextToBlank returns only these slots
		s.blankedTo = slot + 1
		return
	}
	s.unnamedBytes -= uint64(s.bytes[slot])
	s.bytes[slot] = 0
}

// restart forgets all slots. Slots below before, which an earlier epoch may have filled, are to be blanked.
func (s *slots) restart(before uint32) { *s = slots{filledBefore: before, restarted: time.Now()} }

// count returns the number of slots that may be filled.
func (s *slots) count() int { return max(len(s.bytes), int(s.filledBefore)) }

func (s *slots) freeCount() int { return s.count() - len(s.bytes) + len(s.free) - s.head }
