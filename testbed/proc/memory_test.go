//go:build linux

package proc

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRSSGrowsByWhatIsWritten(t *testing.T) {
	before, err := RSS(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const size = 64 << 20
	// Not in Go's heap: the race detector keeps a shadow of the heap.
	block, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	for i := range block {
		block[i] = 1
	}
	after, err := RSS(os.Getpid())
	if grown := after - before; err != nil || grown < size*9/10 || grown > size*2 {
		t.Errorf("%d bytes written: grown by %d (%v)", size, grown, err)
	}
	if err := unix.Munmap(block); err != nil {
		t.Error(err)
	}
	if _, err := RSS(1 << 30); err == nil {
		t.Error("got no error for a process that isn't there")
	}
}

// TestMappings maps a file twice, and reads one mapping.
func TestMappings(t *testing.T) {
	const size = 16 << 20
	path := filepath.Join(t.TempDir(), "a file")
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for _, flags := range []int{unix.MAP_SHARED | unix.MAP_POPULATE, unix.MAP_SHARED} {
		block, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ, flags)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Munmap(block) }()
	}
	all, err := ReadMappings(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	anonymous, last := int64(0), uint64(0)
	for _, m := range all {
		if m.Start < last || m.End <= m.Start || m.Private > m.PSS {
			t.Errorf("got %+v after %x", m, last)
		}
		if last = m.End; m.Name == path {
			got = append(got, m.PSS, m.Private, int64(m.End-m.Start))
		} else if m.Name == "" {
			anonymous += m.Private
		}
	}
	slices.Sort(got)
	if want := []int64{0, 0, size, size, size, size}; !slices.Equal(got, want) {
		t.Errorf("got %d of the file, want %d", got, want)
	}
	if anonymous < 1<<20 {
		t.Errorf("got %d private anonymous bytes, want Go's heap", anonymous)
	}
	if _, err := ReadMappings(1 << 30); err == nil {
		t.Error("got no error for a process that isn't there")
	}
}
