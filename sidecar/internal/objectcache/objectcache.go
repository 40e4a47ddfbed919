// Package objectcache holds the objects for the edge, as many as fit into a byte budget. Every change of an object at
// the edge goes through it, so that versions are compared in one place.
package objectcache

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/maypok86/otter/v2"
	"golang.org/x/time/rate"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/shrink"
)

// sweepEvery is the interval between sweeps for expired objects and tombstones.
const sweepEvery = 10 * time.Second

// expiryGrace is how long an object keeps its memory after its lifetime has ended. The edge checks the lifetime itself.
const expiryGrace = 10 * time.Second

// maxLeast bounds the smallest weight: the cache counts weights in 32 bits.
const maxLeast = 1 << 30

// Edge receives the cache's objects.
type Edge interface {
	// PutObject may retain o, which must not change any more. Its PublishedMS is at most the time at which the cache first
	// received this version, so that an object never outlives its ttl, even if the clock of Redis is ahead.
	PutObject(o *contract.Object)
	DeleteObject(key string)
	// DeleteObjects is DeleteObject for many keys at once.
	DeleteObjects(keys []string)
	// MarkStale makes the object at key, if there is one, Stale.
	MarkStale(key string)
	// BeginPurge has the edge let go at once of all objects of a shard that a purge concerns, or if soft take them as
	// stale. DeleteObjects or MarkStale for each follow, unless it is deleted or replaced meanwhile, and a call of end,
	// unless nil: then the edge lets go of each as it is deleted.
	BeginPurge(shard int, id string, soft bool) (end func())
}

// Config bounds the cache.
type Config struct {
	// Bytes is the budget for the objects' memory at the edge, see [edgemem.Footprint].
	Bytes int64
	// Objects is the maximum number of objects. Each counts for Bytes/Objects at least.
	Objects int
	// Shards is the number of shards of Redis, each with its own full resyncs.
	Shards contract.Shards
}

// Result is the result of applying an object, a label of metrics.
type Result string

// The results.
const (
	Stored      Result = "stored"
	Deleted     Result = "deleted"
	NotNewer    Result = "not_newer"    // the version is not newer than the known one
	Unchanged   Result = "unchanged"    // a full resync read the version that the cache has
	NotAdmitted Result = "not_admitted" // the budget went to objects that are used more
	TooLarge    Result = "too_large"    // larger than the whole budget
	Expired     Result = "expired"      // its lifetime has ended
	Overtaken   Result = "overtaken"    // see ApplyRead
	Purged      Result = "purged"       // by a purge after it was written
	Unjudged    Result = "unjudged"     // see ApplyRead
)

// Cache is safe for concurrent use.
type Cache struct {
	edge     Edge
	metrics  *metrics.Metrics
	log      *slog.Logger
	budget   int64
	least    int64 // weight of the smallest object
	shards   contract.Shards
	seed     maphash.Seed
	tooLarge rate.Sometimes // limits logging objects over the budget

	mu        sync.Mutex // protects all below; held during calls of the edge; a purge lets go of it in between
	cache     *otter.Cache[string, *contract.Object]
	evicted   []string // by the cache during Apply
	newest    map[string]newest
	size      shrink.Map[string, newest] // of newest
	resyncs   []uint64                   // by shard: number of full resyncs
	purges    []purges                   // by shard
	removals  [removalStripes]uint64     // number of versions that Remove forgot, by the hash of the key
	lifetimes lifetimes
	bytes     int64
	counts    [places]int // number of keys, by place; not maintained for nowhere
}

// place is the place of a key's newest version.
type place uint8

const (
	nowhere place = iota // not for the edge: deleted, expired or purged
	held                 // the cache and the edge have it
	leftOut              // in neither, because the budget is full
	places
)

// newest describes the newest version of a key, whether the cache holds it or not.
type newest struct {
	version     uint64
	resync      uint64 // of its shard, when it was last read from Redis
	shard       uint8
	place       place
	deleted     bool
	purged      bool      // by a purge after it
	stale       bool      // by a soft one
	publishedMS int64     // by the clock of Redis
	sinceMS     int64     // start of its lifetime: publishedMS, or when it was first received, if that is earlier
	ttlMS       int64     // 0: no end
	tags        *[]string // nil: none; most objects have none
	seq         uint64    // of its write
}

