package objectcache_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/objectcache"
)

// edge has the objects that the cache has sent.
type edge map[string]contract.Object

func (e edge) Grow(int)                     {}
func (e edge) PutObject(o *contract.Object) { e[o.Key] = *o }
func (e edge) DeleteObject(key string)      { delete(e, key) }
func (e edge) DeleteObjects(keys []string) {
	for _, key := range keys {
		delete(e, key)
	}
}
func (e edge) MarkStale(key string) {
	o := e[key]
	o.Stale = true
	e[key] = o
}
func (edge) BeginPurge(int, string, bool) (end func()) { return nil }

type fixture struct {
	*objectcache.Cache
	edge    edge
	metrics *metrics.Metrics
}

func start(t *testing.T, c objectcache.Config) fixture {
	t.Helper()
	if c.Objects == 0 {
		c.Objects = 1000
	}
	if c.Bytes == 0 {
		c.Bytes = 1 << 20
	}
	e, m := edge{}, metrics.New()
	mi, err := objectcache.New(c, e, m, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for i := range c.Shards.Count() {
		mi.Purges(i).EndResync()
	}
	return fixture{mi, e, m}
}

func object(key string, version uint64, size int) contract.Object {
	return contract.Object{
		Key: key, Version: version, ETag: `"x"`, ContentType: "text/plain", PublishedMS: time.Now().UnixMilli(),
		Bodies: []contract.Body{{Bytes: bytes.Repeat([]byte{byte(version)}, size)}},
	}
}

func tombstone(key string, version uint64) contract.Object {
	return contract.Object{Key: key, Version: version, Deleted: true, PublishedMS: time.Now().UnixMilli()}
}

// expect checks what edge and cache hold at key, 0 for nothing.
func (f fixture) expect(t *testing.T, key string, version uint64) {
	t.Helper()
	if got := f.edge[key].Version; got != version {
		t.Errorf("%s: the edge has version %d, want %d", key, got, version)
	}
	if o, found := f.Get(key); o.Version != version || found != (version != 0) {
		t.Errorf("%s: the cache has version %d, %v; want %d", key, o.Version, found, version)
	}
}

// leftOut returns the number of objects reported as left out for lack of room.
func (f fixture) leftOut(t *testing.T) int {
	t.Helper()
	return int(metricstest.Value(t, f.metrics, "gatehouse_object_cache_left_out_objects"))
}

func (f fixture) read(o contract.Object, mark uint64) objectcache.Result {
	return f.ApplyRead(&o, mark)
}

func (f fixture) apply(t *testing.T, o contract.Object, want objectcache.Result) {
	t.Helper()
	if got := f.read(o, f.ReadMark(o.Key)); got != want {
		t.Errorf("%s version %d: %s, want %s", o.Key, o.Version, got, want)
	}
}

func TestVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, objectcache.Config{})
		f.apply(t, object("/a", 5, 10), objectcache.Stored)
		f.apply(t, object("/a", 5, 10), objectcache.NotNewer)
		f.apply(t, object("/a", 4, 10), objectcache.NotNewer)
		f.expect(t, "/a", 5)
		f.apply(t, tombstone("/a", 7), objectcache.Deleted)
		f.expect(t, "/a", 0)
		f.apply(t, object("/a", 6, 10), objectcache.NotNewer)
		f.apply(t, object("/a", 7, 10), objectcache.NotNewer)
		f.expect(t, "/a", 0)
		f.apply(t, object("/a", 8, 10), objectcache.Stored)
		f.expect(t, "/a", 8)
		f.apply(t, tombstone("/never", 3), objectcache.Deleted)
		f.apply(t, object("/never", 2, 10), objectcache.NotNewer)
		f.Remove("/a")
		f.expect(t, "/a", 0)
		f.apply(t, object("/a", 1, 10), objectcache.Stored)
		f.expect(t, "/a", 1)
	})
}

func TestResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, objectcache.Config{})
		same := object("/same", 5, 10)
		f.Apply(same)
		f.Apply(object("/older", 5, 10))
		f.Apply(object("/gone", 5, 10))
		f.Apply(tombstone("/back", 5))
		before := f.ReadMark("/gone")
		f.Shard(0).BeginResync()
		if got := f.read(object("/gone", 6, 10), before); got != objectcache.Overtaken {
			t.Errorf("a read from before the resync: %s", got)
		}
		f.expect(t, "/gone", 5) // until the end, since it is better than nothing
		f.apply(t, same, objectcache.Unchanged)
		f.apply(t, object("/older", 2, 10), objectcache.Stored)
		f.apply(t, object("/older", 1, 10), objectcache.NotNewer)
		f.apply(t, object("/back", 1, 10), objectcache.Stored)
		f.Shard(0).EndResync()
		f.expect(t, "/same", 5)
		f.expect(t, "/older", 2)
		f.expect(t, "/gone", 0)
		f.expect(t, "/back", 1)
		f.apply(t, object("/gone", 1, 10), objectcache.Stored)
	})
}

// TestBudget makes random changes and checks the budget after each.
func TestBudget(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const budget, most = 1 << 20, 100
	f := start(t, objectcache.Config{Bytes: budget, Objects: most})
	version := uint64(0)
	live := map[string]bool{}
	for i := range 5000 {
		key := fmt.Sprint("/", r.IntN(300))
		version++
		switch r.IntN(10) {
		case 0:
			f.Apply(tombstone(key, version))
			delete(live, key)
		case 1:
			f.Get(key)
		default:
			f.Apply(object(key, version, r.IntN(60000)))
			live[key] = true
		}
		sum := 0
		for _, o := range f.edge {
			sum += edgemem.Footprint(&o)
		}
		if sum > budget || len(f.edge) > most {
			t.Fatalf("%d bytes in %d objects, want at most %d in %d", sum, len(f.edge), budget, most)
		}
		if i%100 != 0 {
			continue
		}
		for key, o := range f.edge {
			if got, found := f.Get(key); !found || got.Version != o.Version {
				t.Fatalf("%s: the edge has version %d, the cache %d, %v", key, o.Version, got.Version, found)
			}
		}
		if got := int(metricstest.Value(t, f.metrics, "gatehouse_object_cache_objects")); got != len(f.edge) {
			t.Fatalf("%d objects counted, %d at the edge", got, len(f.edge))
		}
		if got := f.leftOut(t); got != len(live)-len(f.edge) {
			t.Fatalf("%d objects counted as left out, of %d live ones %d at the edge", got, len(live), len(f.edge))
		}
		if got := int(metricstest.Value(t, f.metrics, "gatehouse_object_cache_bytes")); got < sum || got > budget {
			t.Fatalf("%d bytes counted, %d at the edge", got, sum)
		}
	}
	if got := metricstest.Value(t, f.metrics, "gatehouse_evictions_total", "reason", "budget"); got == 0 ||
		len(f.edge) < 10 {
		t.Errorf("%v evictions, %d objects left: the test shows nothing", got, len(f.edge))
	}
}

func TestMostObjects(t *testing.T) {
	f := start(t, objectcache.Config{Bytes: 1<<20 + 7, Objects: 1000})
	for i := range 2000 {
		f.Apply(object(fmt.Sprint("/", i), 1, 10))
	}
	if len(f.edge) > 1000 || len(f.edge) < 990 {
		t.Errorf("%d objects, want 1000 at most and hardly fewer", len(f.edge))
	}
}

func TestEvictedObjectCanComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, objectcache.Config{Bytes: 1 << 20, Objects: 4})
		for i := range 5 {
			f.Apply(object(fmt.Sprint("/", i), 3, 1000))
		}
		var evicted string
		for i := range 5 {
			if key := fmt.Sprint("/", i); f.edge[key].Version == 0 {
				evicted = key
			}
		}
		if evicted == "" {
			t.Fatal("nothing was evicted")
		}
		f.apply(t, object(evicted, 2, 1000), objectcache.NotNewer)
		if got := f.read(object(evicted, 3, 1000), f.ReadMark(evicted)); got != objectcache.Stored &&
			got != objectcache.NotAdmitted {
			t.Errorf("the evicted version again: %s, want it stored or weighed against others", got)
		}
	})
}

func TestTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, objectcache.Config{Bytes: 1 << 20})
		f.Apply(object("/a", 1, 10))
		f.Apply(object("/b", 1, 10))
		f.apply(t, object("/a", 2, 1<<20), objectcache.TooLarge)
		f.expect(t, "/a", 0) // version 1 is outdated
		f.expect(t, "/b", 1) // and no other was evicted
		f.apply(t, object("/a", 1, 10), objectcache.NotNewer)
		f.apply(t, object("/a", 3, 10), objectcache.Stored)
	})
}

// TestLeftOut: an object without room counts for as long as Redis has it.
func TestLeftOut(t *testing.T) {
	tooLarge := func(key string, ttl time.Duration) contract.Object {
		o := object(key, 1, 1<<20)
		o.TTLMS = ttl.Milliseconds()
		return o
	}
	synctest.Test(t, func(t *testing.T) {
		f := start(t, objectcache.Config{Bytes: 1 << 20})
		expect := func(when string, want int) {
			t.Helper()
			if got := f.leftOut(t); got != want {
				t.Errorf("%s: %d are left out, want %d", when, got, want)
			}
		}
		for _, key := range []string{"/deleted", "/removed", "/small", "/gone", "/stays"} {
			f.Apply(tooLarge(key, 0))
		}
		f.Apply(tooLarge("/ends", time.Minute))
		f.Apply(tooLarge("/ends", time.Minute)) // the same again
		for version, ttl := range []time.Duration{0, time.Hour, time.Minute} {
			o := tooLarge("/ends/sooner", ttl)
			o.Version = uint64(version + 1)
			f.Apply(o)
		}
		expect("at first", 7)
		f.Apply(tombstone("/deleted", 2))
		f.Remove("/removed")
		f.Remove("/never")
		f.Apply(object("/small", 2, 10))
		expect("after a tombstone, a removal and a smaller version", 4)
		f.Shard(0).BeginResync()
		f.Apply(tooLarge("/stays", 0))
		f.Apply(tooLarge("/ends", time.Minute))
		f.Apply(tooLarge("/ends/sooner", time.Minute))
		f.Shard(0).EndResync()
		expect("after a full resync without one of them", 3)
		time.Sleep(time.Minute + 11*time.Second)
		f.Sweep()
		expect("when a lifetime has ended", 1)
	})
}

func TestLifetimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, objectcache.Config{})
		o := object("/a", 1, 10)
		o.TTLMS = 5000
		f.Apply(o)
		f.Apply(tombstone("/gone", 9))
		f.expect(t, "/a", 1)
		time.Sleep(5 * time.Second)
		if _, found := f.Get("/a"); found {
			t.Error("an object that ended was given out")
		}
		if f.edge["/a"].Version != 1 {
			t.Error("the edge checks lifetimes itself: memory returns later")
		}
		time.Sleep(10 * time.Second)
		f.Sweep()
		if _, found := f.edge["/a"]; found {
			t.Error("the object's memory was not freed")
		}
		f.apply(t, o, objectcache.Expired)
		o.Version, o.PublishedMS = 2, time.Now().UnixMilli()
		f.apply(t, o, objectcache.Stored)
		time.Sleep(3 * time.Second)
		o.Version, o.PublishedMS = 3, o.PublishedMS+3000
		f.apply(t, o, objectcache.Stored)
		time.Sleep(13 * time.Second)
		f.Sweep()
		if f.edge["/a"].Version != 3 {
			t.Error("the end of version 2 ended version 3")
		}
		f.apply(t, object("/gone", 1, 10), objectcache.NotNewer)
		time.Sleep(24 * time.Hour)
		f.Sweep()
		f.apply(t, object("/gone", 1, 10), objectcache.Stored)
		if _, found := f.edge["/a"]; found {
			t.Error("version 3's memory was not freed")
		}
	})
}

