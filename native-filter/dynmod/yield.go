//go:build native

package dynmod

import "C"

import (
	"runtime"
	"sync"
)

// A callback from C runs on a P of Go's scheduler, and runs no goroutine, so the P's count of scheduled goroutines
// stays the same. After 10 ms Go's monitor thread concludes that a system call blocks the P. From then on it takes the
// P away every 20 µs, and the next callback has to find another one. That made an empty callback more expensive than
// one into a Wasm module. It doesn't happen if the count changes now and then, which a yield does.
//
// A thread keeps its P between callbacks, so there must be more Ps than threads, or a yield waits for one. With two
// workers and two Ps a request cost 0.2 of a direct_response more.
//
// All that are internals of Go; TestGoVersion fails when Go changes, and says what to measure again.

// spareProcs is how many Ps there are at least beyond one for each thread that serves requests: for Envoy's main
// thread, which calls the module, too, and for goroutines.
const spareProcs = 2

// yieldsMeasuredWith is the version of Go with which the yields were measured.
const yieldsMeasuredWith = "go1.26"

// setProcs makes enough Ps for a number of threads. It sets their number also where it is enough: otherwise Go may
// lower it later.
func setProcs(threads int) {
	procs.Lock()
	defer procs.Unlock()
	runtime.GOMAXPROCS(max(threads+spareProcs, runtime.GOMAXPROCS(0)))
}

// procs serializes changes of the number of Ps: workers begin together.
var procs sync.Mutex

//export goThread
func goThread(threads C.uint) {
	defer func() { logPanic(recover(), "new thread") }()
	setProcs(int(threads))
}

//export goYield
func goYield() { runtime.Gosched() }
