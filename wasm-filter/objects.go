package main

import "github.com/gatehouse/gatehouse/wire"

// keptObjects bounds the objects that a VM keeps. It is a power of two.
const keptObjects = 1 << keptBits

const keptBits = 10

// objectCache keeps what shared memory says of objects that are asked for again and again,
// parsed (L1), and looks at the guard before each use. An object that is asked for once
// leaves no more than its place. The zero value is ready to use.
type objectCache struct {
	guard   guardSeen
	entries [keptObjects]keptObject
	passing wire.Object // the one that was found last and isn't kept
}

type keptObject struct {
	epoch  uint64 // of object; 0: none is kept
	guard  uint64 // when record was read
	bucket uint32 // of object, or of the one that was asked for here last
	object wire.Object
	record []byte // the bucket, which object refers to
}

// find is the object of a key; it belongs to the cache and is valid until the next one.
func (c *objectCache) find(h host, state *wire.State, key string) (*wire.Object, error) {
	kept := &c.entries[keptAt(key)]
	known := kept.epoch == state.Epoch && kept.object.Key == key
	var guard uint64
	if known {
		if guard = c.guard.read(h); guard != 0 && guard == kept.guard {
			return &kept.object, nil
		}
	}
	bucket, tag := state.Keys.Place(key, state.ObjectBuckets)
	if !known && kept.bucket == bucket { // asked for twice
		guard = c.guard.read(h)
	}
	// The guard was read before the record is: a change in between shows at the next look.
	record := h.record(wire.RegionObjects, bucket)
	kept.epoch, kept.bucket = 0, bucket
	var err error
	if guard == 0 {
		c.passing, err = wire.FindObject(record, state.Epoch, tag, key)
		return &c.passing, err
	}
	kept.record = append(kept.record[:0], record...)
	if kept.object, err = wire.FindObject(kept.record, state.Epoch, tag, key); err == nil {
		kept.epoch, kept.guard = state.Epoch, guard
	}
	return &kept.object, err
}

// tick drops everything: while one release replaces another, the push listener can be served
// by a module that knows no guard, and what is kept is then wrong until here.
func (c *objectCache) tick(h host) {
	c.guard.check(h)
	for i := range c.entries {
		c.entries[i].epoch = 0
	}
}

// keptAt is where an object is kept, by the end of its key, in which keys differ most. Who
// chooses keys can make two share an entry, which takes their gain and no more.
func keptAt(key string) uint32 {
	h := uint32(len(key))
	for i := max(len(key)-8, 0); i < len(key); i++ {
		h = h*31 + uint32(key[i])
	}
	return h * 0x9e3779b1 >> (32 - keptBits)
}
