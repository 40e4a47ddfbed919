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

func (f *File) page(number uint32) []byte { return f.pages[int(number)*pageSize:][:pageSize] }

func (f *File) valid(page uint32) bool { return page != 0 && int(page) < len(f.links) }

// length returns the length of the record at a page.
func (f *File) length(page uint32) int {
	if page == 0 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(f.page(page)))
}

// appendRecord appends the record at a page; nil without a record. A writer may be writing a new record there, so
// appendRecord may return anything, but reads within bounds.
func (f *File) appendRecord(dst []byte, page uint32) []byte {
	if !f.valid(page) {
		return nil
	}
	length := f.length(page)
	if length > maxRecord {
		return nil
	}
	dst = slices.Grow(dst, length)
	for part := f.page(page)[lengthSize:]; ; part = f.page(page) {
		dst = append(dst, part[:min(len(part), length-len(dst))]...)
		if len(dst) == length {
			return dst
		}
		if page = f.links[page]; !f.valid(page) {
			return nil
		}
	}
}

// find returns a place, nil without the place's page.
func (f *File) find(region wire.Region, index uint32) *place {
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
	if !f.valid(page) {
		return nil
	}
	return &f.places(page)[index%placesIn]
}

// tableAt returns the index in tables of a place's page; false for an impossible place.
func (f *File) tableAt(region wire.Region, index uint32) (at int, ok bool) {
	each := len(f.tables) / regions
	at = int(index / placesIn)
	return int(region-wire.RegionObjects)*each + at, region <= wire.RegionVerdicts && at < each
}

func (f *File) places(page uint32) *[placesIn]place {
	return (*[placesIn]place)(unsafe.Pointer(unsafe.SliceData(f.page(page))))
}

// put writes a record. The lock is held.
func (f *File) put(region wire.Region, index uint32, record []byte) error {
	if region == wire.RegionBodies && wire.IsBlank(record) {
		record = nil
	}
	p := f.find(region, index)
	if p == nil {
		at, ok := f.tableAt(region, index)
		if !ok {
			return fmt.Errorf("the memory file of %d bytes has no such place", f.size)
		}
		page, err := f.take(1)
		if err != nil {
			return err
		}
		clear(f.page(page))
		f.at("table cleared")
		f.tables[at].Store(page)
		p = &f.places(page)[index%placesIn]
	}
	old := uint32(p.Load())
	need, has := pagesFor(len(record)), pagesFor(f.length(old))
	if free := f.free.Load(); need > free && need <= free+has {
		f.replace(p, 0) // rather none for a moment than the old one for ever
		old = 0
	}
	first, err := f.take(need)
	if err != nil {
		return err
	}
	f.fill(first, record)
	f.at("filled")
	f.replace(p, first)
	return nil
}

func (f *File) fill(page uint32, record []byte) {
	if len(record) == 0 {
		return
	}
	binary.NativeEndian.PutUint32(f.page(page), uint32(len(record)))
	for part := f.page(page)[lengthSize:]; ; part = f.page(page) {
		if record = record[copy(part, record):]; len(record) == 0 {
			return
		}
		f.at("page filled")
		page = f.links[page]
	}
}

// replace makes a place name another record, 0 for none, and frees the old record.
func (f *File) replace(p *place, first uint32) {
	before := p.Load()
	number := uint32(before>>32) + 1
	if number == 0 { // that is for places that were never written
		number = 1
	}
	p.Store(uint64(number)<<32 | uint64(first))
	f.fence() // its pages are used again only once readers can see that
	f.at("replaced")
	f.give(uint32(before))
}

// take takes n linked pages from the free pages.
func (f *File) take(n uint32) (first uint32, err error) {
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
	f.at("unlinked")
	f.free.Store(free - n)
	return first, nil
}

// give frees the pages of a record.
func (f *File) give(first uint32) {
	if first == 0 {
		return
	}
	n, last := pagesFor(f.length(first)), first
	for range n - 1 {
		last = f.links[last]
	}
	f.links[last] = f.firstFree
	f.at("linked")
	f.firstFree = first
	f.free.Add(n)
}

// repair finds the free pages after a writer was killed. It drops all records if they are damaged; a killed writer
// damages no record.
func (f *File) repair() {
	used := make([]bool, len(f.links))
	if !f.mark(used) {
		for i := range f.tables {
			f.tables[i].Store(0)
		}
		f.resets.Add(1) // only now: a reader that still found a page of places reads again
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

// mark marks the pages in use, and reports whether each is used once.
func (f *File) mark(used []bool) bool {
	whole := f.markRecord(used, &f.state) && f.markRecord(used, &f.guardPlace)
	for i := range f.tables {
		page := f.tables[i].Load()
		if page == 0 {
			continue
		}
		if whole = whole && f.valid(page) && !used[page]; !whole {
			break
		}
		used[page] = true
		places := f.places(page)
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
	if !f.valid(page) {
		return false
	}
	length := f.length(page)
	if length == 0 || length > maxRecord {
		return false
	}
	for range pagesFor(length) {
		if !f.valid(page) || used[page] {
			return false
		}
		used[page] = true
		page = f.links[page]
	}
	return true
}
