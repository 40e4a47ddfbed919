package follow_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/follow"
	"github.com/gatehouse/gatehouse/sidecar/internal/objectcache"
)

// cacheEdge has the versions of objects that the edge has now, and ever had.
type cacheEdge struct {
	mu        sync.Mutex
	now, ever map[string]uint64
	put       func() // called before each put; nil: nothing is
}

func (e *cacheEdge) Grow(int) {}

func (e *cacheEdge) PutObject(o *contract.Object) {
	e.mu.Lock()
	put := e.put
	e.put = nil
	e.now[o.Key], e.ever[o.Key] = o.Version, o.Version
	e.mu.Unlock()
	if put != nil {
		put()
	}
}

func (e *cacheEdge) DeleteObject(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.now, key)
}

func (e *cacheEdge) DeleteObjects(keys []string) {
	for _, key := range keys {
		e.DeleteObject(key)
	}
}

func (e *cacheEdge) MarkStale(string) {}

func (e *cacheEdge) BeginPurge(int, string, bool) (end func()) { return func() {} }

func (e *cacheEdge) version(key string) uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.now[key]
}

// cached returns a follower with an object cache, and the cache's edge.
func cached(t *testing.T, s server) (*follower, *cacheEdge, *objectcache.Cache) {
	t.Helper()
	e := &cacheEdge{now: map[string]uint64{}, ever: map[string]uint64{}}
	f, cache := cachedAt(t, s, e)
	return f, e, cache
}

func cachedAt(t *testing.T, s server, e *cacheEdge) (*follower, *objectcache.Cache) {
	t.Helper()
	f := &follower{credentials: newSink(), clock: new(clock), metrics: metrics.New()}
	log := slog.New(slog.DiscardHandler)
	cache, err := objectcache.New(objectcache.Config{Bytes: 1 << 24, Objects: 10000}, e, f.metrics, log)
	require.NoError(t, err)
	client := redis.NewClient(&redis.Options{Addr: s.line.Address(), MaxRetries: -1, DialTimeout: time.Second})
	f.Follower = follow.New(follow.Config{
		Objects: cache.Shard(0), Purges: cache.Purges(0), Credentials: credentials{f.credentials}, Clock: f.clock,
	}, client, f.metrics, log)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		client.Close()
	})
	return f, cache
}

func (s server) putTagged(t *testing.T, key string, tags ...string) uint64 {
	t.Helper()
	r, err := s.publish.Put(t.Context(), publish.Object{Key: key, Body: []byte(key), ContentType: "image/png", Tags: tags})
	require.NoError(t, err)
	return r.Version
}

func (s server) purge(t *testing.T, u publish.Purge) {
	t.Helper()
	if _, err := s.publish.Purge(t.Context(), u); err != nil {
		t.Fatal(err)
	}
}

// TestPurgeIsFollowed purges by events, and while the follower is away.
func TestPurgeIsFollowed(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		for _, key := range []string{"/a/1", "/a/2", "/b"} {
			s.putTagged(t, key, "t")
		}
		f, e, _ := cached(t, s)
		<-f.Synced()
		s.purge(t, publish.Purge{Prefix: "/a/"})
		s.putTagged(t, "/a/2", "t")
		await.Until(t, "the purge and what follows", func() bool { return e.version("/a/1") == 0 && e.version("/a/2") == 2 })
		s.line.Cut()
		s.purge(t, publish.Purge{Tag: "t"})
		s.putTagged(t, "/b", "t")
		s.heal(t)
		await.Until(t, "the purge of the catch-up", func() bool { return e.version("/a/2") == 0 && e.version("/b") == 2 })
	})
}

// TestPurgedAreNeverApplied starts a follower where everything was purged, and published again in part: the edge never
// gets purged objects, whatever was written before and after.
func TestPurgedAreNeverApplied(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		for i := range 1200 { // two pages of the log
			s.putTagged(t, fmt.Sprint("/", i), "t")
		}
		s.purge(t, publish.Purge{Tag: "t"})
		s.putTagged(t, "/7", "t")
		s.putTagged(t, "/new")
		f, e, cache := cached(t, s)
		<-f.Synced()
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(e.ever) != 2 || e.now["/7"] != 2 || e.now["/new"] != 1 {
			t.Errorf("the edge got %d objects, /7 in version %d", len(e.ever), e.now["/7"])
		}
		if d := cache.Describe("/8"); d.Place != "purged" {
			t.Errorf("/8 is %s", d.Place)
		}
	})
}

