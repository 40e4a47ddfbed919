package objectcache_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/objectcache"
)

// TestResyncOfOneShard: a full resync of a shard removes nothing from the other shards.
func TestResyncOfOneShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const shards = contract.Shards(4)
		f := start(t, objectcache.Config{Shards: shards})
		var keys []string
		for i := range 40 {
			keys = append(keys, fmt.Sprint("/", i))
			f.apply(t, object(keys[i], 5, 10), objectcache.Stored)
		}
		before := map[string]uint64{}
		for _, key := range keys {
			before[key] = f.ReadMark(key)
		}
		const resynced = 2
		f.Shard(resynced).BeginResync()
		kept := ""
		for _, key := range keys {
			if shards.Of(key) == resynced && kept == "" {
				kept = key
				f.Shard(resynced).Apply(object(key, 1, 10)) // versions start over
			}
		}
		f.Shard(resynced).EndResync()
		for _, key := range keys {
			switch {
			case key == kept:
				f.expect(t, key, 1)
			case shards.Of(key) == resynced:
				f.expect(t, key, 0)
				if got := f.read(object(key, 6, 10), before[key]); got != objectcache.Overtaken {
					t.Errorf("%s read before the resync: %s", key, got)
				}
			default:
				f.expect(t, key, 5)
				if got := f.read(object(key, 6, 10), before[key]); got != objectcache.Stored {
					t.Errorf("%s of another shard, read before the resync: %s", key, got)
				}
			}
		}
	})
}

// TestConfirm resyncs without bodies: objects known as they are in Redis stay, all others must be read.
func TestConfirm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, objectcache.Config{Bytes: 1 << 16})
		held, large, gone := object("/held", 5, 10), object("/large", 5, 1<<17), tombstone("/gone", 5)
		f.apply(t, held, objectcache.Stored)
		f.apply(t, large, objectcache.TooLarge)
		f.apply(t, gone, objectcache.Deleted)
		s := f.Shard(0)
		s.BeginResync()
		for name, change := range map[string]func(o *contract.Object){
			"another key":          func(o *contract.Object) { o.Key = "/never" },
			"another version":      func(o *contract.Object) { o.Version-- },
			"another time":         func(o *contract.Object) { o.PublishedMS++ },
			"another entity-tag":   func(o *contract.Object) { o.ETag = `"y"` },
			"another content type": func(o *contract.Object) { o.ContentType = "a/b" },
			"another status":       func(o *contract.Object) { o.Status = 404 },
			"another header":       func(o *contract.Object) { o.Headers = "a: b" },
			"another lifetime":     func(o *contract.Object) { o.TTLMS = 1 },
			"deleted":              func(o *contract.Object) { o.Deleted = true },
		} {
			o := held
			if change(&o); s.Confirm(o) {
				t.Errorf("%s was confirmed", name)
			}
		}
		for _, o := range []contract.Object{large, gone} {
			later, newer, other := o, o, o
			later.PublishedMS++
			newer.Version++
			other.Deleted = !o.Deleted
			for _, o := range []contract.Object{later, newer, other} {
				if s.Confirm(o) {
					t.Errorf("%s was confirmed as version %d of %d, deleted: %v", o.Key, o.Version, o.PublishedMS, o.Deleted)
				}
			}
		}
		if o := large; s.Confirm(o) {
			t.Errorf("%s, which may fit now, was confirmed", o.Key)
		}
		f.apply(t, object("/most", 5, 60<<10), objectcache.Stored)
		for _, o := range []contract.Object{held, large, gone} {
			if o.Bodies = nil; !s.Confirm(o) {
				t.Errorf("%s was not confirmed", o.Key)
			}
		}
		s.EndResync()
		f.expect(t, "/held", 5)
		f.apply(t, held, objectcache.NotNewer)
		f.apply(t, object("/gone", 4, 10), objectcache.NotNewer)
		f.apply(t, object("/large", 4, 10), objectcache.NotNewer)

		s.BeginResync() // nothing is confirmed
		s.EndResync()
		f.expect(t, "/held", 0)
		f.apply(t, object("/gone", 1, 10), objectcache.Stored)
	})
}

