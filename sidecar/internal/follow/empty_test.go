package follow_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
)

// awaitEmpty waits until the given number of shards are empty, without an accepted loss, and Redis was asked some more
// times since.
func (g *group) awaitEmpty(t *testing.T, shards float64) {
	t.Helper()
	value := func(name string) float64 { return metricstest.Value(t, g.metrics, name) }
	await.Until(t, fmt.Sprint("empty shards: ", shards), func() bool { return value("gatehouse_redis_empty") == shards })
	if shards > 0 {
		before := value("gatehouse_redis_errors_total")
		await.Until(t, "more attempts", func() bool { return value("gatehouse_redis_errors_total") > before+3 })
	}
}

// endings end the doubt in an empty Redis, and return the number of objects that are left.
var endings = map[string]func(t *testing.T, s server) int{
	"a write":     func(t *testing.T, s server) int { s.put(t, "/new"); return 1 },
	"accept-loss": func(t *testing.T, s server) int { s.accept(t); return 0 },
}

// TestEmptyAtStart: a follower of an empty Redis is not ready until something is written or the loss is accepted.
func TestEmptyAtStart(t *testing.T) {
	for name, end := range endings {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s server) {
				g := followShards(t, s, 1)
				g.awaitEmpty(t, 1)
				if err := g.Ready(); err == nil || !strings.Contains(err.Error(), "redis is empty") {
					t.Errorf("Ready: got %v, want that redis is empty", err)
				}
				select {
				case <-g.Synced():
					t.Error("synced with an empty Redis")
				default:
				}
				want := end(t, s)
				<-g.Synced()
				if err := g.Ready(); err != nil || g.objects[0].len() != want {
					t.Errorf("got %v and %d objects, want %d", err, g.objects[0].len(), want)
				}
				g.awaitEmpty(t, 0)
			})
		})
	}
}

// TestEmptyIsNotBelieved empties Redis: the follower keeps its records, and is not in step, until Redis is written to
// or the loss is accepted.
func TestEmptyIsNotBelieved(t *testing.T) {
	ways := map[string]func(t *testing.T) (s server, empty func()){
		"FLUSHALL of miniredis": func(t *testing.T) (server, func()) {
			s := miniredisServer(t)
			return s, func() { s.do(t, "FLUSHALL") }
		},
		"killed and restarted": func(t *testing.T) (server, func()) {
			redis := redistest.StartServer(t)
			return serverAt(t, redis.Address), func() { redis.Kill(); redis.Restart() }
		},
		"an empty replica promoted": func(t *testing.T) (server, func()) {
			s := serverAt(t, strings.TrimPrefix(redistest.Start(t), "redis://"))
			host, port, _ := net.SplitHostPort(redistest.StartServer(t).Address)
			return s, func() {
				s.do(t, "REPLICAOF", host, port)
				await.Until(t, "the replica to be empty", func() bool { return s.DBSize(t.Context()).Val() == 0 })
				s.do(t, "REPLICAOF", "NO", "ONE")
			}
		},
	}
	for way, from := range ways {
		for ending, end := range endings {
			t.Run(way+", "+ending, func(t *testing.T) {
				t.Parallel()
				s, empty := from(t)
				s.put(t, "/a")
				s.put(t, "/b")
				g := followShards(t, s, 1)
				<-g.Synced()
				empty()
				g.awaitEmpty(t, 1)
				at := g.clock.inStep()
				g.awaitEmpty(t, 1)
				if g.objects[0].len() != 2 || g.clock.inStep() != at || g.Ready() != nil {
					t.Errorf("got %d objects, in step moved by %v, %v; want 2, not at all, ready", g.objects[0].len(),
						g.clock.inStep().Sub(at), g.Ready())
				}
				if last, err := g.Applied(0); err == nil {
					t.Errorf("applied: got %v, want an error", last)
				}
				want := end(t, s)
				await.Until(t, "what was lost to go", func() bool {
					return g.objects[0].version("/a") == 0 && g.objects[0].len() == want
				})
				await.Until(t, "in step", func() bool { return g.clock.inStep().After(at) })
				g.awaitEmpty(t, 0)
				if got := metricstest.Value(t, g.metrics, "gatehouse_full_resyncs_total", "reason", "lost"); got != 1 {
					t.Errorf("got %v full resyncs after a loss, want 1", got)
				}
			})
		}
	}
}

// TestOneShardIsEmpty: the other shard is followed, and the loss of the empty shard is accepted for neither.
func TestOneShardIsEmpty(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		const shards = contract.Shards(2)
		s.publish = publish.New(s.Client, publish.Shards(int(shards)))
		keys := oneOfEach(shards)
		for _, key := range keys {
			s.put(t, key)
		}
		g := followShards(t, s, shards)
		<-g.Synced()
		s.do(t, append([]any{"DEL"}, toAny(s.Keys(t.Context(), "{gatehouse:1}:*").Val())...)...)
		g.awaitEmpty(t, 1)
		at := g.clock.inStep()
		s.put(t, keys[0])
		await.Until(t, "the event of the other shard", func() bool { return g.objects[0].version(keys[0]) == 2 })
		g.awaitEmpty(t, 1)
		if g.objects[1].len() != 1 || g.clock.inStep() != at {
			t.Errorf("got %d objects of the empty shard, in step moved by %v; want 1, not at all", g.objects[1].len(),
				g.clock.inStep().Sub(at))
		}
		s.accept(t)
		await.Until(t, "what was lost to go", func() bool { return g.objects[1].len() == 0 })
		g.awaitEmpty(t, 0)
	})
}

func toAny(texts []string) (list []any) {
	for _, text := range texts {
		list = append(list, text)
	}
	return list
}

// TestEmptyForAWhile: the loss is believed after a time, at the start and later.
func TestEmptyForAWhile(t *testing.T) {
	const after = time.Second
	s := miniredisServer(t)
	began := time.Now()
	g := followKeyspace(t, s, contract.Keyspace{}, after)
	<-g.Synced()
	if took := time.Since(began); took < after {
		t.Errorf("an empty Redis was believed after %v, want %v", took, after)
	}
	s.put(t, "/a")
	await.Until(t, "the object", func() bool { return g.objects[0].version("/a") == 1 })
	began = time.Now()
	s.do(t, "FLUSHALL")
	await.Until(t, "nothing is left", func() bool { return g.objects[0].len() == 0 })
	if took := time.Since(began); took < after {
		t.Errorf("the loss was believed after %v, want %v", took, after)
	}
	now := time.Now()
	await.Until(t, "in step", func() bool { return g.clock.inStep().After(now) })
	g.awaitEmpty(t, 0)
}
