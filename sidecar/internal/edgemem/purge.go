package edgemem

import (
	"hash/maphash"
	"slices"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// purging is a purge that is under way.
type purging struct {
	wire.Purge
	// ended: everything that it concerns was removed or marked here, and the edge has that once so many buckets were
	// taken.
	ended bool
	after uint64
}

// BeginPurge begins the purge with this ID. The edge finds none of the objects that the memory has now and the purge
// concerns, or if soft finds them stale, from the next batch on, however many they are. The caller then removes or
// marks each, and calls end. With [wire.MaxPurges] under way, the edge learns of each object by itself.
func (m *Memory) BeginPurge(id string, soft bool) (end func()) {
	virtualHost, prefix, tag := contract.SplitPurge(id)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.purging) == wire.MaxPurges {
		return func() {}
	}
	p := &purging{Purge: wire.Purge{Stamp: m.stamp, Soft: soft, VirtualHost: virtualHost, Prefix: prefix}}
	if tag != "" {
		p.Tags = m.tagBit(tag)
	}
	m.purging = append(m.purging, p)
	m.purged++
	m.notify()
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		p.ended, p.after = true, m.dirty.pushed
		m.notify()
	}
}

// endPurges forgets the purges of which the edge has every removal and mark.
func (m *Memory) endPurges() {
	m.purging = slices.DeleteFunc(m.purging, func(p *purging) bool { return p.ended && m.dirty.popped >= p.after })
}

// purges returns the purges for the state.
func (m *Memory) purges() (all []wire.Purge) {
	for _, p := range m.purging {
		all = append(all, p.Purge)
	}
	return all
}

// tagBit returns the bit of a tag, see [wire.Object].
func (m *Memory) tagBit(tag string) uint32 { return 1 << (maphash.String(m.tagBits, tag) % 32) }
