// Package edgemem is the target state of the edge's shared memory, and tracks which parts the edge lacks. The package
// owns placement: the bucket of an object, the slot of a body, the bit of a permission name. Readers and the transport
// of batches are independent of the package.
//
// # Order of writes
//
// A body is written before the bucket that names the body. A slot that a bucket still names is never written: the
// bodies of a new version go to other slots, and a slot that no bucket names any more is free only after the edge
// acknowledged the batch with the new bucket. So between any two operations a reader finds one whole version of each
// object or nothing. A reader with an older copy of a bucket finds a slot with another stamp, which is a miss.
//
// The edge's workers read the state periodically, not for each request, so in a new epoch some workers still use the
// old one. Before any bucket of the new epoch is written, all buckets of the old epoch are blanked, verdicts first.
// Otherwise a worker could serve a version after another worker has served a newer version, or authenticate a device
// that was revoked while no sidecar ran. The state declares the list of devices complete only after the last device's
// entry.
package edgemem

import (
	"crypto/rand"
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/sidecar/internal/shrink"
)

// meanEntries is the average number of entries in a bucket of a table filled to the configured size.
const meanEntries = 4

// maxTable bounds table sizes, ours and another sidecar's.
const maxTable = 1 << 24

// Config sets the sizes of the tables, which are fixed while the sidecar runs.
type Config struct {
	// Objects is the number of objects that the table is sized for. More fit, but make lookups slower.
	Objects int
	// Verdicts is the maximum number of allow verdicts, and of deny verdicts. Devices are limited to four times as
	// many.
	Verdicts int
	// Shards is the number of shards of Redis, each with its own order of writes.
	Shards contract.Shards
	// Propagation observes in seconds how long writes take, see [Memory.ApplyLive]; nil: nothing does.
	Propagation prometheus.Observer
}

// Memory is safe for concurrent use, except [Memory.TakeBatch], [Memory.MarkAcked] and [Memory.Reset], which belong to
// one goroutine, the pusher.
type Memory struct {
	maxAllows   int
	shards      contract.Shards
	propagation prometheus.Observer
	wake        chan struct{} // capacity 1: there is something to take

	mu    sync.Mutex // protects all below
	epoch uint64
	keys  wire.Keys

	objects     map[string]*entry
	bodies      uint64                     // number of bodies that were ever put, see [wire.Stamp]
	size        shrink.Map[string, *entry] // of objects
	buckets     []bucket
	dirty       queue // of buckets
	slots       slots
	permissions permissions
	purging     map[purgeID]map[int]*shardPurge // by shard
	purgesBegun uint64                          // number of begun purges
	tagBits     maphash.Seed

	verdicts verdicts

	// What batches contain. taken and acked are the contents of the last taken and the last acknowledged state record.
	replaces      uint64 // epoch at the edge before the next batch; differs from epoch before the first batch
	inStepMS      int64
	inStep        inStepTimes
	taken         sentState
	acked         sentState
	takenState    wire.State     // of the last taken batch
	ackedState    wire.State     // of the last acknowledged batch
	batch         uint64         // number of the last taken batch; never restarts
	ackedBatch    uint64         // number of the last acknowledged batch
	ackReceived   chan struct{}  // closed and replaced at each acknowledgement
	freedSlots    []uint32       // slots to free when the taken batches are acknowledged
	superseded    []indexRange   // an earlier epoch's buckets, to blank before any bucket of this epoch is written
	blanks        []indexRange   // buckets to blank unless this epoch writes them
	crowdedOut    bool           // the last batch had no objects, though some wait
	changes       uint64         // number of calls of wakePusher
	pendingWrites []pendingWrite // oldest first
	pendingTraces []pendingTrace // in the order of their arrival
}

// entry is an object in a bucket.
type entry struct {
	*contract.Object
	tag    uint32
	tags   uint32 // see [wire.Object]
	bucket uint32
	bodies []bodySlot // in the order of Object.Bodies
}

// bodySlot is the slot of a body.
type bodySlot struct {
	slot    uint32
	stamp   uint64
	written bool // taken in this epoch
}

type bucket struct {
	entries      []*entry
	droppedSlots []uint32 // slots that the last taken record may name, but the bucket no longer names
	written      bool     // a record of this epoch was taken
	hasEntries   bool     // the last taken record has entries
	lastBatch    uint64   // the last batch with this bucket
}

