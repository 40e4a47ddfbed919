package objectcache_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/sidecar/internal/objectcache"
)

// Spellings of one key; with 8 shards they are in three different ones.
const (
	upper = "/caf%C3%A9?a=1&b=2"
	lower = "/caf%c3%a9?a=1&b=2"
	other = "/caf%c3%A9?b=2&a=1"
)

func (f fixture) collisions(t *testing.T) int {
	t.Helper()
	return int(metricstest.Value(t, f.metrics, "gatehouse_key_collisions_total"))
}

// TestSpellings applies records of several spellings of a key, a millisecond apart.
func TestSpellings(t *testing.T) {
	var budget int64 = 1 << 20
	put := func(key string, version uint64) func(fixture) {
		return func(f fixture) { f.Apply(object(key, version, 10)) }
	}
	del := func(key string, version uint64) func(fixture) {
		return func(f fixture) { f.Apply(tombstone(key, version)) }
	}
	remove := func(key string) func(fixture) { return func(f fixture) { f.Remove(key) } }
	putFor := func(key string, version uint64, ttl time.Duration) func(fixture) {
		return func(f fixture) {
			o := object(key, version, 10)
			o.TTLMS = ttl.Milliseconds()
			f.Apply(o)
		}
	}
	putEarlier := func(key string, version uint64) func(fixture) {
		return func(f fixture) {
			o := object(key, version, 10)
			o.PublishedMS -= 1000
			f.Apply(o)
		}
	}
	tooLarge := func(key string, version uint64) func(fixture) {
		return func(f fixture) { f.Apply(object(key, version, int(budget))) }
	}
	wait := func(d time.Duration) func(fixture) {
		return func(f fixture) { time.Sleep(d); f.Sweep() }
	}
	for name, tt := range map[string]struct {
		do         []func(fixture)
		want       uint64
		stored     string
		collisions int
	}{
		"only in lower case":                     {[]func(fixture){put(lower, 3)}, 3, lower, 0},
		"the query in another order":             {[]func(fixture){put(other, 3)}, 3, other, 0},
		"the later counts, whatever its version": {[]func(fixture){put(upper, 9), put(lower, 3)}, 3, lower, 1},
		"likewise in upper case":                 {[]func(fixture){put(lower, 9), put(upper, 3)}, 3, upper, 1},
		"one that was published earlier comes":   {[]func(fixture){put(lower, 3), putEarlier(upper, 9)}, 3, lower, 1},
		"the earlier is written again": {[]func(fixture){put(upper, 9), put(lower, 3),
			put(upper, 10)}, 10, upper, 2},
		"of each version by itself": {[]func(fixture){put(upper, 9), put(lower, 3),
			put(lower, 2)}, 3, lower, 1},
		"the later is deleted": {[]func(fixture){put(upper, 9), put(lower, 3),
			del(lower, 4)}, 9, upper, 1},
		"the earlier is deleted": {[]func(fixture){put(upper, 9), put(lower, 3),
			del(upper, 10)}, 3, lower, 1},
		"one that is not there is deleted": {[]func(fixture){put(upper, 9), del(lower, 1)}, 9, upper, 0},
		"both are deleted": {[]func(fixture){put(upper, 9), put(lower, 3),
			del(lower, 4), del(upper, 10)}, 0, upper, 1},
		"the only one is deleted": {[]func(fixture){put(lower, 3), del(lower, 4)}, 0, upper, 0},
		"the later is gone from Redis": {[]func(fixture){put(upper, 9), put(lower, 3),
			remove(lower)}, 9, upper, 1},
		"the canonical one is gone from Redis": {[]func(fixture){put(lower, 3), put(upper, 9),
			remove(upper)}, 3, lower, 1},
		"all are gone from Redis": {[]func(fixture){put(lower, 3), put(upper, 9),
			remove(upper), remove(lower)}, 0, upper, 1},
		"the later's lifetime has ended": {[]func(fixture){put(upper, 9), putFor(lower, 3, time.Second),
			wait(time.Minute)}, 0, lower, 1},
		"that one is deleted": {[]func(fixture){put(upper, 9), putFor(lower, 3, time.Second),
			wait(time.Minute), del(lower, 4)}, 9, upper, 1},
		"the later is too large": {[]func(fixture){put(upper, 9), tooLarge(lower, 3)}, 0, lower, 1},
		"that one is gone from Redis": {[]func(fixture){put(upper, 9), tooLarge(lower, 3),
			remove(lower)}, 9, upper, 1},
		"three": {[]func(fixture){put(upper, 9), put(lower, 3),
			put(other, 1), del(other, 2)}, 3, lower, 2},
		"a tombstone is forgotten": {[]func(fixture){put(upper, 9), put(lower, 3),
			del(lower, 4), wait(25 * time.Hour)}, 9, upper, 1},
		"a tombstone of the only one is forgotten": {[]func(fixture){put(lower, 3), del(lower, 4),
			wait(25 * time.Hour), put(lower, 1)}, 1, lower, 0},
		"another device's": {[]func(fixture){put("@a"+upper, 9), put("@A"+lower, 3),
			put(upper, 2)}, 2, upper, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, objectcache.Config{Bytes: budget, Shards: 8})
				for _, do := range tt.do {
					do(f)
					time.Sleep(time.Millisecond)
				}
				f.expect(t, upper, tt.want)
				if len(f.edge) > 0 && f.edge[lower].Version+f.edge[other].Version != 0 {
					t.Errorf("the edge has spellings of its own: %v", f.edge)
				}
				if got := f.Stored(upper); got != tt.stored {
					t.Errorf("stored as %s, want %s", got, tt.stored)
				}
				if got := f.collisions(t); got != tt.collisions {
					t.Errorf("%d collisions counted, want %d", got, tt.collisions)
				}
			})
		})
	}
}

