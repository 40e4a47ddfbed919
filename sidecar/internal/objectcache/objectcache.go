// Package objectcache holds the objects for the edge, as many as fit into a byte budget. Every change of an object at
// the edge goes through the cache, so that versions are compared in one place.
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
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/shrink"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
)

// sweepEvery is the interval between sweeps for expired objects and tombstones.
const sweepEvery = 10 * time.Second

// expiryGrace is how long an object keeps its memory after its lifetime. The edge checks the lifetime itself.
const expiryGrace = 10 * time.Second

// maxMinWeight bounds the smallest weight: the cache counts weights in 32 bits.
const maxMinWeight = 1 << 30

// Edge receives the cache's objects.
type Edge interface {
	// Grow makes room for n more objects.
	Grow(n int)
	// PutObject may retain o, so o must not change any more. o.PublishedMS is at most the time at which the cache first
	// received this version, so that an object never outlives its ttl, even if the clock of Redis is ahead.
	PutObject(o *contract.Object)
	DeleteObject(key string)
	// DeleteObjects is DeleteObject for many keys at once.
	DeleteObjects(keys []string)
	// MarkStale sets Stale on the object at key, if any.
	MarkStale(key string)
	// BeginPurge makes the edge drop at once all objects of a shard that a purge concerns, or if soft mark them as
	// stale. Calls of DeleteObjects or MarkStale for each object follow (unless the object is deleted or replaced
	// meanwhile), and a call of end. If end is nil, the edge drops each object only when it is deleted.
	BeginPurge(shard int, id string, soft bool) (end func())
}

// Config bounds the cache.
type Config struct {
	// Bytes is the budget for the objects' memory at the edge, see [edgemem.Footprint].
	Bytes int64
	// Objects is the maximum number of objects. Each counts for Bytes/Objects at least.
	Objects int
	// Shards is the number of shards of Redis. Each shard has full resyncs of its own.
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
	Expired     Result = "expired"      // the lifetime has ended
	Overtaken   Result = "overtaken"    // see ApplyRead
	Purged      Result = "purged"       // by a purge after it was written
	Unjudged    Result = "unjudged"     // see ApplyRead
)

// Cache is safe for concurrent use.
type Cache struct {
	edge      Edge
	metrics   *metrics.Metrics
	log       *slog.Logger
	budget    int64
	minWeight int64 // weight of the smallest object
	shards    contract.Shards
	seed      maphash.Seed
	tooLarge  rate.Sometimes // limits logging objects over the budget

	mu        sync.Mutex // protects all below; held during calls of the edge; a purge lets go of it in between
	cache     *otter.Cache[string, *contract.Object]
	evicted   []string // by the cache during Apply
	newest    map[string]newestVersion
	size      shrink.Map[string, newestVersion] // of newest
	resyncs   []uint64                          // by shard: number of full resyncs
	purges    []shardPurges                     // by shard
	removals  [removalStripes]uint64            // number of versions that Remove forgot, by the hash of the key
	lifetimes lifetimes
	bytes     int64
	counts    [locations]int // number of keys, by location; not maintained for nowhere
}

// location says which of cache and edge have a key's newest version.
type location uint8

const (
	nowhere location = iota // not for the edge: deleted, expired or purged
	held                    // the cache and the edge have it
	leftOut                 // in neither, because the budget is full
	locations
)

// newestVersion describes the newest version of a key, whether the cache holds it or not.
type newestVersion struct {
	version     uint64
	resync      uint64 // of the shard, at the last read from Redis
	shard       uint8
	location    location
	deleted     bool
	purged      bool      // by a later purge
	stale       bool      // by a later soft purge
	publishedMS int64     // by the clock of Redis
	sinceMS     int64     // start of the lifetime: the earlier of publishedMS and the first receipt
	ttlMS       int64     // 0: no end
	tags        *[]string // nil: none; most objects have none
	seq         uint64    // of the write
}

