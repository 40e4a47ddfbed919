package follow_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics/metricstest"
)

// lossCase is a shard, in a namespace of its own, that has lost a set of keys.
type lossCase struct {
	keyspace           contract.Keyspace
	lost               []string // names after the shard's tag
	running, restarted *group
	inStep             time.Time // of running, before the loss
}

func (x *lossCase) String() string { return "lost " + strings.Join(x.lost, " ") }

func (x *lossCase) lacks(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(x.lost, name) })
}

// expected returns what the group must name as lost, "" if it must follow: the model. Of epoch, seq and log each one
// that is missing counts, unless nothing else shows that there were writes.
func (x *lossCase) expected(knows bool) (named []string, empty bool) {
	switch {
	case x.lacks("epoch", "seq", "log", "chain"):
		return nil, true
	case x.lacks("seq", "log", "chain") && !knows:
		return nil, false // accept-loss leaves an epoch alone, too
	}
	for _, name := range []string{"epoch", "seq", "log"} {
		if x.lacks(name) {
			named = append(named, "{gatehouse."+x.keyspace.Namespace+":0}:"+name)
		}
	}
	return named, false
}

// awaitSaid waits until the log says that the shard is empty or lacks these keys, and no others.
func (x *lossCase) awaitSaid(t *testing.T, g *group, named []string, empty bool) {
	t.Helper()
	want := "redis has lost " + strings.Join(named, ", ") + ", but"
	if empty {
		want = "redis is empty"
	}
	await.Until(t, x.String()+": "+want, func() bool {
		return strings.Contains(g.log.String(), want) && metricstest.Value(t, g.metrics, "gatehouse_redis_empty") == 1
	})
}

// has returns the versions of the records that the shard was given first, and then.
func (g *group) has() string {
	return fmt.Sprint(g.objects[0].version("/1"), g.objects[0].version("/2"), g.credentials[0].version("d1"),
		g.credentials[0].version("d2"))
}

