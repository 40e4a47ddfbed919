package credential

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/metrics"
)

// TestPoolSkipsTheUnwanted gives no worker to attempts without a waiting request.
func TestPoolSkipsTheUnwanted(t *testing.T) {
	p := newPool(1, 10, metrics.New())
	e := p.newEdge()
	wanted := func(is bool) func() bool { return func() bool { return is } }
	first := &waiter{edge: e, device: "first", class: clean, wanted: wanted(true)}
	require.NoError(t, p.acquireWorker(first))
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[string]error{}
	for device, is := range map[string]bool{"a": true, "b": false, "c": true, "d": false} {
		wg.Go(func() {
			w := &waiter{edge: e, device: device, class: clean, wanted: wanted(is)}
			err := p.acquireWorker(w)
			mu.Lock()
			got[device] = err
			mu.Unlock()
			if err == nil {
				p.releaseWorker(w)
			}
		})
	}
	for waiting := 0; waiting < 4; {
		p.mu.Lock()
		waiting = e.count
		p.mu.Unlock()
	}
	p.releaseWorker(first)
	wg.Wait()
	if got["a"] != nil || got["c"] != nil || !errors.Is(got["b"], errUnwanted) || !errors.Is(got["d"], errUnwanted) {
		t.Errorf("got %v, want workers for a and c", got)
	}
	p.expectIdle(t)
}

// expectIdle expects that all workers are free, and that no attempt waits, runs or is paused.
func (p *pool) expectIdle(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free != p.workers || len(p.waiting)+len(p.running) > 0 {
		t.Errorf("%d workers free, %d edges wait, %d run; want %d and none", p.free, len(p.waiting), len(p.running),
			p.workers)
	}
}

// TestSuspectsRest runs suspects in sequence: the more suspects don't match, the longer the rests between them, in
// which clean attempts get the worker at once.
func TestSuspectsRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const run = 10 * time.Millisecond
		p := newPool(1, 10, metrics.New())
		e := p.newEdge()
		enter := func(c class, device string) *waiter {
			w := &waiter{edge: e, device: device, class: c, wanted: func() bool { return true }}
			require.NoError(t, p.acquireWorker(w))
			return w
		}
		// spent returns how long a suspect waits for the worker, and uses the worker for a run.
		spent := func(matched bool) time.Duration {
			begin := time.Now()
			w := enter(suspect, "suspect")
			waited := time.Since(begin)
			time.Sleep(run)
			w.ran, w.matched = run, matched
			p.releaseWorker(w)
			return waited
		}
		for i := range 100 {
			if want := run * time.Duration(min(i/restAfter, maxRestFactor)); spent(false) != want {
				t.Fatalf("after %d runs in vain: waited another time than %v", i, want)
			}
		}
		begin := time.Now()
		p.releaseWorker(enter(clean, "clean"))
		w := enter(familiar, "familiar")
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("others waited %v while suspects rest", waited)
		}
		time.Sleep(time.Hour)
		p.releaseWorker(w)
		spent(true)
		if waited := spent(false); waited != 0 {
			t.Errorf("waited %v after a match", waited)
		}
		p.expectIdle(t)
		if p.timer != nil { // +checklocksignore: nothing is concurrent
			t.Error("a timer is left")
		}
	})
}

// TestRestEndsForAll: many suspects wait for the end of a rest, and each gets its turn.
func TestRestEndsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(2, 100, metrics.New())
		e := p.newEdge()
		e.runsWithoutMatch = 1000
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				w := &waiter{edge: e, device: string(rune('a' + i)), class: suspect, wanted: func() bool { return i%5 > 0 }}
				if err := p.acquireWorker(w); err == nil {
					time.Sleep(time.Millisecond)
					w.ran = time.Millisecond
					p.releaseWorker(w)
				}
			})
		}
		wg.Wait()
		p.expectIdle(t)
	})
}

