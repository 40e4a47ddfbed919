package follow_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
)

// records are the versions of the records of a shard, by member.
type records map[string]uint64

// with returns the records of both, for common keys those of other.
func (r records) with(other records) records {
	all := maps.Clone(r)
	maps.Copy(all, other)
	return all
}

// has returns the follower's records.
func (g *group) has() records {
	all := records{}
	for i := range 4 {
		n := fmt.Sprint(i)
		for member, version := range map[string]uint64{
			"o:/" + n: g.objects[0].version("/" + n), "c:d" + n: g.credentials[0].version("d" + n),
		} {
			if version != 0 {
				all[member] = version
			}
		}
	}
	return all
}

// lossCase is a shard, in a namespace of its own, that has lost a set of keys.
type lossCase struct {
	keyspace  contract.Keyspace
	publish   *publish.Publisher
	lost      []string // names after the shard's tag
	running   *group
	restarted []*group // since the loss, and since later writes
	left      records  // the shard's records that were not lost
	written   records  // since the loss
}

// before are the records of before the loss.
var before = records{"o:/1": 1, "o:/2": 1, "c:d1": 1, "c:d2": 1}

func (x *lossCase) String() string { return "lost " + strings.Join(x.lost, " ") }

func (x *lossCase) key(name string) string {
	return "{gatehouse." + x.keyspace.Namespace + ":0}:" + name
}

func (x *lossCase) lacks(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(x.lost, name) })
}

// outcome has the records and errors that a follower must have.
type outcome struct {
	named    []string // names of lost keys
	empty    bool     // the shard
	followed bool
	has      records
}

// expected returns the outcome before a write: the model. Each missing key of epoch, seq and log counts, unless nothing
// else shows that the shard was written to. A follower that has read everything needs no log.
func (x *lossCase) expected(knows bool) outcome {
	o := outcome{has: records{}}
	if knows {
		o.has = before
	}
	switch {
	case x.lacks("epoch", "seq", "log", "chain"):
		o.empty = true
		return o
	case x.lacks("seq", "log", "chain") && !knows:
		o.followed = true // accept-loss leaves an epoch alone, too
		return o
	}
	for _, name := range []string{"epoch", "seq", "log"} {
		if x.lacks(name) {
			o.named = append(o.named, x.key(name))
		}
	}
	o.followed = o.named == nil || knows && slices.Equal(o.named, []string{x.key("log")})
	if o.followed && !knows {
		o.has = x.left
	}
	return o
}

// expectedThen returns the outcome after a write. The write goes on from the highest number that is left, so seq is not
// missing any more. A lost log stays lost until the loss is accepted. If no number is left, the write is the first.
func (x *lossCase) expectedThen(knows, accepted bool) outcome {
	switch {
	case x.lacks("log") && (accepted || x.lacks("seq", "chain")):
		if !knows {
			return outcome{followed: true, has: x.written}
		}
	case x.lacks("log"):
		o := outcome{named: []string{x.key("log")}, followed: knows && !x.lacks("epoch"), has: records{}}
		if o.followed {
			o.has = before.with(x.written)
		} else if knows {
			o.has = before
		}
		return o
	case knows && !x.lacks("epoch"):
		return outcome{followed: true, has: before.with(x.written)}
	}
	return outcome{followed: true, has: x.left.with(x.written)} // everything was read again
}

