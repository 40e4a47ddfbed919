//go:build linux

package proc

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

func TestRSSGrowsByWhatIsWritten(t *testing.T) {
	before, err := RSS(os.Getpid())
	require.NoError(t, err)
	const size = 64 << 20
	// Not in Go's heap: the race detector keeps a shadow of the heap.
	block, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
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

// TestPSSDividesPages maps the pages of a file twice.
func TestPSSDividesPages(t *testing.T) {
	const size = 64 << 20
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, make([]byte, size), 0o600))
	file, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	before, err := PSS(os.Getpid())
	require.NoError(t, err)
	for range 2 {
		block, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
		require.NoError(t, err)
		defer func() { _ = unix.Munmap(block) }()
	}
	after, err := PSS(os.Getpid())
	if grown := after - before; err != nil || grown < size*9/10 || grown > size*3/2 {
		t.Errorf("%d bytes mapped twice: grown by %d (%v)", size, grown, err)
	}
	if _, err := PSS(1 << 30); err == nil {
		t.Error("got no error for a process that isn't there")
	}
}
