package objectcache_test

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/objectcache"
)

func tagged(key string, version, seq uint64, tags ...string) contract.Object {
	o := object(key, version, 10)
	o.Seq, o.Tags = seq, tags
	return o
}

func hard(id string, version, seq uint64) contract.Purge {
	return contract.Purge{ID: id, Version: version, Hard: seq}
}

// TestPurge purges held objects, left-out objects, and objects read later: exactly the writes up to the purge's number.
func TestPurge(t *testing.T) {
	f := start(t, objectcache.Config{Bytes: 1 << 14, Objects: 4})
	f.apply(t, tagged("/a", 1, 10, "t"), objectcache.Stored)
	f.apply(t, tagged("/b", 1, 21, "t"), objectcache.Stored)
	f.apply(t, tagged("/c", 1, 12), objectcache.Stored)
	large := tagged("/large", 1, 13, "t")
	large.Bodies[0].Bytes = make([]byte, 1<<15)
	f.apply(t, large, objectcache.TooLarge)
	f.Purges(0).Apply(hard("#t", 1, 20))
	f.expect(t, "/a", 0)
	f.expect(t, "/b", 1)
	f.expect(t, "/c", 1)
	if n := f.leftOut(t); n != 0 {
		t.Errorf("%d objects are left out, want none: it was purged", n)
	}
	f.apply(t, large, objectcache.Purged)
	f.apply(t, tagged("/a", 1, 10, "t"), objectcache.Purged) // a late read
	f.apply(t, tagged("/a", 2, 20, "t"), objectcache.Purged)
	f.expect(t, "/a", 0)
	f.apply(t, tagged("/a", 3, 22, "t"), objectcache.Stored)
	f.expect(t, "/a", 3)
	f.Purges(0).Apply(hard("#t", 1, 30)) // a late event
	f.expect(t, "/a", 3)
	f.apply(t, tagged("/a", 4, 23), objectcache.Stored) // without the tag
	f.Purges(0).Apply(hard("#t", 2, 40))
	f.expect(t, "/a", 4)
	f.expect(t, "/b", 0)
	f.Purges(0).Apply(hard("/", 1, 41))
	f.expect(t, "/a", 0)
	f.expect(t, "/c", 0)
	f.Purges(0).Apply(contract.Purge{ID: "/", Version: 2, Deleted: true})
	f.apply(t, tagged("/d", 1, 1), objectcache.Stored)
}

// TestSoftPurge: a softly purged object stays, stale, until the next write.
func TestSoftPurge(t *testing.T) {
	f := start(t, objectcache.Config{})
	stale := func(key string, want bool) {
		t.Helper()
		if o, _ := f.Get(key); o.Stale != want || f.edge[key].Stale != want {
			t.Errorf("%s: stale %v in the cache, %v at the edge, want %v", key, o.Stale, f.edge[key].Stale, want)
		}
	}
	f.apply(t, tagged("/a", 1, 1, "t"), objectcache.Stored)
	f.apply(t, tagged("/b", 1, 3, "t"), objectcache.Stored)
	f.Purges(0).Apply(contract.Purge{ID: "#t", Version: 1, Soft: 2})
	stale("/a", true)
	stale("/b", false)
	late := tagged("/c", 1, 1, "t")
	if f.ApplyRead(&late, f.ReadMark("/c")); !late.Stale {
		t.Error("a late read isn't stale")
	}
	stale("/c", true)
	f.apply(t, tagged("/a", 2, 4, "t"), objectcache.Stored)
	stale("/a", false)
	f.expect(t, "/a", 2)
}

// TestPurgesOfAResync: purges of before count until the resync has read all, and then no longer.
func TestPurgesOfAResync(t *testing.T) {
	f := start(t, objectcache.Config{Shards: 1})
	s, p := f.Shard(0), f.Purges(0)
	gone, back, stale := tagged("/gone", 1, 5, "t"), tagged("/back", 1, 5, "u"), tagged("/stale", 1, 5, "v")
	for _, o := range []contract.Object{gone, back, stale} {
		f.apply(t, o, objectcache.Stored)
	}
	p.Apply(hard("#t", 3, 10))
	p.Apply(hard("#u", 3, 10))
	p.Apply(contract.Purge{ID: "#v", Version: 1, Soft: 10})
	p.BeginResync()
	s.BeginResync()
	f.apply(t, gone, objectcache.Purged)
	p.Apply(hard("#t", 1, 4)) // of another history, whose versions start over
	if got := p.Unapplied(); len(got) != 2 || !slices.Contains(got, "#u") {
		t.Errorf("unmet %q, want #u and #v", got)
	}
	f.apply(t, back, objectcache.Purged)
	p.EndResync()
	for _, o := range []contract.Object{gone, back, stale} {
		if s.Confirm(o) {
			t.Errorf("%s was confirmed, though no purge concerns it any more", o.Key)
		}
		f.apply(t, o, objectcache.Stored)
	}
	s.EndResync()
	f.expect(t, "/gone", 1)
	f.expect(t, "/back", 1)
	if f.edge["/stale"].Stale {
		t.Error("an object is stale without a purge")
	}
	// An object that stays purged needs no body.
	p.Apply(hard("#u", 1, 10))
	s.BeginResync()
	if !s.Confirm(back) {
		t.Error("a purged object was not confirmed")
	}
}

