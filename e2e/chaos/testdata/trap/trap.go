// scripts/chaos-build.sh adds this file to the module that it builds, which traps when a request asks for it.

package edge

import (
	"bytes"
	"sync/atomic"
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// armed is when a trap in a push was asked for, nil if none was.
var armed atomic.Pointer[time.Time]

// armedFor is how long pushes of an object trap then, by the monotonic clock, which no fault steps.
const armedFor = time.Second

// trapIfAsked traps at an edge. At the push listener, it makes pushes of an object trap for armedFor.
func trapIfAsked(v *VM) {
	if !bytes.Contains(v.host.RequestHeaders(), []byte("x-chaos-trap")) {
		return
	}
	if v.engine.Config().PushListener {
		armed.Store(new(time.Now()))
		return
	}
	trap()
}

// trapInPush traps before a record is written, when the guard has been incremented.
func trapInPush(region wire.Region) {
	if at := armed.Load(); region == wire.RegionObjects && at != nil && time.Since(*at) < armedFor {
		trap()
	}
}
