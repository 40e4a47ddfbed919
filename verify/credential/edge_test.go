package credential_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// bcryptFor returns a Compare that takes a time without pauses, and matches secrets that begin with "right".
func bcryptFor(run time.Duration) func(hash, secret string, pace <-chan bool) error {
	return func(_, secret string, pace <-chan bool) error {
		for left, paused := run, false; left > 0; {
			began := time.Now()
			end := time.NewTimer(left)
			if paused {
				end.Stop()
			}
			select {
			case paused = <-pace:
			case <-end.C:
				return matchRight(secret)
			}
			if paused {
				left -= time.Since(began)
			}
		}
		return matchRight(secret)
	}
}

func matchRight(secret string) error {
	if len(secret) >= 5 && secret[:5] == "right" {
		return nil
	}
	return bcrypt.ErrMismatchedHashAndPassword
}

// TestFloodAtAnEdge floods edge A with up to 10,000 attempts of each class, which fill its queue: a familiar device at
// edge B waits for one run, or one slice, and 20 of them at once wait for one run of A each, which A gets. Only
// attempts at A are refused.
func TestFloodAtAnEdge(t *testing.T) {
	const run, slice, good = 200 * time.Millisecond, 250 * time.Millisecond, 20
	for _, class := range []string{"familiar", "clean", "suspect"} {
		for _, workers := range []int{1, 2} {
			flood := 500
			if class == "clean" && workers == 1 {
				flood = 10_000
			}
			t.Run(fmt.Sprint(class, " ", workers), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var runsOfA atomic.Int64
					f := start(credential.Config{PinTTL: time.Hour, Workers: workers, Queue: 100, Wait: time.Hour,
						Limits: credential.Limits{DeviceFailures: 1000, SourceFailures: 1000, Window: time.Minute},
						Compare: func(hash, secret string, pace <-chan bool) error {
							if secret != "right" {
								runsOfA.Add(1)
							}
							return bcryptFor(run)(hash, secret, pace)
						}})
					a, b := f.AddEdge(), f.AddEdge()
					hashes := 0
					put := func(id string, version uint64) { // the hash is new, so no result of an earlier run counts
						hashes++
						d := device(id, version)
						d.Hashes = []string{fmt.Sprintf("$2a$04$%053d", hashes)}
						f.Apply(d)
					}
					f.letIn(t, b, good, put)
					source := func(i int) string { return fmt.Sprintf("198.51.%d.%d", i/250%250, i%250) }
					switch class {
					case "familiar":
						for i := range 100 {
							put(fmt.Sprint("a", i), 1)
							a.Verify(t.Context(), fmt.Sprint("a", i), "right", source(i))
							put(fmt.Sprint("a", i), 2)
						}
					case "suspect":
						put("a0", 1)
						for i := range 100 {
							a.Verify(t.Context(), "a0", fmt.Sprint("wrong", i), source(i))
						}
					}
					for i := range 100 {
						put(fmt.Sprint("a", i), 3)
					}
					time.Sleep(time.Minute) // after all rests
					stop, end := context.WithCancel(t.Context())
					var all sync.WaitGroup
					var refused atomic.Int64
					for i := range flood {
						all.Go(func() {
							from := source(i)
							if class != "clean" {
								from = source(i % 100)
							}
							if a.Verify(stop, fmt.Sprint("a", i%100), fmt.Sprint("wrong", i), from).Reason == "overload" {
								refused.Add(1)
							}
						})
					}
					synctest.Wait()
					if refused.Load() < int64(flood-200) {
						t.Errorf("%d attempts at A refused, want all but those in the queue", refused.Load())
					}
					put("b0", 2) // again with bcrypt
					if took := f.timeRight(t, b, 0); took > run+max(run, slice) {
						t.Errorf("a device at B took %v, want %v", took, 2*run)
					}
					took := make([]time.Duration, good)
					before := runsOfA.Load()
					var devices sync.WaitGroup
					for i := range good {
						put(fmt.Sprint("b", i), 3)
						devices.Go(func() { took[i] = f.timeRight(t, b, i) })
					}
					devices.Wait()
					slices.Sort(took)
					// Each of them is followed by a run of A.
					if most := time.Duration(2*good/workers+2) * max(run, slice); took[good-1] > most {
						t.Errorf("the last device at B took %v, want at most %v", took[good-1], most)
					}
					if runs := runsOfA.Load() - before; class != "suspect" && runs < good/2 {
						t.Errorf("A had %d runs beside %d of B, want about as many", runs, good)
					}
					end()
					all.Wait()
					a.RemoveEdge()
					time.Sleep(time.Hour)
					for _, gauge := range []string{"gatehouse_bcrypt_queued", "gatehouse_bcrypt_running"} {
						if got := metricstest.Value(t, f.metrics, gauge); got != 0 {
							t.Errorf("%s is %v after edge A has gone", gauge, got)
						}
					}
				})
			})
		}
	}
}

