//go:build native

package dynmod

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func TestGCPercent(t *testing.T) {
	for live, want := range map[uint64]int{0: 1600, 4 << 20: 1600, 16 << 20: 400, 64 << 20: 100, 1 << 30: 100} {
		if got := gcPercent(live); got != want {
			t.Errorf("%d bytes: got %d %%, want %d", live, got, want)
		}
	}
}

// TestLetGarbageGrow fills the heap, and empties the heap: the allowed garbage follows.
func TestLetGarbageGrow(t *testing.T) {
	t.Setenv("GOGC", "")
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	percent := func() int {
		sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(sample)
		return int(sample[0].Value.Uint64())
	}
	await := func(what string, ok func(percent int) bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !ok(percent()); runtime.GC() {
			if time.Now().After(end) {
				t.Fatalf("%s: still %d %%", what, percent())
			}
		}
	}
	letGarbageGrow()
	if got := percent(); got != mostPercent {
		t.Errorf("at first: got %d %%, want %d", got, mostPercent)
	}
	live := make([]byte, 32<<20)
	await("32 MiB are live", func(p int) bool { return p <= 200 })
	runtime.KeepAlive(live)
	live = make([]byte, 128<<20)
	await("128 MiB are live", func(p int) bool { return p == 100 })
	runtime.KeepAlive(live)
	await("little is live", func(p int) bool { return p > 400 })
}
