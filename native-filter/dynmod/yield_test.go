//go:build native

package dynmod

import (
	"runtime"
	"strings"
	"testing"
)

// TestGoVersion fails with a Go whose scheduler was not measured.
func TestGoVersion(t *testing.T) {
	if v := runtime.Version(); v != yieldsMeasuredWith && !strings.HasPrefix(v, yieldsMeasuredWith+".") && !strings.HasPrefix(v, yieldsMeasuredWith+"-") {
		t.Errorf("got %s, want %s: measure passes and 304s with and without the yields of yield.h (EDGE_KIND=native make loadtest SCENARIO=ratio), and then change yieldsMeasuredWith", v, yieldsMeasuredWith)
	}
}

func TestProcs(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	startScheduler()
	if got := runtime.GOMAXPROCS(0); got < leastProcs {
		t.Errorf("got %d Ps, want %d: a yield would wait for what it yields to", got, leastProcs)
	}
}
