package follow_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
)

// TestGrantThatCantBeRead changes a device whose record is unreadable for a while: until the record is readable, the
// device does not authenticate.
func TestGrantThatCantBeRead(t *testing.T) {
	x := withForger(t)
	x.do(t, "ACL", "SETUSER", "default", "-hgetall")
	removed := x.f.credentials.removals()
	version := x.device(t, "d")
	await.Until(t, "the device to go", func() bool {
		return x.f.credentials.removals() > removed && x.f.credentials.version("d") == 0
	})
	x.do(t, "ACL", "SETUSER", "default", "+hgetall")
	await.Until(t, "the device to come back", func() bool {
		return x.f.credentials.version("d") == version && x.f.Connected()
	})
	if got := x.f.objects.begun(); got != 1 {
		t.Errorf("got %d full resyncs, want 1", got)
	}
}

// TestRestartWithoutLoss restarts Redis with all of its data: nothing is read again.
func TestRestartWithoutLoss(t *testing.T) {
	redis := redistest.StartServer(t, "--appendonly", "yes", "--appendfsync", "always")
	s := serverAt(t, redis.Address)
	for i := range 300 {
		s.put(t, fmt.Sprint("/", i))
	}
	f := start(t, s)
	<-f.Synced()
	redis.Kill()
	redis.Restart()
	await.Until(t, "followed again", func() bool {
		return f.Connected() && f.count(t, "gatehouse_catchups_total", "reason", "connected") == 2
	})
	for now := time.Now(); !f.clock.inStep().After(now); { // Redis certainly has everything
		<-time.After(time.Millisecond)
	}
	stats := s.Info(t.Context(), "commandstats").Val()
	if strings.Contains(stats, "cmdstat_hgetall") || f.count(t, "gatehouse_full_resyncs_total") != 1 {
		t.Errorf("got %v full resyncs, want 1, and %s", f.count(t, "gatehouse_full_resyncs_total"), stats)
	}
	version := s.put(t, "/7")
	await.Until(t, "an event", func() bool { return f.objects.version("/7") == version })
}

// TestTrimmed removes log entries without records while the follower is disconnected.
func TestTrimmed(t *testing.T) {
	s := serverAt(t, strings.TrimPrefix(redistest.Start(t), "redis://"))
	s.put(t, "/a")
	s.put(t, "/gone")
	f := start(t, s)
	<-f.Synced()
	s.line.Cut()
	await.Until(t, "the loss to be noticed", func() bool { return !f.Connected() })
	if _, err := s.publish.Delete(t.Context(), "/gone", 0); err != nil {
		t.Fatal(err)
	}
	s.do(t, "DEL", keys.ObjectKey("/gone"))
	s.do(t, "ZREM", keys.LogKey(), "o:/gone")
	s.do(t, "HSET", keys.ChainKey(), contract.ChainFloor, s.Get(t.Context(), keys.SeqKey()).Val())
	s.heal(t)
	await.Until(t, "the deletion", func() bool { return f.objects.version("/gone") == 0 && f.Connected() })
	s.line.Cut()
	s.heal(t)
	await.Until(t, "another catch-up", func() bool {
		return f.count(t, "gatehouse_catchups_total", "reason", "connected") >= 3 && f.Connected()
	})
	if got := f.objects.begun(); got != 2 {
		t.Errorf("got %d full resyncs, want 2: the position is at the floor now", got)
	}
}

// TestTrimmedMeanwhile trims the log while a follower that was disconnected reads the log.
func TestTrimmedMeanwhile(t *testing.T) {
	s := serverAt(t, strings.TrimPrefix(redistest.Start(t), "redis://"))
	s.put(t, "/gone")
	f := start(t, s)
	<-f.Synced()
	s.line.Cut()
	await.Until(t, "the loss to be noticed", func() bool { return !f.Connected() })
	s.put(t, "/a")
	f.objects.mu.Lock()
	f.objects.beforeNext = func() { // an entry of the next page
		s.do(t, "DEL", keys.ObjectKey("/gone"))
		s.do(t, "ZREM", keys.LogKey(), "o:/gone")
		s.do(t, "HSET", keys.ChainKey(), contract.ChainFloor, s.seq(t))
	}
	f.objects.mu.Unlock()
	s.heal(t)
	await.Until(t, "the deletion", func() bool { return f.objects.version("/gone") == 0 && f.Connected() })
}