// TestLostKeys deletes every subset of the keys of a shard in a real Redis. A running follower keeps what it has, and
// names the keys that are gone. So does one that starts then: it isn't ready, and has nothing, unless only what no
// reader needs is gone.
func TestLostKeys(t *testing.T) {
	s := serverAt(t, redistest.StartServer(t).Address)
	names := []string{"epoch", "seq", "log", "chain", "o:/2", "c:d2", "p:/old2/", "audit"}
	var cases []*lossCase
	for set := 0; set < 1<<len(names); set += sized(1, 7) {
		x := &lossCase{keyspace: contract.Keyspace{Namespace: fmt.Sprint("n", set)}}
		for i, name := range names {
			if set&(1<<i) != 0 {
				x.lost = append(x.lost, name)
			}
		}
		p := publish.New(s.Client, publish.Namespace(x.keyspace.Namespace), publish.Author("tester"))
		for i := range 2 {
			n := fmt.Sprint(i + 1)
			_, err := p.Put(t.Context(), publish.Object{Key: "/" + n, ContentType: "image/png"})
			_, err2 := p.PutDevice(t.Context(), publish.Device{ID: "d" + n, Hashes: []string{hash}})
			_, err3 := p.Purge(t.Context(), publish.Purge{Prefix: "/old" + n + "/"})
			if err != nil || err2 != nil || err3 != nil {
				t.Fatal(err, err2, err3)
			}
		}
		x.running = followKeyspace(t, s, x.keyspace, 0)
		cases = append(cases, x)
	}
	t.Log(len(cases), "sets of keys")
	for _, x := range cases {
		<-x.running.Synced()
		if got := x.running.has(); got != "1 1 1 1" {
			t.Fatalf("%v: got versions %s before", x, got)
		}
		x.inStep = x.running.clock.inStep()
		for _, name := range x.lost {
			key := "{gatehouse." + x.keyspace.Namespace + ":0}:" + name
			if n := s.Del(t.Context(), key).Val(); n != 1 {
				t.Fatalf("%s: %d keys deleted, want 1", key, n)
			}
		}
	}
	for _, x := range cases {
		x.restarted = followKeyspace(t, s, x.keyspace, 0)
	}
	for _, x := range cases {
		t.Run(x.String(), func(t *testing.T) {
			if named, empty := x.expected(true); empty || named != nil {
				x.awaitSaid(t, x.running, named, empty)
			} else {
				now := time.Now()
				await.Until(t, "in step", func() bool { return x.running.clock.inStep().After(now) })
			}
			if got := x.running.has(); got != "1 1 1 1" || x.running.Ready() != nil {
				t.Errorf("running: got versions %s, %v; want all kept, and ready", got, x.running.Ready())
			}

			g := x.restarted
			named, empty := x.expected(false)
			if empty || named != nil {
				x.awaitSaid(t, g, named, empty)
				if err := g.Ready(); err == nil || named != nil && !strings.Contains(err.Error(), strings.Join(named, ", ")) ||
					g.has() != "0 0 0 0" {
					t.Errorf("restarted: got versions %s, %v; want none, and %s named", g.has(), err, named)
				}
				return
			}
			<-g.Synced()
			want := []any{1, 1, 1, 1}
			for i, name := range map[int]string{1: "o:/2", 3: "c:d2"} {
				if x.lacks(name) {
					want[i] = 0
				}
			}
			log, all := g.log.String(), !x.lacks("log")
			if !all {
				want = []any{0, 0, 0, 0}
			}
			if got := g.has(); got != fmt.Sprint(want...) {
				t.Errorf("restarted: got versions %s, want %v", got, want)
			}
			for kind, name := range map[string]string{"object": "o:/2", "credential": "c:d2", "purge": "p:/old2/"} {
				gone := metricstest.Value(t, g.metrics, "gatehouse_corrupt_total", "kind", kind, "reason", "missing") == 1
				said := strings.Contains(log, "id="+name[2:]+" ")
				if lost := all && x.lacks(name); gone != lost || said != lost {
					t.Errorf("restarted: %s counted as gone: %t, named: %t; want %t: %s", name, gone, said, lost, log)
				}
			}
			if said := strings.Contains(log, "has lost the chain"); said != (all && x.lacks("chain")) {
				t.Errorf("restarted: names the chain: %t: %s", said, log)
			}
		})
	}
}

// TestLogTrimmedEmpty: a log is rightly empty if all of its entries were trimmed.
func TestLogTrimmedEmpty(t *testing.T) {
	s := serverAt(t, redistest.StartServer(t).Address)
	s.put(t, "/a")
	if _, err := s.publish.Delete(t.Context(), "/a", 0); err != nil {
		t.Fatal(err)
	}
	running := followShards(t, s, 1)
	<-running.Synced()
	s.do(t, "PEXPIRE", keys.ObjectKey("/a"), 1)
	await.Until(t, "the tombstone to expire", func() bool {
		return s.Exists(t.Context(), keys.ObjectKey("/a")).Val() == 0
	})
	if n, err := s.publish.Trim(t.Context()); err != nil || s.Exists(t.Context(), keys.LogKey()).Val() != 0 {
		t.Fatal(n, err)
	}
	<-followShards(t, s, 1).Synced()
	now := time.Now()
	await.Until(t, "in step", func() bool { return running.clock.inStep().After(now) })
}

// TestLogLostWhileRead: what the rest of the log would have listed isn't dropped.
func TestLogLostWhileRead(t *testing.T) {
	s := miniredisServer(t)
	s.put(t, "/0")
	s.fill(t, 1100) // more than a page of the log
	g := followShards(t, s, 1)
	<-g.Synced()
	g.objects[0].mu.Lock()
	g.objects[0].beforeNext = func() { s.do(t, "DEL", keys.LogKey()) }
	g.objects[0].mu.Unlock()
	s.do(t, "SET", keys.DataEpochKey(), "beef")
	await.Until(t, "the loss to be noticed", func() bool {
		return metricstest.Value(t, g.metrics, "gatehouse_redis_empty") == 1
	})
	if got := g.objects[0].len(); got != 1100 {
		t.Errorf("got %d objects, want all 1100", got)
	}
}