// letIn lets n devices b0, b1, … authenticate at an edge.
func (f fixture) letIn(t *testing.T, at *credential.Verifier, n int, put func(id string, version uint64)) {
	t.Helper()
	for i := range n {
		put(fmt.Sprint("b", i), 1)
		f.timeRight(t, at, i)
	}
}

// timeRight verifies device b0, b1, … at an edge, and returns how long that took.
func (f fixture) timeRight(t *testing.T, at *credential.Verifier, i int) time.Duration {
	t.Helper()
	began := time.Now()
	r := at.Verify(t.Context(), fmt.Sprint("b", i), "right", fmt.Sprint("192.0.2.", i))
	if r.Outcome != wire.Allow || r.Reason != "bcrypt" {
		t.Errorf("device %d at B: %+v, want allow by bcrypt", i, r)
	}
	return time.Since(began)
}

// TestLimitsOfAnEdge sends wrong secrets to edge A from the address of devices at edge B, and to B's device: neither
// delays anyone at B.
func TestLimitsOfAnEdge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(credential.Config{PinTTL: time.Hour, Limits: fewFailures, Compare: bcryptFor(time.Millisecond)})
		a, b := f.AddEdge(), f.AddEdge()
		for _, id := range []string{"new", "known", "x", "y", "z"} {
			f.Apply(device(id, 1, "right"))
		}
		show := func(at *credential.Verifier, id, secret string, outcome wire.Outcome, reason credential.Reason) {
			t.Helper()
			if r := at.Verify(t.Context(), id, secret, nat); r.Outcome != outcome || r.Reason != reason {
				t.Errorf("%s with %s: %+v, want %v because of %s", id, secret, r, outcome, reason)
			}
		}
		show(b, "known", "right", wire.Allow, "bcrypt")
		f.Apply(device("known", 2, "right"))
		for i := range fewFailures.SourceFailures {
			show(a, []string{"new", "x", "y"}[i%3], fmt.Sprint("wrong", i), wire.Deny, "bcrypt")
		}
		for i := range 100 {
			a.Verify(t.Context(), "known", fmt.Sprint("wrong", i), nat)
		}
		show(a, "z", "right", wire.Unavailable, "limited")
		if held := f.ListHolds(); len(held) == 0 {
			t.Error("no hold at A is listed")
		}
		show(b, "new", "wrong", wire.Deny, "bcrypt")
		show(b, "new", "right", wire.Allow, "bcrypt")
		show(b, "known", "right", wire.Allow, "bcrypt")
		network, _ := credential.NetworkOf(nat)
		if n := f.ReleaseHold(network, ""); n == 0 {
			t.Error("no hold at A is released")
		}
		show(a, "z", "right", wire.Allow, "bcrypt")
		for i := range 10 {
			a.Verify(t.Context(), "x", fmt.Sprint("again", i), nat)
		}
		a.RemoveEdge()
		b.RemoveEdge()
		if held := f.ListHolds(); len(held) > 0 {
			t.Errorf("after the edges have gone, %v is held", held)
		}
	})
}

