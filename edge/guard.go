package edge

import (
	"encoding/binary"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// The guard shows whether objects were written since the last read. It is a gauge, because reading one needs no lock
// and none of the module's memory, while reading a record takes seven times as long:
//
//	bits 0 to 7   number of batches that are writing objects now
//	bits 8 to 63  number of batches that have done so
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

// guardWriter changes the guard for the batches of one VM.
type guardWriter struct {
	host   Host
	raised bool   // by the batch that is applied
	own    uint64 // what this VM has added
	// others is what other VMs had added when the last batch began, idle the number of batches since it changed.
	others uint64
	idle   int
}

// abandonedAfter is the number of batches without a change by other VMs after which one of them must have trapped
// within its batch, which takes about a millisecond.
const abandonedAfter = 256

// beginBatch is called before each batch. It lowers the guard for VMs that have trapped.
func (g *guardWriter) beginBatch() {
	others := g.host.Guard() - g.own
	if others != g.others || others&guardUp == 0 {
		g.others, g.idle = others, 0
		return
	}
	if g.idle++; g.idle%abandonedAfter == 0 {
		g.host.Warn("gatehouse: lower guard: a VM has trapped while it wrote objects")
		g.lowerBy(int64(others&guardUp) * guardLower) // as they would have
	}
}

// raise is called before each write of objects.
func (g *guardWriter) raise() (err error) {
	if !g.raised {
		err = g.host.AddGuard(guardRaise)
		if g.raised = err == nil; g.raised {
			g.own += guardRaise
		}
	}
	return err
}

// lower is called when a batch was written, or has failed.
func (g *guardWriter) lower() {
	if g.raised && g.lowerBy(guardLower) {
		g.own += guardLower
	}
	g.raised = false
}

// lowerBy lowers the guard by adding n to it and reports whether that worked.
func (g *guardWriter) lowerBy(n int64) bool {
	err := g.host.AddGuard(n)
	if err != nil {
		g.host.Warn("gatehouse: lower guard: " + err.Error() + ": objects are read from shared memory for each request")
	}
	var value [wire.MinRecord]byte
	binary.LittleEndian.PutUint64(value[:], g.host.Guard())
	if err := g.host.SetRecord(guardRegion, 0, value[:]); err != nil {
		g.host.Warn("gatehouse: write guard: " + err.Error())
	}
	return err == nil
}

// guardReader is a VM's reader of the guard.
type guardReader struct {
	known bool // it is the push listener's
}

// readGuard returns the guard's value; 0 while objects are being written, or if it is unknown.
func (g *guardReader) readGuard(h Host) uint64 {
	if !g.known {
		return 0
	}
	if value := h.Guard(); value&guardUp == 0 {
		return value
	}
	return 0
}

// checkOwner checks whether the guard is the push listener's, unless it is known to be.
func (g *guardReader) checkOwner(h Host) {
	if g.known {
		return
	}
	value := h.Guard()
	record := h.Record(guardRegion, 0)
	g.known = value != 0 && len(record) == wire.MinRecord && binary.LittleEndian.Uint64(record) == value
}
