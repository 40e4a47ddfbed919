package edgemem

import (
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// Applying a batch blocks the worker for about a millisecond at most, so bytes and operations of a batch are bounded. A
// body over the bound is sent alone.
const (
	maxBatch = 256 << 10
	maxOps   = 512
	// maxVerdictOps reserves room for objects when verdicts, which are sent first, keep changing.
	maxVerdictOps = maxOps / 2
)

// Bytes of each kind of record besides keys, bodies and headers.
const (
	opSize         = 12 // before each record in a batch
	bodySize       = 24
	bucketSize     = 16
	objectSize     = 44
	variantSize    = 20
	verdictSize    = 48
	deviceSize     = 8
	recordOverhead = 96 // of an entry of the store: key, string header, node
)

// batch is a batch being built.
type batch struct {
	bytes   []byte
	ops     int
	records int // operations without state records
}

// hasRoom reports whether a record of size bytes fits. The first record always fits.
func (b *batch) hasRoom(size int) bool {
	return b.records == 0 || b.ops < maxOps && len(b.bytes)+opSize+size <= maxBatch
}

func (b *batch) addRecord(region wire.Region, index uint32, write func(dst []byte) []byte) {
	b.bytes = wire.AppendOp(b.bytes, region, index, write)
	b.ops++
	if region != wire.RegionState {
		b.records++
	}
}

// takeState adds the current state record.
func (m *Memory) takeState(b *batch, now time.Time) {
	m.endPurges()
	s := wire.State{
		Epoch:          m.epoch,
		InStepMS:       m.inStep.readyMS,
		HeartbeatMS:    now.UnixMilli(),
		ObjectBuckets:  uint32(len(m.buckets)),
		VerdictBuckets: uint32(len(m.verdicts.buckets)),
		BodySlots:      uint32(m.slots.count()),
		Keys:           m.keys,
		Permissions:    m.permissions.names,

		DevicesComplete: m.verdicts.devices.complete,
		Purges:          m.listPurges(),
	}
	b.addRecord(wire.RegionState, 0, func(dst []byte) []byte { return wire.AppendState(dst, &s) })
	m.taken, m.takenState = m.stateToSend(), s
}

// takeBucket adds the bodies that the bucket will name, and then the bucket. If not everything fits, takeBucket returns
// false, and the next batch continues.
func (m *Memory) takeBucket(b *batch, index uint32) bool {
	k := &m.buckets[index]
	for _, e := range k.entries {
		for i := range e.bodies {
			at, bytes := &e.bodies[i], e.Bodies[i].Bytes
			if at.written {
				continue
			}
			if !b.hasRoom(bodySize + len(bytes)) {
				return false
			}
			b.addRecord(wire.RegionBodies, at.slot, func(dst []byte) []byte {
				return wire.AppendBody(dst, m.epoch, at.stamp, bytes)
			})
			at.written = true
			m.slots.recordBody(at.slot, len(bytes))
		}
	}
	if len(k.entries) == 0 && !k.written {
		return true // added and removed entries only, before the first write
	}
	if !b.hasRoom(k.recordSize()) {
		return false
	}
	b.addRecord(wire.RegionObjects, index, func(dst []byte) []byte { return k.appendRecord(dst, m.epoch) })
	m.freedSlots = append(m.freedSlots, k.droppedSlots...)
	k.droppedSlots, k.written = nil, true
	k.hasEntries, k.lastBatch = len(k.entries) > 0, m.batch
	return true
}

func (k *bucket) recordSize() int {
	size := bucketSize
	for _, e := range k.entries {
		size += objectSize + len(e.bodies)*variantSize + len(e.Key) + len(e.ETag) + len(e.ContentType) +
			len(e.Headers)
	}
	return size
}

func (k *bucket) appendRecord(dst []byte, epoch uint64) []byte {
	start := len(dst)
	dst = wire.AppendObjectsHeader(dst, epoch, len(k.entries))
	for _, e := range k.entries {
		o := wire.Object{
			Key: e.Key, Version: e.Version, PublishedMS: e.PublishedMS, TTLMS: uint64(e.TTLMS),
			ETag: e.ETag, ContentType: e.ContentType, Status: uint16(e.Status), Headers: string(e.Headers),
			Stale: e.Stale, Tags: e.tags,
		}
		for i, at := range e.bodies {
			o.AddVariant(wire.Variant{
				Encoding: e.Bodies[i].Encoding, Slot: at.slot, Length: uint32(len(e.Bodies[i].Bytes)), Stamp: at.stamp,
			})
		}
		dst = wire.AppendObject(dst, e.tag, &o)
	}
	return wire.FinishRecord(dst, start)
}

// takeVerdicts adds a bucket of verdicts and reports whether the record fits.
func (m *Memory) takeVerdicts(b *batch, index uint32) bool {
	k := &m.verdicts.buckets[index]
	m.removeExpired(index, time.Now().UnixMilli())
	if len(k.verdicts) == 0 && len(k.devices) == 0 && !k.written {
		return true
	}
	if !b.hasRoom(k.recordSize()) {
		return false
	}
	b.addRecord(wire.RegionVerdicts, index, func(dst []byte) []byte { return m.appendVerdicts(dst, k) })
	k.written = true
	return true
}

// takeBlanks adds tombstones for free slots, which return memory to the proxy, and for our buckets that were never
// written.
func (m *Memory) takeBlanks(b *batch, now time.Time) {
	m.takeFreeSlots(b, now)
	for b.hasRoom(wire.MinRecord) && len(m.blanks) > 0 {
		r := &m.blanks[0]
		if r.isEmpty() {
			m.blanks = m.blanks[1:]
			continue
		}
		if !m.markWritten(r.region, r.next) {
			b.addRecord(r.region, r.next, func(dst []byte) []byte { return emptyBucket(dst, r.region, m.epoch) })
		}
		r.next++
	}
}

// takeFreeSlots adds tombstones for slots that were free for long enough.
func (m *Memory) takeFreeSlots(b *batch, now time.Time) {
	for b.hasRoom(wire.MinRecord) {
		slot, found := m.slots.nextToBlank(now)
		if !found {
			break
		}
		m.takeBlank(b, slot)
	}
}

func (m *Memory) takeBlank(b *batch, slot uint32) {
	b.addRecord(wire.RegionBodies, slot, func(dst []byte) []byte { return wire.AppendBody(dst, m.epoch, 0, nil) })
	m.slots.markBlank(slot)
}

// makeBodyRoom makes room in the edge's memory before objects are written, and reports success. Otherwise bodies that
// no bucket names (of an earlier epoch, or of many versions in a short time) could take several times the budget, and a
// memory of a fixed size would then refuse every push for ever.
func (m *Memory) makeBodyRoom(b *batch) bool {
	for m.slots.blankedTo < m.slots.filledBefore {
		if !b.hasRoom(wire.MinRecord) {
			return false
		}
		m.takeBlank(b, m.slots.blankedTo)
	}
	if m.slots.unnamedBytes > maxUnnamed {
		m.takeFreeSlots(b, time.Time{})
	}
	return true
}

// takeSuperseded adds tombstones for an earlier epoch's buckets and reports whether all are done.
func (m *Memory) takeSuperseded(b *batch) bool {
	for len(m.superseded) > 0 {
		r := &m.superseded[0]
		if r.isEmpty() {
			m.superseded = m.superseded[1:]
			continue
		}
		if !b.hasRoom(wire.MinRecord) {
			return false
		}
		m.markWritten(r.region, r.next)
		b.addRecord(r.region, r.next, func(dst []byte) []byte { return emptyBucket(dst, r.region, m.epoch) })
		r.next++
	}
	return true
}

// markWritten marks a bucket as written in this epoch, and reports whether the bucket was marked before.
func (m *Memory) markWritten(region wire.Region, index uint32) bool {
	var written *bool
	switch {
	case region == wire.RegionObjects && int(index) < len(m.buckets):
		written = &m.buckets[index].written
	case region == wire.RegionVerdicts && int(index) < len(m.verdicts.buckets):
		written = &m.verdicts.buckets[index].written
	default:
		return false
	}
	before := *written
	*written = true
	return before
}

func emptyBucket(dst []byte, region wire.Region, epoch uint64) []byte {
	if region == wire.RegionVerdicts {
		return wire.AppendVerdicts(dst, epoch, nil, nil)
	}
	start := len(dst)
	return wire.FinishRecord(wire.AppendObjectsHeader(dst, epoch, 0), start)
}
