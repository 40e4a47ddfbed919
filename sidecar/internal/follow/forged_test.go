package follow_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// forger may only publish; he has guessed epoch and numbers.
type forger struct {
	server
	t         *testing.T
	f         *follower
	dataEpoch string
	last      uint64
}

// withForger returns a forger for a follower that is in step with a Redis that has /a and the device d.
func withForger(t *testing.T) forger {
	t.Helper()
	s := serverAt(t, strings.TrimPrefix(redistest.Start(t), "redis://"))
	s.put(t, "/a")
	s.device(t, "d")
	f := start(t, s)
	<-f.Synced()
	return forger{s, t, f, s.Get(t.Context(), keys.DataEpochKey()).Val(), s.seq(t)}
}

func (s server) device(t *testing.T, id string) uint64 {
	t.Helper()
	r, err := s.publish.PutDevice(t.Context(), publish.Device{ID: id, Secret: "s", Cost: 4})
	require.NoError(t, err)
	return r.Version
}

func (s server) revoke(t *testing.T, id string) uint64 {
	t.Helper()
	r, err := s.publish.RevokeDevice(t.Context(), id)
	require.NoError(t, err)
	return r.Version
}

// seq returns the number of the last write.
func (s server) seq(t *testing.T) uint64 {
	t.Helper()
	seq, err := s.Get(t.Context(), keys.SeqKey()).Uint64()
	require.NoError(t, err)
	return seq
}

// event returns an event with a number relative to the last write's, and an invented digest.
func (x forger) event(ahead int, m contract.Member, fields map[string]string) contract.Event {
	return contract.Event{
		DataEpoch: x.Get(x.t.Context(), keys.DataEpochKey()).Val(), Seq: x.seq(x.t) + uint64(ahead),
		Digest: strings.Repeat("ab", 20), Member: m, Fields: fields,
	}
}

func (x forger) send(e contract.Event) {
	x.t.Helper()
	x.do(x.t, "PUBLISH", keys.EventsChannel(), string(contract.AppendEvent(nil, e)))
}

// breaks waits until n events were rejected for a reason.
func (x forger) breaks(reason string, n float64) {
	x.t.Helper()
	await.Until(x.t, "the break to be counted: "+reason, func() bool {
		return x.f.count(x.t, "gatehouse_chain_breaks_total", "reason", reason) >= n
	})
}

var (
	forgedObject = contract.Object{Version: 99, PublishedMS: 1, ETag: `"x"`, ContentType: "a",
		Bodies: []contract.Body{{}}}.Fields()
	forgedGrant = contract.Credential{Version: 99, PublishedMS: 1,
		Hashes: []string{"$2a$04$" + strings.Repeat("a", 53)}}.Fields()
	forgedRevoke = contract.Credential{Version: 99, PublishedMS: 1, Disabled: true}.Fields()
)

// TestForgedNext forges the number of the next write: the write is applied all the same.
func TestForgedNext(t *testing.T) {
	x, late := withForger(t), await.Late(t)
	for i := range 3 {
		x.send(x.event(1, contract.ObjectMember("/forged"), forgedObject))
		x.send(x.event(1, contract.CredentialMember("forged"), forgedGrant))
		began, before := time.Now(), late()
		version := x.put(t, "/a")
		await.Until(t, "the write", func() bool { return x.f.objects.version("/a") == version })
		if took := time.Since(began); took > 2*time.Second+late()-before {
			t.Errorf("the write counted after %v", took)
		}
		x.breaks("digest", float64(2*i+2))
	}
	version := x.revoke(t, "d")
	await.Until(t, "the revocation", func() bool { return x.f.credentials.version("d") == version })
	x.f.stop()
	if x.f.objects.version("/forged") != 0 || x.f.credentials.version("forged") != 0 || x.f.objects.resyncs != 1 {
		t.Errorf("got /forged in version %d, the device in %d, and %d full resyncs; want nothing, and 1",
			x.f.objects.version("/forged"), x.f.credentials.version("forged"), x.f.objects.resyncs)
	}
	if log := x.f.log.String(); !strings.Contains(log, "not of the history that redis had") ||
		!strings.Contains(log, "member=c:forged") {
		t.Errorf("the log doesn't say so: %s", log)
	}
}

