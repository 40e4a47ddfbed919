// Package edgemem is the target state of the edge's shared memory, and tracks which parts the edge lacks. It owns
// placement: the bucket of an object, the slot of a body, the bit of a permission name. It is independent of the
// readers, and of how its batches are sent.
//
// # Order of writes
//
// A body is written before the bucket that names it. A slot that a bucket still names is never written: the bodies of a
// new version go to other slots, and a slot that no bucket names any more is free only after the batch with that bucket
// was acknowledged. So between any two operations a reader finds one whole version of each object or nothing. A reader
// with an older copy of a bucket finds a slot with another stamp, which is a miss.
//
// The edge's workers read the state periodically, not for each request, so in a new epoch some still use the old one.
// Before any bucket of the new epoch is written, all of the old one are blanked, verdicts first. Otherwise a worker
// could serve a version after another has served a newer one, or authenticate a device that was revoked while no
// sidecar ran. The state says that the edge knows all devices only after the last of their entries.
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

// meanEntries is the average number of entries in a bucket of a table that holds as much as it was sized for.
const meanEntries = 4

// maxTable bounds table sizes, ours and those in another sidecar's state.
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

// Memory is safe for concurrent use, except [Memory.Take], [Memory.Acked] and [Memory.Reset], which belong to one
// goroutine, the pusher.
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
	purging     map[purgeID]map[int]*purging // by shard
	purged      uint64                       // number of purges that have begun
	tagBits     maphash.Seed

	verdicts verdicts

	// What batches contain. taken and acked are the contents of the last taken and the last acknowledged state record.
	replaces   uint64 // epoch at the edge before the next batch; differs from ours before the first one
	inStepMS   int64
	inStep     inStepTimes
	taken      sentState
	acked      sentState
	takenState wire.State    // of the last taken batch
	ackedState wire.State    // of the last acknowledged one
	batch      uint64        // last taken one; never restarts
	ackedBatch uint64        // last acknowledged one
	ackedMore  chan struct{} // closed and replaced at each acknowledgement
	freed      []uint32      // slots to free when the taken batches are acknowledged
	superseded []indexRange  // an earlier epoch's buckets, to blank before any bucket of this one is written
	blanks     []indexRange  // buckets to blank unless this epoch writes them
	crowdedOut bool          // the last batch had no objects, though some wait
	changes    uint64        // number of calls of notify
	pending    []pending     // oldest first
	traced     []traced      // in the order of their arrival
}

// entry is one object in its bucket.
type entry struct {
	*contract.Object
	tag    uint32
	tags   uint32 // see [wire.Object]
	bucket uint32
	bodies []bodyAt // in the order of Object.Bodies
}

// bodyAt is the place of a body.
type bodyAt struct {
	slot    uint32
	stamp   uint64
	written bool // taken in this epoch
}

type bucket struct {
	entries []*entry
	dropped []uint32 // slots that the last taken record may name, and the bucket no longer does
	written bool     // a record of this epoch was taken
	listing bool     // the last taken record has entries
	batch   uint64   // the last one that contains it
}

// New returns an empty memory without an epoch: call [Memory.Reset] before [Memory.Take].
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
		purging:     make(map[purgeID]map[int]*purging),
		tagBits:     maphash.MakeSeed(),
		verdicts:    newVerdicts(tableSize(c.Verdicts)),
		ackedMore:   make(chan struct{}),
	}
	m.begin()
	return m
}

func tableSize(entries int) int {
	return min(max((entries+meanEntries-1)/meanEntries, 1), maxTable)
}

// begin draws the epoch and its secrets.
func (m *Memory) begin() {
	var b [8]byte
	for m.epoch = 0; m.epoch == 0; m.epoch = binary.LittleEndian.Uint64(b[:]) {
		rand.Read(b[:]) // never fails
	}
	rand.Read(m.keys.Placement[:])
	rand.Read(m.keys.Credential[:])
}

// Wake returns a channel that receives a value when there may be something to take.
func (m *Memory) Wake() <-chan struct{} { return m.wake }

// notify wakes the pusher; mu is held.
func (m *Memory) notify() {
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

// PutObject replaces the object at o's key, whatever its version. The memory retains o, which must not change any more.
func (m *Memory) PutObject(o *contract.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(o.Key)
	e := &entry{Object: o, bodies: make([]bodyAt, len(o.Bodies))}
	for _, tag := range o.Tags {
		e.tags |= m.tagBit(tag)
	}
	shard := m.shards.Of(o.Key)
	for i := range e.bodies {
		m.bodies++
		e.bodies[i] = bodyAt{slot: m.slots.take(), stamp: wire.Stamp(m.bodies, shard)}
	}
	m.objects[o.Key] = e
	m.size.Add(m.objects)
	m.place(e)
	m.notify()
}

// MarkStale makes the object at key, if there is one, Stale. Its bodies stay where they are.
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
	m.notify()
}

// DeleteObject removes the object at key, if there is one.
func (m *Memory) DeleteObject(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.drop(key) {
		m.notify()
	}
}

// DeleteObjects is [Memory.DeleteObject] for many keys at once.
func (m *Memory) DeleteObjects(keys []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		m.drop(key)
	}
	if len(keys) > 0 {
		m.notify()
	}
}

// place adds e to its bucket in this epoch.
func (m *Memory) place(e *entry) {
	e.bucket, e.tag = m.keys.Place(e.Key, uint32(len(m.buckets)))
	b := &m.buckets[e.bucket]
	b.entries = append(b.entries, e)
	m.dirty.push(e.bucket)
}

// drop removes the object at key from its bucket and reports whether there was one.
func (m *Memory) drop(key string) bool {
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
			b.dropped = append(b.dropped, body.slot)
		} else {
			m.slots.release(body.slot) // no bucket can name a slot that was never written
		}
	}
	m.dirty.push(e.bucket)
	return true
}