// New returns an empty Cache.
func New(c Config, edge Edge, m *metrics.Metrics, log *slog.Logger) (*Cache, error) {
	most := int64(max(c.Objects, 1))
	cache := &Cache{
		edge: edge, metrics: m, log: log, tooLarge: rate.Sometimes{First: 100, Interval: time.Second},
		budget: c.Bytes, least: min((c.Bytes+most-1)/most, maxLeast), // rounded up: never one object more
		shards: c.Shards, seed: maphash.MakeSeed(), newest: make(map[string]newest),
		resyncs: make([]uint64, c.Shards.Count()), lifetimes: newLifetimes(),
	}
	for range c.Shards.Count() {
		cache.purges = append(cache.purges, purges{all: contract.Purges{}, tagged: map[string]keySet{}})
	}
	var err error
	// otter selects what to evict (W-TinyLFU, by use and size).
	cache.cache, err = otter.New(&otter.Options[string, *contract.Object]{
		MaximumWeight: uint64(c.Bytes),
		Weigher:       func(_ string, o *contract.Object) uint32 { return uint32(cache.weight(o)) },
		// Evictions happen during the call that causes them, under mu.
		Executor: func(task func()) { task() },
		OnDeletion: func(e otter.DeletionEvent[string, *contract.Object]) {
			if e.WasEvicted() {
				cache.evicted = append(cache.evicted, e.Key)
			}
			cache.bytes -= cache.weight(e.Value)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("memory budget of %d bytes: %w", c.Bytes, err)
	}
	m.CachedBudget.Set(float64(c.Bytes))
	return cache, nil
}

// weight returns the part of the budget that o uses, about 4 MiB for an object at its limits.
func (c *Cache) weight(o *contract.Object) int64 { return max(int64(edgemem.Footprint(o)), c.least) }

// Apply applies o, a record from Redis, if its version is newer than the known one. It retains o's bodies, which must
// not change any more.
func (c *Cache) Apply(o contract.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apply(&o)
}

// apply is update, counted by result.
func (c *Cache) apply(o *contract.Object) Result {
	result := c.update(o)
	c.metrics.Applied.WithLabelValues(string(result)).Inc()
	c.report()
	return result
}

func (c *Cache) report() {
	c.metrics.CachedObjects.Set(float64(c.counts[held]))
	c.metrics.CachedLeftOut.Set(float64(c.counts[leftOut]))
	c.metrics.CachedBytes.Set(float64(c.bytes))
}

// update makes o, unless it is not newer, the newest version of its key, here and at the edge.
func (c *Cache) update(o *contract.Object) Result {
	shard := c.shards.Of(o.Key)
	resync := c.resyncs[shard]
	before, found := c.newest[o.Key]
	purged, stale := c.purges[shard].all.Of(o.Key, o.Tags, o.Seq)
	if found && before.resync == resync && !before.expiring(time.Now()) {
		if o.Version < before.version || o.Version == before.version && !c.replaces(o, before, purged, stale) {
			return NotNewer
		}
	}
	sinceMS := min(o.PublishedMS, time.Now().UnixMilli())
	again := o.Version == before.version && o.PublishedMS == before.publishedMS
	if again {
		sinceMS = before.sinceMS
	}
	unchanged := again && !purged && before.resync != resync && before.place == held && stale == before.stale && c.has(o)
	if before.place != nowhere {
		c.index(o.Key, false)
	}
	c.newest[o.Key] = newest{
		version: o.Version, resync: resync, shard: uint8(shard), place: before.place,
		deleted: o.Deleted, publishedMS: o.PublishedMS, sinceMS: sinceMS, ttlMS: o.TTLMS,
		seq: o.Seq, purged: purged && !o.Deleted, stale: stale && !o.Deleted,
	}
	if tags := o.Tags; len(tags) > 0 {
		k := c.newest[o.Key]
		k.tags = &tags
		c.newest[o.Key] = k
	}
	if before.place != nowhere {
		c.index(o.Key, true)
	}
	o.Stale = stale
	o.PublishedMS = sinceMS
	c.size.Add(c.newest)
	switch {
	case unchanged:
		return Unchanged
	case o.Deleted:
		c.release(o.Key)
		c.lifetimes.watch(o.Key, o.PublishedMS+contract.TombstoneLife.Milliseconds())
		return Deleted
	case purged:
		c.release(o.Key)
		return Purged
	case ended(o, time.Now()):
		c.release(o.Key)
		return Expired
	}
	if o.TTLMS > 0 {
		c.lifetimes.watch(o.Key, o.PublishedMS+o.TTLMS+expiryGrace.Milliseconds())
	}
	switch {
	case c.weight(o) > c.budget:
		c.tooLarge.Do(func() {
			c.log.Warn("object exceeds the memory budget: skipped", "key", o.Key, "version", o.Version,
				"bytes", c.weight(o), "budget_bytes", c.budget)
		})
		c.release(o.Key)
		c.put(o.Key, leftOut)
		return TooLarge
	case !c.store(o):
		return NotAdmitted
	}
	return Stored
}

// replaces reports whether to apply o although its version is the known one: the object was evicted, or judged by
// purges that a full resync has since forgotten, or o is a later write from another server that counted to the same
// version. purged and stale are how it is judged now.
func (c *Cache) replaces(o *contract.Object, before newest, purged, stale bool) bool {
	if o.PublishedMS != before.publishedMS || o.PublishedMS == limits.MaxVersion { // no time follows it
		return o.PublishedMS >= before.publishedMS
	}
	return !before.deleted && (before.place != held || before.purged != purged || before.stale != stale)
}

// Confirm reports whether the known version of o's key is the write o, read from Redis. If so, it counts as applied in
// a full resync. o needs no bodies: no two writes share version, time and entity-tag.
func (c *Cache) Confirm(o contract.Object) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, found := c.newest[o.Key]
	if !found || k.version != o.Version || k.publishedMS != o.PublishedMS ||
		k.deleted != o.Deleted || k.expiring(time.Now()) {
		return false
	}
	purged, stale := c.purges[k.shard].all.Of(o.Key, o.Tags, o.Seq)
	switch entry, found := c.cache.GetEntryQuietly(o.Key); {
	case !k.deleted && (k.seq != o.Seq || k.purged != purged || k.stale != stale):
		return false // other purges count by now
	case k.place == held && (!found || !sameHead(entry.Value, &o)):
		return false
	case k.place != held && !k.deleted && !k.purged && c.bytes < c.budget-c.budget/10:
		return false // there may be room for it now
	}
	k.resync = c.resyncs[k.shard]
	c.newest[o.Key] = k
	c.metrics.Applied.WithLabelValues(string(Unchanged)).Inc()
	return true
}

// has reports whether the cache holds this write.
func (c *Cache) has(o *contract.Object) bool {
	entry, found := c.cache.GetEntryQuietly(o.Key)
	return found && !o.Deleted && equal(entry.Value, o)
}

// store puts o into the cache, and updates the edge with the resulting evictions. It reports whether o stayed.
func (c *Cache) store(o *contract.Object) bool {
	c.cache.Set(o.Key, o)
	c.bytes += c.weight(o)
	// One pass of the cache's maintenance may not finish the evictions.
	for c.cache.CleanUp(); c.cache.WeightedSize() > uint64(c.budget); {
		c.cache.CleanUp()
	}
	for _, key := range c.evicted {
		if key != o.Key {
			c.metrics.Evicted.WithLabelValues("budget").Inc()
		}
		c.put(key, leftOut)
		c.edge.DeleteObject(key)
	}
	stays := !slices.Contains(c.evicted, o.Key)
	clear(c.evicted)
	c.evicted = shrink.Slice(c.evicted[:0])
	if stays {
		c.put(o.Key, held)
		c.edge.PutObject(o)
	}
	return stays
}

// release removes a key's object from the cache, and from the edge if it is there.
func (c *Cache) release(key string) {
	if c.newest[key].place == held {
		c.cache.Invalidate(key)
		c.edge.DeleteObject(key)
	}
	c.put(key, nowhere)
}

// put records the place of a key's object.
func (c *Cache) put(key string, at place) {
	k := c.newest[key]
	if k.place == at {
		return
	}
	if at == nowhere {
		c.index(key, false)
	}
	c.counts[k.place]--
	c.counts[at]++
	before := k.place
	k.place = at
	c.newest[key] = k
	if before == nowhere {
		c.index(key, true)
	}
}

// forget removes everything known about a key.
func (c *Cache) forget(key string) {
	c.release(key)
	delete(c.newest, key)
	c.newest = c.size.Fit(c.newest)
}

// Remove removes a key's object and forgets its version: Redis has no record of the key, or an unreadable one.
func (c *Cache) Remove(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(key)
	c.removals[c.stripe(key)]++
	c.report()
}

// Get returns the object at key, if the cache holds it, it was not purged, and its lifetime has not ended. Its bodies
// belong to the cache. Get counts as a use.
func (c *Cache) Get(key string) (contract.Object, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, found := c.cache.GetIfPresent(key)
	if !found || ended(o, time.Now()) {
		return contract.Object{}, false
	}
	k := c.newest[key]
	purged, stale := c.judge(key, k)
	if purged {
		return contract.Object{}, false
	}
	got := *o
	got.Stale = stale || k.stale
	return got, true
}

// Used counts one use for each element of keys, the objects that the edge served from its memory. Uses decide which
// objects stay when the budget is full.
func (c *Cache) Used(keys []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		c.cache.GetIfPresent(key)
	}
}

// Run sweeps until ctx ends.
func (c *Cache) Run(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			c.Sweep()
		}
	}
}
