package credential_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/verify/credential"
)

var fewFailures = credential.Limits{DeviceFailures: 5, SourceFailures: 12, Window: time.Minute}

// show verifies a credential from an address.
func (f fixture) show(t *testing.T, id, secret, from string, outcome wire.Outcome,
	reason credential.Reason) credential.Result {
	t.Helper()
	r := f.Verifier.Verify(t.Context(), id, secret, from)
	if r.Outcome != outcome || r.Reason != reason {
		t.Errorf("Verify(%q, %q) from %q = %v because of %s, want %v because of %s", id, secret, from,
			r.Outcome, r.Reason, outcome, reason)
	}
	return r
}

func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(credential.Config{PinTTL: time.Hour, Limits: fewFailures})
		for _, id := range []string{"a", "b", "c", "d"} {
			f.Apply(device(id, 1, "right"))
		}
		wrong := 0
		guess := func(n int, id, from string, outcome wire.Outcome, reason credential.Reason) (last credential.Result) {
			t.Helper()
			for range n {
				wrong++
				last = f.show(t, id, fmt.Sprint("wrong", wrong), from, outcome, reason)
				if _, found := f.edge.verdict(id, fmt.Sprint("wrong", wrong)); found != (outcome == wire.Deny) {
					t.Errorf("%v: a verdict is stored: %v", outcome, found)
				}
			}
			return last
		}
		const bad, other = "2001:db8:0:1::1", "192.0.2.1"
		guess(5, "a", bad, wire.Deny, "bcrypt")
		before := f.runs(t)
		if r := guess(20, "a", bad, wire.Throttled, "limited"); r.RetryAfter != 12*time.Second ||
			r.ThrottleFor != r.RetryAfter {
			t.Errorf("try again after %v, throttled for %v; want 12s", r.RetryAfter, r.ThrottleFor)
		}
		guess(1, "a", "2001:db8:0:1:2::3", wire.Throttled, "limited")
		f.show(t, "a", "right", bad, wire.Throttled, "limited")
		if got := f.runs(t); got != before {
			t.Errorf("%d runs of bcrypt beyond the limit", got-before)
		}
		guess(1, "a", other, wire.Deny, "bcrypt")
		f.show(t, "a", "right", other, wire.Allow, "bcrypt")
		f.show(t, "a", "right", bad, wire.Throttled, "limited") // costs no bcrypt, but would reveal a right guess
		f.show(t, "a", "wrong", bad, wire.Throttled, "limited")

		guess(5, "b", bad, wire.Deny, "bcrypt")
		guess(2, "c", bad, wire.Deny, "bcrypt")
		guess(1, "c", bad, wire.Unavailable, "limited") // by the limit for sources
		guess(1, "d", bad, wire.Unavailable, "limited")
		guess(1, "d", "2001:db8:0:2::1", wire.Deny, "bcrypt")
		time.Sleep(5 * time.Second)
		guess(1, "c", bad, wire.Deny, "bcrypt")
		guess(1, "b", bad, wire.Throttled, "limited")
	})
}