// TestClockOfRedisIsAhead: an object lives for its ttl from receipt at most; a resync or a second read of the same
// version doesn't renew the lifetime.
func TestClockOfRedisIsAhead(t *testing.T) {
	const ttl, half = 4 * time.Second, 2 * time.Second
	for name, tt := range map[string]struct {
		ahead, left time.Duration // left: of the lifetime at receipt
		size        int
		again       func(t *testing.T, f fixture, o contract.Object)
	}{
		"an hour":  {time.Hour, ttl, 10, nil},
		"a second": {time.Second, ttl, 10, nil},
		"behind":   {-time.Second, ttl - time.Second, 10, nil},
		"by events": {time.Hour, ttl, 10, func(t *testing.T, f fixture, o contract.Object) {
			f.apply(t, o, objectcache.NotNewer)
		}},
		"a resync reads heads": {time.Hour, ttl, 10, func(t *testing.T, f fixture, o contract.Object) {
			f.Shard(0).BeginResync()
			if o.Bodies = nil; !f.Confirm(o) {
				t.Error("it was not confirmed")
			}
			f.Shard(0).EndResync()
		}},
		"a resync reads all": {time.Hour, ttl, 10, func(t *testing.T, f fixture, o contract.Object) {
			f.Shard(0).BeginResync()
			f.apply(t, o, objectcache.Unchanged)
			f.Shard(0).EndResync()
		}},
		"a fetch reads what has no room": {time.Hour, ttl, 1 << 20, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, objectcache.Config{})
				o := object("/a", 1, tt.size)
				o.PublishedMS, o.TTLMS = o.PublishedMS+tt.ahead.Milliseconds(), ttl.Milliseconds()
				until := time.Now().Add(tt.left).UnixMilli()
				expect := func(when string) {
					t.Helper()
					read, sent := o, f.edge["/a"]
					if tt.size < 1<<20 {
						read, _ = f.Get("/a")
					} else {
						f.ApplyRead(&read, f.ReadMark("/a"))
						sent = read
					}
					if read.PublishedMS+read.TTLMS != until || sent.PublishedMS+sent.TTLMS != until {
						t.Errorf("%s: ends at %d for fetchers and %d at the edge, want %d", when, read.PublishedMS+read.TTLMS,
							sent.PublishedMS+sent.TTLMS, until)
					}
				}
				f.Apply(o)
				expect("at first")
				time.Sleep(half)
				if tt.again != nil {
					tt.again(t, f, o)
				}
				expect("read again")
				time.Sleep(tt.left - half)
				f.apply(t, o, map[bool]objectcache.Result{true: objectcache.NotNewer, false: objectcache.Expired}[tt.size == 10])
				if _, found := f.Get("/a"); found {
					t.Error("it outlived its ttl")
				}
				o.Version, o.PublishedMS = 2, time.Now().Add(tt.ahead).UnixMilli()
				until = time.Now().Add(tt.left).UnixMilli()
				f.Apply(o)
				expect("the next version")
				time.Sleep(ttl + 11*time.Second)
				if f.Sweep(); f.edge["/a"].Version != 0 {
					t.Error("its memory was not freed")
				}
			})
		})
	}
	t.Run("a tombstone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := start(t, objectcache.Config{})
			o := tombstone("/a", 5)
			o.PublishedMS += time.Hour.Milliseconds()
			f.Apply(o)
			time.Sleep(contract.TombstoneLife)
			f.apply(t, object("/a", 1, 10), objectcache.Stored) // Redis has removed it
		})
	})
}

// TestEvictionFollowsUse fills the budget many times while some keys are used, which stay.
func TestEvictionFollowsUse(t *testing.T) {
	const size, hot = 10 << 10, 20
	f := start(t, objectcache.Config{}) // room for about 100
	for i := range hot {
		f.Apply(object(fmt.Sprint("/hot/", i), 1, size))
	}
	hotKeys := make([]string, hot)
	for i := range hot {
		hotKeys[i] = fmt.Sprint("/hot/", i)
	}
	for i := range 2000 {
		f.Apply(object(fmt.Sprint("/cold/", i), 1, size))
		if i%10 == 0 {
			f.RecordUses(hotKeys)
		}
	}
	stayed := 0
	for _, key := range hotKeys {
		if _, found := f.edge[key]; found {
			stayed++
		}
	}
	if stayed < hot*9/10 {
		t.Errorf("%d of %d used objects stayed, want nearly all", stayed, hot)
	}
}