// TestOneRunForAllEdges shows a credential at 60 edges at once: bcrypt runs once, also for a wrong secret.
func TestOneRunForAllEdges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for secret, want := range map[string]wire.Outcome{"right": wire.Allow, "wrong": wire.Deny} {
			f := start(credential.Config{PinTTL: time.Hour, Workers: 4, Compare: bcryptFor(time.Second)})
			f.Apply(device("d", 1, "right"))
			var all sync.WaitGroup
			for range 60 {
				at := f.AddEdge()
				all.Go(func() {
					if r := at.Verify(t.Context(), "d", secret, nat); r.Outcome != want {
						t.Errorf("got %+v, want %v", r, want)
					}
				})
			}
			all.Wait()
			if got := f.runs(t); got != 1 {
				t.Errorf("%d runs of bcrypt for the %s secret, want 1", got, secret)
			}
		}
	})
}

// TestRunOfASuspect: a suspect's run at edge A is paused for as long as attempts wait, so a device at B gets a run.
func TestRunOfASuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(credential.Config{PinTTL: time.Hour, Workers: 2, Limits: fewFailures,
			Compare: bcryptFor(10 * time.Second)})
		a, b := f.AddEdge(), f.AddEdge()
		f.Apply(device("d", 1, "right"))
		a.Verify(t.Context(), "d", "wrong", nat)
		go a.Verify(t.Context(), "d", "right", nat)
		time.Sleep(time.Second)
		began := time.Now()
		r := b.Verify(t.Context(), "d", "right", "192.0.2.9")
		if took := time.Since(began); r.Outcome != wire.Allow || took > 10*time.Second {
			t.Errorf("got %+v after %v", r, took)
		}
		if got := f.runs(t); got != 3 {
			t.Errorf("%d runs of bcrypt, want 3", got)
		}
	})
}

// TestRestsOfAnEdge: failures of suspects at edge A delay no suspect at B.
func TestRestsOfAnEdge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const run = 100 * time.Millisecond
		f := start(credential.Config{PinTTL: time.Hour, Workers: 1, Compare: bcryptFor(run),
			Limits: credential.Limits{DeviceFailures: 1000, SourceFailures: 1000, Window: time.Minute}})
		a, b := f.AddEdge(), f.AddEdge()
		f.Apply(device("d", 1, "right"))
		b.Verify(t.Context(), "d", "wrong", nat)
		for i := range 100 {
			a.Verify(t.Context(), "d", fmt.Sprint("wrong", i), nat)
		}
		f.Apply(device("d", 2, "right")) // the secrets are not refuted
		began := time.Now()
		a.Verify(t.Context(), "d", "wrong at A", nat)
		if took := time.Since(began); took != 9*run {
			t.Errorf("at A: %v, want a rest of eight runs and a run", took)
		}
		began = time.Now()
		b.Verify(t.Context(), "d", "wrong at B", nat)
		if took := time.Since(began); took != run {
			t.Errorf("at B: %v, want a run", took)
		}
	})
}

// TestCallsLeaveRoom: the authority hangs for edge A's devices, of which few are asked about at once. B's are asked
// about.
func TestCallsLeaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var calls atomic.Int64
		f := start(credential.Config{MaxAnswers: 10, Authority: askFunc(func(id string) credential.Answer {
			calls.Add(1)
			if id != "b" {
				<-release
			}
			return credential.Answer{Allow: id == "b"}
		})})
		a, b := f.AddEdge(), f.AddEdge()
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() { a.Verify(t.Context(), fmt.Sprint("a", i), "s", fmt.Sprint("192.0.2.", i)) })
		}
		synctest.Wait()
		if got := calls.Load(); got != 16 {
			t.Errorf("%d calls for A, want 16", got)
		}
		if r := b.Verify(t.Context(), "b", "s", nat); r.Outcome != wire.Allow {
			t.Errorf("at B: %+v", r)
		}
		close(release)
		all.Wait()
	})
}

// askFunc is an authority that decides by the device's id.
type askFunc func(id string) credential.Answer

func (ask askFunc) Ask(_ context.Context, id, _ string, _ bool) (credential.Answer, error) {
	return ask(id), nil
}
