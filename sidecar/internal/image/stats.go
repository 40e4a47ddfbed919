package image

import "github.com/gatehouse/gatehouse/sidecar/contract"

// Footprint is about what o takes of the proxy's memory, bytes: its bodies, its entry,
// and what a store adds to each record.
func Footprint(o *contract.Object) int {
	size := objectSize + len(o.Key) + len(o.ETag) + len(o.ContentType) + recordOverhead/meanEntries
	for _, body := range o.Bodies {
		size += variantSize + bodySize + len(body.Bytes) + recordOverhead
	}
	return size
}

// Stats are counts for metrics.
type Stats struct {
	Objects         int
	Allows, Denies  int    // verdicts stored
	Devices         int    // registered devices that the edge knows of
	EvictedVerdicts uint64 // that had not expired, ever
	DirtyBuckets    int    // of both tables, not yet taken
	Slots           int    // that may be filled
	FreeSlots       int    // of those
	Places          int    // of shared memory that hold a record of this epoch, slots included
	Permissions     int    // names
	InStepMS        int64  // as of when the edge is told that it is in step, unix ms
}

// Stats counts.
func (m *Memory) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	places := 1 + len(m.slots.filled) // the state's
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
		Places:          places,
		Objects:         len(m.objects),
		Allows:          m.verdicts.allows,
		Denies:          m.verdicts.denies,
		Devices:         m.verdicts.devices.count,
		EvictedVerdicts: m.verdicts.evicted,
		DirtyBuckets:    m.dirty.len() + m.verdicts.dirty.len(),
		Slots:           len(m.slots.filled),
		FreeSlots:       m.slots.freeCount(),
		Permissions:     len(m.permissions.bits),
		InStepMS:        m.inStep.tellableMS,
	}
}