// New returns an empty memory without an epoch: call [Memory.Reset] before [Memory.TakeBatch].
func New(c Config) *Memory {
	buckets := tableSize(c.Objects)
	if c.Propagation == nil {
		c.Propagation = prometheus.ObserverFunc(func(float64) {})
	}
	m := &Memory{
		maxAllows:   max(c.Verdicts, 1),
		shards:      c.Shards,
		propagation: c.Propagation,
		wake:        make(chan struct{}, 1),
		objects:     make(map[string]*entry),
		buckets:     make([]bucket, buckets),
		dirty:       newQueue(buckets),
		permissions: permissions{bits: make(map[string]uint)},
		purging:     make(map[purgeID]map[int]*shardPurge),
		tagBits:     maphash.MakeSeed(),
		verdicts:    newVerdicts(tableSize(c.Verdicts)),
		ackReceived: make(chan struct{}),
	}
	m.drawEpoch()
	return m
}

func tableSize(entries int) int {
	return min(max((entries+meanEntries-1)/meanEntries, 1), maxTable)
}

// drawEpoch draws the epoch and the epoch's secrets.
func (m *Memory) drawEpoch() {
	var b [8]byte
	for m.epoch = 0; m.epoch == 0; m.epoch = binary.LittleEndian.Uint64(b[:]) {
		rand.Read(b[:]) // never fails
	}
	rand.Read(m.keys.Placement[:])
	rand.Read(m.keys.Credential[:])
}

// Wake returns a channel that receives a value when there may be something to take.
func (m *Memory) Wake() <-chan struct{} { return m.wake }

// wakePusher wakes the pusher; mu is held.
func (m *Memory) wakePusher() {
	m.changes++
	select {
	case m.wake <- struct{}{}:
	default: // the channel has a value already
	}
}

// Epoch returns the current epoch, never 0.
func (m *Memory) Epoch() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.epoch
}

// PutObject replaces the object at o's key, whatever the version. The memory retains o, so o must not change any more.
func (m *Memory) PutObject(o *contract.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.removeObject(o.Key)
	e := &entry{Object: o, bodies: make([]bodySlot, len(o.Bodies))}
	for _, tag := range o.Tags {
		e.tags |= m.tagBit(tag)
	}
	shard := m.shards.Of(o.Key)
	for i := range e.bodies {
		m.bodies++
		e.bodies[i] = bodySlot{slot: m.slots.acquireSlot(), stamp: wire.Stamp(m.bodies, shard)}
	}
	m.objects[o.Key] = e
	m.size.Add(m.objects)
	m.addToBucket(e)
	m.wakePusher()
}

// MarkStale sets Stale on the object at key, if any. The bodies stay in their slots.
func (m *Memory) MarkStale(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, found := m.objects[key]
	if !found {
		return
	}
	stale := *e.Object
	stale.Stale = true
	e.Object = &stale
	m.dirty.push(e.bucket)
	m.wakePusher()
}

// DeleteObject removes the object at key, if any.
func (m *Memory) DeleteObject(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.removeObject(key) {
		m.wakePusher()
	}
}

// DeleteObjects is [Memory.DeleteObject] for many keys at once.
func (m *Memory) DeleteObjects(keys []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		m.removeObject(key)
	}
	if len(keys) > 0 {
		m.wakePusher()
	}
}

// addToBucket adds e to a bucket in this epoch.
func (m *Memory) addToBucket(e *entry) {
	e.bucket, e.tag = m.keys.Place(e.Key, uint32(len(m.buckets)))
	b := &m.buckets[e.bucket]
	b.entries = append(b.entries, e)
	m.dirty.push(e.bucket)
}

// removeObject removes the object at key from its bucket and reports whether an object was found.
func (m *Memory) removeObject(key string) bool {
	e, found := m.objects[key]
	if !found {
		return false
	}
	delete(m.objects, key)
	m.objects = m.size.Fit(m.objects)
	b := &m.buckets[e.bucket]
	b.entries = shrink.Slice(slices.DeleteFunc(b.entries, func(other *entry) bool { return other == e }))
	for _, body := range e.bodies {
		if body.written {
			b.droppedSlots = append(b.droppedSlots, body.slot)
		} else {
			m.slots.releaseSlot(body.slot) // no bucket can name a slot that was never written
		}
	}
	m.dirty.push(e.bucket)
	return true
}
