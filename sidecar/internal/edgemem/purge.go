package edgemem

import (
	"hash/maphash"
	"maps"
	"math"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// purgeID identifies a purge, which is often under way in several shards.
type purgeID struct {
	id   string // see [contract.SplitPurge]
	soft bool
}

// purging is a purge that is under way in a shard.
type purging struct {
	stamp uint64 // at least those of the shard's bodies before it, and less than those after it
	// after is when all that the purge concerns was removed or marked at the edge: once so many buckets were taken. Until
	// the call of end that isn't known.
	after uint64
}

// BeginPurge begins the purge with this ID in a shard, or begins it once more. The edge finds none of the objects that
// the memory has of the shard now and the purge concerns, or if soft finds them stale, from the next batch on, however
// many they are. The caller then removes or marks each, and calls end. With [wire.MaxPurges] others under way, end is
// nil, and the edge learns of each object by itself.
func (m *Memory) BeginPurge(shard int, id string, soft bool) (end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := purgeID{id, soft}
	shards, found := m.purging[of]
	switch {
	case found:
	case len(m.purging) == wire.MaxPurges:
		return nil
	default:
		shards = map[int]*purging{}
		m.purging[of] = shards
	}
	p := &purging{stamp: wire.Stamp(m.bodies, shard), after: math.MaxUint64}
	shards[shard] = p
	m.purged++
	m.notify()
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		p.after = m.dirty.pushed
		m.notify()
	}
}

// endPurges forgets the purges of which the edge has every removal and mark.
func (m *Memory) endPurges() {
	for of, shards := range m.purging {
		maps.DeleteFunc(shards, func(_ int, p *purging) bool { return m.dirty.popped >= p.after })
		if len(shards) == 0 {
			delete(m.purging, of)
		}
	}
}

// purges returns the purges for the state.
func (m *Memory) purges() (all []wire.Purge) {
	for of, shards := range m.purging {
		purge := wire.Purge{Soft: of.soft}
		var tag string
		if purge.VirtualHost, purge.Prefix, tag = contract.SplitPurge(of.id); tag != "" {
			purge.Tags = m.tagBit(tag)
		}
		for _, p := range shards {
			purge.Stamps = append(purge.Stamps, p.stamp)
		}
		all = append(all, purge)
	}
	return all
}

// tagBit returns the bit of a tag, see [wire.Object].
func (m *Memory) tagBit(tag string) uint32 { return 1 << (maphash.String(m.tagBits, tag) % 32) }