// TestLease: another sidecar has the lease; objects wait for the lease, devices don't.
func TestLease(t *testing.T) {
	x := withForger(t)
	x.put(t, "/gone")
	await.Until(t, "/gone", func() bool { return x.f.objects.version("/gone") == 1 })
	x.do(t, "SET", keys.ResyncKey(), "1", "PX", "10000")
	x.do(t, "DEL", keys.ObjectKey("/gone"))
	x.do(t, "ZREM", keys.LogKey(), "o:/gone")
	x.do(t, "SET", keys.DataEpochKey(), "beef")
	x.do(t, "CONFIG", "RESETSTAT")
	await.Until(t, "the lease to be asked for again", func() bool {
		return regexp.MustCompile(`cmdstat_set:calls=([2-9]|\d\d)`).MatchString(x.Info(t.Context(), "commandstats").Val())
	})
	version := x.revoke(t, "d")
	await.Until(t, "a revocation", func() bool { return x.f.credentials.version("d") == version })
	if x.f.objects.version("/gone") != 1 {
		t.Error("the resync didn't wait")
	}
	x.do(t, "DEL", keys.ResyncKey())
	await.Until(t, "the resync", func() bool { return x.f.objects.version("/gone") == 0 })
	await.Until(t, "the lease to be given back", func() bool { return x.Exists(t.Context(), keys.ResyncKey()).Val() == 0 })
}

// TestEviction: a Redis that may evict anything is logged, and shown in a metric.
func TestEviction(t *testing.T) {
	x := withForger(t)
	shown := func(any, expiring float64) func() bool {
		return func() bool {
			return x.f.count(t, "gatehouse_redis_evicts", "keys", "any") == any &&
				x.f.count(t, "gatehouse_redis_evicts", "keys", "expiring") == expiring
		}
	}
	await.Until(t, "nothing", shown(0, 0))
	x.do(t, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	await.Until(t, "any", shown(1, 0))
	x.do(t, "CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
	await.Until(t, "those that expire", shown(0, 1))
	x.do(t, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	await.Until(t, "nothing again", shown(0, 0))
	x.f.stop()
	if log := x.f.log.String(); strings.Count(log, "level=ERROR") != 1 ||
		strings.Count(log, "redis may evict tombstones") != 1 {
		t.Errorf("got %s", log)
	}
}

// TestFullRedis: a Redis whose memory is used up is read as before, also by a sidecar that starts afterwards.
func TestFullRedis(t *testing.T) {
	s := serverAt(t, redistest.StartServer(t).Address)
	s.put(t, "/a")
	s.put(t, "/gone")
	running := start(t, s)
	<-running.Synced()
	s.do(t, "CONFIG", "SET", "maxmemory", "1")
	full := time.Now()
	if _, err := s.publish.Delete(t.Context(), "/gone", 0); err != nil {
		t.Fatal(err)
	}
	started := start(t, s)
	for name, f := range map[string]*follower{"running": running, "started": started} {
		await.Until(t, name+" in step, without the deleted object", func() bool {
			return f.clock.inStep().After(full) && f.objects.version("/a") != 0 && f.objects.version("/gone") == 0
		})
		if got := f.count(t, "gatehouse_redis_memory_ratio"); got < 1 {
			t.Errorf("%s: got %v of maxmemory, want more than 1", name, got)
		}
		if log := f.log.String(); strings.Count(log, "redis is nearly full") != 1 {
			t.Errorf("%s: got %s, want one warning", name, log)
		}
	}
}
