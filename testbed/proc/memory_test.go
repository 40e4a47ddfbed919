//go:build linux

package proc

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRSSGrowsByWhatIsWritten(t *testing.T) {
	before, err := RSS(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const size = 64 << 20
	// Not in Go's heap, of which the race detector keeps a shadow.
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
