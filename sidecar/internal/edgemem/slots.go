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

// slots assigns slots to bodies, for all edges. Free slots are reused in the order in which they became free, which
// gives a reader with an old copy of a bucket the most time. A new slot is added only if none is free.
type slots struct {
	sizes []uint32 // by slot: bytes in shared memory of the body that got the slot last, slotSize included
	free  []uint32
	head  int // of free
	// holders are the edges with a bucket that may still name a dropped body, by slot: their number.
	holders map[uint32]int
}

// acquireSlot returns a free slot for a body of so many bytes.
func (s *slots) acquireSlot(bytes int) uint32 {
	size := slotSize + uint32(bytes)
	if s.head == len(s.free) {
		s.sizes = append(s.sizes, size)
		return uint32(len(s.sizes) - 1)
	}
	slot := s.free[s.head]
	s.sizes[slot] = size
	s.head++
	if s.head > 1024 && s.head > len(s.free)/2 {
		s.free = s.free[:copy(s.free, s.free[s.head:])]
		s.head = 0
	}
	return slot
}

// holdSlot keeps a slot from being free until releaseSlot was called once more.
func (s *slots) holdSlot(slot uint32) {
	if s.holders == nil {
		s.holders = make(map[uint32]int)
	}
	s.holders[slot]++
}

// releaseSlot frees a slot that no edge holds any more.
func (s *slots) releaseSlot(slot uint32) {
	if s.holders[slot] > 1 {
		s.holders[slot]--
		return
	}
	delete(s.holders, slot)
	if len(s.holders) == 0 {
		s.holders = nil // a map keeps its memory
	}
	s.free = append(s.free, slot)
}

func (s *slots) freeCount() int { return len(s.free) - s.head }

// edgeSlots is what an edge has in the slots.
type edgeSlots struct {
	filled  bitset // has the body that the slot is assigned to
	unnamed bitset // has a body that no bucket at the edge names
	// dropped are slots whose bodies were dropped, and that buckets at the edge may still name, oldest first.
	dropped []droppedSlot
	// queue has the slots that became unnamed, oldest first; those that were filled again are still in it.
	queue        []unnamedSlot
	head         int    // of queue
	unnamedBytes uint64 // in the slots of queue
	// An earlier epoch may have filled the slots below filledBefore, all of which must be blanked before a slot gets a
	// body. Slots below blankedTo are blank already.
	blankedTo, filledBefore uint32
	restarted               time.Time
}

// droppedSlot is a slot that no bucket at the edge names once the edge has everything before after.
type droppedSlot struct {
	slot  uint32
	after uint64 // of the queue of objects
}

type unnamedSlot struct {
	slot, bytes uint32
	since       time.Time
}

// dropSlot records that a body was dropped from its slot, and reports whether the edge may name the slot until
// everything before after was taken and acknowledged.
func (s *edgeSlots) dropSlot(slot uint32, after uint64) bool {
	if !s.filled.has(slot) {
		return false // no bucket can name a slot that was never written
	}
	s.filled.clear(slot)
	s.dropped = append(s.dropped, droppedSlot{slot, after})
	return true
}

// releaseDropped releases the dropped slots that no bucket at the edge names any more: so many buckets were taken, and
// acknowledged.
func (s *edgeSlots) releaseDropped(popped uint64, all *slots) {
	n := 0
	for ; n < len(s.dropped) && popped >= s.dropped[n].after; n++ {
		slot := s.dropped[n].slot
		s.unnamed.set(slot)
		s.unnamedBytes += uint64(all.sizes[slot])
		s.queue = append(s.queue, unnamedSlot{slot, all.sizes[slot], time.Now()})
		all.releaseSlot(slot)
	}
	s.dropped = s.dropped[n:]
	if len(s.dropped) == 0 {
		s.dropped = nil
	}
}

// recordBody records that the edge gets a body in a slot. A bucket will name the slot.
func (s *edgeSlots) recordBody(slot uint32) {
	s.filled.set(slot)
	s.unnamed.clear(slot)
}

// nextToBlank returns a slot to blank now, false if none is due. The caller then calls markBlank.
func (s *edgeSlots) nextToBlank(now time.Time) (uint32, bool) {
	if s.blankedTo < s.filledBefore {
		return s.blankedTo, now.Sub(s.restarted) >= blankAfter
	}
	for s.head < len(s.queue) {
		u := s.queue[s.head]
		if !s.unnamed.has(u.slot) {
			s.popUnnamed() // filled again, or blanked
			continue
		}
		return u.slot, now.Sub(u.since) >= blankAfter || s.unnamedBytes > maxUnnamed
	}
	return 0, false
}

// markBlank records that a slot without a name in any bucket is blank.
func (s *edgeSlots) markBlank(slot uint32) {
	if s.blankedTo < s.filledBefore { // until then nextToBlank returns only these slots
		s.blankedTo = slot + 1
		return
	}
	s.unnamed.clear(slot)
	s.popUnnamed()
}

func (s *edgeSlots) popUnnamed() {
	s.unnamedBytes -= uint64(s.queue[s.head].bytes)
	s.head++
	if s.head == len(s.queue) {
		s.queue, s.head = nil, 0
	} else if s.head > 1024 && s.head > len(s.queue)/2 {
		s.queue = s.queue[:copy(s.queue, s.queue[s.head:])]
		s.head = 0
	}
}

// restart forgets all slots. Slots below before, which an earlier epoch may have filled, are to be blanked.
func (s *edgeSlots) restart(before uint32, all *slots) {
	for _, d := range s.dropped {
		all.releaseSlot(d.slot)
	}
	*s = edgeSlots{filledBefore: before, restarted: time.Now()}
}