// TestForgedGrant: the forger also knows the chain. A grant is not believed before the device's record was read.
func TestForgedGrant(t *testing.T) {
	x := withForger(t)
	x.f.credentials.mu.Lock()
	applied := x.f.credentials.applied
	x.f.credentials.mu.Unlock()
	for _, id := range []string{"d", "forged"} {
		x.send(x.chained(t, keys, x.event(1, contract.CredentialMember(id), forgedGrant)))
		await.Until(t, "what Redis has to be read", func() bool {
			x.f.credentials.mu.Lock()
			defer x.f.credentials.mu.Unlock()
			return x.f.credentials.applied > applied || x.f.credentials.removed > 0
		})
		version := x.device(t, "other") // has the forged number
		await.Until(t, "the write", func() bool { return x.f.credentials.version("other") == version })
	}
	if d, forged := x.f.credentials.highest("d"), x.f.credentials.highest("forged"); d != 1 || forged != 0 {
		t.Errorf("got version %d of d, and %d of another, want 1 and none ever", d, forged)
	}
}

// TestForgedTakeaway revokes a good device by forged events of every kind: the device is unknown at once, until its
// record was read.
func TestForgedTakeaway(t *testing.T) {
	x := withForger(t)
	d := contract.CredentialMember("d")
	foreign, broken := x.event(1, d, forgedRevoke), x.event(1, d, map[string]string{"version": "?"})
	foreign.DataEpoch = "beef"
	for name, e := range map[string]contract.Event{
		"the next": x.event(1, d, forgedRevoke), "a later one": x.event(5, d, forgedRevoke),
		"the last": x.event(0, d, forgedRevoke), "another epoch": foreign, "unreadable": broken,
	} {
		removed := x.f.credentials.removals()
		x.send(e)
		await.Until(t, name+": the device to go", func() bool { return x.f.credentials.removals() > removed })
		await.Until(t, name+": the device to come back", func() bool { return x.f.credentials.version("d") == 1 })
	}
	version := x.device(t, "d")
	await.Until(t, "the next write", func() bool { return x.f.credentials.version("d") == version })
}

// TestForgedNumber repeats the number of the last write with another event.
func TestForgedNumber(t *testing.T) {
	x := withForger(t)
	x.put(t, "/b")
	await.Until(t, "/b", func() bool { return x.f.objects.version("/b") == 1 })
	x.send(x.event(0, contract.ObjectMember("/forged"), forgedObject))
	x.breaks("digest", 1)
	if x.f.objects.version("/forged") != 0 {
		t.Error("/forged was believed")
	}
}

// TestForgedOld repeats a number from before the follower's start: the follower asks Redis, if Redis permits.
func TestForgedOld(t *testing.T) {
	for _, right := range []string{"+hmget", "-hmget"} {
		x := withForger(t)
		x.do(t, "ACL", "SETUSER", "default", right)
		x.send(x.event(-1, contract.ObjectMember("/forged"), forgedObject))
		if right == "+hmget" {
			x.breaks("digest", 1)
			continue
		}
		await.Until(t, "the event", func() bool { return x.f.count(t, "gatehouse_events_total", "result", "duplicate") == 1 })
		for range 2 { // comparisons
			now := time.Now()
			await.Until(t, "in step", func() bool { return x.f.clock.inStep().After(now) })
		}
	}
}

// TestOtherDigest: Redis has another write at the follower's number.
func TestOtherDigest(t *testing.T) {
	x := withForger(t)
	seq := x.seq(t)
	other := contract.Link{Seq: seq, Digest: strings.Repeat("c", 40)}.String()
	x.do(t, "HSET", keys.ChainKey(), contract.ChainField(seq), other, contract.ChainHead, other)
	x.breaks("history", 1)
	await.Until(t, "a full resync", func() bool {
		return x.f.count(t, "gatehouse_full_resyncs_total", "reason", "lost") == 1
	})
	if got := x.f.count(t, "gatehouse_full_resyncs_total"); got != 2 {
		t.Errorf("got %v full resyncs, want 2, at start and after the loss", got)
	}
}

