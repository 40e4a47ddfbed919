// Package memory is the shared memory of the native edge: one image of the records for all workers of the process, and
// for all filters in the process. Under Proxy-Wasm the proxy has the memory, behind a lock, and copies each record for
// a reader.
//
// A reader takes no lock and makes no copy: a place is an atomic pointer to an immutable record. A writer replaces the
// record; the garbage collector frees the old record after the last reader. So a held record stays valid, even beyond
// the callback that read it.
package memory

import (
	"bytes"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// MaxIndex is the greatest index of a record: the sidecar's tables have at most 2²⁴ places. Without a bound, one
// wrong push could make the table as large as the address space.
const MaxIndex = pages*pageSize - 1

const (
	pages    = 1 << 14
	pageSize = 1 << 10
)

// Store is the memory. The zero value is ready to use; all its methods are safe for concurrent use.
type Store struct {
	regions [math.MaxUint8 + 1]atomic.Pointer[table] // written regions, except the state's
	guard   atomic.Uint64
	state   atomic.Pointer[state]

	mu sync.Mutex // serializes writers
}

// state is the state record with its compare-and-swap number.
type state struct {
	record []byte
	number uint32 // 0 without a record
}

// table has the records of a region, in pages. A page is made on the first write and stays for ever.
type table [pages]atomic.Pointer[page]

type page [pageSize]atomic.Pointer[[]byte]

// Record returns the record at a place, nil if absent.
func (s *Store) Record(region wire.Region, index uint32) []byte {
	if region == wire.RegionState {
		record, _ := s.State()
		return record
	}
	t := s.regions[region].Load()
	if t == nil || index > MaxIndex {
		return nil
	}
	if p := t[index/pageSize].Load(); p != nil {
		return loadRecord(p[index%pageSize].Load())
	}
	return nil
}

// SetRecord copies a record to a place.
func (s *Store) SetRecord(region wire.Region, index uint32, record []byte) error {
	record = bytes.Clone(record)
	s.mu.Lock()
	defer s.mu.Unlock()
	if region == wire.RegionState {
		s.replaceState(record)
		return nil
	}
	if index > MaxIndex {
		return fmt.Errorf("%s record %d: more than %d, the greatest index", region, index, MaxIndex)
	}
	t := s.regions[region].Load()
	if t == nil {
		t = new(table)
		s.regions[region].Store(t)
	}
	p := t[index/pageSize].Load()
	if p == nil {
		p = new(page)
		t[index/pageSize].Store(p)
	}
	p[index%pageSize].Store(&record)
	return nil
}

// State returns the state record and its number, nil and 0 if absent.
func (s *Store) State() (record []byte, number uint32) {
	if held := s.state.Load(); held != nil {
		return held.record, held.number
	}
	return nil, 0
}

// SetState copies the state record into memory if the current number is number, or unconditionally if number is 0.
func (s *Store) SetState(record []byte, number uint32) bool {
	record = bytes.Clone(record)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, held := s.State(); number != 0 && number != held {
		return false
	}
	s.replaceState(record)
	return true
}

func (s *Store) replaceState(record []byte) {
	_, number := s.State()
	if number++; number == 0 {
		number = 1
	}
	s.state.Store(&state{record, number})
}

// Guard returns the guard, which shows writes of objects to readers.
func (s *Store) Guard() uint64 { return s.guard.Load() }

// AddGuard adds to the guard.
func (s *Store) AddGuard(n int64) { s.guard.Add(uint64(n)) }

func loadRecord(record *[]byte) []byte {
	if record == nil {
		return nil
	}
	return *record
}