// TestGuessesOfAnActiveDevice: wrong secrets without bcrypt, because the right secret is known, have the same limit,
// and beyond the limit the right secret gets the same answer. Where the device authenticated before, its right secret
// always passes.
func TestGuessesOfAnActiveDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(credential.Config{PinTTL: time.Hour, Limits: fewFailures})
		f.Apply(device("d", 1, "right"))
		f.Apply(device("other", 1, "right"))
		const own, bad = "192.0.2.1", "192.0.2.2"
		f.show(t, "d", "right", own, wire.Allow, "bcrypt")
		for i := range 5 {
			if r := f.show(t, "d", fmt.Sprint("wrong", i), bad, wire.Deny, "resolved"); r.ThrottleFor != 0 {
				t.Errorf("the edge is to refuse others for %v, want not before the limit", r.ThrottleFor)
			}
			f.show(t, "d", fmt.Sprint("wrong", i), bad, wire.Deny, "refuted") // not a further guess
		}
		for i := range 100 {
			if r := f.show(t, "d", fmt.Sprint("more", i), bad, wire.Throttled, "limited"); r.ThrottleFor != 12*time.Second {
				t.Errorf("throttled for %v, want 12s", r.ThrottleFor)
			}
		}
		f.show(t, "d", "right", bad, wire.Throttled, "limited")
		f.show(t, "other", "right", bad, wire.Allow, "bcrypt") // of another device
		for i := range 100 {
			if r := f.show(t, "d", fmt.Sprint("own", i), own, wire.Deny, "resolved"); r.ThrottleFor != time.Second {
				t.Errorf("the edge is to refuse wrong ones for %v, want 1s", r.ThrottleFor)
			}
			f.show(t, "d", "right", own, wire.Allow, "pin")
		}
		want := map[string]float64{"other": 101, "own": 95}
		for network, n := range want {
			if got := metricstest.Value(t, f.metrics, "gatehouse_guesses_limited_total", "network", network); got != n {
				t.Errorf("%v guesses from a network of kind %s are beyond the limit, want %v", got, network, n)
			}
		}
		held := map[string]bool{}
		for _, h := range f.ListHolds() {
			held[fmt.Sprint(h.Device, " ", h.Network, " ", h.Own, " ", h.WaitS > 0)] = true
		}
		for _, want := range []string{"d 192.0.2.2/32 false true", "d 192.0.2.1/32 true true", " 192.0.2.2/32 false false"} {
			if !held[want] {
				t.Errorf("%q is not held; held: %v", want, held)
			}
		}
		time.Sleep(12 * time.Second)
		f.show(t, "d", "more0", bad, wire.Deny, "resolved") // the first refusal didn't reveal the wrong secret
		f.show(t, "d", "right", bad, wire.Throttled, "limited")
		time.Sleep(12 * time.Second)
		f.show(t, "d", "right", bad, wire.Allow, "pin") // within the limit
	})
}

// TestGuessesAtOnce: of concurrent guesses, no more are judged than of guesses in sequence.
func TestGuessesAtOnce(t *testing.T) {
	f := start(credential.Config{PinTTL: time.Hour, Limits: fewFailures})
	f.Apply(device("d", 1, "right"))
	f.show(t, "d", "right", "192.0.2.1", wire.Allow, "bcrypt")
	var denied atomic.Int64
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			if f.Verifier.Verify(t.Context(), "d", fmt.Sprint("wrong", i), "192.0.2.2").Outcome == wire.Deny {
				denied.Add(1)
			}
		})
	}
	wg.Wait()
	if n := denied.Load(); n != 5 {
		t.Errorf("%d of 1000 guesses were judged, want 5", n)
	}
}

// TestOtherSecretsOfADeviceAreLimited: a device has two secrets, and a client at its address guesses the unused secret.
// Guesses cost bcrypt, so guesses are limited; the secret in use passes.
func TestOtherSecretsOfADeviceAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(credential.Config{PinTTL: time.Hour, Limits: fewFailures})
		f.Apply(contract.Credential{ID: "d", Version: 1, Hashes: []string{hashed("old", 4), hashed("new", 4)}})
		const own = "192.0.2.1"
		f.show(t, "d", "old", own, wire.Allow, "bcrypt")
		before := f.runs(t)
		for i := range 199 {
			f.Verifier.Verify(t.Context(), "d", fmt.Sprint("wrong", i), own)
			if i%10 == 0 {
				f.show(t, "d", "old", own, wire.Allow, "pin")
			}
		}
		if got := f.runs(t) - before; got != 5 {
			t.Errorf("%d runs of bcrypt for 199 wrong secrets, want 5", got)
		}
		if r := f.show(t, "d", "new", own, wire.Unavailable, "limited"); r.ThrottleFor != 0 ||
			r.RetryAfter != 12*time.Second {
			t.Errorf("got %+v, want to try again after 12s, and no throttle for the one in use", r)
		}
		time.Sleep(12 * time.Second)
		f.show(t, "d", "new", own, wire.Allow, "bcrypt")
		f.show(t, "d", "old", own, wire.Allow, "pin")
	})
}

