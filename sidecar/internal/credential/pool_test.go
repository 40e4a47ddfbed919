package credential

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
)

// TestPoolSkipsTheUnwanted spends no worker on what nobody asks for any more.
func TestPoolSkipsTheUnwanted(t *testing.T) {
	p := newPool(1, 10, metrics.New())
	wanted := func(is bool) func() bool { return func() bool { return is } }
	first := &waiter{device: "first", class: clean, wanted: wanted(true)}
	if err := p.enter(first); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[string]error{}
	for device, is := range map[string]bool{"a": true, "b": false, "c": true, "d": false} {
		wg.Go(func() {
			w := &waiter{device: device, class: clean, wanted: wanted(is)}
			err := p.enter(w)
			mu.Lock()
			got[device] = err
			mu.Unlock()
			if err == nil {
				p.leave(w)
			}
		})
	}
	for waiting := 0; waiting < 4; {
		p.mu.Lock()
		waiting = p.queue.count
		p.mu.Unlock()
	}
	p.leave(first)
	wg.Wait()
	if got["a"] != nil || got["c"] != nil || !errors.Is(got["b"], errUnwanted) || !errors.Is(got["d"], errUnwanted) {
		t.Errorf("got %v, want workers for a and c", got)
	}
	if p.free != 1 || p.queue.count != 0 {
		t.Errorf("%d workers free, %d wait, want 1 and none", p.free, p.queue.count)
	}
}

// TestSuspectsRest runs suspects one after the other: the longer none of them matches, the
// longer the rests between them, in which others get the worker at once.
func TestSuspectsRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const run = 10 * time.Millisecond
		p := newPool(1, 10, metrics.New())
		enter := func(c class, device string) *waiter {
			w := &waiter{device: device, class: c, wanted: func() bool { return true }}
			if err := p.enter(w); err != nil {
				t.Fatal(err)
			}
			return w
		}
		// spent is how long a suspect waits until it has the worker, which it has for a run.
		spent := func(matched bool) time.Duration {
			begin := time.Now()
			w := enter(suspect, "suspect")
			waited := time.Since(begin)
			time.Sleep(run)
			w.ran, w.matched = run, matched
			p.leave(w)
			return waited
		}
		for i := range 100 {
			if want := run * time.Duration(min(i/restAfter, restMost)); spent(false) != want {
				t.Fatalf("after %d runs in vain: waited another time than %v", i, want)
			}
		}
		begin := time.Now()
		p.leave(enter(clean, "clean"))
		w := enter(known, "known")
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("others waited %v while suspects rest", waited)
		}
		time.Sleep(time.Hour)
		p.leave(w)
		spent(true)
		if waited := spent(false); waited != 0 {
			t.Errorf("waited %v after a match", waited)
		}
		if p.free != 1 || p.queue.count != 0 || p.timer != nil {
			t.Errorf("%d workers free, %d wait, timer %v; want 1 and none", p.free, p.queue.count, p.timer)
		}
	})
}

// TestRestEndsForAll lets many suspects wait at a rest: each gets its turn.
func TestRestEndsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(2, 100, metrics.New())
		p.inVain = 1000
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				w := &waiter{device: string(rune('a' + i)), class: suspect, wanted: func() bool { return i%5 > 0 }}
				if err := p.enter(w); err == nil {
					time.Sleep(time.Millisecond)
					w.ran = time.Millisecond
					p.leave(w)
				}
			})
		}
		wg.Wait()
		if p.free != 2 || p.queue.count != 0 {
			t.Errorf("%d workers free, %d wait, want 2 and none", p.free, p.queue.count)
		}
	})
}