// check waits until the follower reports the wanted loss, or is in step with all writes before since, and compares its
// records.
func (x *lossCase) check(t *testing.T, name string, g *group, since time.Time, want outcome) {
	t.Helper()
	said := "redis has lost " + strings.Join(want.named, ", ") + ", but"
	if want.empty {
		said = "redis is empty"
	}
	lost := want.empty || want.named != nil
	if lost {
		await.Until(t, name+": "+said, func() bool { return strings.Contains(g.log.String(), said) })
	}
	await.Until(t, fmt.Sprint(name, ": empty or without keys: ", lost), func() bool {
		return metricstest.Value(t, g.metrics, "gatehouse_redis_empty") == map[bool]float64{true: 1}[lost]
	})
	if want.followed {
		await.Until(t, name+": in step", func() bool { return g.clock.inStep().After(since) })
		await.Until(t, fmt.Sprint(name, ": ", want.has), func() bool { return maps.Equal(g.has(), want.has) })
	}
	if got := g.has(); !maps.Equal(got, want.has) {
		t.Errorf("%s: got %v, want %v", name, got, want.has)
	}
	_, err := g.Applied(0)
	if (err == nil) != want.followed {
		t.Errorf("%s: followed: %v; want %t", name, err, want.followed)
	}
	if says := strings.Contains(strings.Join(g.Degraded(), "; "), said); says != (lost && want.followed) {
		t.Errorf("%s: degraded: %q", name, g.Degraded())
	}
	if knows := g == x.running || want.followed; knows != (g.Ready() == nil) ||
		!knows && !strings.Contains(g.Ready().Error(), strings.TrimSuffix(said, ", but")) {
		t.Errorf("%s: ready: %v", name, g.Ready())
	}
}

// put writes records: some that the log had, and some that it lacks.
func (x *lossCase) put(t *testing.T, which ...int) {
	t.Helper()
	for _, i := range which {
		var r publish.Receipt
		var err error
		id := []string{"c:d3", "o:/1", "c:d1", "o:/3"}[i%4]
		switch i % 4 {
		case 0:
			r, err = x.publish.PutDevice(t.Context(), publish.Device{ID: "d3", Hashes: []string{hash}})
		case 2:
			r, err = x.publish.RevokeDevice(t.Context(), "d1")
		default:
			r, err = x.publish.Put(t.Context(), publish.Object{Key: id[2:], ContentType: "image/png"})
		}
		if err != nil {
			t.Fatalf("%v: %s: %v", x, id, err)
		}
		x.written[id] = r.Version
	}
}

// TestLostKeys deletes sets of keys of a shard in a real Redis, followed by a single write, many writes, and
// accept-loss. A running follower keeps its records, and names the lost keys. So does a follower that starts
// afterwards: it isn't ready, and has nothing, unless no reader needs the lost keys, or the write has restored them.
func TestLostKeys(t *testing.T) {
	s := serverAt(t, redistest.StartServer(t).Address)
	names := []string{"epoch", "seq", "log", "chain", "o:/2", "c:d2", "p:/old2/", "audit"}
	var sets []int
	for set := 0; set < 1<<len(names); set += sized(3, 7) { // with each set of the first four
		sets = append(sets, set)
	}
	t.Log(len(sets), "sets of keys")
	for part := range slices.Chunk(sets, 40) { // each has four followers
		t.Run(fmt.Sprint("from ", part[0]), func(t *testing.T) { loseKeys(t, s, names, part) })
	}
}

