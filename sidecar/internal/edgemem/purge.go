package edgemem

import (
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
	id    purgeID
	shard int
	stamp uint64 // stamps of the shard's bodies are at most this before the purge, and more after
	ended bool   // the memory has everything that the purge removed or marked
	// lacking is, once the purge has ended, the number of edges that lack some of its removals and marks.
	lacking int
}

// purges has the purges that the edges must apply by themselves, because an edge still lacks some of their removals.
type purges struct {
	running map[purgeID]map[int]*shardPurge // by shard
	begun   uint64                          // number of begun purges
}

// BeginPurge begins a purge in a shard, or begins a purge with the same ID once more. From the next batch on, the edge
// finds none of the purge's objects that the memory has of the shard now, however many (if soft, the edge finds them
// stale). The caller then removes or marks each object, and calls end. If [wire.MaxPurges] purges are under way, end is
// nil, and the edge learns of each object separately.
func (m *Memory) BeginPurge(shard int, id string, soft bool) (end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.purges.begin(purgeID{id, soft}, shard, m.objects.bodies)
	if p == nil {
		return nil
	}
	m.wakeIf(true)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		p.ended = true
		for _, o := range m.edges {
			o.purgeEnds[p] = o.dirtyObjects.pushed
			p.lacking++
		}
		m.purges.forgetIfDone(p)
		m.wakeIf(true)
	}
}

// begin begins a purge in a shard after the given number of bodies; nil: too many purges are under way.
func (u *purges) begin(of purgeID, shard int, bodies uint64) *shardPurge {
	shards, found := u.running[of]
	switch {
	case found:
	case len(u.running) == wire.MaxPurges:
		return nil
	default:
		shards = map[int]*shardPurge{}
		u.running[of] = shards
	}
	p := &shardPurge{id: of, shard: shard, stamp: wire.Stamp(bodies, shard)}
	shards[shard] = p
	u.begun++
	return p
}

// forgetIfDone forgets a purge that has ended, and of which no edge lacks anything.
func (u *purges) forgetIfDone(p *shardPurge) {
	shards := u.running[p.id]
	if !p.ended || p.lacking > 0 || shards[p.shard] != p { // the last: the purge was begun once more
		return
	}
	delete(shards, p.shard)
	if len(shards) == 0 {
		delete(u.running, p.id)
	}
}

// endPurges forgets the purges of which the edge has every removal and mark: popped is the number of taken buckets.
func (o *outbox) endPurges(popped uint64) {
	for p, after := range o.purgeEnds {
		if popped >= after {
			delete(o.purgeEnds, p)
			p.lacking--
			o.purges.forgetIfDone(p)
		}
	}
}

// listPurges returns the purges for the edge's state.
func (o *outbox) listPurges() (all []wire.Purge) {
	for of, shards := range o.purges.running {
		purge := wire.Purge{Soft: of.soft}
		for _, p := range shards {
			if _, lacks := o.purgeEnds[p]; lacks || !p.ended {
				purge.Stamps = append(purge.Stamps, p.stamp)
			}
		}
		if purge.Stamps == nil {
			continue
		}
		var tag string
		if purge.VirtualHost, purge.Prefix, tag = contract.SplitPurge(of.id); tag != "" {
			purge.Tags = o.objects.tagBit(tag)
		}
		all = append(all, purge)
	}
	return all
}
