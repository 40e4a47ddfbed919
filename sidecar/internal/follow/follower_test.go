package follow_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
)

func TestSnapshotThenEvents(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		s.put(t, "/first") // sets the data epoch
		pipe := s.Pipeline()
		for i := range 2498 { // three pages
			record := contract.Object{Version: 1, PublishedMS: 1, ETag: `"x"`, ContentType: "a", Bodies: []contract.Body{{}}}
			pipe.HSet(t.Context(), keys.ObjectKey(fmt.Sprint("/", i)), record.Fields())
			pipe.ZAdd(t.Context(), keys.LogKey(), redis.Z{Score: float64(i + 2), Member: fmt.Sprint("o:/", i)})
		}
		pipe.IncrBy(t.Context(), keys.SeqKey(), 2498)
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.put(t, "/7")
		if _, err := s.publish.Delete(t.Context(), "/8", 0); err != nil {
			t.Fatal(err)
		}
		if _, err := s.publish.PutDevice(t.Context(), publish.Device{ID: "d", Secret: "s", Cost: 4}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		f := start(t, s)
		<-f.Synced()
		if f.objects.len() != 2498 || f.objects.version("/7") != 2 || f.objects.version("/8") != 0 ||
			f.credentials.version("d") != 1 {
			t.Errorf("%d objects, /7 in version %d, /8 in %d, device in %d", f.objects.len(), f.objects.version("/7"),
				f.objects.version("/8"), f.credentials.version("d"))
		}
		if f.clock.inStep().Before(began) || f.clock.inStep().After(time.Now()) {
			t.Errorf("in step at %v", f.clock.inStep())
		}
		if got := f.clock.applied(); len(got) != 0 {
			t.Errorf("%d writes of the catch-up were applied as live", len(got))
		}
		s.put(t, "/7")
		await.Until(t, "version 3", func() bool { return f.objects.version("/7") == 3 })
		if _, err := s.publish.RevokeDevice(t.Context(), "d"); err != nil {
			t.Fatal(err)
		}
		await.Until(t, "the revocation", func() bool { return f.credentials.version("d") != 1 })
		now := time.Now()
		await.Until(t, "in step again by comparison", func() bool { return f.clock.inStep().After(now) })
		for _, published := range f.clock.applied() {
			if published.Before(began.Truncate(time.Millisecond)) || published.After(now) {
				t.Errorf("a live write was published at %v, want between %v and %v", published, began, now)
			}
		}
		if got := len(f.clock.applied()); got != 2 {
			t.Errorf("%d writes were applied as live, want 2", got)
		}
		if got := f.count(t, "gatehouse_catchups_total"); got != 1 {
			t.Errorf("%v catch-ups, want 1", got)
		}
		f.stop()
		if f.objects.resyncs != 1 || f.objects.backwards != 0 {
			t.Errorf("%d resyncs, %d versions that were not newer", f.objects.resyncs, f.objects.backwards)
		}
	})
}

func TestEventsDuringTheSnapshot(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		for i := range 50 {
			s.put(t, fmt.Sprint("/", i))
		}
		f := newFollowerWithHook(t, s, func() {
			for i := range 20 {
				s.put(t, fmt.Sprint("/", i))
			}
			s.put(t, "/new")
		})
		await.Until(t, "all", func() bool {
			for i := range 20 {
				if f.objects.version(fmt.Sprint("/", i)) != 2 {
					return false
				}
			}
			return f.objects.len() == 51
		})
	})
}

// newFollowerWithHook returns a follower that calls hook before the first record is applied.
func newFollowerWithHook(t *testing.T, s server, hook func()) *follower {
	t.Helper()
	s.line.Cut()
	f := start(t, s)
	f.objects.mu.Lock()
	f.objects.beforeNext = hook
	f.objects.mu.Unlock()
	s.heal(t)
	return f
}

// TestWrittenDuringResync writes records that a full resync has not reached yet, and moves them beyond its end: known
// records are not removed, and unknown records arrive as events.
func TestWrittenDuringResync(t *testing.T) {
	const objects = 1100 // more than a page of the log
	s := miniredisServer(t)
	s.put(t, "/0") // sets the data epoch
	s.fill(t, objects)
	last := fmt.Sprint("/", objects-1)
	f := newFollowerWithHook(t, s, func() { s.put(t, last) })
	<-f.Synced()
	await.Until(t, "the event", func() bool { return f.objects.version(last) == 2 })
	f.objects.mu.Lock()
	f.objects.beforeNext = func() { s.put(t, last) }
	f.objects.mu.Unlock()
	s.do(t, "SET", keys.DataEpochKey(), "beef")
	await.Until(t, "another resync", func() bool { return f.objects.keptBy(2) != 0 })
	if got := f.objects.keptBy(2); got != objects {
		t.Errorf("got %d objects after the resync, want %d", got, objects)
	}
	await.Until(t, "the last write", func() bool { return f.objects.version(last) == 3 })
}

