// scripts/chaos-build.sh adds this file to the module that it builds, which traps when a request asks for it.

package main

import (
	"bytes"

	"github.com/gatehouse/gatehouse/wire"
)

// armedUntilMS is until when a push of an object traps, unix ms.
var armedUntilMS int64

// trapIfAsked traps at an edge. On the push listener, the next push of an object traps, if it arrives within a second.
func trapIfAsked(v *vm) {
	if !bytes.Contains(v.host.requestHeaders(), []byte("x-chaos-trap")) {
		return
	}
	if v.engine.Config().PushListener {
		armedUntilMS = v.host.now() + 1000
		return
	}
	trap()
}

// trapInPush traps before a record is written, when the guard has been incremented.
func trapInPush(h host, region wire.Region) {
	if region == wire.RegionObjects && h.now() < armedUntilMS {
		trap()
	}
}
