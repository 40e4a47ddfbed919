package main

import (
	"encoding/binary"

	"github.com/gatehouse/gatehouse/wire"
)

// The guard tells whether objects were written since one looked. It is a gauge, because
// reading one takes no lock and no memory of the module, and a record takes seven times as long:
//
//	bits 0 to 7   how many batches are writing objects now
//	bits 8 to 63  how many have done so
//
// Only the push listener changes it. While it writes objects nobody may answer by what was
// kept, so that no VM gives an old object when another has already given the new one.
const (
	guardRaise = 1
	guardLower = 1<<8 - guardRaise
	guardUp    = 1<<8 - 1
)

// guardRegion is the region of the record that has the guard's value, beyond those of
// batches. By it a VM sees, once, that the gauge that it reads is the push listener's.
const guardRegion = wire.Region(0xff)

// guard is the guard as one batch holds it.
type guard struct {
	host   host
	raised bool
}

// raise is called before each writing of objects.
func (g *guard) raise() (err error) {
	if !g.raised {
		err = g.host.addGuard(guardRaise)
		g.raised = err == nil
	}
	return err
}

// lower is called when a batch has written everything, or has failed.
func (g *guard) lower() {
	if !g.raised {
		return
	}
	if err := g.host.addGuard(guardLower); err != nil {
		g.host.warn("gatehouse: lower guard: " + err.Error() + ": objects are read from shared memory for each request")
	}
	var value [wire.MinRecord]byte
	binary.LittleEndian.PutUint64(value[:], g.host.guard())
	if err := g.host.setRecord(guardRegion, 0, value[:]); err != nil {
		g.host.warn("gatehouse: write guard: " + err.Error())
	}
}

// guardSeen is the guard as a VM reads it.
type guardSeen struct {
	known bool // that it is the push listener's
}

// read is the guard's value, 0 while objects are being written, or if nothing is known of it.
func (g *guardSeen) read(h host) uint64 {
	if !g.known {
		return 0
	}
	if value := h.guard(); value&guardUp == 0 { //mutant:TestNothingKeptWhileObjectsAreWritten true
		return value
	}
	return 0
}

// check looks whether the guard is the push listener's, as long as that isn't known.
func (g *guardSeen) check(h host) {
	if g.known {
		return
	}
	value := h.guard()
	record := h.record(guardRegion, 0)
	g.known = value != 0 && len(record) == wire.MinRecord &&
		binary.LittleEndian.Uint64(record) == value //mutant:TestForeignGuard true
}
