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
type garbageTuner struct {
	// startBytes returns how large the heap will be at the end of the start; 0: unknown, or the start is over.
	startBytes func() int64
	most       int64 // of startBytes that counts
}

// Run adjusts the garbage collector until ctx ends.
func (g garbageTuner) Run(ctx context.Context) error {
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
		start := uint64(min(g.startBytes(), g.most))
		if want := gcPercent(live[0].Value.Uint64(), start); want < set || want > set+set/4 {
			debug.SetGCPercent(want)
			set = want
		}
	}
}

// gcPercent returns the percentage of the live heap, bytes, that may be garbage: the larger the heap, the less. A heap
// that will soon have start bytes is not collected before: collections while it grows took most of a start's CPU.
func gcPercent(live, start uint64) int {
	const least, most = 12, 100
	live = max(live, 1)
	return max(min(max(int(100*garbage/live), least), most), int(100*(max(start, live)-live)/live))
}
