// Package mirror holds the objects for the edge, as many as fit into a byte budget. Every change of an object at the
// edge goes through it, so that versions are compared in one place.
package mirror

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

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/image"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
)

// sweepEvery is how often expired objects and forgotten tombstones are looked for.
const sweepEvery = 10 * time.Second

// expiryGrace is how long after its end of life an object keeps its memory: the edge
// checks the lifetime itself.
const expiryGrace = 10 * time.Second

// maxLeast keeps weights within what the cache counts them in, 32 bits.
const maxLeast = 1 << 30

// Edge is where the mirror's objects go.
type Edge interface {
	// PutObject may keep o, which nobody changes from now on.
	PutObject(o *contract.Object)
	DeleteObject(key string)
}

// Config bounds the mirror.
type Config struct {
	// Bytes is the budget for what the objects take at the edge, see [image.Footprint].
	Bytes int64
	// Objects is the most objects. An object counts for Bytes/Objects at least.
	Objects int
	// Shards is the number of shards of Redis: each has its own full resyncs.
	Shards contract.Shards
}

// Result is what became of an object.
type Result string

// The results.
const (
	Stored      Result = "stored"
	Deleted     Result = "deleted"
	NotNewer    Result = "not_newer"    // a version that is not newer than the known one
	Unchanged   Result = "unchanged"    // a full resync met what the mirror knows
	NotAdmitted Result = "not_admitted" // the budget went to objects used more
	TooLarge    Result = "too_large"    // more than the whole budget
	Expired     Result = "expired"      // its lifetime had ended
	Overtaken   Result = "overtaken"    // see ApplyRead
)

// Mirror is safe for concurrent use.
type Mirror struct {
	edge    Edge
	metrics *metrics.Metrics
	log     *slog.Logger
	budget  int64
	least   int64 // weight of the smallest object
	shards  contract.Shards
	seed    maphash.Seed
	// These bound what is logged of objects over the budget, and of keys in several spellings.
	tooLarge, collisions rate.Sometimes

	mu          sync.Mutex                             // protects all below; held while the edge is called, so that it sees one order
	cache       *otter.Cache[string, *contract.Object] // by stored key, as all below
	evicted     []string                               // by the cache, while Apply runs
	known       map[string]known
	spellings   spellings
	generations []uint64               // of each shard: its full resyncs
	removals    [removalStripes]uint64 // how often a version was forgotten by Remove, of keys by their hash
	lifetimes   lifetimes
	bytes       int64
	counts      [places]int // of known, by their places; nowhere's means nothing
}

// place is where the newest version of a key is.
type place uint8

const (
	nowhere place = iota // of no use at the edge: deleted, or ended
	held                 // the mirror and the edge have it
	leftOut              // neither has, for lack of room
	places
)

// known is the newest version of a key, whether the mirror holds it or not.
type known struct {
	version     uint64
	generation  uint64 // of its shard, in which it was last seen in Redis
	shard       uint8
	place       place
	deleted     bool
	publishedMS int64
	ttlMS       int64 // 0: it never ends
}

