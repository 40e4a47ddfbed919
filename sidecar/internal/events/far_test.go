package events_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/e2e/redistest"
	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/publish"
)

// oneWay is half of the round trip to a Redis that is far away.
const oneWay = 20 * time.Millisecond

// copy is io.Copy, with the line's delay: what is under way isn't bounded.
func (w *line) copy(dst io.Writer, src io.Reader) {
	if w.delay == 0 {
		io.Copy(dst, src)
		return
	}
	type chunk struct {
		bytes []byte
		due   time.Time
	}
	chunks := make(chan chunk, 1<<14)
	go func() {
		defer close(chunks)
		for {
			b := make([]byte, 32<<10)
			n, err := src.Read(b)
			if n > 0 {
				chunks <- chunk{b[:n], time.Now().Add(w.delay)}
			}
			if err != nil {
				return
			}
		}
	}()
	failed := false
	for c := range chunks {
		<-time.After(time.Until(c.due))
		if !failed {
			_, err := dst.Write(c.bytes)
			failed = err != nil
		}
	}
}

// farServer is a redis-server that followers are so far away from.
func farServer(t *testing.T) server {
	t.Helper()
	s := serverAt(t, strings.TrimPrefix(redistest.Start(t), "redis://"))
	s.line.delay = oneWay
	return s
}

