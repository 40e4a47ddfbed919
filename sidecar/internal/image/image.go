// Package image is the target state of the edge's shared memory, and tracks which parts the edge lacks. It owns
// placement: the bucket of an object, the slot of a body, the bit of a permission name. It is independent of the
// readers, and of how its batches are sent.
//
// # Order of writes
//
// A body is written before the bucket that names it, and a slot that a bucket still
// names is never written: a new version's bodies go to other slots, and a slot that a
// bucket no longer names is free only when the batch with that bucket was acknowledged.
// So between any two operations
// a reader finds one whole version of each object or nothing. A reader that has an older copy of a bucket finds a slot
// whose stamp has changed, which is a miss.
//
// The edge's workers read the state periodically, not for each request, so in a new epoch some still use the old one.
// Before any bucket of the new epoch is written, all of the old one are blanked, verdicts first. Otherwise a worker
// could serve a version after another has served a newer one, or authenticate a device that was revoked while no
// sidecar ran. The state says that the edge knows all devices only after the last of their entries.
package image

import (
	"crypto/rand"
	"encoding/binary"
	"sync"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/wire"
)

// meanEntries is how many entries a bucket holds on average when a table is as full as
// it was sized for.
const meanEntries = 4

// maxTable bounds table sizes, ours and those that another sidecar's state claims.
const maxTable = 1 << 24

// Config sizes the tables; they keep their size as long as the sidecar runs.
type Config struct {
	// Objects is how many objects the table is sized for. More still fit: lookups get slower.
	Objects int
	// Verdicts bounds the allow verdicts; denies are bounded besides, to as many, and devices
	// to four times as many.
	Verdicts int
}

// Memory is safe for concurrent use, but for [Memory.Take], [Memory.Acked] and
// [Memory.Reset], which belong to one goroutine, the pusher.
type Memory struct {
	maxAllows int
	wake      chan struct{} // capacity 1: something is to be taken

	mu    sync.Mutex // protects all below
	epoch uint64
	keys  wire.Keys
	stamp uint64 // last stamp given out; never restarts

	objects     map[string]*entry
	buckets     []bucket
	dirty       queue // of buckets
	slots       slots
	permissions permissions

	verdicts verdicts

	// What the batches say. taken is of the state record last taken, acked of the last
	// one acknowledged.
	replaces   uint64 // the epoch that the edge holds when the next batch comes: ours, but for the first one
	inStepMS   int64
	inStep     inStepTimes
	taken      sentState
	acked      sentState
	batch      uint64        // the last one taken; never restarts
	ackedBatch uint64        // the last one acknowledged
	ackedMore  chan struct{} // closed and replaced at each acknowledgement
	freed      []uint32      // slots to free when what was taken is acknowledged
	superseded []indexRange  // an earlier epoch's buckets, to blank before any is written in this one
	blanks     []indexRange  // buckets to blank unless they are written in this epoch
	crowdedOut bool          // the last batch had no room for any object, though some wait
}

// entry is one object in its bucket.
type entry struct {
	*contract.Object
	tag    uint32
	bucket uint32
	bodies []stored // as Object.Bodies
}

// stored is where a body lies.
type stored struct {
	slot    uint32
	stamp   uint64
	written bool // was taken in this epoch
}

type bucket struct {
	entries []*entry
	dropped []uint32 // slots that the bucket as last taken may name and no longer does
	written bool     // holds a record of this epoch
	listing bool     // that record, as last taken, has entries
	batch   uint64   // in which it was last taken
}

// New is an image of nothing, in an epoch that has not begun: call [Memory.Reset] before
// [Memory.Take].
func New(c Config) *Memory {
	buckets := tableSize(c.Objects)
	m := &Memory{
		maxAllows:   max(c.Verdicts, 1),
		wake:        make(chan struct{}, 1),
		objects:     make(map[string]*entry),
		buckets:     make([]bucket, buckets),
		dirty:       newQueue(buckets),
		permissions: permissions{bits: make(map[string]uint)},
		verdicts:    newVerdicts(tableSize(c.Verdicts)),
		ackedMore:   make(chan struct{}),
	}
	m.begin()
	return m
}

func tableSize(entries int) int {
	return min(max((entries+meanEntries-1)/meanEntries, 1), maxTable)
}

// begin draws the secrets of a new epoch.
func (m *Memory) begin() {
	var b [8]byte
	for m.epoch = 0; m.epoch == 0; m.epoch = binary.LittleEndian.Uint64(b[:]) {
		rand.Read(b[:]) // never fails
	}
	rand.Read(m.keys.Placement[:])
	rand.Read(m.keys.Credential[:])
}

// Wake gives a value when there may be something to take.
func (m *Memory) Wake() <-chan struct{} { return m.wake }

// notify is called with mu held.
func (m *Memory) notify() {
	select {
	case m.wake <- struct{}{}:
	default: // a wake-up is waiting already
	}
}

// Epoch is the current epoch, never 0.
func (m *Memory) Epoch() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.epoch
}

// PutObject puts o in place of the object at its key, whatever its version. The image
// keeps o, so nobody may change it from now on.
func (m *Memory) PutObject(o *contract.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(o.Key)
	e := &entry{Object: o, bodies: make([]stored, len(o.Bodies))}
	for i := range e.bodies {
		m.stamp++
		e.bodies[i] = stored{slot: m.slots.take(), stamp: m.stamp}
	}
	m.objects[o.Key] = e
	m.place(e)
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

// place puts e into its bucket of this epoch.
func (m *Memory) place(e *entry) {
	e.bucket, e.tag = m.keys.Place(e.Key, uint32(len(m.buckets)))
	b := &m.buckets[e.bucket]
	b.entries = append(b.entries, e)
	m.dirty.push(e.bucket)
}

// drop takes the object at key out of its bucket and reports whether there was one.
func (m *Memory) drop(key string) bool {
	e, found := m.objects[key]
	if !found {
		return false
	}
	delete(m.objects, key)
	b := &m.buckets[e.bucket]
	for i := range b.entries {
		if b.entries[i] == e {
			b.entries = append(b.entries[:i], b.entries[i+1:]...)
			break
		}
	}
	for _, body := range e.bodies {
		if body.written {
			b.dropped = append(b.dropped, body.slot)
		} else {
			m.slots.release(body.slot) // no bucket can name what was never written
		}
	}
	m.dirty.push(e.bucket)
	return true
}
