package edgemem

import (
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// A batch blocks the worker that applies it for about a millisecond at most, so its bytes and operations are bounded. A
// body over the bound is sent alone.
const (
	maxBatch = 256 << 10
	maxOps   = 512
	// maxVerdictOps reserves room for objects when verdicts, which are sent first, keep changing.
	maxVerdictOps = maxOps / 2
)

// Bytes that records add to their contents.
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

// fits reports whether there is room for a record of size bytes. There always is for the first one.
func (b *batch) fits(size int) bool {
	return b.records == 0 || b.ops < maxOps && len(b.bytes)+opSize+size <= maxBatch
}

func (b *batch) add(region wire.Region, index uint32, write func(dst []byte) []byte) {
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
		InStepMS:       m.inStep.tellableMS,
		HeartbeatMS:    now.UnixMilli(),
		ObjectBuckets:  uint32(len(m.buckets)),
		VerdictBuckets: uint32(len(m.verdicts.buckets)),
		BodySlots:      uint32(m.slots.count()),
		Keys:           m.keys,
		Permissions:    m.permissions.names,

		DevicesComplete: m.verdicts.devices.complete,
		Purges:          m.purges(),
	}
	b.add(wire.RegionState, 0, func(dst []byte) []byte { return wire.AppendState(dst, &s) })
	m.taken, m.takenState = m.stateToSend(), s
}

// takeBucket adds the bodies that the bucket will name, and then the bucket. It returns false if not all of it fits;
// the next batch continues.
func (m *Memory) takeBucket(b *batch, index uint32) bool {
	k := &m.buckets[index]
	for _, e := range k.entries {
		for i := range e.bodies {
			at, bytes := &e.bodies[i], e.Bodies[i].Bytes
			if at.written {
				continue
			}
			if !b.fits(bodySize + len(bytes)) {
				return false
			}
			b.add(wire.RegionBodies, at.slot, func(dst []byte) []byte {
				return wire.AppendBody(dst, m.epoch, at.stamp, bytes)
			})
			at.written = true
			m.slots.write(at.slot, len(bytes))
		}
	}
	if len(k.entries) == 0 && !k.written {
		return true // its entries were added and removed before it was written
	}
	if !b.fits(k.size()) {
		return false
	}
	b.add(wire.RegionObjects, index, func(dst []byte) []byte { return k.append(dst, m.epoch) })
	m.freed = append(m.freed, k.dropped...)
	k.dropped, k.written = nil, true
	k.listing, k.batch = len(k.entries) > 0, m.batch
	return true
}

func (k *bucket) size() int {
	size := bucketSize
	for _, e := range k.entries {
		size += objectSize + len(e.bodies)*variantSize + len(e.Key) + len(e.ETag) + len(e.ContentType) +
			len(e.Headers)
	}
	return size
}

func (k *bucket) append(dst []byte, epoch uint64) []byte {
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

// takeVerdicts adds a bucket of verdicts and reports whether it fits.
func (m *Memory) takeVerdicts(b *batch, index uint32) bool {
	k := &m.verdicts.buckets[index]
	m.expire(index, time.Now().UnixMilli())
	if len(k.verdicts) == 0 && len(k.devices) == 0 && !k.written {
		return true
	}
	if !b.fits(k.size()) {
		return false
	}
	b.add(wire.RegionVerdicts, index, func(dst []byte) []byte { return m.appendVerdicts(dst, k) })
	k.written = true
	return true
}

// takeBlanks adds tombstones for free slots, so that the proxy gets their memory back, and for our buckets that were
// never written.
func (m *Memory) takeBlanks(b *batch, now time.Time) {
	m.takeFreeSlots(b, now)
	for b.fits(wire.MinRecord) && len(m.blanks) > 0 {
		r := &m.blanks[0]
		if r.empty() {
			m.blanks = m.blanks[1:]
			continue
		}
		if !m.writtenSince(r.region, r.next) {
			b.add(r.region, r.next, func(dst []byte) []byte { return emptyBucket(dst, r.region, m.epoch) })
		}
		r.next++
	}
}

// takeFreeSlots adds tombstones for the slots that are due.
func (m *Memory) takeFreeSlots(b *batch, now time.Time) {
	for b.fits(wire.MinRecord) {
		slot, found := m.slots.nextBlank(now)
		if !found {
			break
		}
		m.takeBlank(b, slot)
	}
}

func (m *Memory) takeBlank(b *batch, slot uint32) {
	b.add(wire.RegionBodies, slot, func(dst []byte) []byte { return wire.AppendBody(dst, m.epoch, 0, nil) })
	m.slots.blank(slot)
}

// takeRoom makes room in the edge's memory before objects are written, and reports whether that is done. Otherwise
// bodies that no bucket names could take several times the budget: those of an earlier epoch, and those of many
// versions in a short time. A memory of a fixed size would then refuse every push for ever.
func (m *Memory) takeRoom(b *batch) bool {
	for m.slots.blankedTo < m.slots.filledBefore {
		if !b.fits(wire.MinRecord) {
			return false
		}
		m.takeBlank(b, m.slots.blankedTo)
	}
	if m.slots.stale > maxStale {
		m.takeFreeSlots(b, time.Time{})
	}
	return true
}

// takeSuperseded adds tombstones for an earlier epoch's buckets and reports whether all are done.
func (m *Memory) takeSuperseded(b *batch) bool {
	for len(m.superseded) > 0 {
		r := &m.superseded[0]
		if r.empty() {
			m.superseded = m.superseded[1:]
			continue
		}
		if !b.fits(wire.MinRecord) {
			return false
		}
		m.writtenSince(r.region, r.next)
		b.add(r.region, r.next, func(dst []byte) []byte { return emptyBucket(dst, r.region, m.epoch) })
		r.next++
	}
	return true
}

// writtenSince reports whether the bucket was written in this epoch, and marks it as written.
func (m *Memory) writtenSince(region wire.Region, index uint32) bool {
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
