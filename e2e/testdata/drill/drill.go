// scripts/drill-build.sh adds this file to the dynamic module that it builds, which panics where a request asks for it.

package main

import (
	"os"
	"sync/atomic"
)

// armed is the place of the next panic.
var armed atomic.Pointer[string]

// arm arms the place that a request names.
func arm(p *proxy) {
	if place := string([]byte(p.RequestHeader("x-drill"))); place != "" {
		armed.Store(&place)
	}
}

// drill panics once if its place is armed.
func drill(place string) {
	if p := armed.Load(); p != nil && *p == place && armed.CompareAndSwap(p, nil) {
		panic("drill: " + place)
	}
}

// drillStart panics if the environment asks for it.
func drillStart() {
	if os.Getenv("GATEHOUSE_DRILL") == "configuration" {
		panic("drill: configuration")
	}
}
