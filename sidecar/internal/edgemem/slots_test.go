package edgemem

import (
	"testing"
	"time"
)

// TestUnnamedSlotsAreBounded: the queue of unnamed slots doesn't grow while slots become unnamed without a pause.
func TestUnnamedSlotsAreBounded(t *testing.T) {
	var all slots
	var s edgeSlots
	const unnamed = 50 // at any time
	for i := range uint64(100_000) {
		slot := all.acquireSlot(100)
		s.recordBody(slot)
		s.dropSlot(slot, i)
		all.holdSlot(slot)
		s.releaseDropped(i, &all)
		if i >= unnamed {
			blank, _ := s.nextToBlank(time.Now())
			s.markBlank(blank)
		}
	}
	if n := cap(s.queue); n > 8192 {
		t.Errorf("the queue has room for %d slots, of which %d wait", n, unnamed)
	}
}