// New returns an empty Cache.
func New(c Config, edge Edge, m *metrics.Metrics, log *slog.Logger) (*Cache, error) {
	most := int64(max(c.Objects, 1))
	cache := &Cache{
		edge: edge, metrics: m, log: log, tooLarge: rate.Sometimes{First: 100, Interval: time.Second},
		budget: c.Bytes, minWeight: min((c.Bytes+most-1)/most, maxMinWeight), // rounded up: never one object more
		shards: c.Shards, seed: maphash.MakeSeed(), newest: make(map[string]newestVersion),
		resyncs: make([]uint64, c.Shards.Count()), lifetimes: newLifetimes(),
	}
	for range c.Shards.Count() {
		cache.purges = append(cache.purges, shardPurges{all: contract.Purges{}, tagged: map[string]keySet{}})
	}
	var err error
	// otter selects the evicted objects (W-TinyLFU, by use and size).
	cache.cache, err = otter.New(&otter.Options[string, *contract.Object]{
		MaximumWeight: uint64(c.Bytes),
		Weigher:       func(_ string, o *contract.Object) uint32 { return uint32(cache.weigh(o)) },
		// Evictions happen during the causing call, under mu.
		Executor: func(task func()) { task() },
		OnDeletion: func(e otter.DeletionEvent[string, *contract.Object]) {
			if e.WasEvicted() {
				cache.evicted = append(cache.evicted, e.Key)
			}
			cache.bytes -= cache.weigh(e.Value)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("memory budget of %d bytes: %w", c.Bytes, err)
	}
	m.CachedBudget.Set(float64(c.Bytes))
	return cache, nil
}

// Grow makes room for n more objects, at most as many as the budget allows: maps that grow step by step take longer,
// and leave garbage.
func (c *Cache) Grow(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n = int(min(int64(n), c.budget/c.minWeight))
	c.newest = shrink.Grown(c.newest, n)
	c.edge.Grow(n)
}

// weigh returns the part of the budget that o uses, about 4 MiB for an object at the size limits.
func (c *Cache) weigh(o *contract.Object) int64 { return max(int64(edgemem.Footprint(o)), c.minWeight) }

// Apply applies o, a record from Redis, if o's version is newer than the known version. Apply retains o's bodies, so
// they must not change any more.
func (c *Cache) Apply(o contract.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applyCounted(&o)
}

// applyCounted is update, counted by result.
func (c *Cache) applyCounted(o *contract.Object) Result {
	result := c.updateNewest(o)
	c.metrics.Applied.WithLabelValues(string(result)).Inc()
	c.reportMetrics()
	return result
}

func (c *Cache) reportMetrics() {
	c.metrics.CachedObjects.Set(float64(c.counts[held]))
	c.metrics.CachedLeftOut.Set(float64(c.counts[leftOut]))
	c.metrics.CachedBytes.Set(float64(c.bytes))
}

// updateNewest makes o, unless not newer, the newest version of its key, in the cache and at the edge.
func (c *Cache) updateNewest(o *contract.Object) Result {
	shard := c.shards.Of(o.Key)
	resync := c.resyncs[shard]
	before, found := c.newest[o.Key]
	purged, stale := c.purges[shard].all.Of(o.Key, o.Tags, o.Seq)
	if found && before.resync == resync && !before.mayHaveExpired(time.Now()) {
		if o.Version < before.version || o.Version == before.version && !c.isReplacement(o, before, purged, stale) {
			return NotNewer
		}
	}
	sinceMS := min(o.PublishedMS, time.Now().UnixMilli())
	again := o.Version == before.version && o.PublishedMS == before.publishedMS
	if again {
		sinceMS = before.sinceMS
	}
	unchanged := again && !purged && before.resync != resync && before.location == held && stale == before.stale &&
		c.holdsWrite(o)
	if before.location != nowhere {
		c.updateTagIndex(o.Key, false)
	}
	c.newest[o.Key] = newestVersion{
		version: o.Version, resync: resync, shard: uint8(shard), location: before.location,
		deleted: o.Deleted, publishedMS: o.PublishedMS, sinceMS: sinceMS, ttlMS: o.TTLMS,
		seq: o.Seq, purged: purged && !o.Deleted, stale: stale && !o.Deleted,
	}
	if tags := o.Tags; len(tags) > 0 {
		k := c.newest[o.Key]
		k.tags = &tags
		c.newest[o.Key] = k
	}
	if before.location != nowhere {
		c.updateTagIndex(o.Key, true)
	}
	o.Stale = stale
	o.PublishedMS = sinceMS
	c.size.Add(c.newest)
	switch {
	case unchanged:
		return Unchanged
	case o.Deleted:
		c.releaseObject(o.Key)
		c.lifetimes.scheduleCheck(o.Key, o.PublishedMS+contract.TombstoneLife.Milliseconds())
		return Deleted
	case purged:
		c.releaseObject(o.Key)
		return Purged
	case hasExpired(o, time.Now()):
		c.releaseObject(o.Key)
		return Expired
	}
	if o.TTLMS > 0 {
		c.lifetimes.scheduleCheck(o.Key, o.PublishedMS+o.TTLMS+expiryGrace.Milliseconds())
	}
	switch {
	case c.weigh(o) > c.budget:
		c.tooLarge.Do(func() {
			c.log.Warn("object exceeds the memory budget: skipped", "key", o.Key, "version", o.Version,
				"bytes", c.weigh(o), "budget_bytes", c.budget)
		})
		c.releaseObject(o.Key)
		c.setLocation(o.Key, leftOut)
		return TooLarge
	case !c.storeObject(o):
		return NotAdmitted
	}
	return Stored
}

// isReplacement reports whether to apply o although its version is the known version: the object was evicted, or was
// judged by purges that a full resync has since forgotten, or o is a later write from another server that counted to
// the same version. purged and stale are the present judgement of o.
func (c *Cache) isReplacement(o *contract.Object, before newestVersion, purged, stale bool) bool {
	if o.PublishedMS != before.publishedMS || o.PublishedMS == limits.MaxVersion { // no later time exists
		return o.PublishedMS >= before.publishedMS
	}
	return !before.deleted && (before.location != held || before.purged != purged || before.stale != stale)
}

// Confirm reports whether the known version of o's key is the write o, read from Redis. If so, it counts as applied in
// a full resync. o needs no bodies: no two writes share version, time and entity-tag.
func (c *Cache) Confirm(o contract.Object) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, found := c.newest[o.Key]
	if !found || k.version != o.Version || k.publishedMS != o.PublishedMS ||
		k.deleted != o.Deleted || k.mayHaveExpired(time.Now()) {
		return false
	}
	purged, stale := c.purges[k.shard].all.Of(o.Key, o.Tags, o.Seq)
	switch entry, found := c.cache.GetEntryQuietly(o.Key); {
	case !k.deleted && (k.seq != o.Seq || k.purged != purged || k.stale != stale):
		return false // different purges count by now
	case k.location == held && (!found || !sameHead(entry.Value, &o)):
		return false
	case k.location != held && !k.deleted && !k.purged && c.bytes < c.budget-c.budget/10:
		return false // there may be room by now
	}
	k.resync = c.resyncs[k.shard]
	c.newest[o.Key] = k
	c.metrics.Applied.WithLabelValues(string(Unchanged)).Inc()
	return true
}

// holdsWrite reports whether the cache holds exactly the write o.
func (c *Cache) holdsWrite(o *contract.Object) bool {
	entry, found := c.cache.GetEntryQuietly(o.Key)
	return found && !o.Deleted && sameWrite(entry.Value, o)
}

// storeObject puts o into the cache, and updates the edge with the resulting evictions. It reports whether o stayed.
func (c *Cache) storeObject(o *contract.Object) bool {
	c.cache.Set(o.Key, o)
	c.bytes += c.weigh(o)
	// A single pass of the cache's maintenance may not finish the evictions.
	for c.cache.CleanUp(); c.cache.WeightedSize() > uint64(c.budget); {
		c.cache.CleanUp()
	}
	for _, key := range c.evicted {
		if key != o.Key {
			c.metrics.Evicted.WithLabelValues("budget").Inc()
		}
		c.setLocation(key, leftOut)
		c.edge.DeleteObject(key)
	}
	stays := !slices.Contains(c.evicted, o.Key)
	clear(c.evicted)
	c.evicted = shrink.Slice(c.evicted[:0])
	if stays {
		c.setLocation(o.Key, held)
		c.edge.PutObject(o)
	}
	return stays
}

// releaseObject removes a key's object from the cache and from the edge.
func (c *Cache) releaseObject(key string) {
	if c.newest[key].location == held {
		c.cache.Invalidate(key)
		c.edge.DeleteObject(key)
	}
	c.setLocation(key, nowhere)
}

// setLocation records the location of a key's object.
func (c *Cache) setLocation(key string, at location) {
	k := c.newest[key]
	if k.location == at {
		return
	}
	if at == nowhere {
		c.updateTagIndex(key, false)
	}
	c.counts[k.location]--
	c.counts[at]++
	before := k.location
	k.location = at
	c.newest[key] = k
	if before == nowhere {
		c.updateTagIndex(key, true)
	}
}

// forgetKey removes everything known about a key.
func (c *Cache) forgetKey(key string) {
	c.releaseObject(key)
	delete(c.newest, key)
	c.newest = c.size.Fit(c.newest)
}

// Remove removes a key's object and forgets the version: Redis has no record of the key, or an unreadable record.
func (c *Cache) Remove(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgetKey(key)
	c.removals[c.removalStripe(key)]++
	c.reportMetrics()
}

// Get returns the object at key, if held, not purged, and within its lifetime. The bodies belong to the cache. Get
// counts as a use.
func (c *Cache) Get(key string) (contract.Object, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, found := c.cache.GetIfPresent(key)
	if !found || hasExpired(o, time.Now()) {
		return contract.Object{}, false
	}
	k := c.newest[key]
	purged, stale := c.checkPurged(key, k)
	if purged {
		return contract.Object{}, false
	}
	got := *o
	got.Stale = stale || k.stale
	return got, true
}

// RecordUses counts a use for each element of keys, the objects that the edge served from memory. Uses decide which
// objects stay when the budget is full.
func (c *Cache) RecordUses(keys []string) {
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
