package edgemem

import (
	"hash/maphash"
	"slices"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// purging is a purge that is under way, often in several shards.
type purging struct {
	wire.Purge
	// open is the number of calls of BeginPurge without one of end. Without any, all that the purge concerns was removed
	// or marked here, and the edge has that once so many buckets were taken.
	open  int
	after uint64
}

// BeginPurge begins the purge with this ID. The edge finds none of the objects that the memory has now and the purge
// concerns, or if soft finds them stale, from the next batch on, however many they are. The caller then removes or
// marks each, and calls end. With [wire.MaxPurges] others under way, the edge learns of each object by itself.
func (m *Memory) BeginPurge(id string, soft bool) (end func()) {
	virtualHost, prefix, tag := contract.SplitPurge(id)
	purge := wire.Purge{Soft: soft, VirtualHost: virtualHost, Prefix: prefix}
	if tag != "" {
		purge.Tags = m.tagBit(tag)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var p *purging
	for _, other := range m.purging {
		if purge.Stamp = other.Stamp; purge == other.Purge {
			p = other
		}
	}
	switch {
	case p != nil:
	case len(m.purging) == wire.MaxPurges:
		return func() {}
	default:
		p = &purging{Purge: purge}
		m.purging = append(m.purging, p)
	}
	p.Stamp = m.stamp
	p.open++
	m.purged++
	m.notify()
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		p.open--
		p.after = m.dirty.pushed
		m.notify()
	}
}

// endPurges forgets the purges of which the edge has every removal and mark.
func (m *Memory) endPurges() {
	m.purging = slices.DeleteFunc(m.purging, func(p *purging) bool {
		return p.open == 0 && m.dirty.popped >= p.after
	})
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