// TestSuspectsHoldNobodyUp: suspects' runs get no CPU while clean attempts wait. A clean attempt waits for a slice and
// a run at most. The suspects' runs are paused and not restarted, never outnumber the workers, and end when CPU is
// free.
func TestSuspectsHoldNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const run = 200 * time.Millisecond
		for _, workers := range []int{1, 2} {
			p := newPool(workers, 100, metrics.New())
			e := p.newEdge()
			var started, running, ended atomic.Int32
			var busy atomic.Bool
			enter := func(c class, device string) *waiter {
				w := &waiter{edge: e, device: device, class: c, wanted: func() bool { return true }}
				if err := p.acquireWorker(w); err != nil {
					t.Error(err)
				}
				return w
			}
			busy.Store(true)
			var suspects sync.WaitGroup
			for i := range 5 {
				suspects.Go(func() {
					w := enter(suspect, string(rune('a'+i)))
					if under := started.Add(1) - ended.Load(); int(under) > workers {
						t.Errorf("%d runs of suspects are under way, want at most %d", under, workers)
					}
					running.Add(1)
					for left, paused := run, false; left > 0; {
						select {
						case paused = <-w.pace:
							if paused {
								running.Add(-1)
							} else {
								running.Add(1)
							}
						case <-time.After(10 * time.Millisecond):
							if !busy.Load() && !paused {
								left -= 10 * time.Millisecond
							}
						}
					}
					running.Add(-1)
					ended.Add(1)
					w.ran = run
					p.releaseWorker(w)
				})
			}
			synctest.Wait()
			if int(started.Load()) != workers {
				t.Fatalf("%d suspects have %d workers", started.Load(), workers)
			}
			for i := range 50 {
				began := time.Now()
				w := enter(clean, "clean")
				if waited := time.Since(began); waited > slice {
					t.Errorf("%d: a clean device waited %v, want at most %v", i, waited, slice)
				}
				time.Sleep(run)
				synctest.Wait()
				if int(running.Load()) > workers-1 {
					t.Errorf("%d: %d suspects run beside a clean device on %d workers", i, running.Load(), workers)
				}
				w.ran = run
				p.releaseWorker(w)
				if i%2 == 0 {
					time.Sleep(10 * time.Millisecond)
				}
			}
			if ended.Load() != 0 {
				t.Fatalf("%d runs have ended without a processor", ended.Load())
			}
			busy.Store(false)
			suspects.Wait()
			p.expectIdle(t)
		}
	})
}

// TestPausedGoOn keeps the only worker busy with clean devices, some of which always wait: the suspect's run gets its
// turns nevertheless.
func TestPausedGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const run = 200 * time.Millisecond
		p := newPool(1, 100, metrics.New())
		e := p.newEdge()
		done := make(chan struct{})
		var others sync.WaitGroup
		for i := range 3 {
			others.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					w := &waiter{edge: e, device: string(rune('a' + i)), class: clean, wanted: func() bool { return true }}
					if err := p.acquireWorker(w); err != nil {
						t.Error(err)
					}
					time.Sleep(run)
					p.releaseWorker(w)
				}
			})
		}
		w := &waiter{edge: e, device: "suspect", class: suspect, wanted: func() bool { return true }}
		require.NoError(t, p.acquireWorker(w))
		began, paused, pauses := time.Now(), false, 0
		for left := 4 * slice; left > 0; {
			select {
			case paused = <-w.pace:
				pauses++
			case <-time.After(10 * time.Millisecond):
				if !paused {
					left -= 10 * time.Millisecond
				}
			}
		}
		took := time.Since(began)
		p.releaseWorker(w)
		close(done)
		others.Wait()
		if most := 4*slice + 4*4*run; pauses < 4 || took > most {
			t.Errorf("%d pauses, and %v for %v of work, want some and at most %v", pauses, took, 4*slice, most)
		}
	})
}

// TestEdgesTakeTurns: a worker serves the edge that was served the longest ago. An edge that leaves leaves nothing
// behind, but its paused run ends.
func TestEdgesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(1, 100, metrics.New())
		a, b, c := p.newEdge(), p.newEdge(), p.newEdge()
		var order []*waiter
		var refused atomic.Int32
		enter := func(e *edgeQueue, class class, device string) {
			go func() {
				w := &waiter{edge: e, device: device, class: class, wanted: func() bool { return true }}
				if err := p.acquireWorker(w); err != nil {
					refused.Add(1)
					return
				}
				order = append(order, w)
			}()
			synctest.Wait()
		}
		serve := func(want *edgeQueue) {
			t.Helper()
			p.releaseWorker(order[len(order)-1])
			synctest.Wait()
			if got := order[len(order)-1]; got.edge != want {
				t.Errorf("the worker went to %s", got.device)
			}
		}
		for i := range 6 {
			enter(a, clean, string(rune('a'+i)))
		}
		enter(b, clean, "b")
		enter(b, clean, "b2")
		enter(c, suspect, "c")
		serve(b) // b and c were never served, and c came after b
		serve(c)
		serve(a)
		serve(b)
		serve(a)
		enter(b, familiar, "b3")
		serve(b)
		p.removeEdge(a)
		synctest.Wait()
		if refused.Load() != 3 {
			t.Errorf("%d attempts of the edge that left are refused, want 3", refused.Load())
		}
		enter(c, suspect, "c2")
		serve(c)
		time.Sleep(slice)
		enter(b, clean, "b4") // pauses c2
		p.removeEdge(c)
		p.releaseWorker(order[len(order)-1])
		w := order[len(order)-2]
		if pause := <-w.pace; pause {
			t.Error("the paused run of an edge that left does not continue")
		}
		p.releaseWorker(w)
		p.expectIdle(t)
	})
}
