package mirror

import (
	"hash/maphash"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)

// Shard is the mirror for the reader of one shard.
type Shard struct {
	*Mirror
	shard int
}

// Shard is the mirror for the reader of shard i.
func (m *Mirror) Shard(i int) Shard { return Shard{m, i} }

// BeginResync begins a full resync of the shard: its versions start over, because Redis is
// the truth, and what is not applied again until [Shard.EndResync] is gone. A resync that
// was begun and not ended is begun anew.
func (s Shard) BeginResync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.generations[s.shard]++
}

// Unmet are the keys in Redis of what the shard's resync has not met yet. Deletions count, too.
func (s Shard) Unmet() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for stored, k := range s.known {
		if int(k.shard) == s.shard && k.generation != s.generations[s.shard] {
			keys = append(keys, stored)
		}
	}
	return keys
}

// EndResync removes what the shard no longer has; the objects of others stay.
func (s Shard) EndResync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var gone []string
	for stored, k := range s.known {
		if int(k.shard) == s.shard && k.generation != s.generations[s.shard] {
			gone = append(gone, stored)
			k.deleted = true // so that none of these takes another's place at the edge
			s.known[stored] = k
		}
	}
	for _, stored := range gone {
		s.forget(stored)
	}
	s.report()
}

// removalStripes is how many keys' removals are told apart, so that a catch-up with a log of much
// that is gone doesn't overtake each read.
const removalStripes = 1024

func (m *Mirror) stripe(key string) uint64 { return maphash.String(m.seed, key) % removalStripes }

// Generation changes with each full resync of a stored key's shard, and when versions are
// forgotten. Who reads Redis on their own account takes it before they read, for [Mirror.ApplyRead].
func (m *Mirror) Generation(stored string) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.generations[m.shards.Of(stored)] + m.removals[m.stripe(stored)]
}

// ApplyRead applies what was read from Redis by someone who does not follow the events:
// it is [Overtaken] if a full resync has begun since, when the version may be of data that Redis has lost,
// or a version was forgotten, which may be the one that this is older than.
func (m *Mirror) ApplyRead(o contract.Object, generation uint64) Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	if generation != m.generations[m.shards.Of(o.Key)]+m.removals[m.stripe(o.Key)] { //mutant:TestResync false
		return Overtaken
	}
	return m.apply(o)
}

// expiring reports whether k is a tombstone that Redis has forgotten or, as clocks differ,
// may have: then a version that is not newer is of a writer that has started over.
func (k known) expiring(now time.Time) bool {
	const clocksDiffer = time.Minute
	return k.deleted && now.UnixMilli() > k.publishedMS+(contract.TombstoneLife-clocksDiffer).Milliseconds()
}
