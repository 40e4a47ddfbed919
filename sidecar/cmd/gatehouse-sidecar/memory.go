package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// garbage is how much of the heap may be garbage, about, where it is large: what objects take stays for long, and
// as much again for garbage, as Go has it, would be most of the sidecar's memory.
const garbage = 24 << 20

// collector is the component that tells Go how much garbage to let there be. GOGC in the environment counts more.
type collector struct{}

// Run does so until ctx ends.
func (collector) Run(ctx context.Context) error {
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

// gcPercent is the percentage of the live heap, bytes, that may be garbage: less the larger it is.
func gcPercent(live uint64) int {
	const least, most = 12, 100
	return min(max(int(100*garbage/max(live, 1)), least), most)
}
