//go:build linux

package memfile

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// testSize is the size of the files.
const testSize = 256 << 10

// testRegions are all regions.
var testRegions = []wire.Region{
	wire.RegionState, wire.RegionObjects, wire.RegionBodies, wire.RegionVerdicts, guardRegion,
}

func openTest(t testing.TB, path string) *File {
	t.Helper()
	f, err := Open(path, testSize)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func newTest(t testing.TB) *File { return openTest(t, filepath.Join(t.TempDir(), "memory")) }

func set(t testing.TB, f *File, region wire.Region, index uint32, record []byte) {
	t.Helper()
	require.NoError(t, f.SetRecord(region, index, record))
}

// checkFree fails unless the free pages are exactly the pages without a record.
func checkFree(t testing.TB, f *File) {
	t.Helper()
	before, resets := f.free.Load(), f.resets.Load()
	linked := uint32(0)
	for page := f.firstFree; page != 0; page = f.links[page] {
		linked++
	}
	f.repair()
	if after := f.free.Load(); before != after || linked != after || f.resets.Load() != resets {
		t.Fatalf("%d pages were counted as free, %d were linked, %d are; damaged: %v",
			before, linked, after, f.resets.Load() != resets)
	}
}

func TestRecords(t *testing.T) {
	f := newTest(t)
	for _, region := range testRegions {
		for i, length := range []int{1, 100, pageSize - lengthSize, pageSize - lengthSize + 1, 5000, 20_000} {
			index := uint32(i * placesIn / 2)
			if region == wire.RegionState || region == guardRegion {
				index = 0
			} else if got := f.Record(region, index); got != nil {
				t.Errorf("%s %d: got %d bytes before the first write, want nil", region, index, len(got))
			}
			record := bytes.Repeat([]byte{byte(region) + 1, byte(i)}, length)
			want := bytes.Clone(record)
			set(t, f, region, index, record)
			clear(record) // it belongs to the writer
			if got := f.Record(region, index); !bytes.Equal(got, want) {
				t.Errorf("%s %d: got %d bytes, want %d", region, index, len(got), len(want))
			}
		}
	}
	checkFree(t, f)
}

func TestBounds(t *testing.T) {
	f := newTest(t)
	before, _ := f.Usage()
	for _, region := range []wire.Region{wire.RegionObjects, wire.RegionBodies, wire.RegionVerdicts, 4, 77} {
		for _, index := range []uint32{uint32(len(f.links)), 1 << 24, 1<<32 - 1} {
			if f.SetRecord(region, index, []byte("x")) == nil || f.Record(region, index) != nil {
				t.Errorf("%s %d: got a record where there is no place", region, index)
			}
		}
	}
	if f.SetRecord(wire.RegionBodies, 0, make([]byte, maxRecord+1)) == nil {
		t.Error("got no error for a record that is too long")
	}
	if after, _ := f.Usage(); after != before {
		t.Errorf("%d bytes are used, want %d as before", after, before)
	}
}

func TestGuard(t *testing.T) {
	f := newTest(t)
	f.AddGuard(255)
	f.AddGuard(-5)
	if f.Guard() != 250 {
		t.Errorf("got %d, want 250", f.Guard())
	}
}

func TestState(t *testing.T) {
	f := newTest(t)
	if record, number := f.State(); record != nil || number != 0 {
		t.Errorf("got %q, %d, want none", record, number)
	}
	if !f.SetState([]byte("a"), 0) {
		t.Error("unconditional write refused")
	}
	record, number := f.State()
	if string(record) != "a" || number == 0 {
		t.Errorf("got %q, %d", record, number)
	}
	if !f.SetState([]byte("b"), number) {
		t.Error("write with the current number refused")
	}
	if f.SetState([]byte("c"), number) {
		t.Error("write with an overtaken number accepted")
	}
	set(t, f, wire.RegionState, 0, []byte("d"))
	if after, _ := f.State(); string(after) != "d" || string(f.Record(wire.RegionState, 0)) != "d" {
		t.Errorf("got %q, want d", after)
	}
	f.state.Store(f.state.Load() | (1<<32-1)<<32)
	set(t, f, wire.RegionState, 0, []byte("e"))
	if _, number := f.State(); number != 1 {
		t.Errorf("got number %d after the greatest one, want 1: 0 is none", number)
	}
}

// TestOneWriterWins writes the state from many goroutines that all read the same number before.
func TestOneWriterWins(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memory")
	files := []*File{openTest(t, path), openTest(t, path)}
	files[0].SetState([]byte("first"), 0)
	_, number := files[0].State()
	var group sync.WaitGroup
	wins := make(chan struct{}, 8)
	for i := range cap(wins) {
		group.Go(func() {
			if files[i%2].SetState([]byte("next"), number) {
				wins <- struct{}{}
			}
		})
	}
	group.Wait()
	if len(wins) != 1 {
		t.Errorf("%d writers won, want 1", len(wins))
	}
}

// TestLockIsBounded has a writer that is stopped for long.
func TestLockIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memory")
	stopped, f := openTest(t, path), openTest(t, path)
	set(t, f, wire.RegionObjects, 1, []byte("x"))
	require.NoError(t, stopped.lockWriter())
	begin := time.Now()
	if err := f.SetRecord(wire.RegionObjects, 1, []byte("y")); err == nil || time.Since(begin) > 10*lockWait {
		t.Errorf("got error %v after %v, want one after %v", err, time.Since(begin), lockWait)
	}
	if got := f.Record(wire.RegionObjects, 1); string(got) != "x" {
		t.Errorf("a reader got %q, want x", got)
	}
	stopped.unlockWriter()
	set(t, f, wire.RegionObjects, 1, []byte("y"))
}

