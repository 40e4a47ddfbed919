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

// shardPurge is a purge that is under way in a shard.
type shardPurge struct {
	stamp uint64 // stamps of the shard's bodies are at most this before the purge, and more after
	// after is the count of taken buckets at which the edge has everything that the purge removed or marked; unknown
	// until the call of end.
	after uint64
}

// BeginPurge begins a purge in a shard, or begins a purge with the same ID once more. From the next batch on, the edge
// finds none of the purge's objects that the memory has of the shard now, however many (if soft, the edge finds them
// stale). The caller then removes or marks each object, and calls end. If [wire.MaxPurges] purges are under way, end is
// nil, and the edge learns of each object separately.
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
		shards = map[int]*shardPurge{}
		m.purging[of] = shards
	}
	p := &shardPurge{stamp: wire.Stamp(m.bodies, shard), after: math.MaxUint64}
	shards[shard] = p
	m.purgesBegun++
	m.wakePusher()
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		p.after = m.dirty.pushed
		m.wakePusher()
	}
}

// endPurges forgets the purges of which the edge has every removal and mark.
func (m *Memory) endPurges() {
	for of, shards := range m.purging {
		maps.DeleteFunc(shards, func(_ int, p *shardPurge) bool { return m.dirty.popped >= p.after })
		if len(shards) == 0 {
			delete(m.purging, of)
		}
	}
}

// listPurges returns the purges for the state.
func (m *Memory) listPurges() (all []wire.Purge) {
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
