package credential

import (
	"errors"
	"sync"
	"testing"

	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
)

// TestPoolSkipsTheUnwanted spends no worker on what nobody asks for any more.
func TestPoolSkipsTheUnwanted(t *testing.T) {
	p := newPool(1, 10, metrics.New())
	wanted := func(is bool) func() bool { return func() bool { return is } }
	if err := p.enter(&waiter{device: "first", class: clean, wanted: wanted(true)}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[string]error{}
	for device, is := range map[string]bool{"a": true, "b": false, "c": true, "d": false} {
		wg.Go(func() {
			err := p.enter(&waiter{device: device, class: clean, wanted: wanted(is)})
			mu.Lock()
			got[device] = err
			mu.Unlock()
			if err == nil {
				p.leave()
			}
		})
	}
	for waiting := 0; waiting < 4; {
		p.mu.Lock()
		waiting = p.queue.count
		p.mu.Unlock()
	}
	p.leave()
	wg.Wait()
	if got["a"] != nil || got["c"] != nil || !errors.Is(got["b"], errUnwanted) || !errors.Is(got["d"], errUnwanted) {
		t.Errorf("got %v, want workers for a and c", got)
	}
	if p.free != 1 || p.queue.count != 0 {
		t.Errorf("%d workers free, %d wait, want 1 and none", p.free, p.queue.count)
	}
}
