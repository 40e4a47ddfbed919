package edge

import (
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// maxBodies bounds the bodies in a VM's cache, in bytes.
const maxBodies = 16 << 20

// bodyCache caches the bodies that this VM has read (L1): a body is copied out of shared memory once per worker and
// version. An entry is used only while the object's metadata has the entry's stamp. The zero value is ready to use.
type bodyCache struct {
	entries map[uint32]bodyEntry // by slot
	size    int                  // of all bodies, bytes
}

type bodyEntry struct {
	epoch, stamp uint64
	body         *policy.Body
}

func (c *bodyCache) get(epoch uint64, v wire.Variant) *policy.Body {
	e, ok := c.entries[v.Slot]
	if !ok || e.epoch != epoch || e.stamp != v.Stamp || len(e.body.Bytes) != int(v.Length) {
		return nil
	}
	return e.body
}

// put stores body, which then belongs to the cache, and drops random bodies (the order of a map) until all fit: enough
// if the hot set fits, harmless otherwise.
func (c *bodyCache) put(epoch uint64, v wire.Variant, body []byte) *policy.Body {
	if c.entries == nil {
		c.entries = map[uint32]bodyEntry{}
	}
	c.drop(v.Slot)
	for slot := range c.entries {
		if c.size+len(body) <= maxBodies {
			break
		}
		c.drop(slot)
	}
	kept := &policy.Body{Bytes: body}
	c.entries[v.Slot] = bodyEntry{epoch, v.Stamp, kept}
	c.size += len(body)
	return kept
}

func (c *bodyCache) drop(slot uint32) {
	if e, ok := c.entries[slot]; ok {
		c.size -= len(e.body.Bytes)
		e.body.Bytes = nil // cached answers refer to the body
		delete(c.entries, slot)
	}
}