// TestAnyFreeBytesFit fills the file with small records, removes every second record, and needs all free pages for a
// large record. Then the file is full, and still accepts a record no larger than the replaced record.
func TestAnyFreeBytesFit(t *testing.T) {
	f := newTest(t)
	n := uint32(0)
	for ; f.SetRecord(wire.RegionObjects, n, make([]byte, 100)) == nil; n++ {
	}
	for i := uint32(0); i < n; i += 2 {
		set(t, f, wire.RegionObjects, i, nil)
	}
	free := int(f.free.Load()) - 1 // one for the table
	if free < int(n)/2-2 {
		t.Fatalf("%d pages are free, want those of %d records", free, n/2)
	}
	large := bytes.Repeat([]byte("large"), free*pageSize)[:free*pageSize-lengthSize]
	require.NoError(t, f.SetRecord(wire.RegionBodies, 5, large[:len(large):len(large)]))
	if got := f.Record(wire.RegionBodies, 5); !bytes.Equal(got, large) {
		t.Errorf("got %d bytes, want %d", len(got), len(large))
	}
	used, most := f.Usage()
	err := f.SetRecord(wire.RegionBodies, 6, []byte("x"))
	if used != most || err == nil || !strings.Contains(err.Error(), "is full") {
		t.Errorf("got error %v with %d of %d bytes used, want it to be full", err, used, most)
	}
	large[0] = 'x'
	set(t, f, wire.RegionBodies, 5, large)
	if got := f.Record(wire.RegionBodies, 5); !bytes.Equal(got, large) {
		t.Errorf("got %d bytes, want %d others", len(got), len(large))
	}
	set(t, f, wire.RegionBodies, 5, large[:wire.MinRecord]) // a blank
	if used, most := f.Usage(); most-used != int64(free-1)*pageSize {
		t.Errorf("%d bytes are free after the large record was blanked, want %d", most-used, (free-1)*pageSize)
	}
	checkFree(t, f)
}

// TestBlankedBodiesTakeNothing: a slot that was used once would else keep a page for ever.
func TestBlankedBodiesTakeNothing(t *testing.T) {
	f := newTest(t)
	for _, stamp := range []uint64{1, 0} {
		set(t, f, wire.RegionBodies, 3, wire.AppendBody(nil, 7, stamp, nil))
		if got := f.Record(wire.RegionBodies, 3); (got == nil) != (stamp == 0) {
			t.Errorf("stamp %d: got %x", stamp, got)
		}
	}
	if used, _ := f.Usage(); used != pageSize {
		t.Errorf("%d bytes are used, want a table's", used)
	}
}

// TestSize: all pages that SizeFor counts exist.
func TestSize(t *testing.T) {
	const budget, objects, verdicts = 256 << 20, 100_000, 100_000
	size := SizeFor(budget, objects, verdicts)
	each := (size - headSize - pageSize) / (placesIn*(pageSize+4) + 4*regions)
	want := int64(budget + 4*objects*perBody + objects*perObject + verdicts*perVerdict + passing)
	if have := each * placesIn * pageSize; have < want || have > want+3*placesIn*pageSize {
		t.Errorf("%d bytes have pages of %d, want %d", size, have, want)
	}
	t.Logf("%d MiB for the sidecar's default settings", size>>20)
}

// model is the expected content of a file.
type model struct {
	testing.TB
	f       *File
	records map[[2]uint32][]byte
	tables  map[[2]uint32]bool
}

// write writes a record, and fails unless the write works exactly if there are enough pages.
func (m *model) write(region wire.Region, index uint32, record []byte) {
	m.Helper()
	at, table := [2]uint32{uint32(region), index}, [2]uint32{uint32(region), index / placesIn}
	all := uint32(len(m.f.links) - 1)
	used := uint32(len(m.tables))
	for _, r := range m.records {
		used += pagesFor(len(r))
	}
	if free := m.f.free.Load(); free != all-used {
		m.Fatalf("%d pages are free, want %d", free, all-used)
	}
	fits := true
	if region != wire.RegionState && region != guardRegion && !m.tables[table] {
		if fits = used < all; fits {
			used++
			m.tables[table] = true
		}
	}
	fits = fits && used-pagesFor(len(m.records[at]))+pagesFor(len(record)) <= all
	if err := m.f.SetRecord(region, index, record); (err == nil) != fits {
		m.Fatalf("%s %d, %d bytes for %d: got error %v, want one: %v",
			region, index, len(record), len(m.records[at]), err, !fits)
	}
	if fits {
		if delete(m.records, at); len(record) > 0 {
			m.records[at] = bytes.Clone(record)
		}
	}
	m.check(region, index)
}