// TestNoLimitForWhoWasGood changes a device's secret: wrong secrets are accepted only from where the device
// authenticated before.
func TestNoLimitForWhoWasGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(credential.Config{PinTTL: time.Hour, Limits: fewFailures})
		f.Apply(device("d", 1, "old"))
		const own, other = "192.0.2.1", "192.0.2.2"
		f.show(t, "d", "old", own, wire.Allow, "bcrypt")
		f.Apply(device("d", 2, "new"))
		for i := range 30 {
			f.show(t, "d", fmt.Sprint("wrong", i), own, wire.Deny, "bcrypt")
			if i >= 5 {
				f.show(t, "d", "new", other, wire.Throttled, "limited")
			} else {
				f.show(t, "d", fmt.Sprint("other", i), other, wire.Deny, "bcrypt")
			}
		}
		f.show(t, "d", "wrong29", own, wire.Deny, "refuted")
		f.show(t, "d", "new", own, wire.Allow, "bcrypt")
	})
}

// busyUntil returns a Compare that matches no secret, and blocks for the secret "busy" until release is closed.
func busyUntil(release <-chan struct{}) func(hash, secret string, pace <-chan bool) error {
	return func(_, secret string, _ <-chan bool) error {
		if secret == "busy" {
			<-release
		}
		return bcrypt.ErrMismatchedHashAndPassword
	}
}

// TestHold checks ThrottleFor: only for a source that has failed lately, and only for a device that never authenticated
// from the source.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		f := start(credential.Config{Workers: 1, Queue: 1, Wait: 10 * time.Millisecond, Compare: busyUntil(release),
			Limits: credential.Limits{DeviceFailures: 2, SourceFailures: 3, Window: time.Hour}})
		for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
			f.Apply(device(id, 1, "right"))
		}
		const clean, bad, worse = "192.0.2.1", "192.0.2.2", "192.0.2.3"
		f.show(t, "a", "wrong", bad, wire.Deny, "bcrypt")
		for _, id := range []string{"b", "c", "d"} {
			f.show(t, id, "wrong", worse, wire.Deny, "bcrypt")
		}
		held := func(id, secret, from string, reason credential.Reason, least, most time.Duration) {
			t.Helper()
			r := f.show(t, id, secret, from, wire.Unavailable, reason)
			if r.ThrottleFor < least || r.ThrottleFor > most || r.ThrottleFor > r.RetryAfter {
				t.Errorf("%s from %s: got %v, and to try again after %v; want from %v to %v", id, from, r.ThrottleFor,
					r.RetryAfter, least, most)
			}
		}
		f.show(t, "b", "busy", clean, wire.Unavailable, "timeout") // has the worker from now on
		held("c", "other", clean, "timeout", 0, 0)                 // waits for the worker
		held("e", "wrong", clean, "overload", 0, 0)
		held("f", "wrong", bad, "overload", 5*time.Second, 5*time.Second)
		held("f", "wrong", "", "overload", 0, 0)
		held("f", "wrong", worse, "limited", 19*time.Minute, 20*time.Minute) // by the limit for sources
		close(release)
	})
}

// TestNoLimitOfSources: all devices have the same address, so a device's failures don't affect the rest.
func TestNoLimitOfSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		f := start(credential.Config{Workers: 1, Queue: 1, Wait: 300 * time.Millisecond, Compare: busyUntil(release),
			Limits: credential.Limits{DeviceFailures: 2, Window: time.Hour}})
		for _, id := range []string{"a", "b", "c", "d"} {
			f.Apply(device(id, 1, "right"))
		}
		const all = "192.0.2.1"
		f.show(t, "a", "wrong", all, wire.Deny, "bcrypt")
		f.show(t, "b", "busy", all, wire.Unavailable, "timeout") // has the worker from now on
		f.show(t, "c", "other", all, wire.Unavailable, "timeout")
		if r := f.show(t, "d", "wrong", all, wire.Unavailable, "overload"); r.ThrottleFor != 0 {
			t.Errorf("got a hold of %v for the address of all devices, want none", r.ThrottleFor)
		}
		close(release)
	})
}