func TestReconnectCatchesUp(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		s.put(t, "/a")
		s.put(t, "/b")
		f := start(t, s)
		<-f.Synced()
		for i := range 3 {
			s.line.Cut()
			await.Until(t, "the loss to be noticed", func() bool { return !f.Connected() })
			s.put(t, "/a")
			if i == 1 {
				if _, err := s.publish.Delete(t.Context(), "/b", 0); err != nil {
					t.Fatal(err)
				}
			}
			s.heal(t)
			await.Until(t, "the catch-up", func() bool { return f.objects.version("/a") == uint64(i+2) && f.Connected() })
		}
		if f.objects.version("/b") != 0 {
			t.Error("the deletion was missed")
		}
		if got := f.objects.begun(); got != 1 {
			t.Errorf("%d full resyncs, want 1: a reconnect reads only what changed", got)
		}
	})
}

// TestHole removes an event from the stream: the next event reveals the gap.
func TestHole(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		s.put(t, "/a")
		f := start(t, s)
		<-f.Synced()
		s.silently(t, "/a", 2)
		s.put(t, "/b")
		await.Until(t, "both", func() bool { return f.objects.version("/a") == 2 && f.objects.version("/b") == 1 })
		if got := f.count(t, "gatehouse_catchups_total", "reason", "gap"); got == 0 {
			t.Error("no catch-up by a gap was counted")
		}
	})
}

// silently writes a version of key without its event.
func (s server) silently(t *testing.T, key string, version uint64) {
	t.Helper()
	fields := contract.Object{Version: version, PublishedMS: 1, ETag: `"x"`, ContentType: "a",
		Bodies: []contract.Body{{}}}.Fields()
	s.HSet(t.Context(), keys.ObjectKey(key), fields)
	seq := s.Incr(t.Context(), keys.SeqKey()).Val()
	s.do(t, "ZADD", keys.LogKey(), seq, contract.ObjectMember(key).String())
}

func TestComparisonFindsALostLastEvent(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		s.put(t, "/a")
		f := start(t, s)
		<-f.Synced()
		s.silently(t, "/a", 2)
		before := f.clock.inStep()
		await.Until(t, "version 2", func() bool { return f.objects.version("/a") == 2 })
		await.Until(t, "in step", func() bool { return f.clock.inStep().After(before) })
		if got := f.count(t, "gatehouse_catchups_total", "reason", "comparison"); got == 0 {
			t.Error("no catch-up by comparison was counted")
		}
	})
}

func TestNotInStepWhileBehind(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		s.put(t, "/a")
		f := start(t, s)
		<-f.Synced()
		s.line.Cut()
		await.Until(t, "the loss to be noticed", func() bool { return !f.Connected() })
		at := f.clock.inStep()
		errors := f.count(t, "gatehouse_redis_errors_total")
		await.Until(t, "more attempts", func() bool { return f.count(t, "gatehouse_redis_errors_total") > errors+3 })
		if f.clock.inStep() != at {
			t.Error("in step moved while Redis could not be asked")
		}
	})
}

func TestRedisLosesData(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		for range 5 {
			s.put(t, "/a")
		}
		s.put(t, "/gone")
		f := start(t, s)
		<-f.Synced()
		s.do(t, "FLUSHALL")
		s.accept(t)
		await.Until(t, "nothing is left", func() bool { return f.objects.len() == 0 })
		s.put(t, "/a")
		await.Until(t, "version 1", func() bool { return f.objects.version("/a") == 1 })

		// Another epoch, with a higher seq by chance.
		s.do(t, "FLUSHALL")
		for range 9 {
			s.put(t, "/b")
		}
		await.Until(t, "the new data", func() bool { return f.objects.version("/b") == 9 && f.objects.version("/a") == 0 })

		// The same epoch with a lower seq: a failover to an older replica.
		s.put(t, "/c")
		await.Until(t, "/c", func() bool { return f.objects.version("/c") == 1 })
		s.do(t, "DEL", keys.ObjectKey("/c"))
		s.do(t, "ZREM", keys.LogKey(), "o:/c")
		s.do(t, "DECR", keys.SeqKey())
		await.Until(t, "/c is gone", func() bool { return f.objects.version("/c") == 0 })
		if f.objects.version("/b") != 9 {
			t.Error("/b went too")
		}
	})
}