// fill writes so many objects as one batch, without events.
func (s server) fill(t *testing.T, objects int) {
	t.Helper()
	pipe := s.Pipeline()
	seq := s.Get(t.Context(), keys.SeqKey()).Val()
	var from int
	fmt.Sscan(seq, &from)
	record := contract.Object{Version: 1, PublishedMS: 1, ETag: `"x"`, ContentType: "a", Bodies: []contract.Body{{}}}.Fields()
	for i := range objects {
		pipe.HSet(t.Context(), keys.ObjectKey(fmt.Sprint("/", i)), record)
		pipe.ZAdd(t.Context(), keys.LogKey(), redis.Z{Score: float64(from + i + 1), Member: fmt.Sprint("o:/", i)})
	}
	pipe.IncrBy(t.Context(), keys.SeqKey(), int64(objects))
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestResyncEnds reads everything while more is written than is read, over and over the same keys.
func TestResyncEnds(t *testing.T) {
	s := farServer(t)
	objects := sized(2000, 1100) // more than a page of the log
	s.put(t, "/0")               // sets the data epoch
	s.fill(t, objects)
	ctx, cancel := context.WithCancel(t.Context())
	var writes atomic.Int64
	var running sync.WaitGroup
	defer func() { cancel(); running.Wait() }()
	for writer := range 8 {
		running.Go(func() {
			for i := writer; ctx.Err() == nil; i += 8 {
				_, err := s.publish.Put(ctx, publish.Object{Key: fmt.Sprint("/", i%objects), Body: []byte("x"), ContentType: "a"})
				if err == nil {
					writes.Add(1)
				}
			}
		})
	}
	eventually(t, "writes", func() bool { return writes.Load() > 100 })
	before, began := writes.Load(), time.Now()
	f := follow(t, s)
	eventually(t, "the first resync to end under writes", func() bool {
		select {
		case <-f.Synced():
			return true
		default:
			return false
		}
	})
	// Again, with all of it known, and moving.
	s.do(t, "SET", keys.EpochKey(), "beef")
	eventually(t, "the second resync to end under writes", func() bool {
		f.objects.mu.Lock()
		defer f.objects.mu.Unlock()
		return f.objects.resyncs == 2 && f.objects.seen == nil
	})
	took := time.Since(began)
	cancel()
	running.Wait()
	t.Logf("two full resyncs of %d objects ended within %v under %.0f writes/s", objects, took.Round(time.Millisecond), float64(writes.Load()-before)/took.Seconds())
	if f.objects.kept < objects {
		t.Errorf("got %d objects after it, want %d: what moved was taken for gone", f.objects.kept, objects)
	}
	pipe := s.Pipeline()
	versions := make([]*redis.StringCmd, objects)
	for i := range versions {
		versions[i] = pipe.HGet(t.Context(), keys.ObjectKey(fmt.Sprint("/", i)), contract.FieldVersion)
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, version := range versions {
		key := fmt.Sprint("/", i)
		want, err := version.Uint64()
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, key, func() bool { return f.objects.version(key) == want })
	}
}

// TestRevokedDuringCatchUp has a follower miss many objects and one revocation, and another device revoked
// while it catches up: neither waits for the objects.
func TestRevokedDuringCatchUp(t *testing.T) {
	s := farServer(t)
	objects := sized(20_000, 6000)
	for _, id := range []string{"missed", "live"} {
		if _, err := s.publish.PutDevice(t.Context(), publish.Device{ID: id, Secret: "s", Cost: 4}); err != nil {
			t.Fatal(err)
		}
	}
	f := follow(t, s)
	<-f.Synced()
	s.line.set(true)
	eventually(t, "the loss to be noticed", func() bool { return !f.Connected() })
	s.fill(t, objects)
	revoke := func(id string) uint64 {
		r, err := s.publish.RevokeDevice(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return r.Version
	}
	missed := revoke("missed")
	s.line.set(false)
	eventually(t, "the missed revocation", func() bool { return f.credentials.version("missed") == missed })
	if n := f.objects.len(); n > objects/10 {
		t.Errorf("the missed revocation came behind %d objects, want it before", n)
	}
	eventually(t, "objects", func() bool { return f.objects.len() > 0 })
	began := time.Now()
	live := revoke("live")
	eventually(t, "the revocation", func() bool { return f.credentials.version("live") == live })
	took := time.Since(began)
	t.Logf("during a catch-up a revocation counted after %v, with %d of %d objects read", took.Round(time.Millisecond), f.objects.len(), objects)
	if n := f.objects.len(); n > objects/2 || took > time.Second {
		t.Errorf("got it after %v, behind %d objects, want about 100 ms", took, n)
	}
	eventually(t, "all", func() bool { return f.objects.len() == objects && f.Connected() })
	if f.objects.resyncs != 1 {
		t.Errorf("got %d full resyncs, want 1", f.objects.resyncs)
	}
}

// TestSubscribedElsewhere has the name of Redis move between the subscription and the catch-up, while the old
// server stays alive: the first write that comes without its event leads to another subscription.
func TestSubscribedElsewhere(t *testing.T) {
	old, other := redistest.StartServer(t), redistest.StartServer(t)
	s := serverAt(t, other.Address)
	s.put(t, "/a")
	var dials atomic.Int64
	f := followBy(t, &redis.Options{Addr: "redis:6379", MaxRetries: -1, Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
		if dials.Add(1) == 1 {
			return new(net.Dialer).DialContext(ctx, network, old.Address)
		}
		return new(net.Dialer).DialContext(ctx, network, other.Address)
	}})
	<-f.Synced()
	version := s.put(t, "/a")
	eventually(t, "the write", func() bool { return f.objects.version("/a") == version })
	eventually(t, "the other subscription", func() bool {
		return f.count(t, "gatehouse_catchups_total", "reason", "connected") == 2 && f.Connected()
	})
	version = s.put(t, "/a")
	eventually(t, "the event", func() bool { return f.objects.version("/a") == version })
	if got := f.count(t, "gatehouse_events_total", "result", "applied"); got != 1 {
		t.Errorf("got %v events applied, want 1", got)
	}
	if f.objects.resyncs != 1 {
		t.Errorf("got %d full resyncs, want 1", f.objects.resyncs)
	}
}

// TestFirstStartWithoutRedis has words of its own: nothing was followed before.
func TestFirstStartWithoutRedis(t *testing.T) {
	f := followBy(t, &redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	eventually(t, "two attempts", func() bool { return f.count(t, "gatehouse_redis_errors_total") >= 2 })
	f.stop()
	if log := f.log.String(); !strings.Contains(log, "redis can't be followed yet") || strings.Contains(log, "any more") {
		t.Errorf("got %s", log)
	}
}