// loseKeys is TestLostKeys for some sets, whose bits select the lost names.
func loseKeys(t *testing.T, s server, names []string, sets []int) {
	var cases []*lossCase
	for _, set := range sets {
		x := &lossCase{keyspace: contract.Keyspace{Namespace: fmt.Sprint("n", set)}, left: maps.Clone(before),
			written: records{}}
		for i, name := range names {
			if set&(1<<i) != 0 {
				x.lost = append(x.lost, name)
				delete(x.left, name)
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
		x.publish, x.running = p, followKeyspace(t, s, x.keyspace, 0)
		cases = append(cases, x)
	}
	for _, x := range cases {
		<-x.running.Synced()
		if got := x.running.has(); !maps.Equal(got, before) {
			t.Fatalf("%v: got %v before", x, got)
		}
		for _, name := range x.lost {
			if n := s.Del(t.Context(), x.key(name)).Val(); n != 1 {
				t.Fatalf("%s: %d keys deleted, want 1", x.key(name), n)
			}
		}
	}
	restart := func() {
		for _, x := range cases {
			x.restarted = append(x.restarted, followKeyspace(t, s, x.keyspace, 0))
		}
	}
	restart()
	since := time.Now()
	for _, x := range cases {
		t.Run(x.String()+", no write", func(t *testing.T) {
			x.check(t, "running", x.running, since, x.expected(true))
			g, want := x.restarted[0], x.expected(false)
			x.check(t, "restarted", g, since, want)
			if !want.followed {
				return
			}
			log, all := g.log.String(), !x.lacks("log")
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
	for _, then := range []string{"a write", "many writes", "accepted"} {
		for i, x := range cases {
			switch then {
			case "a write":
				x.put(t, i)
			case "many writes":
				x.put(t, 0, 1, 2, 3, 0, 1, 3, 0, 1, 3)
			default:
				marked := x.lacks("log") && !x.lacks("seq", "chain")
				if n, err := x.publish.AcceptLoss(t.Context()); err != nil || (n > 0) != marked {
					t.Errorf("%v: accepted %d, %v; want a loss: %t", x, n, err, marked)
				}
			}
		}
		restart()
		since := time.Now()
		for _, x := range cases {
			t.Run(x.String()+", "+then, func(t *testing.T) {
				x.check(t, "running", x.running, since, x.expectedThen(true, then == "accepted"))
				for i, g := range x.restarted {
					x.check(t, fmt.Sprint("restarted ", i), g, since, x.expectedThen(false, then == "accepted"))
				}
			})
		}
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

// TestLogLostWhileRead: records that only the rest of the log would have listed aren't dropped.
func TestLogLostWhileRead(t *testing.T) {
	for name, then := range map[string]func(t *testing.T, s server){
		"no write": func(*testing.T, server) {},
		"a write":  func(t *testing.T, s server) { s.put(t, "/0") },
	} {
		t.Run(name, func(t *testing.T) {
			s := miniredisServer(t)
			s.put(t, "/0")
			s.fill(t, 1100) // more than a page of the log
			g := followShards(t, s, 1)
			<-g.Synced()
			g.objects[0].mu.Lock()
			g.objects[0].beforeNext = func() { s.do(t, "DEL", keys.LogKey()); then(t, s) }
			g.objects[0].mu.Unlock()
			s.do(t, "SET", keys.DataEpochKey(), "beef")
			await.Until(t, "the loss to be noticed", func() bool {
				return metricstest.Value(t, g.metrics, "gatehouse_redis_empty") == 1
			})
			if got := g.objects[0].len(); got != 1100 {
				t.Errorf("got %d objects, want all 1100", got)
			}
		})
	}
}

// TestLogLostWhileAway: a follower that missed a write of the lost log doesn't go on.
func TestLogLostWhileAway(t *testing.T) {
	s := miniredisServer(t)
	s.put(t, "/a")
	g := followShards(t, s, 1)
	<-g.Synced()
	s.line.Cut()
	s.put(t, "/missed")
	s.do(t, "DEL", keys.LogKey())
	s.put(t, "/b")
	s.heal(t)
	await.Until(t, "the loss to be noticed", func() bool {
		return metricstest.Value(t, g.metrics, "gatehouse_redis_empty") == 1
	})
	if _, err := g.Applied(0); err == nil || g.objects[0].version("/a") != 1 || g.objects[0].version("/b") != 0 {
		t.Errorf("got %v, and version %d of /b; want an error, and what was read before", err, g.objects[0].version("/b"))
	}
}

// TestSeqBehindLog: an earlier script counted from 1 again after the loss of seq.
func TestSeqBehindLog(t *testing.T) {
	s := miniredisServer(t)
	for _, key := range []string{"/a", "/b", "/c"} {
		s.put(t, key)
	}
	running := followShards(t, s, 1)
	<-running.Synced()
	s.do(t, "SET", keys.SeqKey(), 1)
	restarted := followShards(t, s, 1)
	for _, g := range []*group{running, restarted} {
		await.Until(t, "the loss to be named", func() bool {
			return strings.Contains(g.log.String(), "redis has lost "+keys.SeqKey()+", but")
		})
	}
	if n := running.objects[0].len(); n != 3 || restarted.Ready() == nil {
		t.Errorf("got %d objects, %v; want all 3, and not ready", n, restarted.Ready())
	}
	s.put(t, "/new") // the writer reads the log for /new
	<-restarted.Synced()
	for _, g := range []*group{running, restarted} {
		await.Until(t, "the write", func() bool { return g.objects[0].len() == 4 })
	}
}