// TestUnjudged: until all purges were read once, nobody knows whether an object that is read was purged.
func TestUnjudged(t *testing.T) {
	cache, err := objectcache.New(objectcache.Config{Bytes: 1 << 20, Objects: 10}, edge{}, metrics.New(),
		slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	o := tagged("/a", 1, 1, "t")
	if got := cache.ApplyRead(&o, cache.ReadMark("/a")); got != objectcache.Unjudged {
		t.Errorf("got %s before the purges were read", got)
	}
	if _, found := cache.Get("/a"); found {
		t.Error("the object is held")
	}
	cache.Purges(0).Apply(hard("#t", 1, 1))
	cache.Purges(0).EndResync()
	if got := cache.ApplyRead(&o, cache.ReadMark("/a")); got != objectcache.Purged {
		t.Errorf("got %s afterwards", got)
	}
}

// TestPurgesOfAModel applies random writes and purges of two shards, and late reads, and compares the cache with a
// model that knows only the last write of each key and the numbers of the purges.
func TestPurgesOfAModel(t *testing.T) {
	const shards = contract.Shards(2)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	f := start(t, objectcache.Config{Shards: shards})
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	type write struct {
		host, path string
		o          contract.Object
	}
	last, all := map[string]write{}, []write(nil)
	type purge struct {
		host, prefix, tag string
		seq               uint64
	}
	var purges [2][]purge
	var seqs [2]uint64
	versions := map[string]uint64{}
	for step := range 3000 {
		w := write{host: one("", "shop"), path: "/" + one("a/", "b/", "") + one("x", "y", "a/")}
		switch kind := r.IntN(10); {
		case kind == 0:
			shard, p, id := r.IntN(2), purge{host: w.host}, ""
			seqs[shard]++
			if p.seq = seqs[shard]; r.IntN(2) == 0 {
				p.tag = one("s", "t")
				id = contract.TagPurge(p.host, p.tag)
			} else {
				p.prefix = w.path[:strings.LastIndex(w.path, "/")+1]
				id = contract.PrefixPurge(p.host, p.prefix)
			}
			purges[shard] = append(purges[shard], p)
			f.Purges(shard).Apply(hard(id, p.seq, p.seq))
		case kind < 3 && len(all) > 0: // a late read
			late := all[r.IntN(len(all))].o
			f.ApplyRead(&late, f.ReadMark(late.Key))
		default:
			key := w.path
			if w.host != "" {
				key = "//" + w.host + key
			}
			shard := shards.Of(key)
			seqs[shard]++
			versions[key]++
			w.o = tagged(key, versions[key], seqs[shard])
			for _, tag := range []string{"s", "t"} {
				if r.IntN(2) == 0 {
					w.o.Tags = append(w.o.Tags, tag)
				}
			}
			w.o.Deleted = r.IntN(10) == 0
			f.Apply(w.o)
			last[key], all = w, append(all, w)
		}
		want := map[string]uint64{}
		for key, w := range last {
			gone := w.o.Deleted
			for _, p := range purges[shards.Of(key)] {
				gone = gone || p.host == w.host && p.seq >= w.o.Seq &&
					(p.tag != "" && slices.Contains(w.o.Tags, p.tag) || p.prefix != "" && strings.HasPrefix(w.path, p.prefix))
			}
			if !gone {
				want[key] = w.o.Version
			}
		}
		got := map[string]uint64{}
		for key, o := range f.edge {
			got[key] = o.Version
		}
		if !maps.Equal(got, want) {
			t.Fatalf("seed %d, step %d: the edge has %v, want %v", seed, step, got, want)
		}
	}
}

// BenchmarkPurge purges 10,000 of 100,000 objects, by tag and by prefix, and publishes them again outside the time.
func BenchmarkPurge(b *testing.B) {
	for _, id := range []string{"#t", "/t/", "#none", "/none/"} {
		b.Run(id, func(b *testing.B) {
			cache, err := objectcache.New(objectcache.Config{Bytes: 1 << 30, Objects: 200000}, noEdge{}, metrics.New(),
				slog.New(slog.DiscardHandler))
			require.NoError(b, err)
			seq := uint64(0)
			put := func(i int) {
				seq++
				o := tagged(fmt.Sprintf("/x/%d", i), seq, seq, fmt.Sprint("product-", i))
				if i%10 == 0 {
					o.Key, o.Tags = fmt.Sprintf("/t/%d", i), append(o.Tags, "t")
				}
				o.PublishedMS = time.Now().UnixMilli()
				cache.Apply(o)
			}
			for i := range 100000 {
				put(i)
			}
			for b.Loop() {
				seq++
				cache.Purges(0).Apply(hard(id, seq, seq))
				b.StopTimer()
				for i := 0; i < 100000 && !strings.Contains(id, "none"); i += 10 {
					put(i)
				}
				b.StartTimer()
			}
		})
	}
}

// purgeEdge is an edge that logs the number of its objects at the beginning and end of each purge.
type purgeEdge struct {
	edge
	log   []string
	begun int
	ended chan struct{} // has room
}

func (e *purgeEdge) BeginPurge(shard int, id string, soft bool) (end func()) {
	note := func(what string) {
		stale := 0
		for _, o := range e.edge {
			if o.Stale {
				stale++
			}
		}
		e.log = append(e.log, fmt.Sprintf("%s %s in %d, soft %v: %d, %d stale", what, id, shard, soft, len(e.edge), stale))
	}
	note("begin")
	e.begun++
	return func() {
		note("end")
		e.ended <- struct{}{}
	}
}

// TestPurgeBeginsAtOnce: the edge learns of a purge of many objects before the first of them, and of its end after the
// last. It learns of few by themselves.
func TestPurgeBeginsAtOnce(t *testing.T) {
	e := &purgeEdge{edge: edge{}, ended: make(chan struct{}, 1)}
	const shards = contract.Shards(2)
	c, err := objectcache.New(objectcache.Config{Bytes: 1 << 24, Objects: 10_000, Shards: shards}, e, metrics.New(),
		slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	keys := func(prefix string) (keys []string) {
		for i := 0; len(keys) < 1000; i++ {
			if key := fmt.Sprint(prefix, i); shards.Of(key) == 1 {
				keys = append(keys, key)
			}
		}
		return keys
	}
	for i, key := range keys("/a/") {
		c.Apply(tagged(key, 1, uint64(i), "all", fmt.Sprintf("only-%d", i)))
	}
	for i, key := range keys("/b/") {
		c.Apply(tagged(key, 1, uint64(i)))
	}
	ended := 0
	for _, p := range []contract.Purge{
		hard("#only-7", 1, 2000), {ID: "#all", Version: 1, Soft: 2000}, {ID: "#all", Version: 2, Hard: 2001},
		{ID: "#all", Version: 3, Hard: 2001}, {ID: "/b/", Version: 1, Hard: 500, Soft: 2000}, hard("//shop/", 1, 2000),
	} {
		for c.Purges(1).Apply(p); ended < e.begun; ended++ {
			<-e.ended
		}
	}
	want := []string{
		"begin #all in 1, soft true: 1999, 0 stale", "end #all in 1, soft true: 1999, 999 stale",
		"begin #all in 1, soft false: 1999, 999 stale", "end #all in 1, soft false: 1000, 0 stale",
		"begin /b/ in 1, soft false: 1000, 0 stale", "end /b/ in 1, soft false: 499, 499 stale",
		"begin //shop/ in 1, soft false: 499, 499 stale", "end //shop/ in 1, soft false: 499, 499 stale",
	}
	if !slices.Equal(e.log, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(e.log, "\n"), strings.Join(want, "\n"))
	}
}

// slowEdge is a slow edge that calls during after a removal.
type slowEdge struct {
	edge
	during func()
	atEnd  func()
	ended  chan struct{}
}

func (e *slowEdge) BeginPurge(int, string, bool) (end func()) {
	return func() {
		e.atEnd()
		close(e.ended)
	}
}

func (e *slowEdge) DeleteObjects(keys []string) {
	e.edge.DeleteObjects(keys)
	if len(keys) > 0 && e.during != nil {
		go e.during()
		e.during = nil
	}
	time.Sleep(2 * time.Millisecond) // then the lock goes to whoever waits for it
}

// TestDuringPurge: while a purge removes many objects, others read and write. What is to be removed is not found any
// more, and what is written meanwhile stays.
func TestDuringPurge(t *testing.T) {
	for _, id := range []string{"#t", "/a/"} {
		t.Run(id, func(t *testing.T) {
			e := &slowEdge{edge: edge{}, ended: make(chan struct{})}
			c, err := objectcache.New(objectcache.Config{Bytes: 1 << 26, Objects: 30_000}, e, metrics.New(),
				slog.New(slog.DiscardHandler))
			require.NoError(t, err)
			const objects = 20_000
			key := func(i int) string { return fmt.Sprint("/a/", i) }
			published := time.Now().UnixMilli()
			first := func(i int) contract.Object {
				o := tagged(key(i), 1, uint64(i+1), "t")
				o.PublishedMS = published
				return o
			}
			for i := range objects {
				c.Apply(first(i))
			}
			c.Apply(tagged("/b", 1, objects+1, "b"))
			wrote, found := make(chan struct{}, 1), make(chan int)
			e.during = func() {
				c.Apply(tagged(key(0), 2, objects+10, "t"))
				c.Apply(tagged(key(1), 2, objects-1, "t")) // read late
				wrote <- struct{}{}
				n := 0
				for i := 2; i < objects; i++ {
					if _, ok := c.Get(key(i)); ok {
						n++
					}
					o := first(i)
					if result := c.ApplyRead(&o, c.ReadMark(o.Key)); result == objectcache.Unchanged {
						t.Errorf("%s: %s, though it is being purged", o.Key, result)
						break
					}
				}
				found <- n
			}
			e.atEnd = func() { // with the lock
				if len(wrote) != 1 {
					t.Error("nobody could write during the purge")
				}
			}
			c.Purges(0).EndResync()
			c.Shard(0).BeginResync()
			c.Purges(0).Apply(hard(id, 1, objects+5))
			<-e.ended
			if n := <-found; n > 0 {
				t.Errorf("found %d objects that are being purged", n)
			}
			if len(e.edge) != 2 || e.edge[key(0)].Version != 2 || e.edge["/b"].Version != 1 {
				t.Errorf("the edge has %d objects, want /b and the new one: %+v", len(e.edge), e.edge[key(0)])
			}
		})
	}
}

// stuckEdge is an edge whose removals wait for a signal.
type stuckEdge struct {
	edge
	goOn, ended chan struct{}
}

func (e *stuckEdge) BeginPurge(int, string, bool) (end func()) {
	return func() { e.ended <- struct{}{} }
}

func (e *stuckEdge) DeleteObjects(keys []string) {
	<-e.goOn
	e.edge.DeleteObjects(keys)
}

// TestPurgeDelaysNobody: a shard's follower goes on while a purge that the edge knows removes many objects, because a
// revocation may be next. Without the edge's knowledge the removals come first.
func TestPurgeDelaysNobody(t *testing.T) {
	known := &stuckEdge{edge: edge{}, goOn: make(chan struct{}), ended: make(chan struct{}, 1)}
	for name, e := range map[string]objectcache.Edge{"known": known, "unknown": edge{}} {
		c, err := objectcache.New(objectcache.Config{Bytes: 1 << 26, Objects: 30_000}, e, metrics.New(),
			slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		const objects = 20_000
		for i := range objects {
			c.Apply(tagged(fmt.Sprint("/a/", i), 1, uint64(i+1), "t"))
		}
		applied := make(chan struct{})
		go func() {
			defer close(applied)
			c.Purges(0).Apply(hard("#t", 1, objects))
		}()
		select {
		case <-applied:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the purge has not returned, though the edge knows it", name)
		}
		if e, ok := e.(edge); ok && len(e) > 0 {
			t.Errorf("%d objects are left of a purge that the edge doesn't know", len(e))
		}
	}
	close(known.goOn)
	<-known.ended
	if len(known.edge) > 0 {
		t.Errorf("%d objects are left of a purge that the edge knows", len(known.edge))
	}
}

// TestReadDuringResync: the known purges judge an object that is fetched before all purges were read again; when the
// resync reads the object, only the new purges do.
func TestReadDuringResync(t *testing.T) {
	f := start(t, objectcache.Config{Shards: 1})
	s, p := f.Shard(0), f.Purges(0)
	p.Apply(contract.Purge{ID: "#soft", Version: 1, Soft: 10})
	p.Apply(hard("#hard", 1, 10))
	p.BeginResync() // Redis has lost both
	s.BeginResync()
	soft, gone := tagged("/soft", 1, 5, "soft"), tagged("/hard", 1, 5, "hard")
	for _, o := range []contract.Object{soft, gone} {
		read := o
		f.ApplyRead(&read, f.ReadMark(o.Key))
	}
	if !f.edge["/soft"].Stale || f.edge["/hard"].Version != 0 {
		t.Errorf("got %+v: the purges of before don't count", f.edge)
	}
	p.EndResync()
	for _, o := range []contract.Object{soft, gone} {
		if s.Confirm(o) {
			t.Errorf("%s was confirmed", o.Key)
		}
		f.apply(t, o, objectcache.Stored)
		f.apply(t, o, objectcache.NotNewer)
	}
	s.EndResync()
	if f.edge["/soft"].Stale {
		t.Error("an object is stale without a purge")
	}
	f.expect(t, "/soft", 1)
	f.expect(t, "/hard", 1)
}
