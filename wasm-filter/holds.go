package main

import (
	"net/netip"

	"github.com/gatehouse/gatehouse/wire"
)

// maxHolds bounds how many sources are held at a time. Those beyond cost a call each time,
// as all do that aren't held.
const maxHolds = 8192

// holds are the sources, by [wire.Network], from which the sidecar takes no credential of a
// new device now, and until when, unix ms. In a flood each such call would get the same
// answer, and costs more than the answer.
type holds map[netip.Addr]int64

// add holds a source for ms milliseconds.
func (h holds) add(source string, nowMS int64, ms uint32) {
	if ms == 0 {
		return
	}
	network, ok := wire.Network(source)
	if !ok {
		return
	}
	if _, held := h[network]; held || len(h) < maxHolds {
		h[network] = nowMS + int64(ms)
	}
}

// wait is how long a source is still held, in seconds rounded up; 0 for not at all.
func (h holds) wait(source string, nowMS int64) uint16 {
	if len(h) == 0 {
		return 0
	}
	network, ok := wire.Network(source)
	if !ok {
		return 0
	}
	left := max(h[network]-nowMS, 0)
	return uint16(min((left+999)/1000, 1<<16-1))
}

// sweep forgets those that are held no longer.
func (h holds) sweep(nowMS int64) {
	for network, untilMS := range h {
		if untilMS <= nowMS {
			delete(h, network)
		}
	}
}