func TestUnknownSourceHasNoLimit(t *testing.T) {
	f := start(credential.Config{Limits: fewFailures})
	f.Apply(device("d", 1, "s"))
	for i := range 30 {
		f.show(t, "d", fmt.Sprint("wrong", i), "", wire.Deny, "bcrypt")
	}
	f.show(t, "d", "s", "", wire.Allow, "bcrypt")
}

// TestNoLockout floods the id of a new device, which tries now and then, and the remaining ids, from many addresses.
func TestNoLockout(t *testing.T) {
	const addresses = 40
	f := start(credential.Config{PinTTL: time.Hour, Workers: 1, Queue: 16, Wait: 50 * time.Millisecond,
		Limits: fewFailures})
	hash := hashed("right", 5)
	for _, id := range []string{"d", "e", "f", "g"} {
		f.Apply(contract.Credential{ID: id, Version: 1, Hashes: []string{hash}})
	}
	var stop atomic.Bool
	var tries atomic.Int64
	var wg sync.WaitGroup
	for i := range addresses {
		wg.Go(func() {
			for n := 0; !stop.Load(); n++ {
				id := "d"
				if n%4 == 3 {
					id = string(rune('e' + n%3))
				}
				if r := f.Verifier.Verify(t.Context(), id, fmt.Sprint(i, "-", n),
					fmt.Sprint("198.51.100.", i)); r.Outcome == wire.Allow {
					t.Error("a wrong secret was let in")
				}
				tries.Add(1)
			}
		})
	}
	f.awaitRunning(t)
	let := false
	for end := time.Now().Add(2 * time.Minute); !let && time.Now().Before(end); {
		let = f.Verifier.Verify(t.Context(), "d", "right", "192.0.2.1").Outcome == wire.Allow
	}
	runs := f.runs(t)
	stop.Store(true)
	wg.Wait()
	t.Logf("in after %d runs of bcrypt and %d tries of others", runs, tries.Load())
	if most := (addresses + 1) * 4 / 3 * 2; !let || runs > most {
		t.Errorf("in: %v after %d runs, want at most %d", let, runs, most)
	}
}

// TestWaitEndsAndWorkGoesOn stops waiting, and gets the answer with the next request.
func TestWaitEndsAndWorkGoesOn(t *testing.T) {
	f := start(credential.Config{PinTTL: time.Hour, Workers: 1, Wait: time.Millisecond})
	f.Apply(contract.Credential{ID: "d", Version: 1, Hashes: []string{hashed("s", 9)}})
	tries := 0
	for r := f.Verify(t.Context(), "d", "s"); r.Outcome != wire.Allow; r = f.Verify(t.Context(), "d", "s") {
		if r.Reason != "timeout" || r.RetryAfter != time.Second {
			t.Fatalf("Verify = %+v", r)
		}
		tries++
	}
	if got := f.runs(t); got != 1 || tries == 0 {
		t.Errorf("%d runs of bcrypt for %d tries in vain, want 1 run", got, tries)
	}
}

