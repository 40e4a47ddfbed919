//go:build native

package dynmod

import "C"

import (
	"runtime"
	"sync"
)

// A callback from C runs on a P of Go's scheduler, and runs no goroutine, so the P's count of scheduled goroutines
// stays the same. After 10 ms Go's monitor thread takes the P for blocked in a system call: from now on it takes the P
// away every 20 µs, and the next callback has to find a P. An empty callback became dearer than a callback into a Wasm
// module. An occasional yield changes the count, and the monitor leaves the P alone.
//
// A thread keeps a P between callbacks: with as many threads as Ps, a yield would wait for a P. With two workers and
// two Ps a request cost 0.2 of a direct_response more.
//
// All this is internal to Go; TestGoVersion fails when Go changes, and says what to measure again.

// spareProcs is the least number of Ps beyond one for each serving thread: for Envoy's main thread, which calls the
// module, too, and for goroutines.
const spareProcs = 2

// yieldsMeasuredWith is the version of Go in the measurements of yields.
const yieldsMeasuredWith = "go1.26"

// setProcs makes enough Ps for a number of threads. It sets even a sufficient number: otherwise Go may lower the number
// later.
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
