package edgemem

import (
	"hash/maphash"
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/shrink"
)

// objectTable places objects in buckets and their bodies in slots, the same at all edges.
type objectTable struct {
	keys    *wire.Keys
	edges   *attached
	shards  contract.Shards
	entries map[string]*entry          // by key
	size    shrink.Map[string, *entry] // of entries
	bodies  uint64                     // number of bodies that were ever put, see [wire.Stamp]
	buckets []bucket
	slots   slots
	tagBits maphash.Seed
}

func newObjectTable(keys *wire.Keys, edges *attached, buckets int, shards contract.Shards) objectTable {
	return objectTable{keys: keys, edges: edges, shards: shards, entries: make(map[string]*entry),
		buckets: make([]bucket, buckets), tagBits: maphash.MakeSeed()}
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
	slot  uint32
	stamp uint64
}

type bucket struct{ entries []*entry }

// Grow makes room for n more objects.
func (m *Memory) Grow(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects.entries = shrink.Grown(m.objects.entries, n)
}

// PutObject replaces the object at o's key, whatever the version. The memory retains o, so o must not change any more.
func (m *Memory) PutObject(o *contract.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects.putObject(o)
	m.wakeIf(true)
}

// MarkStale sets Stale on the object at key, if any. The bodies stay in their slots.
func (m *Memory) MarkStale(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wakeIf(m.objects.markStale(key))
}

// DeleteObject removes the object at key, if any.
func (m *Memory) DeleteObject(key string) { m.DeleteObjects([]string{key}) }

// DeleteObjects is [Memory.DeleteObject] for many keys at once.
func (m *Memory) DeleteObjects(keys []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	removed := false
	for _, key := range keys {
		removed = m.objects.removeObject(key) || removed
	}
	m.wakeIf(removed)
}

// putObject replaces the object at o's key.
func (t *objectTable) putObject(o *contract.Object) {
	t.removeObject(o.Key)
	e := &entry{Object: o, bodies: make([]bodySlot, len(o.Bodies))}
	for _, tag := range o.Tags {
		e.tags |= t.tagBit(tag)
	}
	shard := t.shards.Of(o.Key)
	for i := range e.bodies {
		t.bodies++
		e.bodies[i] = bodySlot{t.slots.acquireSlot(len(o.Bodies[i].Bytes)), wire.Stamp(t.bodies, shard)}
	}
	t.entries[o.Key] = e
	t.size.Add(t.entries)
	e.bucket, e.tag = t.keys.Place(e.Key, uint32(len(t.buckets)))
	b := &t.buckets[e.bucket]
	b.entries = append(b.entries, e)
	t.queueBucket(e.bucket)
}

// queueBucket makes all edges get a bucket.
func (t *objectTable) queueBucket(index uint32) {
	for _, o := range *t.edges {
		o.dirtyObjects.push(index)
	}
}

// markStale marks the object at key as stale and reports whether an object was found.
func (t *objectTable) markStale(key string) bool {
	e, found := t.entries[key]
	if !found {
		return false
	}
	stale := *e.Object
	stale.Stale = true
	e.Object = &stale
	t.queueBucket(e.bucket)
	return true
}

// removeObject removes the object at key from its bucket and reports whether an object was found.
func (t *objectTable) removeObject(key string) bool {
	e, found := t.entries[key]
	if !found {
		return false
	}
	delete(t.entries, key)
	t.entries = t.size.Fit(t.entries)
	b := &t.buckets[e.bucket]
	b.entries = shrink.Slice(slices.DeleteFunc(b.entries, func(other *entry) bool { return other == e }))
	t.queueBucket(e.bucket)
	for _, body := range e.bodies {
		held := false
		for _, o := range *t.edges {
			if o.slots.dropSlot(body.slot, o.dirtyObjects.pushed) {
				t.slots.holdSlot(body.slot)
				held = true
			}
		}
		if !held {
			t.slots.releaseSlot(body.slot)
		}
	}
	return true
}

// findBucket returns the index of key's bucket.
func (t *objectTable) findBucket(key string) uint32 {
	index, _ := t.keys.Place(key, uint32(len(t.buckets)))
	return index
}

// tagBit returns the bit of a tag, see [wire.Object].
func (t *objectTable) tagBit(tag string) uint32 { return 1 << (maphash.String(t.tagBits, tag) % 32) }

// takeObjects adds changed buckets of objects.
func (o *outbox) takeObjects(b *batch) {
	if o.dirtyObjects.len() > 0 && o.makeBodyRoom(b) {
		o.dirtyObjects.popWhile(func(index uint32) bool { return o.takeObjectBucket(b, index) })
	}
}

// takeObjectBucket adds the bodies that the bucket will name, and then the bucket. If not everything fits,
// takeObjectBucket returns false, and the next batch continues.
func (o *outbox) takeObjectBucket(b *batch, index uint32) bool {
	k := &o.objects.buckets[index]
	for _, e := range k.entries {
		for i, at := range e.bodies {
			bytes := e.Bodies[i].Bytes
			if o.slots.filled.has(at.slot) {
				continue
			}
			if !b.hasRoom(bodySize + len(bytes)) {
				return false
			}
			b.addRecord(wire.RegionBodies, at.slot, func(dst []byte) []byte {
				return wire.AppendBody(dst, o.epoch, at.stamp, bytes)
			})
			o.slots.recordBody(at.slot)
		}
	}
	if len(k.entries) == 0 && !o.filledBuckets.has(index) {
		return true // the edge has no entries of the bucket, or those of an earlier epoch, which are blanked
	}
	if !b.hasRoom(k.recordSize()) {
		return false
	}
	b.addRecord(wire.RegionObjects, index, func(dst []byte) []byte { return k.appendRecord(dst, o.epoch) })
	o.writtenObjects.set(index)
	o.sent[index] = struct{}{}
	if len(k.entries) > 0 {
		o.filledBuckets.set(index)
	} else {
		o.filledBuckets.clear(index)
	}
	return true
}

// takeFreeSlots adds tombstones for slots that were free for long enough.
func (o *outbox) takeFreeSlots(b *batch, now time.Time) {
	for b.hasRoom(wire.MinRecord) {
		slot, found := o.slots.nextToBlank(now)
		if !found {
			break
		}
		o.takeBlank(b, slot)
	}
}

func (o *outbox) takeBlank(b *batch, slot uint32) {
	b.addRecord(wire.RegionBodies, slot, func(dst []byte) []byte { return wire.AppendBody(dst, o.epoch, 0, nil) })
	o.slots.markBlank(slot)
}

// makeBodyRoom makes room in the edge's memory before objects are written, and reports success. Otherwise bodies that
// no bucket names (of an earlier epoch, or of many versions in a short time) could take several times the budget, and a
// memory of a fixed size would then refuse every push for ever.
func (o *outbox) makeBodyRoom(b *batch) bool {
	for o.slots.blankedTo < o.slots.filledBefore {
		if !b.hasRoom(wire.MinRecord) {
			return false
		}
		o.takeBlank(b, o.slots.blankedTo)
	}
	if o.slots.unnamedBytes > maxUnnamed {
		o.takeFreeSlots(b, time.Time{})
	}
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