// TestPurgeDuringResync purges while a full resync reads objects: the purge takes effect before all objects are read.
func TestPurgeDuringResync(t *testing.T) {
	s := serverAt(t, strings.TrimPrefix(redistest.Start(t), "redis://"))
	for i := range 1200 {
		s.putTagged(t, fmt.Sprint("/", i), "t")
	}
	e := &cacheEdge{now: map[string]uint64{}, ever: map[string]uint64{}}
	first, purged := make(chan struct{}), make(chan struct{})
	e.put = func() {
		close(first)
		<-purged
	}
	f, _ := cachedAt(t, s, e)
	<-first
	s.purge(t, publish.Purge{Tag: "t"})
	await.Until(t, "the events to be sent", func() bool { return !s.subscribersBehind(t) })
	close(purged)
	<-f.Synced()
	if e.mu.Lock(); len(e.now) > 0 || len(e.ever) > 1100 {
		t.Errorf("the edge has %d objects, and got %d of 1200", len(e.now), len(e.ever))
	}
	e.mu.Unlock()
}

// subscribersBehind reports whether Redis has not sent all events to its subscribers.
func (s server) subscribersBehind(t *testing.T) bool {
	t.Helper()
	clients, err := s.ClientList(t.Context()).Result()
	return err == nil && strings.Contains(clients, "sub=1") && !slices.ContainsFunc(strings.Split(clients, "\n"),
		func(c string) bool { return strings.Contains(c, "sub=1") && strings.Contains(c, "omem=0") })
}

// TestLostPurges: Redis loses everything, and begins anew with lower numbers. Purges of the lost data hide nothing of
// the new data.
func TestLostPurges(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		for range 20 {
			s.putTagged(t, "/a", "t")
		}
		f, e, _ := cached(t, s)
		<-f.Synced()
		s.purge(t, publish.Purge{Tag: "t"})
		await.Until(t, "the purge", func() bool { return e.version("/a") == 0 })
		s.line.Cut()
		s.FlushAll(t.Context())
		p := publish.New(s.Client)
		if _, err := p.Put(t.Context(), publish.Object{Key: "/a", ContentType: "a", Tags: []string{"t"}}); err != nil {
			t.Fatal(err)
		}
		s.heal(t)
		await.Until(t, "the object of the new data", func() bool { return e.version("/a") == 1 })
	})
}

// TestForgedPurge: a purge that isn't in the chain purges nothing. A fitting purge, by a forger who has read the chain,
// counts until Redis is compared, and purges nothing that is published later.
func TestForgedPurge(t *testing.T) {
	s := serverAt(t, strings.TrimPrefix(redistest.Start(t), "redis://"))
	s.putTagged(t, "/a", "t")
	f, e, _ := cached(t, s)
	<-f.Synced()
	x := forger{s, t, f, s.Get(t.Context(), keys.DataEpochKey()).Val(), s.seq(t)}
	m := contract.PurgeMember("#t")
	record := func(hard uint64) map[string]string {
		return contract.Purge{Version: 1, PublishedMS: 1, Hard: hard}.Fields()
	}
	x.send(x.event(1, m, record(x.last+1)))
	x.breaks("digest", 1)
	if e.version("/a") != 1 {
		t.Error("a forged purge took effect")
	}
	endless := s.chained(t, keys, x.event(1, m, record(1<<53-1)))
	x.send(endless)
	await.Until(t, "the endless purge to be refused", func() bool {
		return f.count(t, "gatehouse_corrupt_total", "kind", "purge") == 1
	})
	await.Until(t, "the comparison", func() bool {
		return f.count(t, "gatehouse_full_resyncs_total", "reason", "lost") == 1
	})
	fits := s.chained(t, keys, x.event(1, m, record(x.last+1)))
	gone := make(chan struct{})
	e.mu.Lock()
	e.put = func() { close(gone) }
	e.mu.Unlock()
	x.send(fits)
	select {
	case <-gone: // put again, so the object was gone
	case <-time.After(20 * time.Second):
		t.Fatal("the object did not come back")
	}
	await.Until(t, "the object", func() bool { return e.version("/a") == 1 })
}