// New is an empty mirror.
func New(c Config, edge Edge, m *metrics.Metrics, log *slog.Logger) (*Mirror, error) {
	most := int64(max(c.Objects, 1))
	sometimes := func() rate.Sometimes { return rate.Sometimes{First: 100, Interval: time.Second} }
	mirror := &Mirror{
		edge: edge, metrics: m, log: log, tooLarge: sometimes(), collisions: sometimes(),
		budget: c.Bytes, least: min((c.Bytes+most-1)/most, maxLeast), // rounded up: never one object more
		shards: c.Shards, seed: maphash.MakeSeed(), known: make(map[string]known), spellings: make(spellings),
		generations: make([]uint64, c.Shards.Count()), lifetimes: newLifetimes(),
	}
	var err error
	mirror.cache, err = otter.New(&otter.Options[string, *contract.Object]{
		MaximumWeight: uint64(c.Bytes),
		Weigher:       func(_ string, o *contract.Object) uint32 { return uint32(mirror.weight(o)) },
		// Evictions happen within the call that causes them, under mu.
		Executor: func(task func()) { task() },
		OnDeletion: func(e otter.DeletionEvent[string, *contract.Object]) {
			if e.WasEvicted() {
				mirror.evicted = append(mirror.evicted, e.Key)
			}
			mirror.bytes -= mirror.weight(e.Value)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("memory budget of %d bytes: %w", c.Bytes, err)
	}
	m.MirrorBudget.Set(float64(c.Bytes))
	return mirror, nil
}

// weight is what o takes of the budget; an object at its limits weighs some 4 MiB.
func (m *Mirror) weight(o *contract.Object) int64 { return max(int64(image.Footprint(o)), m.least) }

// Apply makes o the version of its key, as Redis has it, if it is newer than the known one. The edge gets it at the
// canonical key, see [Mirror.Stored]. It keeps o's bodies, which nobody may change from now on.
func (m *Mirror) Apply(o contract.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.apply(o)
}

func (m *Mirror) apply(o contract.Object) Result {
	stored := o.Key
	o.Key = m.spell(stored)
	result := m.decide(stored, &o)
	if result == Stored || result == NotAdmitted || result == TooLarge {
		m.reportCollision(stored, o.Key)
	}
	m.metrics.Applied.WithLabelValues(string(result)).Inc()
	m.report()
	return result
}

func (m *Mirror) report() {
	m.metrics.MirrorObjects.Set(float64(m.counts[held]))
	m.metrics.MirrorLeftOut.Set(float64(m.counts[leftOut]))
	m.metrics.MirrorBytes.Set(float64(m.bytes))
}

func (m *Mirror) decide(stored string, o *contract.Object) Result {
	shard := m.shards.Of(stored)
	generation := m.generations[shard]
	before, found := m.known[stored]
	if found && before.generation == generation && !before.expiring(time.Now()) {
		if o.Version < before.version || //mutant:TestVersions false
			o.Version == before.version && !m.replaces(o, before) {
			return NotNewer
		}
	}
	unchanged := before.generation != generation && before.place == held && m.has(stored, o)
	m.known[stored] = known{
		version: o.Version, generation: generation, shard: uint8(shard), place: before.place,
		deleted: o.Deleted, publishedMS: o.PublishedMS, ttlMS: o.TTLMS,
	}
	switch {
	case unchanged:
		return Unchanged
	case o.Deleted:
		m.release(stored)
		m.lifetimes.watch(stored, o.PublishedMS+contract.TombstoneLife.Milliseconds())
		return Deleted
	case ended(o, time.Now()):
		m.release(stored)
		return Expired
	}
	if o.TTLMS > 0 {
		m.lifetimes.watch(stored, o.PublishedMS+o.TTLMS+expiryGrace.Milliseconds())
	}
	switch {
	case m.weight(o) > m.budget:
		m.tooLarge.Do(func() {
			m.log.Warn("object exceeds the memory budget: skipped", "key", stored, "version", o.Version,
				"bytes", m.weight(o), "budget_bytes", m.budget)
		})
		m.release(stored)
		m.put(stored, leftOut)
		return TooLarge
	case !m.store(stored, o):
		return NotAdmitted
	}
	return Stored
}

// replaces reports whether o, of the version that is known, counts: it was evicted, or it is a write of
// another server that has counted to the same number later.
func (m *Mirror) replaces(o *contract.Object, before known) bool {
	if o.PublishedMS != before.publishedMS {
		return o.PublishedMS > before.publishedMS //mutant:TestSameVersionOfAnotherServer false
	}
	return before.place != held && !before.deleted
}

// Confirm reports whether what is known of o's key, as Redis has it, is just this write; then it is met by a full
// resync. o needs no bodies: two writes of one version, time and entity-tag would have the same.
func (m *Mirror) Confirm(o contract.Object) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, found := m.known[o.Key]
	if !found || k.version != o.Version ||
		k.publishedMS != o.PublishedMS || //mutant:TestConfirm false
		k.deleted != o.Deleted || k.expiring(time.Now()) {
		return false
	}
	switch entry, found := m.cache.GetEntryQuietly(o.Key); {
	case k.place == held && (!found || !sameHead(entry.Value, &o)):
		return false
	case k.place != held && !k.deleted && m.bytes < m.budget-m.budget/10:
		return false // there may be room for it by now
	}
	k.generation = m.generations[k.shard]
	m.known[o.Key] = k
	m.metrics.Applied.WithLabelValues(string(Unchanged)).Inc()
	return true
}

// has reports whether the mirror holds just this write.
func (m *Mirror) has(stored string, o *contract.Object) bool {
	entry, found := m.cache.GetEntryQuietly(stored)
	return found && !o.Deleted && equal(entry.Value, o)
}

// store puts o into the cache, and what the cache makes of it to the edge. It reports
// whether o stayed.
func (m *Mirror) store(stored string, o *contract.Object) bool {
	m.cache.Set(stored, o)
	m.bytes += m.weight(o)
	// A pass of the cache's maintenance may leave work undone.
	for m.cache.CleanUp(); m.cache.WeightedSize() > uint64(m.budget); {
		m.cache.CleanUp()
	}
	for _, other := range m.evicted {
		if other != stored {
			m.metrics.Evicted.WithLabelValues("budget").Inc()
		}
		m.put(other, leftOut)
		m.updateEdge(m.canonical(other))
	}
	stays := !slices.Contains(m.evicted, stored)
	m.evicted = m.evicted[:0]
	if stays {
		m.put(stored, held)
		m.updateEdge(o.Key)
	}
	return stays
}

// release takes the object that is stored as that from the cache, and from the edge, if it is there.
func (m *Mirror) release(stored string) {
	was := m.known[stored].place
	if was == held {
		m.cache.Invalidate(stored)
	}
	m.put(stored, nowhere)
	if key := m.canonical(stored); was == held || m.spellings[key] != nil {
		m.updateEdge(key)
	}
}

// put says where the object that is stored as that is.
func (m *Mirror) put(stored string, at place) {
	k := m.known[stored]
	if k.place == at {
		return
	}
	m.counts[k.place]--
	m.counts[at]++
	k.place = at
	m.known[stored] = k
}

// forget drops what is known of a stored key.
func (m *Mirror) forget(stored string) {
	m.release(stored)
	delete(m.known, stored)
	m.unspell(stored)
}

// Remove takes the object away that is stored as that, and its version is forgotten: Redis no longer has
// the key, or nothing that can be read.
func (m *Mirror) Remove(stored string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(stored)
	m.removals[m.stripe(stored)]++ //mutant:TestReadBeforeRemoval deleted
	m.report()
}

// Get is the object at a canonical key, if the mirror holds it and its lifetime has not ended. Its
// bodies belong to the mirror. It counts as a use.
func (m *Mirror) Get(key string) (contract.Object, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, found := m.cache.GetIfPresent(m.stored(key))
	if !found || ended(o, time.Now()) {
		return contract.Object{}, false
	}
	return *o, true
}

// Used counts a use of each canonical key, as often as it is named: the edge served them without
// asking. It is what decides which objects stay when the budget is full.
func (m *Mirror) Used(keys []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		m.cache.GetIfPresent(m.stored(key))
	}
}

// Run sweeps until ctx ends.
func (m *Mirror) Run(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			m.Sweep()
		}
	}
}