// TestReadBeforeRemoval reads an object whose next version is unreadable: the old version is not applied.
func TestReadBeforeRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, objectcache.Config{})
		before := f.ReadMark("/a")
		f.Remove("/a")
		if got := f.read(object("/a", 1, 10), before); got != objectcache.Overtaken {
			t.Errorf("got %s, want %s", got, objectcache.Overtaken)
		}
		f.expect(t, "/a", 0)
		if got := f.read(object("/a", 3, 10), f.ReadMark("/a")); got != objectcache.Stored {
			t.Errorf("read after it: got %s, want %s", got, objectcache.Stored)
		}
	})
}

// TestTombstoneThatExpires: a writer starts over after its tombstone has expired in Redis. Its version is applied,
// although the cache may still have the tombstone.
func TestTombstoneThatExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, objectcache.Config{})
		f.apply(t, tombstone("/a", 7), objectcache.Deleted)
		time.Sleep(contract.TombstoneLife - 2*time.Minute)
		f.apply(t, object("/a", 1, 10), objectcache.NotNewer)
		f.expect(t, "/a", 0)
		time.Sleep(time.Minute + time.Millisecond)
		f.apply(t, object("/a", 1, 10), objectcache.Stored)
		f.expect(t, "/a", 1)
		f.apply(t, object("/a", 1, 10), objectcache.NotNewer)
	})
}

// TestSameVersionOfAnotherServer: two servers count to the same version, as before and after a failover that lost
// writes. The later write wins, whichever arrives first.
func TestSameVersionOfAnotherServer(t *testing.T) {
	begin := time.Now()
	at := func(version uint64, published time.Duration) contract.Object {
		o := object("/a", version, 10)
		o.PublishedMS = begin.Add(published).UnixMilli()
		o.ETag = fmt.Sprintf(`"%v"`, published)
		return o
	}
	f := start(t, objectcache.Config{})
	f.apply(t, at(5, 0), objectcache.Stored) // fetched over a connection to the old server
	f.apply(t, at(5, time.Second), objectcache.Stored)
	f.apply(t, at(5, 0), objectcache.NotNewer)
	f.apply(t, at(5, time.Second), objectcache.NotNewer)
	f.apply(t, at(4, time.Minute), objectcache.NotNewer)
	if got := f.edge["/a"].ETag; got != `"1s"` {
		t.Errorf("the edge has the write of %s, want the later one", got)
	}
	deleted := at(5, 2*time.Second)
	deleted.Deleted, deleted.Bodies = true, nil
	f.apply(t, deleted, objectcache.Deleted)
	f.apply(t, at(5, time.Second), objectcache.NotNewer)
	f.apply(t, at(5, 2*time.Second), objectcache.NotNewer)
	f.expect(t, "/a", 0)
}

// TestUnmet: Unmet returns the shard's keys not yet applied by the resync, tombstones included.
func TestUnmet(t *testing.T) {
	f := start(t, objectcache.Config{Shards: 2})
	shards := contract.Shards(2)
	var key string
	for i := 0; key == "" || shards.Of(key) != 0; i++ {
		key = fmt.Sprint("/", i)
		f.Apply(object(key, 1, 10))
	}
	var gone string
	for i := 0; gone == "" || shards.Of(gone) != 0; i++ {
		gone = fmt.Sprint("/gone/", i)
		f.Apply(tombstone(gone, 1))
	}
	f.Shard(0).BeginResync()
	if got := f.Shard(0).Unapplied(); len(got) < 2 {
		t.Errorf("got %q at first, want at least %s and %s", got, key, gone)
	}
	if got := f.Shard(1).Unapplied(); len(got) != 0 {
		t.Errorf("got %q of a shard without a resync", got)
	}
	f.Apply(object(key, 1, 10))
	for _, unmet := range f.Shard(0).Unapplied() {
		if unmet == key {
			t.Errorf("%s was met", key)
		}
	}
}
