package edge

import (
	"encoding/binary"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// The guard shows whether objects were written since the last read. It is a gauge: reading a gauge needs no lock and
// none of the module's memory, while reading a record takes seven times as long:
//
//	bits 0 to 7   number of batches that are writing objects now
//	bits 8 to 63  number of batches that have written objects
//
// Only the push listener changes the guard. During a write of objects no VM may use cached answers: no VM serves an old
// object after another VM has served the new object.
const (
	guardRaise = 1
	guardLower = 1<<8 - guardRaise
	guardUp    = 1<<8 - 1
)

// guardRegion is the region of the record with the guard's value, beyond the regions of batches. A VM compares the
// record with the gauge once, to check that the gauge is the push listener's.
const guardRegion = wire.Region(0xff)

// guardWriter changes the guard for the batches of one VM.
type guardWriter struct {
	host   Host
	raised bool   // by the current batch
	own    uint64 // this VM's sum
	// others is the sum of other VMs at the begin of the last batch, idle the number of batches since others changed.
	others uint64
	idle   int
}

// abandonedAfter is the number of batches without a change by other VMs after which another VM must have trapped within
// a batch; a batch takes about a millisecond.
const abandonedAfter = 256

// beginBatch is called before each batch. It lowers the guard for trapped VMs.
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

// lowerBy lowers the guard by adding n, and reports success.
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
	known bool // the guard is the push listener's
}

// readGuard returns the guard's value; 0: unknown, or objects are being written.
func (g *guardReader) readGuard(h Host) uint64 {
	if !g.known {
		return 0
	}
	if value := h.Guard(); value&guardUp == 0 {
		return value
	}
	return 0
}

// checkOwner checks whether the guard is the push listener's, until the check succeeds.
func (g *guardReader) checkOwner(h Host) {
	if g.known {
		return
	}
	value := h.Guard()
	record := h.Record(guardRegion, 0)
	g.known = value != 0 && len(record) == wire.MinRecord && binary.LittleEndian.Uint64(record) == value
}