// TestLostAndPassed: Redis loses the last write and counts to its number again, which only the digest reveals.
func TestLostAndPassed(t *testing.T) {
	x := withForger(t)
	before := x.HGet(t.Context(), keys.ChainKey(), contract.ChainHead).Val()
	x.put(t, "/lost")
	await.Until(t, "/lost", func() bool { return x.f.objects.version("/lost") == 1 })
	tx := x.TxPipeline()
	tx.Decr(t.Context(), keys.SeqKey())
	tx.HSet(t.Context(), keys.ChainKey(), contract.ChainHead, before)
	tx.Del(t.Context(), keys.ObjectKey("/lost"))
	tx.ZRem(t.Context(), keys.LogKey(), "o:/lost")
	if _, err := tx.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	version := x.put(t, "/a")
	await.Until(t, "what is lost to go", func() bool {
		return x.f.objects.version("/lost") == 0 && x.f.objects.version("/a") == version
	})
	x.f.stop()
	if !strings.Contains(x.f.log.String(), "redis has lost data") {
		t.Errorf("got %s", x.f.log)
	}
}

// TestFloodOfForgedEvents sends many per second: real events are applied as fast, and Redis gets few calls.
func TestFloodOfForgedEvents(t *testing.T) {
	const rounds, events = 60, 130 // without a limit, each round causes a catch-up
	x := withForger(t)
	x.do(t, "CONFIG", "RESETSTAT")
	catchups := x.f.count(t, "gatehouse_catchups_total")
	began, late := time.Now(), await.Late(t)
	var slowest time.Duration
	sent := 0
	for round := range rounds {
		pipe := x.Pipeline()
		for i := range events {
			e := x.forged(i)
			pipe.Publish(t.Context(), keys.EventsChannel(), string(contract.AppendEvent(nil, e)))
		}
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
		sent += events
		at := time.Now()
		version := x.revoke(t, "d")
		await.Until(t, "a revocation", func() bool {
			return x.f.credentials.highest("d") >= version || x.f.credentials.version("d") == version
		})
		slowest = max(slowest, time.Since(at))
		x.put(t, fmt.Sprint("/", round))
	}
	await.Until(t, "all", func() bool { return x.f.objects.len() == rounds+1 })
	took := time.Since(began)
	catchups = x.f.count(t, "gatehouse_catchups_total") - catchups
	calls := 0
	for line := range strings.Lines(x.Info(t.Context(), "commandstats").Val()) {
		var n int
		if name, rest, _ := strings.Cut(line, ":calls="); !strings.HasSuffix(name, "_publish") {
			fmt.Sscan(strings.SplitN(rest, ",", 2)[0], &n)
			calls += n
		}
	}
	t.Logf("%d forged events in %v: a revocation counted after at most %v; %v catch-ups, %d commands of all sides",
		sent, took.Round(time.Millisecond), slowest.Round(time.Millisecond), catchups, calls)
	if most := 8 + 5*took.Seconds(); catchups > most || slowest > 2*time.Second+late() {
		t.Errorf("got %v catch-ups and %v, want at most %.0f and 2 s", catchups, slowest, most)
	}
	if x.f.objects.version("/forged") != 0 || x.f.credentials.version("forged") != 0 {
		t.Error("something forged was believed")
	}
}

// forged returns an event of the i-th kind.
func (x forger) forged(i int) contract.Event {
	e := contract.Event{DataEpoch: "beef", Seq: x.last + uint64(i%50), Digest: fmt.Sprintf("%040x", i),
		Member: contract.ObjectMember("/forged"), Fields: forgedObject}
	if i%2 == 0 {
		e.DataEpoch = x.dataEpoch
	}
	if i%3 == 0 {
		e.Member, e.Fields = contract.CredentialMember("forged"), forgedGrant
	}
	if i%50 == 0 {
		e.Member, e.Fields = contract.CredentialMember(fmt.Sprint("d", i)), forgedRevoke
	}
	return e
}
