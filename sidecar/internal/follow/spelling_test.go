package follow_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/follow"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/sidecar/internal/objectcache"
	"github.com/gatehouse/gatehouse/sidecar/publish"
	"github.com/gatehouse/gatehouse/testbed/await"
	"github.com/gatehouse/gatehouse/testbed/redistest"
)

// bodies is an edge: its bodies by key.
type bodies struct {
	mu sync.Mutex
	of map[string]string
}

func (b *bodies) PutObject(o *contract.Object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of[o.Key] = string(o.Bodies[0].Bytes)
}

func (b *bodies) DeleteObject(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.of, key)
}

// is reports whether the edge has just this body, under key only.
func (b *bodies) is(key, body string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if body == "" {
		return len(b.of) == 0
	}
	return len(b.of) == 1 && b.of[key] == body
}

// TestSpellingsInRedis: another writer stores a key with escapes in lower case, in another shard than ours in upper
// case: by events, by a catch-up, and by a full resync after Redis has silently lost data.
func TestSpellingsInRedis(t *testing.T) {
	const shards = contract.Shards(8)
	const upper, lower = "/caf%C3%A9", "/caf%c3%a9"
	if shards.Of(upper) == shards.Of(lower) {
		t.Fatal("want the spellings in two shards")
	}
	s := serverAt(t, strings.TrimPrefix(redistest.Start(t), "redis://"))
	write := redistest.ObjectWriter(t, s, "../../publish/write.lua", shards)
	put := func(key, body string) {
		t.Helper()
		before := s.Time(t.Context()).Val().UnixMilli() // so that no two are published in the same millisecond
		await.Until(t, "the next millisecond", func() bool { return s.Time(t.Context()).Val().UnixMilli() > before })
		write(key, "0", "etag", `"x"`, "content-type", "text/plain", "body", body)
	}
	remove := func(key string) { t.Helper(); write(key, "86400000", "deleted", "1") }

	s.publish = publish.New(s.Client, publish.Shards(int(shards)))
	s.accept(t)
	put(upper, "1")
	put(lower, "2")
	edge, m := &bodies{of: map[string]string{}}, metrics.New()
	log := slog.New(slog.DiscardHandler)
	objects, err := objectcache.New(objectcache.Config{Bytes: 1 << 20, Objects: 100, Shards: shards}, edge, m, log)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: s.line.Address(), MaxRetries: -1})
	group := follow.NewGroup(shards, func(i int) follow.Config {
		return follow.Config{Objects: objects.Shard(i), Credentials: credentials{newSink()}}
	}, new(clock), client, m, log)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { group.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait(); client.Close() })
	<-group.Synced()
	has := func(when, body string) {
		t.Helper()
		await.Until(t, when, func() bool { return edge.is(upper, body) })
	}
	has("the later, caught up with", "2")
	put(upper, "3")
	has("the later, by an event", "3")
	put(lower, "4")
	has("the other again", "4")
	remove(lower)
	has("deleted: the earlier", "3")
	put(lower, "5")
	has("back", "5")
	remove(upper)
	put("/next", "")
	remove("/next") // by then the deletion was applied, in whatever order of shards
	has("the earlier deleted", "5")

	// A full resync of the shard, whose record was lost without an event.
	put(upper, "6")
	has("the later", "6")
	k := shards.KeysOf(upper)
	s.do(t, "DEL", k.ObjectKey(upper))
	resyncs := metricstest.Value(t, m, "gatehouse_full_resyncs_total")
	s.do(t, "SET", k.EpochKey(), "abcd")
	has("lost", "5")
	if got := metricstest.Value(t, m, "gatehouse_full_resyncs_total"); got <= resyncs {
		t.Errorf("%v full resyncs, want more than %v", got, resyncs)
	}
	remove(lower)
	has("none", "")
	if got := metricstest.Value(t, m, "gatehouse_key_collisions_total"); got < 4 {
		t.Errorf("%v collisions counted, want 4 at least", got)
	}
}
