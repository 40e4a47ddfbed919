package credential_test

import (
	"context"
	"fmt"
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

// TestOneBcrypt sends 1,000 first requests with the right secret, and wrong secrets in between.
func TestOneBcrypt(t *testing.T) {
	const callers, wrong = 1000, 7 // the queue takes no more for a single device
	f := start(credential.Config{PinTTL: time.Hour, Workers: 1})
	c := contract.Credential{ID: "d", Version: 1, Hashes: []string{hashed("right", 7)}}
	f.Apply(c)
	var wg sync.WaitGroup
	var allowed, denied atomic.Int64
	begin := make(chan struct{})
	for i := range callers + wrong {
		secret, from, outcome, count := "right", "192.0.2.1", wire.Allow, &allowed
		if i >= callers {
			secret, from, outcome, count = fmt.Sprint("wrong", i), fmt.Sprint("198.51.100.", i-callers), wire.Deny, &denied
		}
		wg.Go(func() {
			<-begin
			if r := f.Verifier.Verify(t.Context(), "d", secret, from); r.Outcome != outcome {
				t.Errorf("%s: %+v, want %v", secret, r, outcome)
			}
			count.Add(1)
		})
	}
	close(begin)
	wg.Wait()
	if got := metricstest.Value(t, f.metrics, "gatehouse_bcrypt_total", "result", "match"); got != 1 {
		t.Errorf("%v runs of bcrypt with the right secret, want 1", got)
	}
	if allowed.Load() != callers || denied.Load() != wrong {
		t.Errorf("%d allowed, %d denied", allowed.Load(), denied.Load())
	}
}

// bcryptAfter returns a Compare whose runs end only when end is closed.
func bcryptAfter(end <-chan struct{}) func(hash, secret string, pace <-chan bool) error {
	return func(hash, secret string, _ <-chan bool) error {
		<-end
		return bcrypt.CompareHashAndPassword([]byte(hash), []byte(secret))
	}
}

func TestOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		f := start(credential.Config{Workers: 1, Queue: 2, Compare: bcryptAfter(end)})
		f.Apply(device("d", 1, "right"))
		var wg sync.WaitGroup
		results := make(chan credential.Result, 20)
		for i := range cap(results) {
			wg.Go(func() { results <- f.Verify(t.Context(), "d", fmt.Sprint("wrong", i)) })
		}
		synctest.Wait()
		close(end)
		wg.Wait()
		close(results)
		count := map[credential.Reason]int{}
		for r := range results {
			count[r.Reason]++
			if r.Reason == "overload" && (r.Outcome != wire.Unavailable || r.RetryAfter != time.Second) {
				t.Errorf("overload: %+v", r)
			}
		}
		if count["bcrypt"] != 3 || count["overload"] != 17 {
			t.Errorf("results %v, want 3 by bcrypt, one that ran and two that waited, and 17 overload", count)
		}
		if got := metricstest.Value(t, f.metrics, "gatehouse_bcrypt_running"); got != 0 {
			t.Errorf("%v runs under way at the end", got)
		}
		if got := metricstest.Value(t, f.metrics, "gatehouse_bcrypt_queued"); got != 0 {
			t.Errorf("%v queued at the end", got)
		}
	})
}

// TestCallerLeaves: a run continues for the waiting callers when its first caller has left.
func TestCallerLeaves(t *testing.T) {
	f := start(credential.Config{PinTTL: time.Hour})
	f.Apply(contract.Credential{ID: "d", Version: 1, Hashes: []string{hashed("s", 7)}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := f.Verify(ctx, "d", "s"); r.Outcome != wire.Unavailable || r.Reason != "timeout" {
		t.Fatalf("Verify = %+v, want unavailable", r)
	}
	f.expectAllowed(t)
	if got := f.runs(t); got != 1 {
		t.Errorf("%d runs of bcrypt, want 1", got)
	}
}

func (f fixture) expectAllowed(t *testing.T) {
	t.Helper()
	if r := f.Verify(t.Context(), "d", "s"); r.Outcome != wire.Allow {
		t.Errorf("Verify = %+v, want allow", r)
	}
}

// TestRevocationWins revokes and restores a device during verifications. A verification that began before a revocation
// may neither answer allow nor leave an allow verdict after the revocation.
func TestRevocationWins(t *testing.T) {
	f := start(credential.Config{PinTTL: time.Hour})
	good := device("d", 0, "s")
	var version uint64
	apply := func(revoked bool) {
		version++
		c := good
		c.Version, c.Disabled, c.Revoked = version, revoked, revoked
		f.Apply(c)
	}
	apply(false)
	var stop atomic.Bool
	var wg sync.WaitGroup
	// clock orders answers and revocations: odd while the device is revoked.
	var clock atomic.Int64
	for range 4 {
		wg.Go(func() {
			for !stop.Load() {
				before := clock.Load()
				r := f.Verify(t.Context(), "d", "s")
				if after := clock.Load(); before == after && before%2 == 1 && r.Outcome == wire.Allow {
					t.Errorf("allowed while revoked: %+v", r)
				}
			}
		})
	}
	for range 60 {
		apply(true)
		clock.Add(1)
		for range 3 {
			if r := f.Verify(t.Context(), "d", "s"); r.Outcome != wire.Deny {
				t.Fatalf("revoked: %+v", r)
			}
			if v, found := f.edge.verdict("d", "s"); found && v.Outcome == wire.Allow {
				t.Fatal("an allow was stored after the revocation")
			}
		}
		clock.Add(1)
		apply(false)
		if r := f.Verify(t.Context(), "d", "s"); r.Outcome != wire.Allow {
			t.Fatalf("restored: %+v", r)
		}
	}
	stop.Store(true)
	wg.Wait()
}

// TestRevocationDuringBcrypt is the same race, once, while bcrypt is certainly running.
func TestRevocationDuringBcrypt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		f := start(credential.Config{PinTTL: time.Hour, Compare: bcryptAfter(end)})
		c := device("d", 1, "s")
		f.Apply(c)
		result := make(chan credential.Result)
		go func() { result <- f.Verify(t.Context(), "d", "s") }()
		f.running(t)
		c.Version, c.Disabled, c.Revoked = 2, true, true
		f.Apply(c)
		close(end)
		if r := <-result; r.Outcome != wire.Deny || r.Reason != "revoked" {
			t.Errorf("Verify = %+v, want deny", r)
		}
		synctest.Wait()
		if v, found := f.edge.verdict("d", "s"); found && v.Outcome == wire.Allow {
			t.Error("an allow was stored after the revocation")
		}
	})
}

