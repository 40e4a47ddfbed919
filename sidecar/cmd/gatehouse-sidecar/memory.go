package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// garbage is the approximate bound of garbage in a large heap. Objects stay for long, and with Go's default as much
// again for garbage, garbage would be most of the sidecar's memory.
const garbage = 24 << 20

// garbageTuner is the component that sets how much garbage Go's runtime allows. GOGC in the environment takes
// precedence.
type garbageTuner struct{}

// Run adjusts the garbage collector until ctx ends.
func (garbageTuner) Run(ctx context.Context) error {
	if os.Getenv("GOGC") != "" {
		<-ctx.Done()
		return nil
	}
	const every = 250 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	for set := 100; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		metrics.Read(live)
		if want := gcPercent(live[0].Value.Uint64()); want < set || want > set+set/4 {
			debug.SetGCPercent(want)
			set = want
		}
	}
}

// gcPercent returns the percentage of the live heap, bytes, that may be garbage: the larger the heap, the less.
func gcPercent(live uint64) int {
	const least, most = 12, 100
	return min(max(int(100*garbage/max(live, 1)), least), most)
}
