//go:build native

package dynmod

import "C"

import "runtime"

// A callback from C runs on a P of Go's scheduler, and runs no goroutine, so the P's count of scheduled goroutines
// stays the same. Go's monitor thread then takes the P for one that a system call blocks: it takes it away every 20 µs,
// and the next callback has to find another one. That made an empty callback more expensive than one into a Wasm
// module. It doesn't happen if the count changes now and then, which a yield does, and if there is another P to run
// what was yielded to.
//
// All that are internals of Go; TestGoVersion fails when Go changes, and says what to measure again.

// leastProcs is the least number of Ps with which a yield returns at once.
const leastProcs = 2

// yieldsMeasuredWith is the version of Go with which the yields were measured.
const yieldsMeasuredWith = "go1.26"

// startScheduler sets the number of Ps, also where it is enough: otherwise Go may lower it later.
func startScheduler() { runtime.GOMAXPROCS(max(leastProcs, runtime.GOMAXPROCS(0))) }

//export goYield
func goYield() { runtime.Gosched() }
