package main

import (
	"encoding/binary"

	"github.com/gatehouse/gatehouse/wire"
)

// The guard shows whether objects were written since the last read. It is a gauge, because reading one needs no lock
// and no memory of the module, and reading a record takes seven times as long:
//
//	bits 0 to 7   how many batches are writing objects now
//	bits 8 to 63  how many have done so
//
// Only the push listener changes it. While it writes objects no VM may use cached answers, so that none serves an old
// object after another has served the new one.
const (
	guardRaise = 1
	guardLower = 1<<8 - guardRaise
	guardUp    = 1<<8 - 1
)

// guardRegion is the region of the record with the guard's value, beyond those of batches. A VM compares it once, to
// check that the gauge that it reads is the push listener's.
const guardRegion = wire.Region(0xff)

// guard is the guard during one batch.
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

// guardSeen is a VM's reader of the guard.
type guardSeen struct {
	known bool // that it is the push listener's
}

// read returns the guard's value, 0 while objects are being written, or if it is unknown.
func (g *guardSeen) read(h host) uint64 {
	if !g.known {
		return 0
	}
	if value := h.guard(); value&guardUp == 0 { //mutant:TestNothingKeptWhileObjectsAreWritten true
		return value
	}
	return 0
}

// check checks whether the guard is the push listener's, unless that is known.
func (g *guardSeen) check(h host) {
	if g.known {
		return
	}
	value := h.guard()
	record := h.record(guardRegion, 0)
	g.known = value != 0 && len(record) == wire.MinRecord &&
		binary.LittleEndian.Uint64(record) == value //mutant:TestForeignGuard true
}
