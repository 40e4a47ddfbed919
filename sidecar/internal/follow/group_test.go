package follow_test

import (
	"context"
	"errors"
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
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/sidecar/internal/follow"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
)

// group is a running Group with a pair of sinks for each shard.
type group struct {
	*follow.Group
	objects, credentials, purges []*sink
	clock                        *clock
	metrics                      *metrics.Metrics
	log                          *logbuffer.Buffer
}

func followShards(t *testing.T, s server, n contract.Shards) *group {
	t.Helper()
	return followKeyspace(t, s, contract.Keyspace{Shards: n}, 0)
}

// followKeyspace is followShards of any keyspace, with a time after which a loss is accepted.
func followKeyspace(t *testing.T, s server, k contract.Keyspace, acceptLossAfter time.Duration) *group {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: s.line.Address(), DB: k.Database, MaxRetries: -1})
	return followFor(t, client, k, follow.Config{AcceptLossAfter: acceptLossAfter})
}

// followFor follows a keyspace with a configuration whose sinks it adds, and closes the client at the end.
func followFor(t *testing.T, client redis.UniversalClient, k contract.Keyspace, c follow.Config) *group {
	t.Helper()
	g := &group{clock: new(clock), metrics: metrics.New(), log: new(logbuffer.Buffer)}
	g.Group = follow.NewGroup(k, func(i int) follow.Config {
		g.objects, g.credentials = append(g.objects, newSink()), append(g.credentials, newSink())
		g.purges = append(g.purges, newSink())
		c.Objects, c.Credentials, c.Purges = objects{g.objects[i]}, credentials{g.credentials[i]}, purges{g.purges[i]}
		return c
	}, g.clock, client, g.metrics, slog.New(slog.NewTextHandler(g.log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { g.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait(); client.Close() })
	return g
}

func TestGroupFollowsAllShards(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		const shards = contract.Shards(4)
		s.publish = publish.New(s.Client, publish.Shards(int(shards)))
		put := func() {
			for i := range 40 {
				s.put(t, fmt.Sprint("/", i))
			}
		}
		put()
		g := followShards(t, s, shards)
		<-g.Synced()
		put()
		version := func(key string) uint64 { return g.objects[shards.Of(key)].version(key) }
		await.Until(t, "all objects", func() bool {
			for i := range 40 {
				if version(fmt.Sprint("/", i)) != 2 {
					return false
				}
			}
			return true
		})
		await.Until(t, "the sum of numbers", func() bool {
			return metricstest.Value(t, g.metrics, "gatehouse_redis_seq") == 80
		})
		if got := metricstest.Value(t, g.metrics, "gatehouse_redis_connected"); got != 1 {
			t.Errorf("connected: %v", got)
		}
		now := time.Now()
		await.Until(t, "in step", func() bool { return g.clock.inStep().After(now) })

		// If a shard's position can't be read, the group is not in step.
		s.do(t, "SET", contract.Keys{Shard: 3}.DataEpochKey(), "no epoch")
		await.Until(t, "not in step", func() bool {
			stuck := g.clock.inStep()
			return time.Since(stuck) > time.Second // some comparisons
		})

		// A member of another shard is refused, and does not remove the good member.
		stray := "/0"
		other := contract.Keys{Shard: (shards.Of(stray) + 1) % 3}
		s.do(t, "HSET", other.ObjectKey(stray), "version", "9", "published", "1", "deleted", "1")
		s.announce(t, other, contract.Event{Member: contract.ObjectMember(stray),
			Fields: map[string]string{"version": "9", "published": "1", "deleted": "1"}})
		await.Until(t, "the stray", func() bool {
			return metricstest.Value(t, g.metrics, "gatehouse_corrupt_total", "kind", "member", "reason", "conflict") == 1
		})
		// Nor does an unreadable member.
		s.do(t, "PUBLISH", other.EventsChannel(), string(contract.AppendEvent(nil, contract.Event{
			DataEpoch: s.Get(t.Context(), other.DataEpochKey()).Val(), Seq: uint64(s.Incr(t.Context(), other.SeqKey()).Val()),
			Digest: strings.Repeat("0", 40), Member: contract.ObjectMember(stray),
			Fields: map[string]string{"version": "9", "published": "1", "deleted": "1"},
		}))+"cut off")
		await.Until(t, "the stray that can't be read", func() bool {
			return metricstest.Value(t, g.metrics, "gatehouse_events_total", "result", "corrupt") == 2
		})
		if version(stray) != 2 {
			t.Errorf("%s is version %d, want 2", stray, version(stray))
		}
	})
}

// oneOfEach returns a key of each shard.
func oneOfEach(shards contract.Shards) []string {
	keys := make([]string, shards)
	for i := 0; slices.Contains(keys, ""); i++ {
		key := fmt.Sprint("/", i)
		keys[shards.Of(key)] = key
	}
	return keys
}

// TestResyncOnDemand: a resync notices changes without events, in each shard, also if Redis is away at first.
func TestResyncOnDemand(t *testing.T) {
	s := miniredisServer(t)
	const shards = contract.Shards(2)
	s.publish = publish.New(s.Client, publish.Shards(int(shards)))
	keys := oneOfEach(shards)
	for _, key := range keys {
		s.put(t, key)
	}
	g := followShards(t, s, shards)
	<-g.Synced()
	for n, cut := range []bool{false, true} {
		for i, key := range keys {
			s.do(t, "HSET", contract.Keys{Shard: i}.ObjectKey(key), "version", n+10)
		}
		ended := make(chan error, 1)
		if cut {
			s.line.Cut()
		}
		go func() { ended <- g.Resync(t.Context()) }()
		if cut {
			s.heal(t)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		for i, key := range keys {
			if got := g.objects[i].version(key); got != uint64(n+10) {
				t.Errorf("%s is version %d after the resync, want %d", key, got, n+10)
			}
		}
	}
	if got := metricstest.Value(t, g.metrics, "gatehouse_catchups_total", "reason", "demand"); got < 4 {
		t.Errorf("got %v catch-ups, want one of each shard, each time", got)
	}
	if got := metricstest.Value(t, g.metrics, "gatehouse_full_resyncs_total", "reason", "demand"); got < 4 {
		t.Errorf("got %v full resyncs on demand, want one of each shard, each time", got)
	}
	if lost := metricstest.Value(t, g.metrics, "gatehouse_full_resyncs_total", "reason", "lost"); lost != 0 {
		t.Errorf("%v full resyncs count as a loss, and nothing was lost", lost)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.line.Cut()
	cancel()
	if err := g.Resync(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was canceled", err)
	}
}

// TestGroupOfAnotherNumber: a follower notices another number of shards at start and later.
func TestGroupOfAnotherNumber(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		s.do(t, "SET", contract.Keyspace{}.ShardsKey(), "8")
		g := followShards(t, s, 2)
		await.Until(t, "the refusal", func() bool {
			return strings.Contains(g.log.String(), "is 8, this program is set to 2")
		})
		select {
		case <-g.Synced():
			t.Error("synced although the numbers of shards differ")
		default:
		}
		s.do(t, "SET", contract.Keyspace{}.ShardsKey(), "2")
		s.publish = publish.New(s.Client, publish.Shards(2))
		s.accept(t)
		<-g.Synced()
		s.do(t, "SET", contract.Keyspace{}.ShardsKey(), "4")
		await.Until(t, "the refusal by comparison", func() bool {
			return strings.Contains(g.log.String(), "is 4, this program is set to 2")
		})
	})
}