// TestEventOfAnotherEpoch publishes an event of another epoch with the next number.
func TestEventOfAnotherEpoch(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		s.put(t, "/a")
		f := start(t, s)
		<-f.Synced()
		// If the comparison notices first, which is as good, try again.
		for attempt := 0; f.count(t, "gatehouse_events_total", "result", "foreign") == 0; attempt++ {
			if attempt == 10 {
				t.Fatal("no event of another epoch was noticed")
			}
			seq := s.Get(t.Context(), keys.SeqKey()).Val()
			s.do(t, "FLUSHALL")
			s.do(t, "SET", keys.SeqKey(), seq)
			s.do(t, "HSET", keys.ChainKey(), contract.ChainFloor, seq) // or the log would count as lost
			s.put(t, fmt.Sprint("/b", attempt))
			await.Until(t, "only the new data", func() bool {
				return f.objects.len() == 1 && f.objects.version(fmt.Sprint("/b", attempt)) != 0
			})
		}
	})
}

func TestCorrupt(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		s.put(t, "/good")
		s.put(t, "/bad")
		s.put(t, "/type")
		s.put(t, "/expired")
		s.put(t, "/%C3")
		if _, err := s.publish.PutDevice(t.Context(), publish.Device{ID: "bad", Secret: "s", Cost: 4}); err != nil {
			t.Fatal(err)
		}
		s.do(t, "HDEL", keys.ObjectKey("/bad"), "etag")
		s.do(t, "SET", keys.ObjectKey("/type"), "x")
		s.do(t, "DEL", keys.ObjectKey("/expired"))
		s.do(t, "HSET", keys.CredentialKey("bad"), "disabled", "true")
		s.do(t, "ZADD", keys.LogKey(), 1.5, "what is this")
		s.do(t, "COPY", keys.ObjectKey("/%C3"), keys.ObjectKey("/%c3"))
		s.do(t, "ZADD", keys.LogKey(), 1.6, "o:/%c3")
		f := start(t, s)
		<-f.Synced()
		if f.objects.len() != 2 || f.objects.version("/good") != 1 || f.objects.version("/%C3") != 1 ||
			f.credentials.len() != 0 {
			t.Errorf("%d objects, %d credentials; want only /good and /%%C3", f.objects.len(), f.credentials.len())
		}
		// In events: an unreadable event, an event of a key that isn't canonical, and an event with an unreadable
		// record.
		s.do(t, "PUBLISH", keys.EventsChannel(), "garbage")
		s.announce(t, keys, contract.Event{Member: contract.ObjectMember("/%c3"),
			Fields: map[string]string{"version": "9", "published": "1", "deleted": "1"}})
		s.announce(t, keys, contract.Event{Member: contract.ObjectMember("/good"),
			Fields: map[string]string{"version": "nine"}})
		await.Until(t, "the record is gone", func() bool { return f.objects.version("/good") == 0 })
		s.put(t, "/next")
		await.Until(t, "the next event", func() bool { return f.objects.version("/next") == 1 })
		if f.objects.len() != 2 || f.objects.version("/%C3") != 1 {
			t.Errorf("%d objects; want only /next and /%%C3", f.objects.len())
		}
		for _, want := range []struct{ kind, reason string }{
			{"object", "missing"}, {"object", "malformed"}, {"credential", "malformed"}, {"member", "malformed"},
			{"event", "malformed"},
		} {
			if f.count(t, "gatehouse_corrupt_total", "kind", want.kind, "reason", want.reason) == 0 {
				t.Errorf("no corrupt %s counted as %s", want.kind, want.reason)
			}
		}
		f.stop()
		for _, want := range []string{"/bad", "id=bad", "what is this", "id=o:/%c3"} {
			if !strings.Contains(f.log.String(), want) {
				t.Errorf("the log does not name %q", want)
			}
		}
	})
}

// TestStress writes from several goroutines while the connections are cut again and again.
func TestStress(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		s.accept(t)
		f := start(t, s)
		<-f.Synced()
		var wg sync.WaitGroup
		last := make([]uint64, 40)
		for writer := range 4 {
			wg.Go(func() {
				for i := range sized(150, 60) {
					k := writer*10 + i%10
					last[k] = s.put(t, fmt.Sprint("/", k))
				}
			})
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		for cutting := true; cutting; {
			select {
			case <-done:
				cutting = false
			case <-time.After(20 * time.Millisecond):
				s.heal(t)
			}
		}
		await.Until(t, "all last versions", func() bool {
			for k, version := range last {
				if f.objects.version(fmt.Sprint("/", k)) != version {
					return false
				}
			}
			return true
		})
		f.stop()
		if strings.Contains(f.log.String(), "lost data") {
			t.Error("it was taken for a loss of data")
		}
	})
}
