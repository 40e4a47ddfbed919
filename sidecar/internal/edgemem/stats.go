package edgemem

import "github.com/gatehouse/gatehouse/clients/go/contract"

// Footprint returns the approximate memory of o in the proxy, in bytes: bodies, entry, and the store's overhead per
// record.
func Footprint(o *contract.Object) int {
	size := objectSize + len(o.Key) + len(o.ETag) + len(o.ContentType) + len(o.Headers) + recordOverhead/meanEntries
	for _, body := range o.Bodies {
		size += variantSize + bodySize + len(body.Bytes) + recordOverhead
	}
	return size
}

// Stats has counts for metrics.
type Stats struct {
	Objects           int
	Allows, Denies    int    // verdicts stored
	Devices           int    // registered devices in the edge's list
	EvictedVerdicts   uint64 // evicted before they expired, ever
	DirtyBuckets      int    // of both tables, waiting to be taken
	Slots             int    // slots that may be filled
	FreeSlots         int    // of Slots
	Places            int    // in shared memory with a record of this epoch, slots included
	Permissions       int    // names
	InStepMS          int64  // in-step time in the state record, unix ms
	DevicesOverflowed bool   // some devices are not in the edge's list
}

// Stats returns the current counts.
func (m *Memory) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	places := 1 + m.slots.count() // one for the state
	for i := range m.buckets {
		if m.buckets[i].written {
			places++
		}
	}
	for i := range m.verdicts.buckets {
		if m.verdicts.buckets[i].written {
			places++
		}
	}
	return Stats{
		Places:            places,
		Objects:           len(m.objects),
		Allows:            m.verdicts.allows,
		Denies:            m.verdicts.denies,
		Devices:           m.verdicts.devices.count,
		EvictedVerdicts:   m.verdicts.evicted,
		DirtyBuckets:      m.dirty.len() + m.verdicts.dirty.len(),
		Slots:             m.slots.count(),
		FreeSlots:         m.slots.freeCount(),
		Permissions:       len(m.permissions.bits),
		InStepMS:          m.inStep.readyMS,
		DevicesOverflowed: m.verdicts.devices.overflowed,
	}
}
