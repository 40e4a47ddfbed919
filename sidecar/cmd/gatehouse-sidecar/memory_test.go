package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func TestGCPercent(t *testing.T) {
	for live, want := range map[uint64]int{0: 100, 4 << 20: 100, 24 << 20: 100, 48 << 20: 50, 160 << 20: 15, 4 << 30: 12} {
		if got := gcPercent(live); got != want {
			t.Errorf("%d bytes: got %d %%, want %d", live, got, want)
		}
	}
}

// TestCollector fills the heap: how much garbage there may be goes down.
func TestCollector(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- garbageTuner{}.Run(ctx) }()
	live, percent := make([][]byte, 0, 200), []metrics.Sample{{Name: "/gc/gogc:percent"}}
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
