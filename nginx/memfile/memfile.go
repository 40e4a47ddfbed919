//go:build linux

// Package memfile is the shared memory of the nginx edge: the records in one file, which all workers map. It survives
// each of them.
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
//	128  u64  writing: 1 while a writer changes what follows; if it was killed, what follows is not to be trusted
//	136  u32  first free page, 0 for none
//	140  u32  number of free pages
//
//	4096      tables: for objects, bodies and verdicts each a u32 for each pageSize/8 places: the page with these
//	          places, 0 if none of them was written
//	          links: for each page a u32, the next page of its record, or the next free page
//	          pages of pageSize bytes; the first one is not used
//
// A place:
//
//	0  u32  first page of its record, 0 for none
//	4  u32  number of writes of this place
//
// A record begins with its length, a u32, and goes on in the linked pages. So any free pages do for any record, and
// memory can't fragment: a write fails only if there are fewer free pages, with those of the record that it replaces.
//
// # Readers and writers
//
// One writer at a time has the lock on the file's first byte, which the kernel releases when its process ends. It
// writes a record into free pages, then the place, and then frees the pages of the old record. A reader takes no lock:
// it copies a record, and then checks that the place is still the same. If the copy has bytes of a later record, the
// place has changed, because it changes before its pages are used again. So a killed writer leaves whole records, old
// or new, and the next one only counts the free pages again.
//
// Each user has a shared lock on the second byte. Who opens the file and finds no other user may not trust its records:
// nginx has been down, and missed revocations. They count once the sidecar has written a state, see [File.Confirmed].
package memfile

import (
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// maxRecord bounds a record in bytes. The longest one is in the largest batch.
const maxRecord = 2 << 20

// guardRegion is the region of the guard's record, beyond those of batches.
const guardRegion = wire.Region(0xff)

// File is the memory of one worker. Its writers may run at the same time; its readers may not, but those of another
// File may.
type File struct {
	*header
	tables []atomic.Uint32
	links  []uint32
	pages  []byte

	mem     []byte
	file    *os.File
	mu      sync.Mutex                // of writers; the lock of a file doesn't exclude the same process
	scratch [math.MaxUint8 + 1][]byte // what the last Record of each region returned
	ordered atomic.Uint32             // see fence
	step    func(after string)        // for tests, between the steps of a write; nil: none
}

// place is where the record of a region and index is found.
type place = atomic.Uint64

// Record returns a copy of the record at a place, nil if there is none. It is valid until the next one of its region.
func (f *File) Record(region wire.Region, index uint32) []byte {
	record, _ := f.read(region, index)
	return record
}

// State returns the state record and its number, nil and 0 if there is none.
func (f *File) State() (record []byte, number uint32) { return f.read(wire.RegionState, 0) }

// read returns a copy of a record and the number of writes of its place, nil and 0 if there is none.
func (f *File) read(region wire.Region, index uint32) (record []byte, number uint32) {
	for {
		resets := f.resets.Load()
		p := f.find(region, index)
		if p == nil {
			return nil, 0
		}
		at := p.Load()
		record = f.appendRecord(f.scratch[region][:0], uint32(at))
		f.fence()
		if p.Load() != at || f.resets.Load() != resets { // the page had places then
			continue
		}
		if record == nil {
			return nil, 0
		}
		f.scratch[region] = record
		return record, uint32(at >> 32)
	}
}

// fence orders what was read or written before it before what is read or written after it. A processor may do either
// in another order, but not across an atomic store that follows and an atomic load that precedes, whose own order
// stays.
func (f *File) fence() {
	f.ordered.Store(0)
	f.ordered.Load()
}

// SetRecord copies a record to a place. An empty one, or a tombstone for a body, removes what is there.
func (f *File) SetRecord(region wire.Region, index uint32, record []byte) error {
	_, err := f.write(region, index, record, 0)
	return err
}

// SetState copies the state record into memory if its number is still the given one, or unconditionally if that is 0.
func (f *File) SetState(record []byte, number uint32) bool {
	written, err := f.write(wire.RegionState, 0, record, number)
	return written && err == nil
}

func (f *File) write(region wire.Region, index uint32, record []byte, number uint32) (written bool, err error) {
	if len(record) > maxRecord {
		return false, fmt.Errorf("%d bytes: more than %d, the longest record", len(record), maxRecord)
	}
	if err := f.lock(); err != nil {
		return false, err
	}
	defer f.unlock()
	if number != 0 && uint32(f.state.Load()>>32) != number {
		return false, nil
	}
	f.writing.Store(1)
	f.at("begin")
	if err = f.put(region, index, record); err == nil && region == wire.RegionState {
		f.confirmed.Store(1)
	}
	f.at("end")
	f.writing.Store(0)
	return err == nil, err
}

// Confirmed reports whether the sidecar has written a state since the file was opened by its only user. Until then a
// request must find no record; the push listener finds all, so that the sidecar learns what is there.
func (f *File) Confirmed() bool { return f.confirmed.Load() != 0 }

// Guard returns the guard, which tells readers whether objects have been written.
func (f *File) Guard() uint64 { return f.guard.Load() }

// AddGuard adds to the guard.
func (f *File) AddGuard(n int64) { f.guard.Add(uint64(n)) }

// Usage returns how many bytes records take, and how many they can.
func (f *File) Usage() (used, most int64) {
	all := int64(len(f.links) - 1)
	return (all - int64(f.free.Load())) * pageSize, all * pageSize
}

func (f *File) at(step string) {
	if f.step != nil {
		f.step(step)
	}
}
