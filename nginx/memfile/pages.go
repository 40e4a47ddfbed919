//go:build linux

package memfile

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"github.com/gatehouse/gatehouse/edge/wire"
)

const (
	pageSize   = 256
	lengthSize = 4            // before a record
	placesIn   = pageSize / 8 // a page
)

// pagesFor returns the number of pages of a record of n bytes.
func pagesFor(n int) uint32 {
	if n == 0 {
		return 0
	}
	return uint32((lengthSize + n + pageSize - 1) / pageSize)
}

func (f *File) pageBytes(number uint32) []byte { return f.pages[int(number)*pageSize:][:pageSize] }

func (f *File) isValidPage(page uint32) bool { return page != 0 && int(page) < len(f.links) }

// recordLength returns the length of the record at a page.
func (f *File) recordLength(page uint32) int {
	if page == 0 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(f.pageBytes(page)))
}

// appendRecord appends the record at a page; nil without a record. A writer may be writing a new record there, so
// appendRecord may return anything, but reads within bounds.
func (f *File) appendRecord(dst []byte, page uint32) []byte {
	if !f.isValidPage(page) {
		return nil
	}
	length := f.recordLength(page)
	if length > maxRecord {
		return nil
	}
	dst = slices.Grow(dst, length)
	for part := f.pageBytes(page)[lengthSize:]; ; part = f.pageBytes(page) {
		dst = append(dst, part[:min(len(part), length-len(dst))]...)
		if len(dst) == length {
			return dst
		}
		if page = f.links[page]; !f.isValidPage(page) {
			return nil
		}
	}
}

// findPlace returns a place, nil without the place's page.
func (f *File) findPlace(region wire.Region, index uint32) *place {
	switch region {
	case wire.RegionState:
		return &f.state
	case guardRegion:
		return &f.guardPlace
	}
	at, ok := f.tableAt(region, index)
	if !ok {
		return nil
	}
	page := f.tables[at].Load()
	if !f.isValidPage(page) {
		return nil
	}
	return &f.placesOn(page)[index%placesIn]
}

// tableAt returns the index in tables of a place's page; false for an impossible place.
func (f *File) tableAt(region wire.Region, index uint32) (at int, ok bool) {
	each := len(f.tables) / regions
	at = int(index / placesIn)
	return int(region-wire.RegionObjects)*each + at, region <= wire.RegionVerdicts && at < each
}

func (f *File) placesOn(page uint32) *[placesIn]place {
	return (*[placesIn]place)(unsafe.Pointer(unsafe.SliceData(f.pageBytes(page))))
}

// putRecord writes a record. The lock is held.
func (f *File) putRecord(region wire.Region, index uint32, record []byte) error {
	if region == wire.RegionBodies && wire.IsBlank(record) {
		record = nil
	}
	p := f.findPlace(region, index)
	if p == nil {
		at, ok := f.tableAt(region, index)
		if !ok {
			return fmt.Errorf("the memory file of %d bytes has no such place", f.size)
		}
		page, err := f.takePages(1)
		if err != nil {
			return err
		}
		clear(f.pageBytes(page))
		f.passStep("table cleared")
		f.tables[at].Store(page)
		p = &f.placesOn(page)[index%placesIn]
	}
	old := uint32(p.Load())
	need, has := pagesFor(len(record)), pagesFor(f.recordLength(old))
	if free := f.free.Load(); need > free && need <= free+has {
		f.replaceRecord(p, 0) // rather no record for a moment than the old record for ever
		old = 0
	}
	first, err := f.takePages(need)
	if err != nil {
		return err
	}
	f.fillPages(first, record)
	f.passStep("filled")
	f.replaceRecord(p, first)
	return nil
}

func (f *File) fillPages(page uint32, record []byte) {
	if len(record) == 0 {
		return
	}
	binary.NativeEndian.PutUint32(f.pageBytes(page), uint32(len(record)))
	for part := f.pageBytes(page)[lengthSize:]; ; part = f.pageBytes(page) {
		if record = record[copy(part, record):]; len(record) == 0 {
			return
		}
		f.passStep("page filled")
		page = f.links[page]
	}
}

// replaceRecord makes a place name another record, 0 for none, and frees the old record.
func (f *File) replaceRecord(p *place, first uint32) {
	before := p.Load()
	number := uint32(before>>32) + 1
	if number == 0 { // 0 is for places never written
		number = 1
	}
	p.Store(uint64(number)<<32 | uint64(first))
	f.fence() // the pages are reused only after readers can see the change
	f.passStep("replaced")
	f.freePages(uint32(before))
}

// takePages takes n linked pages from the free pages.
func (f *File) takePages(n uint32) (first uint32, err error) {
	free := f.free.Load()
	if n > free {
		used, most := f.Usage()
		return 0, fmt.Errorf("the memory file is full: %d of %d bytes are used, %d are needed: enlarge it",
			used, most, int(n)*pageSize)
	}
	if n == 0 {
		return 0, nil
	}
	first = f.firstFree
	last := first
	for range n - 1 {
		last = f.links[last]
	}
	f.firstFree = f.links[last]
	f.passStep("unlinked")
	f.free.Store(free - n)
	return first, nil
}

// freePages frees the pages of a record.
func (f *File) freePages(first uint32) {
	if first == 0 {
		return
	}
	n, last := pagesFor(f.recordLength(first)), first
	for range n - 1 {
		last = f.links[last]
	}
	f.links[last] = f.firstFree
	f.passStep("linked")
	f.firstFree = first
	f.free.Add(n)
}

// repair finds the free pages after a writer was killed. It drops all records if they are damaged; a killed writer
// damages no record.
func (f *File) repair() {
	used := make([]bool, len(f.links))
	if !f.markUsed(used) {
		for i := range f.tables {
			f.tables[i].Store(0)
		}
		f.resets.Add(1) // only now: readers with a page of places read again
		f.state.Store(f.state.Load() &^ (1<<32 - 1))
		f.guardPlace.Store(0)
		f.fence()
		clear(used)
	}
	first, free := uint32(0), uint32(0)
	for page := uint32(len(used) - 1); page > 0; page-- {
		if !used[page] {
			f.links[page] = first
			first = page
			free++
		}
	}
	f.firstFree = first
	f.free.Store(free)
}

// markUsed marks the pages in use, and reports whether each is used once.
func (f *File) markUsed(used []bool) bool {
	whole := f.markRecord(used, &f.state) && f.markRecord(used, &f.guardPlace)
	for i := range f.tables {
		page := f.tables[i].Load()
		if page == 0 {
			continue
		}
		if whole = whole && f.isValidPage(page) && !used[page]; !whole {
			break
		}
		used[page] = true
		places := f.placesOn(page)
		for j := range places {
			whole = whole && f.markRecord(used, &places[j])
		}
	}
	return whole
}

func (f *File) markRecord(used []bool, p *place) bool {
	page := uint32(p.Load())
	if page == 0 {
		return true
	}
	if !f.isValidPage(page) {
		return false
	}
	length := f.recordLength(page)
	if length == 0 || length > maxRecord {
		return false
	}
	for range pagesFor(length) {
		if !f.isValidPage(page) || used[page] {
			return false
		}
		used[page] = true
		page = f.links[page]
	}
	return true
}
