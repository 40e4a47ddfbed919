package objectcache

import (
	"hash/maphash"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// Shard is the cache's view for the follower of a shard.
type Shard struct {
	*Cache
	shard int
}

// Shard returns the cache for the follower of shard i.
func (c *Cache) Shard(i int) Shard { return Shard{c, i} }

// BeginResync begins a full resync of the shard: versions start over, because Redis is authoritative, and
// [Shard.EndResync] removes all objects that were not applied again. Another BeginResync restarts an unfinished resync.
func (s Shard) BeginResync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resyncs[s.shard]++
}

// Unapplied returns the keys that the shard's resync has not applied yet, tombstones included.
func (s Shard) Unapplied() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for key, k := range s.newest {
		if int(k.shard) == s.shard && k.resync != s.resyncs[s.shard] {
			keys = append(keys, key)
		}
	}
	return keys
}

// EndResync removes all objects of the shard that the resync has not applied.
func (s Shard) EndResync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var gone []string
	for key, k := range s.newest {
		if int(k.shard) == s.shard && k.resync != s.resyncs[s.shard] {
			gone = append(gone, key)
		}
	}
	for _, key := range gone {
		s.forgetKey(key)
	}
	s.reportMetrics()
}

// removalStripes is the number of removal counters, selected by the hash of the key. With many counters, a catch-up
// with many removals doesn't make every concurrent read overtaken.
const removalStripes = 1024

func (c *Cache) removalStripe(key string) uint64 { return maphash.String(c.seed, key) % removalStripes }

// ReadMark returns a number that changes with each full resync of a key's shard, and when versions are forgotten. A
// caller that reads Redis independently of the events takes the mark before the read, for [Cache.ApplyRead].
func (c *Cache) ReadMark(key string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resyncs[c.shards.Of(key)] + c.removals[c.removalStripe(key)]
}

// ApplyRead applies an object that was read from Redis independently of the events. ApplyRead returns [Overtaken] if,
// since mark, a full resync has begun (Redis may have lost the version), or a version was forgotten (the forgotten
// version may have been newer); and [Unjudged] until the purges of the shard were read once. ApplyRead sets o's
// PublishedMS and Stale as for [Edge].
func (c *Cache) ApplyRead(o *contract.Object, mark uint64) Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	if mark != c.resyncs[c.shards.Of(o.Key)]+c.removals[c.removalStripe(o.Key)] {
		return Overtaken
	}
	if !c.purges[c.shards.Of(o.Key)].isLoaded {
		return Unjudged
	}
	applied := *o
	result := c.applyCounted(&applied)
	o.PublishedMS, o.Stale = applied.PublishedMS, applied.Stale
	return result
}

// mayHaveExpired reports whether k is a tombstone that Redis has removed or, because clocks differ, may have removed. A
// version that is not newer then comes from a writer that has started over.
func (k newestVersion) mayHaveExpired(now time.Time) bool {
	const clocksDiffer = time.Minute
	return k.deleted && now.UnixMilli() > k.sinceMS+(contract.TombstoneLife-clocksDiffer).Milliseconds()
}
