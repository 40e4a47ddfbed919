//go:build native

package dynmod

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// garbage is how much garbage may grow at least before Go collects it, bytes. Go's own least is 4 MiB: with few objects
// in memory, updates had it collect several times a second, beside the workers.
const garbage = 64 << 20

// mostPercent makes the first collection wait for this much garbage: at 100 %, Go begins at 4 MiB.
const mostPercent = 100 * garbage / (4 << 20)

// gcPercent returns how much garbage may grow, in percent of the live heap, which is in bytes: 100, as Go's default, or
// more if the heap is small.
func gcPercent(live uint64) int { return min(max(int(100*garbage/max(live, 1)), 100), mostPercent) }

// letGarbageGrow sets the percentage, now and after each collection. If GOGC is set in Envoy's environment, that
// counts.
func letGarbageGrow() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(mostPercent)
		afterCollection(mostPercent)
	}
}

// afterCollection adjusts the percentage after each further collection; set is the present percentage.
func afterCollection(set int) {
	runtime.AddCleanup(new([16]byte), func(set int) { // an unused object
		defer func() { LogPanic(recover()) }()
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		if want := gcPercent(live[0].Value.Uint64()); want < set || want > set+set/4 {
			debug.SetGCPercent(want) // SetGCPercent stops the world
			set = want
		}
		afterCollection(set)
	}, set)
}
