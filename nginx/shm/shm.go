// Package shm has the records in a file that processes map: one image for all workers of nginx, which survives them.
// A reader takes no lock. It copies a record and looks whether its entry has changed meanwhile. Prototype.
package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/gatehouse/gatehouse/wire"
)

const (
	magic      = 0x3130686767617465
	places     = 1 << 19 // of each region; the sidecar's tables can have 2²⁴
	classes    = 22      // blocks of 2⁵ to 2²¹ bytes
	firstClass = 5
)

type entry struct {
	gen atomic.Uint64 // odd while it is written
	at  atomic.Uint64 // offset << 24 | length
}

type head struct {
	magic   uint64
	size    uint64
	guard   atomic.Uint64
	lock    atomic.Uint64 // pid of the writer, 0 for none
	dirty   uint64        // a writer has the lists in its hands
	number  atomic.Uint64 // of the state
	top     uint64        // end of the used part
	free    [classes]uint64
	state   entry
	entries [3][places]entry
}

// Store is the memory, mapped.
type Store struct {
	mem     []byte
	h       *head
	scratch [4][]byte // what the last Record of each region returned
	Torn    uint64    // reads that were repeated
}

// Open maps the file, and makes it if it isn't there.
func Open(path string, size int64) (*Store, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil { // one makes it
		return nil, err
	}
	defer syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	fresh := info.Size() == 0
	if fresh {
		if err := f.Truncate(size); err != nil { // a real one: fallocate, so that no page is missing later (SIGBUS)
			return nil, err
		}
	} else if info.Size() != size {
		return nil, fmt.Errorf("%s has %d bytes, want %d", path, info.Size(), size)
	}
	mem, err := syscall.Mmap(int(f.Fd()), 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	s := &Store{mem: mem, h: (*head)(unsafe.Pointer(unsafe.SliceData(mem)))}
	if fresh {
		s.reset()
	} else if s.h.magic != magic {
		return nil, errors.New("another layout")
	}
	return s, nil
}

func (s *Store) reset() {
	clear(s.mem[:unsafe.Sizeof(head{})])
	s.h.size, s.h.top, s.h.magic = uint64(len(s.mem)), uint64(unsafe.Sizeof(head{})), magic
}

func (s *Store) acquire() {
	me := uint64(os.Getpid())
	for i := 0; !s.h.lock.CompareAndSwap(0, me); i++ {
		if owner := s.h.lock.Load(); i > 100 && owner != 0 && syscall.Kill(int(owner), 0) == syscall.ESRCH {
			if s.h.lock.CompareAndSwap(owner, me) {
				break // it was killed while it wrote
			}
		}
		time.Sleep(20 * time.Microsecond)
	}
	if s.h.dirty != 0 {
		s.reset() // the lists may be broken: the sidecar sees that the epoch is gone, and pushes everything
		s.h.lock.Store(me)
	}
	s.h.dirty = 1
}

func (s *Store) release() { s.h.dirty = 0; s.h.lock.Store(0) }

func (s *Store) entry(region wire.Region, index uint32) *entry {
	if region == wire.RegionState {
		return &s.h.state
	}
	if region > 3 || index >= places {
		return nil
	}
	return &s.h.entries[region-1][index]
}

// copyOf returns a whole record, appended to dst; nil if there is none, or it is being written all the time.
func (s *Store) copyOf(dst []byte, e *entry) []byte {
	for range 100 {
		gen := e.gen.Load()
		if gen == 0 {
			return nil
		}
		if gen&1 == 0 {
			at := e.at.Load()
			offset, length := at>>24, at&(1<<24-1)
			if offset+length <= uint64(len(s.mem)) {
				dst = append(dst[:0], s.mem[offset:offset+length]...)
				if e.gen.Load() == gen { // arm64 needs a fence before it
					return dst
				}
			}
		}
		s.Torn++
	}
	return nil
}

// Record returns a copy of the record at a place, nil if there is none. It is valid until the next one of its region.
func (s *Store) Record(region wire.Region, index uint32) []byte {
	if region == wire.Region(0xff) { // the guard's: one memory has one guard
		return binary.LittleEndian.AppendUint64(make([]byte, 0, wire.MinRecord), s.Guard())[:wire.MinRecord]
	}
	e := s.entry(region, index)
	if e == nil {
		return nil
	}
	if region == wire.RegionBodies { // kept by the worker
		return s.copyOf(nil, e)
	}
	if r := s.copyOf(s.scratch[region], e); r != nil {
		s.scratch[region] = r
		return r
	}
	return nil
}

func class(n int) int { return max(bits.Len(uint(n-1)), firstClass) }

func (s *Store) take(n int) (uint64, error) {
	c := class(n)
	if at := s.h.free[c]; at != 0 {
		s.h.free[c] = binary.LittleEndian.Uint64(s.mem[at:])
		return at, nil
	}
	if s.h.top+1<<c > s.h.size {
		return 0, errors.New("shared memory is full")
	}
	s.h.top += 1 << c
	return s.h.top - 1<<c, nil
}

func (s *Store) give(at uint64, n int) {
	c := class(n)
	binary.LittleEndian.PutUint64(s.mem[at:], s.h.free[c])
	s.h.free[c] = at
}

func (s *Store) put(e *entry, record []byte) error {
	at, err := s.take(len(record))
	if err != nil {
		return err
	}
	copy(s.mem[at:], record)
	old := e.at.Load()
	e.gen.Add(1)
	e.at.Store(at<<24 | uint64(len(record)))
	e.gen.Add(1)
	if old != 0 {
		s.give(old>>24, int(old&(1<<24-1)))
	}
	return nil
}

// SetRecord copies a record to a place.
func (s *Store) SetRecord(region wire.Region, index uint32, record []byte) error {
	if region == wire.Region(0xff) { // the guard's: one memory has one guard
		return nil
	}
	e := s.entry(region, index)
	if e == nil {
		return fmt.Errorf("%s record %d: out of bounds", region, index)
	}
	s.acquire()
	defer s.release()
	if region == wire.RegionState {
		s.h.number.Add(1)
	}
	return s.put(e, record)
}

// State returns the state record and its number, nil and 0 if there is none.
func (s *Store) State() ([]byte, uint32) {
	number := s.h.number.Load()
	record := s.Record(wire.RegionState, 0)
	if record == nil {
		return nil, 0
	}
	return record, uint32(number)
}

// SetState copies the state record into memory if its number is still the given one, or unconditionally if that is 0.
func (s *Store) SetState(record []byte, number uint32) bool {
	s.acquire()
	defer s.release()
	if number != 0 && uint32(s.h.number.Load()) != number {
		return false
	}
	s.h.number.Add(1)
	return s.put(&s.h.state, record) == nil
}

func (s *Store) Guard() uint64 { return s.h.guard.Load() }

func (s *Store) AddGuard(n int64) { s.h.guard.Add(uint64(n)) }
