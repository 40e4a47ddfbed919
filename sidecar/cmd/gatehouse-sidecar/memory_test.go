package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
)

func TestGCPercent(t *testing.T) {
	for _, test := range []struct {
		live, start uint64
		want        int
	}{
		{0, 0, 100}, {4 << 20, 0, 100}, {24 << 20, 0, 100}, {48 << 20, 0, 50}, {160 << 20, 0, 15}, {4 << 30, 0, 12},
		{4 << 20, 400 << 20, 9900}, {100 << 20, 400 << 20, 300}, {160 << 20, 200 << 20, 25}, {400 << 20, 400 << 20, 12},
		{1 << 30, 400 << 20, 12},
	} {
		if got := gcPercent(test.live, test.start); got != test.want {
			t.Errorf("%d bytes, %d in the end: got %d %%, want %d", test.live, test.start, got, test.want)
		}
	}
}

// TestCollector fills the heap: how much garbage there may be goes down. During a start it was more.
func TestCollector(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	var start atomic.Int64
	start.Store(1 << 40)
	const most = 512 << 20
	runtime.GC() // frees what other tests left
	go func() { done <- garbageTuner{start.Load, most}.Run(ctx) }()
	live, percent := make([][]byte, 0, 200), []metrics.Sample{{Name: "/gc/gogc:percent"}}
	await.Until(t, "more garbage", func() bool {
		metrics.Read(percent)
		return percent[0].Value.Uint64() > 200
	})
	if got := percent[0].Value.Uint64(); got > 100*most>>20 { // at least 1 MiB is live
		t.Errorf("got %d %%, want at most %d bytes", got, most)
	}
	start.Store(0)
	for end := time.Now().Add(30 * time.Second); ; {
		if len(live) < cap(live) {
			live = append(live, make([]byte, 1<<20))
		}
		metrics.Read(percent)
		got := percent[0].Value.Uint64()
		if got <= 50 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("still %d %% at %d MiB", got, len(live))
		}
		<-time.After(time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	runtime.KeepAlive(live)
}