func (m *model) check(region wire.Region, index uint32) {
	m.Helper()
	want := m.records[[2]uint32{uint32(region), index}]
	if got := m.f.Record(region, index); !bytes.Equal(got, want) || (got == nil) != (want == nil) {
		m.Fatalf("%s %d: got %d bytes, want %d", region, index, len(got), len(want))
	}
}

// TestModel writes records of random lengths at random places, with the file full most of the time, and compares with a
// map: each page is accounted for, and everything that is freed can be used again.
func TestModel(t *testing.T) {
	seeds := 20
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		m := &model{t, newTest(t), map[[2]uint32][]byte{}, map[[2]uint32]bool{}}
		noise := make([]byte, testSize)
		for i := range noise {
			noise[i] = byte(r.Uint32())
		}
		for range 3000 {
			region := testRegions[r.IntN(len(testRegions))]
			index := uint32(0)
			if region != wire.RegionState && region != guardRegion {
				index = uint32(r.IntN(200))
			}
			length := r.IntN(1 << (1 + r.IntN(16)))
			from := r.IntN(len(noise) - length)
			m.write(region, index, noise[from:][:length])
		}
		for at := range m.records {
			m.check(wire.Region(at[0]), at[1])
		}
		checkFree(t, m.f)
		for at := range m.records {
			m.write(wire.Region(at[0]), at[1], nil)
		}
		if used, _ := m.f.Usage(); used != int64(len(m.tables))*pageSize {
			t.Errorf("%d bytes are used after all records were removed, want %d tables of %d", used, len(m.tables), pageSize)
		}
		checkFree(t, m.f)
		m.f.Close()
		m.f.mem = nil
	}
}

func TestReadsAllocateNothing(t *testing.T) {
	f := newTest(t)
	set(t, f, wire.RegionObjects, 5, make([]byte, 1000))
	f.SetState([]byte("state"), 0)
	allocs := testing.AllocsPerRun(100, func() {
		f.Record(wire.RegionObjects, 5)
		f.Record(wire.RegionObjects, 1<<20)
		f.State()
		f.Guard()
	})
	if allocs != 0 {
		t.Errorf("got %v allocations, want none", allocs)
	}
}

// numbered returns a record for a number; length and bytes follow from the number, so a mixture is noticed.
func numbered(dst []byte, n uint64) []byte {
	length := 8 + int(n%7)*int(n%11)*int(n%13)*6
	dst = slices.Grow(dst[:0], length)[:length]
	for i := 0; i+8 <= length; i += 8 {
		binary.LittleEndian.PutUint64(dst[i:], n)
	}
	for i := length &^ 7; i < length; i++ {
		dst[i] = byte(n)
	}
	return dst
}

func isNumbered(record []byte) (n uint64, ok bool) {
	if len(record) < 8 {
		return 0, false
	}
	n = binary.LittleEndian.Uint64(record)
	return n, bytes.Equal(record, numbered(nil, n))
}

// TestDamagedWhileUsed damages the file under a writer, which drops all records and uses none.
func TestDamagedWhileUsed(t *testing.T) {
	third := func(f *File) uint32 { return uint32(f.findPlace(wire.RegionObjects, 3).Load()) }
	for name, damage := range map[string]func(f *File){
		"a record that is its own next page": func(f *File) { f.links[third(f)] = third(f) },
		"a record that is too long":          func(f *File) { binary.NativeEndian.PutUint32(f.pageBytes(third(f)), 1<<31) },
		"a page beyond the last one":         func(f *File) { f.findPlace(wire.RegionObjects, 3).Store(1<<32 | 1<<31) },
		"a table beyond the last page":       func(f *File) { f.tables[0].Store(1 << 31) },
		"two places with one record":         func(f *File) { f.findPlace(wire.RegionObjects, 4).Store(uint64(third(f))) },
		"a free page beyond the last one":    func(f *File) { f.firstFree = 1 << 31 },
	} {
		f := newTest(t)
		set(t, f, wire.RegionObjects, 3, make([]byte, 1000))
		f.SetState([]byte("state"), 0)
		damage(f)
		f.Record(wire.RegionObjects, 3)
		f.writing.Store(1)
		for i := range uint32(10) {
			set(t, f, wire.RegionObjects, i, make([]byte, 1000))
		}
		state, _ := f.State()
		if (state == nil) != (f.resets.Load() == 1) || (state != nil) != strings.HasPrefix(name, "a free") {
			t.Errorf("%s: got state %q after %d resets", name, state, f.resets.Load())
		}
		checkFree(t, f)
	}
}
