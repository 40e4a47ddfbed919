package follow_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// oneWay is half of the round trip to a distant Redis.
const oneWay = 20 * time.Millisecond

// farServer returns a redis-server at the distance far.
func farServer(t *testing.T) server {
	t.Helper()
	s := serverAt(t, strings.TrimPrefix(redistest.Start(t), "redis://"))
	s.line.Delay(oneWay, 0)
	return s
}

// fill writes the given number of objects in a single batch, without events.
func (s server) fill(t *testing.T, objects int) {
	t.Helper()
	pipe := s.Pipeline()
	seq := s.Get(t.Context(), keys.SeqKey()).Val()
	var from int
	fmt.Sscan(seq, &from)
	record := contract.Object{Version: 1, PublishedMS: 1, ETag: `"x"`, ContentType: "a",
		Bodies: []contract.Body{{}}}.Fields()
	for i := range objects {
		pipe.HSet(t.Context(), keys.ObjectKey(fmt.Sprint("/", i)), record)
		pipe.ZAdd(t.Context(), keys.LogKey(), redis.Z{Score: float64(from + i + 1), Member: fmt.Sprint("o:/", i)})
	}
	pipe.IncrBy(t.Context(), keys.SeqKey(), int64(objects))
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestResyncEnds reads everything while the same keys are written faster than they are read.
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
				_, err := s.publish.Put(ctx, publish.Object{Key: fmt.Sprint("/", i%objects), Body: []byte("x"),
					ContentType: "image/png"}) // is not compressed
				if err == nil {
					writes.Add(1)
				}
			}
		})
	}
	await.Until(t, "writes", func() bool { return writes.Load() > 100 })
	before, began := writes.Load(), time.Now()
	f := start(t, s)
	await.Until(t, "the first resync to end under writes", func() bool {
		select {
		case <-f.Synced():
			return true
		default:
			return false
		}
	})
	// Again, now that all objects are known, and move.
	s.do(t, "SET", keys.DataEpochKey(), "beef")
	await.Until(t, "the second resync to end under writes", func() bool {
		f.objects.mu.Lock()
		defer f.objects.mu.Unlock()
		return f.objects.resyncs == 2 && f.objects.seen == nil
	})
	took := time.Since(began)
	cancel()
	running.Wait()
	t.Logf("two full resyncs of %d objects ended within %v under %.0f writes/s", objects, took.Round(time.Millisecond),
		float64(writes.Load()-before)/took.Seconds())
	if got := f.objects.keptBy(2); got < objects {
		t.Errorf("got %d objects after it, want %d: what moved was taken for gone", got, objects)
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
		require.NoError(t, err)
		await.Until(t, key, func() bool { return f.objects.version(key) == want })
	}
}

// TestRevokedDuringCatchUp: a follower has missed many objects and a revocation, and another device is revoked during
// the catch-up. Neither revocation waits for the objects.
func TestRevokedDuringCatchUp(t *testing.T) {
	s := farServer(t)
	objects := sized(20_000, 6000)
	for _, id := range []string{"missed", "live"} {
		if _, err := s.publish.PutDevice(t.Context(), publish.Device{ID: id, Secret: "s", Cost: 4}); err != nil {
			t.Fatal(err)
		}
	}
	f := start(t, s)
	<-f.Synced()
	s.line.Cut()
	await.Until(t, "the loss to be noticed", func() bool { return !f.Connected() })
	s.fill(t, objects)
	missed := s.revoke(t, "missed")
	// What counts is how many objects a revocation came behind: a busy machine delays both.
	behind := map[string]int{}
	f.credentials.mu.Lock()
	f.credentials.onPut = func(id string, _ uint64) { behind[id] = f.objects.len() }
	f.credentials.mu.Unlock()
	var live uint64
	f.objects.mu.Lock()
	f.objects.beforeNext = func() { live = s.revoke(t, "live") }
	f.objects.mu.Unlock()
	s.heal(t)
	await.Until(t, "all", func() bool { return f.objects.len() == objects && f.Connected() })
	await.Until(t, "the missed revocation", func() bool { return f.credentials.version("missed") == missed })
	await.Until(t, "the revocation", func() bool { return f.credentials.version("live") == live })
	f.credentials.mu.Lock()
	t.Logf("revocations came behind %v of %d objects", behind, objects)
	if n := behind["missed"]; n > objects/10 {
		t.Errorf("the missed revocation came behind %d objects, want it before", n)
	}
	if n := behind["live"]; n > 3000 { // are read within a second
		t.Errorf("the revocation during the catch-up came behind %d objects, want some hundred", n)
	}
	f.credentials.mu.Unlock()
	if got := f.objects.begun(); got != 1 {
		t.Errorf("got %d full resyncs, want 1", got)
	}
}

// TestGrantFromAfar registers a device again at a Redis so distant that reading its record takes more than a second:
// the device is in doubt meanwhile, and the subscription stays.
func TestGrantFromAfar(t *testing.T) {
	s := farServer(t)
	register := func() uint64 {
		r, err := s.publish.PutDevice(t.Context(), publish.Device{ID: "d", Secret: "s", Cost: 4})
		require.NoError(t, err)
		return r.Version
	}
	register()
	f := start(t, s)
	<-f.Synced()
	s.line.Delay(300*time.Millisecond, 0)
	removed := f.credentials.removals()
	version := register()
	await.Until(t, "the device to be in doubt", func() bool { return f.credentials.removals() > removed })
	await.Until(t, "its record", func() bool { return f.credentials.version("d") == version })
	if got := f.count(t, "gatehouse_catchups_total", "reason", "connected"); got != 1 {
		t.Errorf("got %v subscriptions, want 1", got)
	}
}

// TestSubscribedElsewhere moves the name of Redis between the subscription and the catch-up, while the old server stays
// alive: the first write whose event doesn't arrive causes another subscription.
func TestSubscribedElsewhere(t *testing.T) {
	old, other := redistest.StartServer(t), redistest.StartServer(t)
	s := serverAt(t, other.Address)
	s.put(t, "/a")
	var dials atomic.Int64
	f := followBy(t, &redis.Options{Addr: "redis:6379", MaxRetries: -1,
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			if dials.Add(1) == 1 {
				return new(net.Dialer).DialContext(ctx, network, old.Address)
			}
			return new(net.Dialer).DialContext(ctx, network, other.Address)
		}})
	<-f.Synced()
	version := s.put(t, "/a")
	await.Until(t, "the write", func() bool { return f.objects.version("/a") == version })
	await.Until(t, "the other subscription", func() bool {
		return f.count(t, "gatehouse_catchups_total", "reason", "connected") == 2 && f.Connected()
	})
	version = s.put(t, "/a")
	await.Until(t, "the event", func() bool { return f.objects.version("/a") == version })
	if got := f.count(t, "gatehouse_events_total", "result", "applied"); got != 1 {
		t.Errorf("got %v events applied, want 1", got)
	}
	if got := f.objects.begun(); got != 1 {
		t.Errorf("got %d full resyncs, want 1", got)
	}
}

// TestFirstStartWithoutRedis: before the first catch-up, the log has another message.
func TestFirstStartWithoutRedis(t *testing.T) {
	f := followBy(t, &redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	await.Until(t, "two attempts", func() bool { return f.count(t, "gatehouse_redis_errors_total") >= 2 })
	f.stop()
	if log := f.log.String(); !strings.Contains(log, "redis can't be followed yet") || strings.Contains(log, "any more") {
		t.Errorf("got %s", log)
	}
}
