package credential

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
)

// TestPoolSkipsTheUnwanted gives no worker to attempts without a waiting request.
func TestPoolSkipsTheUnwanted(t *testing.T) {
	p := newPool(1, 10, metrics.New())
	wanted := func(is bool) func() bool { return func() bool { return is } }
	first := &waiter{device: "first", class: clean, wanted: wanted(true)}
	if err := p.acquireWorker(first); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[string]error{}
	for device, is := range map[string]bool{"a": true, "b": false, "c": true, "d": false} {
		wg.Go(func() {
			w := &waiter{device: device, class: clean, wanted: wanted(is)}
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
		waiting = p.queue.count
		p.mu.Unlock()
	}
	p.releaseWorker(first)
	wg.Wait()
	if got["a"] != nil || got["c"] != nil || !errors.Is(got["b"], errUnwanted) || !errors.Is(got["d"], errUnwanted) {
		t.Errorf("got %v, want workers for a and c", got)
	}
	if p.free != 1 || p.queue.count != 0 {
		t.Errorf("%d workers free, %d wait, want 1 and none", p.free, p.queue.count)
	}
}

// TestSuspectsRest runs suspects in sequence: the more suspects don't match, the longer the rests between them, in
// which clean attempts get the worker at once.
func TestSuspectsRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const run = 10 * time.Millisecond
		p := newPool(1, 10, metrics.New())
		enter := func(c class, device string) *waiter {
			w := &waiter{device: device, class: c, wanted: func() bool { return true }}
			if err := p.acquireWorker(w); err != nil {
				t.Fatal(err)
			}
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
		if p.free != 1 || p.queue.count != 0 || p.timer != nil {
			t.Errorf("%d workers free, %d wait, timer %v; want 1 and none", p.free, p.queue.count, p.timer)
		}
	})
}

// TestRestEndsForAll: many suspects wait for the end of a rest, and each gets its turn.
func TestRestEndsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(2, 100, metrics.New())
		p.runsWithoutMatch = 1000
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				w := &waiter{device: string(rune('a' + i)), class: suspect, wanted: func() bool { return i%5 > 0 }}
				if err := p.acquireWorker(w); err == nil {
					time.Sleep(time.Millisecond)
					w.ran = time.Millisecond
					p.releaseWorker(w)
				}
			})
		}
		wg.Wait()
		if p.free != 2 || p.queue.count != 0 {
			t.Errorf("%d workers free, %d wait, want 2 and none", p.free, p.queue.count)
		}
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
			var started, running, ended atomic.Int32
			var busy atomic.Bool
			enter := func(c class, device string) *waiter {
				w := &waiter{device: device, class: c, wanted: func() bool { return true }}
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
			if p.free != workers || p.queue.count != 0 || len(p.running)+len(p.queue.paused) > 0 {
				t.Errorf("%d workers free, %d wait, %d run, %d are paused; want %d and none", p.free, p.queue.count,
					len(p.running), len(p.queue.paused), workers)
			}
		}
	})
}

// TestPausedGoOn keeps the only worker busy with clean devices, some of which always wait: the suspect's run gets its
// turns nevertheless.
func TestPausedGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const run = 200 * time.Millisecond
		p := newPool(1, 100, metrics.New())
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
					w := &waiter{device: string(rune('a' + i)), class: clean, wanted: func() bool { return true }}
					if err := p.acquireWorker(w); err != nil {
						t.Error(err)
					}
					time.Sleep(run)
					p.releaseWorker(w)
				}
			})
		}
		w := &waiter{device: "suspect", class: suspect, wanted: func() bool { return true }}
		if err := p.acquireWorker(w); err != nil {
			t.Fatal(err)
		}
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
