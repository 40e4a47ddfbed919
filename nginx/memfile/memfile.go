//go:build linux

// Package memfile is the shared memory of the nginx edge: the records in one file, mapped by all workers. The memory
// survives each worker.
//
// # Layout
//
// All integers have the machine's byte order: a file never leaves it.
//
//	  0  u64  magic, with the version of this layout
//	  8  u64  size of the file
//	 16  u64  resets: how often the records were dropped because they were damaged
//	 24  u64  confirmed: 1 if the state was written since the file was opened by its only user, else 0
//	 32  u64  guard
//	 40  u64  place of the state
//	 48  u64  place of the guard's record
//	128  u64  writing: 1 while a writer changes the fields below; 1 without a writer: don't trust them
//	136  u32  first free page, 0 for none
//	140  u32  number of free pages
//
//	4096      tables: for objects, bodies and verdicts each a u32 for each pageSize/8 places: the page with the
//	          places, 0 if none was written
//	          links: for each page a u32, the next page of the record, or the next free page
//	          pages of pageSize bytes; the first page is not used
//
// A place:
//
//	0  u32  first page of the record, 0 for none
//	4  u32  number of writes of the place
//
// A record begins with the record's length, a u32, and goes on in the linked pages. Any free pages do for any record,
// and memory can't fragment: a write fails only if the free pages and the pages of the replaced record are too few.
//
// # Readers and writers
//
// One writer at a time has the lock on the file's first byte; the kernel releases the lock with the end of the process.
// A writer writes a record into free pages, then the place, and then frees the pages of the old record. A reader takes
// no lock: it copies a record, and then checks the place for a change. If the copy has bytes of a later record, the
// place has changed, because the place changes before the pages are used again. So a killed writer leaves whole
// records, old or new, and the next writer only counts the free pages again.
//
// Each user has a shared lock on the second byte. A user who opens the file and finds no other user must not trust the
// records: nginx has been down, and missed revocations. The records count once the sidecar has written a state, see
// [File.IsConfirmed].
package memfile

import (
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// maxRecord bounds a record in bytes. The largest batch has the longest record.
const maxRecord = 2 << 20

// guardRegion is the region of the guard's record, beyond the regions of batches.
const guardRegion = wire.Region(0xff)

// File is the memory of one worker. Writers may run concurrently. Readers of one File may not; readers of several Files
// may.
type File struct {
	*header
	tables []atomic.Uint32
	links  []uint32
	pages  []byte

	mem     []byte
	file    *os.File
	mu      sync.Mutex                // of writers; the lock of a file doesn't exclude the same process
	scratch [math.MaxUint8 + 1][]byte // the last record returned, by region
	ordered atomic.Uint32             // see fence
	step    func(after string)        // for tests, between the steps of a write; nil: none
}

// place is where the record of a region and index is found.
type place = atomic.Uint64

// Record returns a copy of the record at a place, nil if absent, valid until the next Record of the region.
func (f *File) Record(region wire.Region, index uint32) []byte {
	record, _ := f.readRecord(region, index)
	return record
}

// State returns the state record and its number, nil and 0 if absent.
func (f *File) State() (record []byte, number uint32) { return f.readRecord(wire.RegionState, 0) }

// readRecord returns a copy of a record and the place's number of writes, nil and 0 if absent.
func (f *File) readRecord(region wire.Region, index uint32) (record []byte, number uint32) {
	for {
		resets := f.resets.Load()
		p := f.findPlace(region, index)
		if p == nil {
			return nil, 0
		}
		at := p.Load()
		record = f.appendRecord(f.scratch[region][:0], uint32(at))
		f.fence()
		if p.Load() != at || f.resets.Load() != resets { // the page had places at that time
			continue
		}
		if record == nil {
			return nil, 0
		}
		f.scratch[region] = record
		return record, uint32(at >> 32)
	}
}

// fence orders reads and writes before the fence before reads and writes after it. A processor may reorder both, but
// not across an atomic store that follows and an atomic load that precedes; the order of the two atomics stays.
func (f *File) fence() {
	f.ordered.Store(0)
	f.ordered.Load()
}

// SetRecord copies a record to a place. An empty record, or a tombstone for a body, removes the record at the place.
func (f *File) SetRecord(region wire.Region, index uint32, record []byte) error {
	_, err := f.writeRecord(region, index, record, 0)
	return err
}

// SetState copies the state record into memory if the current number is number, or unconditionally if number is 0.
func (f *File) SetState(record []byte, number uint32) bool {
	written, err := f.writeRecord(wire.RegionState, 0, record, number)
	return written && err == nil
}

func (f *File) writeRecord(region wire.Region, index uint32, record []byte, number uint32) (written bool, err error) {
	if len(record) > maxRecord {
		return false, fmt.Errorf("%d bytes: more than %d, the longest record", len(record), maxRecord)
	}
	if err := f.lockWriter(); err != nil {
		return false, err
	}
	defer f.unlockWriter()
	if number != 0 && uint32(f.state.Load()>>32) != number {
		return false, nil
	}
	f.writing.Store(1)
	f.passStep("begin")
	if err = f.putRecord(region, index, record); err == nil && region == wire.RegionState {
		f.confirmed.Store(1)
	}
	f.passStep("end")
	f.writing.Store(0)
	return err == nil, err
}

// IsConfirmed reports whether the sidecar has written a state since the file was opened by its only user. Before, a
// request must find no record; the push listener finds all records, so that the sidecar learns the content.
func (f *File) IsConfirmed() bool { return f.confirmed.Load() != 0 }

// Guard returns the guard, which shows writes of objects to readers.
func (f *File) Guard() uint64 { return f.guard.Load() }

// AddGuard adds to the guard.
func (f *File) AddGuard(n int64) { f.guard.Add(uint64(n)) }

// Usage returns the size of all records, and the maximum, in bytes.
func (f *File) Usage() (used, most int64) {
	all := int64(len(f.links) - 1)
	return (all - int64(f.free.Load())) * pageSize, all * pageSize
}

func (f *File) passStep(step string) {
	if f.step != nil {
		f.step(step)
	}
}
