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

// mostPercent makes the first collection wait for so much, since Go's 4 MiB are for 100 %.
const mostPercent = 100 * garbage / (4 << 20)

// gcPercent is the percentage of the live heap, bytes, that may be garbage: Go's default, and more of a small heap.
func gcPercent(live uint64) int { return min(max(int(100*garbage/max(live, 1)), 100), mostPercent) }

// letGarbageGrow tells Go how much garbage to let there be, now and after each collection. GOGC in Envoy's environment
// counts more.
func letGarbageGrow() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(mostPercent)
		afterCollection(mostPercent)
	}
}

// afterCollection sets the percentage, which is set now, again after the next collection.
func afterCollection(set int) {
	runtime.AddCleanup(new([16]byte), func(set int) { // an object that the collection finds unused
		defer func() { Recovered(recover()) }()
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		if want := gcPercent(live[0].Value.Uint64()); want < set || want > set+set/4 {
			debug.SetGCPercent(want) // it stops the world
			set = want
		}
		afterCollection(set)
	}, set)
}