// TestSpellingsOfOneMoment publishes two spellings in one millisecond: the order of their arrival doesn't matter.
func TestSpellingsOfOneMoment(t *testing.T) {
	for _, order := range [][]string{{upper, lower}, {lower, upper}} {
		synctest.Test(t, func(t *testing.T) {
			f := start(t, objectcache.Config{Shards: 8})
			for _, key := range order {
				f.Apply(object(key, map[string]uint64{upper: 1, lower: 2}[key], 10))
			}
			f.expect(t, upper, 1)
		})
	}
}

// TestSpellingsAnyOrder applies writes of a few spellings in random order, between resyncs of their shards, evictions
// and losses: the edge then has the right one of the records in Redis.
func TestSpellingsAnyOrder(t *testing.T) {
	all := []string{upper, lower, other}
	const shards = contract.Shards(8)
	if shards.Of(upper) == shards.Of(lower) || shards.Of(lower) == shards.Of(other) {
		t.Fatal("want spellings in several shards")
	}
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(60) {
			r := rand.New(rand.NewPCG(seed, 1))
			f := start(t, objectcache.Config{Shards: shards})
			redis := map[string]contract.Object{}
			for version := uint64(1); version < 60; version++ {
				key := all[r.IntN(len(all))]
				shard := f.Shard(shards.Of(key))
				switch r.IntN(8) {
				case 0:
					delete(redis, key) // Redis has lost it
					f.Remove(key)
				case 1, 2:
					redis[key] = tombstone(key, version)
					f.Apply(redis[key])
				case 3:
					if r.IntN(2) == 0 {
						delete(redis, key)
					}
					shard.BeginResync()
					for _, unmet := range shard.Unmet() {
						if o, found := redis[unmet]; found && !f.Confirm(o) {
							f.Apply(o)
						}
					}
					shard.EndResync()
				default:
					redis[key] = object(key, version, 10)
					f.Apply(redis[key])
				}
				time.Sleep(time.Millisecond)
				var want contract.Object
				for _, o := range redis {
					if !o.Deleted && o.PublishedMS > want.PublishedMS {
						want = o
					}
				}
				f.expect(t, upper, want.Version)
				if len(f.edge) > 1 {
					t.Fatalf("the edge has %v", f.edge)
				}
			}
			for _, key := range all {
				f.Remove(key)
			}
			if bytes := metricstest.Value(t, f.metrics, "gatehouse_object_cache_bytes"); bytes != 0 || len(f.edge) != 0 {
				t.Fatalf("%v bytes and %d objects are left", bytes, len(f.edge))
			}
		}
	})
}

// TestSpellingLeftOut fills the budget so that the later spelling is evicted: the edge does not get the earlier one
// then.
func TestSpellingLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, objectcache.Config{Objects: 4})
		missing := 0
		for version := range uint64(200) {
			f.Apply(object(upper, 2*version+1, 10))
			time.Sleep(time.Millisecond)
			f.Apply(object(lower, 2*version+2, 10))
			for range 8 {
				f.Used([]string{"/a", "/b", "/c"})
				for _, key := range []string{"/a", "/b", "/c"} {
					f.Apply(object(key, version+1, 10))
				}
			}
			switch got := f.edge[upper].Version; got {
			case 0:
				missing++
			case 2*version + 2:
			default:
				t.Fatalf("the edge has version %d, want %d or none", got, 2*version+2)
			}
			time.Sleep(time.Millisecond)
		}
		if missing == 0 || missing == 200 {
			t.Errorf("the edge was without it %d times of 200, want some", missing)
		}
	})
}
