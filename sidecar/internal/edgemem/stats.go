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
	Devices           int    // registered devices in the list
	EvictedVerdicts   uint64 // evicted before they expired, ever
	Slots             int    // slots that may be filled
	FreeSlots         int    // of Slots
	DevicesOverflowed bool   // some devices are not in the list
	EdgeStats                // the worst of the edges that are attached: most buckets, most places, least time
}

// EdgeStats has counts of an edge.
type EdgeStats struct {
	DirtyBuckets int   // of both tables, waiting to be taken
	Places       int   // in shared memory with a record of this epoch, slots included
	InStepMS     int64 // in-step time in the state record, unix ms
}

// Stats returns the current counts.
func (m *Memory) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Stats{
		Objects:           len(m.objects.entries),
		Allows:            m.verdicts.allows,
		Denies:            m.verdicts.denies,
		Devices:           m.verdicts.devices.count,
		EvictedVerdicts:   m.verdicts.evicted,
		Slots:             len(m.objects.slots.sizes),
		FreeSlots:         m.objects.slots.freeCount(),
		DevicesOverflowed: m.verdicts.devices.overflowed,
	}
	first := true
	for _, o := range m.all {
		if !o.attached && len(m.all) > 1 {
			continue
		}
		one := o.stats()
		s.DirtyBuckets = max(s.DirtyBuckets, one.DirtyBuckets)
		s.Places = max(s.Places, one.Places)
		if first || one.InStepMS < s.InStepMS {
			s.InStepMS, first = one.InStepMS, false
		}
	}
	return s
}

// Stats returns the edge's current counts.
func (e *Edge) Stats() EdgeStats {
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	return e.outbox.stats()
}

func (o *outbox) stats() EdgeStats {
	return EdgeStats{
		DirtyBuckets: o.dirtyObjects.len() + o.dirtyVerdicts.len(),
		Places:       1 + int(o.countSlots()) + o.writtenObjects.count() + o.writtenVerdicts.count(), // one for the state
		InStepMS:     o.inStep.readyMS,
	}
}
