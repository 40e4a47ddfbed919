//go:build native

package dynmod

import (
	"runtime"
	"strings"
	"testing"
)

// TestGoVersion fails with a Go whose scheduler was not measured.
func TestGoVersion(t *testing.T) {
	if v := runtime.Version(); v != yieldsMeasuredWith && !strings.HasPrefix(v, yieldsMeasuredWith+".") &&
		!strings.HasPrefix(v, yieldsMeasuredWith+"-") {
		t.Errorf("got %s, want %s: measure passes and 304s by one worker and two, with and without the yields of yield.h "+
			"(EDGE_KIND=native WORKERS=2 make loadtest SCENARIO=ratio), and then change yieldsMeasuredWith",
			v, yieldsMeasuredWith)
	}
}

func TestProcs(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for threads := 1; threads <= 5; threads++ {
		setProcs(threads)
		if got := runtime.GOMAXPROCS(0); got < threads+spareProcs {
			t.Errorf("got %d Ps with %d threads, want %d", got, threads, threads+spareProcs)
		}
	}
}
