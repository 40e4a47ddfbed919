package edge

import (
	"net/netip"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// maxThrottled bounds the throttled sources. Beyond the bound, each request from a new source costs a call.
const maxThrottled = 8192

// throttles has the sources, by [wire.Network], from which the sidecar refuses credentials of new devices for a while.
// In a flood each such call would get the same answer, and cost more than the answer.
type throttles map[netip.Addr]throttle

// throttle has an end, unix ms, and a length, ms. If more than the length remains, the clock was set back, and the
// throttle is over.
type throttle struct{ untilMS, ms int64 }

func (h throttle) leftMS(nowMS int64) int64 {
	left := h.untilMS - nowMS
	if left < 0 || left > h.ms {
		return 0
	}
	return left
}

// addSource throttles a source for ms milliseconds.
func (h throttles) addSource(source string, nowMS int64, ms uint32) {
	if ms == 0 {
		return
	}
	network, ok := wire.Network(source)
	if !ok {
		return
	}
	if _, found := h[network]; found || len(h) < maxThrottled {
		h[network] = throttle{nowMS + int64(ms), int64(ms)}
	}
}

// retryAfter returns how long a source is still throttled, in seconds rounded up; 0: not throttled.
func (h throttles) retryAfter(source string, nowMS int64) uint16 {
	if len(h) == 0 {
		return 0
	}
	network, ok := wire.Network(source)
	if !ok {
		return 0
	}
	return uint16(min((h[network].leftMS(nowMS)+999)/1000, 1<<16-1))
}

// sweep removes expired throttles.
func (h throttles) sweep(nowMS int64) {
	for network, t := range h {
		if t.leftMS(nowMS) == 0 {
			delete(h, network)
		}
	}
}
