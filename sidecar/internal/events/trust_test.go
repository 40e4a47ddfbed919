package events_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/e2e/redistest"
	"github.com/gatehouse/gatehouse/sidecar/contract"
)

// TestGrantThatCantBeRead changes a device whose record then can't be read: it is let in no more, until it can.
func TestGrantThatCantBeRead(t *testing.T) {
	x := withForger(t)
	x.do(t, "ACL", "SETUSER", "default", "-hgetall")
	removed := x.f.credentials.removals()
	version := x.device(t, "d")
	eventually(t, "the device to go", func() bool { return x.f.credentials.removals() > removed && x.f.credentials.version("d") == 0 })
	x.do(t, "ACL", "SETUSER", "default", "+hgetall")
	eventually(t, "the device to come back", func() bool { return x.f.credentials.version("d") == version && x.f.Connected() })
	if x.f.objects.resyncs != 1 {
		t.Errorf("got %d full resyncs, want 1", x.f.objects.resyncs)
	}
}

// TestRestartWithoutLoss starts Redis again with all that it had: nothing is read again.
func TestRestartWithoutLoss(t *testing.T) {
	redis := redistest.StartServer(t, "--appendonly", "yes", "--appendfsync", "always")
	s := serverAt(t, redis.Address)
	for i := range 300 {
		s.put(t, fmt.Sprint("/", i))
	}
	f := follow(t, s)
	<-f.Synced()
	redis.Kill()
	redis.Restart()
	eventually(t, "followed again", func() bool {
		return f.Connected() && f.count(t, "gatehouse_catchups_total", "reason", "connected") == 2
	})
	for now := time.Now(); !f.clock.inStep().After(now); { // all is known to be there
		<-time.After(time.Millisecond)
	}
	stats := s.Info(t.Context(), "commandstats").Val()
	if strings.Contains(stats, "cmdstat_hgetall") || f.count(t, "gatehouse_full_resyncs_total") != 1 {
		t.Errorf("got %v full resyncs, want 1, and %s", f.count(t, "gatehouse_full_resyncs_total"), stats)
	}
	version := s.put(t, "/7")
	eventually(t, "an event", func() bool { return f.objects.version("/7") == version })
}

// TestTrimmed has entries of vanished members taken from the log while the follower was away.
func TestTrimmed(t *testing.T) {
	s := serverAt(t, strings.TrimPrefix(redistest.Start(t), "redis://"))
	s.put(t, "/a")
	s.put(t, "/gone")
	f := follow(t, s)
	<-f.Synced()
	s.line.set(true)
	eventually(t, "the loss to be noticed", func() bool { return !f.Connected() })
	if _, err := s.publish.Delete(t.Context(), "/gone", 0); err != nil {
		t.Fatal(err)
	}
	s.do(t, "DEL", keys.ObjectKey("/gone"))
	s.do(t, "ZREM", keys.LogKey(), "o:/gone")
	s.do(t, "HSET", keys.ChainKey(), contract.ChainFloor, s.Get(t.Context(), keys.SeqKey()).Val())
	s.line.set(false)
	eventually(t, "the deletion", func() bool { return f.objects.version("/gone") == 0 && f.Connected() })
	s.line.set(false) // cuts what there is
	eventually(t, "another catch-up", func() bool {
		return f.count(t, "gatehouse_catchups_total", "reason", "connected") >= 3 && f.Connected()
	})
	if f.objects.resyncs != 2 {
		t.Errorf("got %d full resyncs, want 2: the position is at the floor now", f.objects.resyncs)
	}
}

// TestTrimmedMeanwhile trims the log while a follower that was away reads it.
func TestTrimmedMeanwhile(t *testing.T) {
	s := serverAt(t, strings.TrimPrefix(redistest.Start(t), "redis://"))
	s.put(t, "/gone")
	f := follow(t, s)
	<-f.Synced()
	s.line.set(true)
	eventually(t, "the loss to be noticed", func() bool { return !f.Connected() })
	s.put(t, "/a")
	f.objects.mu.Lock()
	f.objects.beforeNext = func() { // an entry that a page was to have
		s.do(t, "DEL", keys.ObjectKey("/gone"))
		s.do(t, "ZREM", keys.LogKey(), "o:/gone")
		s.do(t, "HSET", keys.ChainKey(), contract.ChainFloor, s.seq(t))
	}
	f.objects.mu.Unlock()
	s.line.set(false)
	eventually(t, "the deletion", func() bool { return f.objects.version("/gone") == 0 && f.Connected() })
}

// TestLease has another sidecar read everything: objects wait for it, devices don't.
func TestLease(t *testing.T) {
	x := withForger(t)
	x.put(t, "/gone")
	eventually(t, "/gone", func() bool { return x.f.objects.version("/gone") == 1 })
	x.do(t, "SET", keys.ResyncKey(), "1", "PX", "10000")
	x.do(t, "DEL", keys.ObjectKey("/gone"))
	x.do(t, "ZREM", keys.LogKey(), "o:/gone")
	x.do(t, "SET", keys.EpochKey(), "beef")
	eventually(t, "the resync to begin", func() bool { return x.f.count(t, "gatehouse_full_resyncs_total") == 2 })
	version := x.revoke(t, "d")
	eventually(t, "a revocation", func() bool { return x.f.credentials.version("d") == version })
	if x.f.objects.version("/gone") != 1 {
		t.Error("the resync didn't wait")
	}
	x.do(t, "DEL", keys.ResyncKey())
	eventually(t, "the resync", func() bool { return x.f.objects.version("/gone") == 0 })
	eventually(t, "the lease to be given back", func() bool { return x.Exists(t.Context(), keys.ResyncKey()).Val() == 0 })
}

// TestEviction has a Redis that evicts what it likes: that is said, and shown.
func TestEviction(t *testing.T) {
	x := withForger(t)
	shown := func(any, expiring float64) func() bool {
		return func() bool {
			return x.f.count(t, "gatehouse_redis_evicts", "keys", "any") == any && x.f.count(t, "gatehouse_redis_evicts", "keys", "expiring") == expiring
		}
	}
	eventually(t, "nothing", shown(0, 0))
	x.do(t, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	eventually(t, "any", shown(1, 0))
	x.do(t, "CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
	eventually(t, "those that expire", shown(0, 1))
	x.do(t, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	eventually(t, "nothing again", shown(0, 0))
	x.f.stop()
	if log := x.f.log.String(); strings.Count(log, "level=ERROR") != 1 || strings.Count(log, "redis may evict tombstones") != 1 {
		t.Errorf("got %s", log)
	}
}