// TestRevocationDuringBcryptOfNobody is the same race after the caller has left, so that nobody asks again: the result
// of bcrypt must not be stored.
func TestRevocationDuringBcryptOfNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		f := start(credential.Config{PinTTL: time.Hour, Compare: bcryptAfter(end)})
		c := device("d", 1, "s")
		f.Apply(c)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		f.Verify(ctx, "d", "s")
		f.running(t)
		c.Version, c.Disabled, c.Revoked = 2, true, true
		f.Apply(c)
		close(end)
		synctest.Wait()
		if got := f.runs(t); got != 1 {
			t.Errorf("%d runs of bcrypt, want 1", got)
		}
		if v, found := f.edge.verdict("d", "s"); found {
			t.Errorf("%v was stored after the revocation", v.Outcome)
		}
	})
}

// TestDoubtDuringBcrypt: a run continues while the record is in doubt; its result counts if the record stays.
func TestDoubtDuringBcrypt(t *testing.T) {
	for _, test := range []struct {
		name    string
		inDoubt bool   // bcrypt ends in doubt
		version uint64 // of the record that is read then
		reason  credential.Reason
		runs    int // in all, including those of a second request
	}{
		{"ends in doubt", true, 1, "unsure", 1},
		{"ends in doubt of another with the same hash", true, 2, "unsure", 1},
		{"ends later", false, 1, "bcrypt", 1},
		{"ends later than another is read", false, 2, "bcrypt", 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			end := make(chan struct{})
			f := start(credential.Config{PinTTL: time.Hour, Compare: bcryptAfter(end)})
			c := device("d", 1, "s")
			f.Apply(c)
			result := make(chan credential.Result, 1)
			go func() { result <- f.Verify(t.Context(), "d", "s") }()
			f.running(t)
			f.Doubt("d")
			c.Version = test.version
			if !test.inDoubt {
				f.Apply(c)
			}
			close(end)
			if r := <-result; r.Reason != test.reason {
				t.Errorf("%s: Verify = %+v, want %s", test.name, r, test.reason)
			}
			if v, found := f.edge.verdict("d", "s"); test.inDoubt && found {
				t.Errorf("%s: %v was stored in doubt", test.name, v)
			}
			f.Apply(c)
			if r := f.Verify(t.Context(), "d", "s"); r.Outcome != wire.Allow {
				t.Errorf("%s: Verify = %+v, want allow", test.name, r)
			}
			if got := f.runs(t); got != test.runs {
				t.Errorf("%s: %d runs of bcrypt, want %d", test.name, got, test.runs)
			}
		})
	}
}

// running returns when a run of bcrypt has begun; call it in a synctest bubble.
func (f fixture) running(t *testing.T) {
	t.Helper()
	synctest.Wait()
	if got := metricstest.Value(t, f.metrics, "gatehouse_bcrypt_running"); got != 1 {
		t.Fatalf("%v runs of bcrypt, want 1", got)
	}
}

// TestQueueIsEmptiedByTheRightSecret: wrong secrets that wait for a worker cost no bcrypt once the right secret is
// known.
func TestQueueIsEmptiedByTheRightSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		f := start(credential.Config{PinTTL: time.Hour, Workers: 1, Compare: bcryptAfter(end)})
		f.Apply(device("d", 1, "right"))
		var wg sync.WaitGroup
		wg.Go(func() { f.Verify(t.Context(), "d", "right") })
		f.running(t)
		for i := range 8 {
			wg.Go(func() {
				if r := f.Verifier.Verify(t.Context(), "d", fmt.Sprint("wrong", i),
					fmt.Sprint("198.51.100.", i)); r.Outcome != wire.Deny || r.Reason != "resolved" {
					t.Errorf("wrong secret: %+v, want deny because the hash is resolved", r)
				}
			})
		}
		synctest.Wait()
		close(end)
		wg.Wait()
		if got := f.runs(t); got != 1 {
			t.Errorf("%d runs of bcrypt, want 1", got)
		}
	})
}

// awaitRunning waits until a run of bcrypt has begun, outside a bubble.
func (f fixture) awaitRunning(t *testing.T) {
	t.Helper()
	for metricstest.Value(t, f.metrics, "gatehouse_bcrypt_running") == 0 {
		if t.Context().Err() != nil {
			t.Fatal("bcrypt never ran")
		}
	}
}