// TestFloodOfUnknownIsCheap counts writes at the edge for credentials that come once.
func TestFloodOfUnknownIsCheap(t *testing.T) {
	f := start(credential.Config{PinTTL: time.Hour, Limits: fewFailures})
	f.Apply(device("d", 1, "s"))
	f.expect(t, "d", "s", wire.Allow, "bcrypt", 1)
	for i := range 5000 {
		f.Verify(context.Background(), fmt.Sprint("nobody", i), "s")
		f.Verify(context.Background(), "d", fmt.Sprint("wrong", i))
	}
	stored := metricstest.Value(t, f.metrics, "gatehouse_deny_verdicts_total", "result", "stored")
	first := metricstest.Value(t, f.metrics, "gatehouse_deny_verdicts_total", "result", "first")
	if stored != 0 || first != 10000 || f.runs(t) != 1 {
		t.Errorf("%v deny verdicts stored, %v not, %d runs of bcrypt", stored, first, f.runs(t))
	}
	for range 3 {
		f.expect(t, "nobody", "s", wire.Deny, "unknown", 0)
	}
	if _, found := f.edge.verdict("nobody", "s"); !found {
		t.Error("the verdict of a credential that comes again is not stored")
	}
}

// line enqueues verifications, each a device and an address, behind a running verification in the given order, and
// returns the order of service.
func (f fixture) line(t *testing.T, busy chan<- struct{}, waiters ...[2]string) []string {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() { f.Verify(t.Context(), "busy", "busy") })
	synctest.Wait()
	for i, w := range waiters {
		wg.Go(func() { f.Verifier.Verify(t.Context(), w[0], fmt.Sprint("wrong", i, w), w[1]) })
		synctest.Wait()
		if n := metricstest.Value(t, f.metrics, "gatehouse_bcrypt_queued"); n != float64(i+1) {
			t.Errorf("%v wait, want %d", n, i+1)
		}
	}
	busy <- struct{}{}
	wg.Wait()
	return f.edge.stored[len(f.edge.stored)-len(waiters):]
}

// TestOrder: devices of each class wait for a single worker.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := make(chan struct{})
		f := start(credential.Config{PinTTL: time.Hour, Workers: 1, Limits: fewFailures,
			Compare: func(hash, secret string, _ <-chan bool) error {
				if secret == "busy" {
					<-busy
					return errors.New("it was busy only")
				}
				return bcrypt.CompareHashAndPassword([]byte(hash), []byte(secret))
			}})
		for _, id := range []string{"busy", "known", "clean", "late", "bad", "bad2"} {
			f.Apply(device(id, 1, "right"))
		}
		f.show(t, "known", "right", "192.0.2.1", wire.Allow, "bcrypt")
		f.Apply(device("known", 2, "new"))
		f.show(t, "bad", "wrong", "198.51.100.1", wire.Deny, "bcrypt")
		for i, test := range []struct {
			name    string
			waiters [][2]string
			want    string
		}{
			{"classes", [][2]string{{"bad", "198.51.100.1"}, {"clean", "192.0.2.2"}, {"known", "192.0.2.1"}}, "known clean bad"},
			{"a device is known where it was let in", [][2]string{{"clean", "192.0.2.5"}, {"known", "192.0.2.3"}},
				"clean known"},
			{"the second of a source that fails now", [][2]string{{"bad", "198.51.100.2"}, {"bad2", "198.51.100.2"},
				{"late", "192.0.2.4"}}, "bad late bad2"},
		} {
			f.Apply(device("busy", uint64(i+2), "right")) // a new record: the secret was not refuted yet
			if got := strings.Join(f.line(t, busy, test.waiters...), " "); got != test.want {
				t.Errorf("%s: served %s, want %s", test.name, got, test.want)
			}
		}
	})
}

// TestRefutedIsOfOneRecord: a secret that was wrong under an earlier record authenticates.
func TestRefutedIsOfOneRecord(t *testing.T) {
	f := start(credential.Config{PinTTL: time.Hour})
	f.Apply(device("d", 1, "s"))
	f.expect(t, "d", "t", wire.Deny, "bcrypt", 1)
	f.expect(t, "d", "t", wire.Deny, "refuted", 0)
	f.Apply(device("d", 2, "t"))
	f.expect(t, "d", "t", wire.Allow, "bcrypt", 1)
}
