//go:build linux

package scenario

import (
	"os"
	"runtime"
	"testing"

	"github.com/gatehouse/gatehouse/testbed/proc"
)

func TestMemoryOf(t *testing.T) {
	const mib = 1 << 20
	got := memoryOf([]proc.Mapping{
		// Go's heap: the used part of a block lies between two reserved ones.
		{Start: 64 * mib, End: 70 * mib},
		{Start: 70 * mib, End: 80 * mib, PSS: 9, Private: 9},
		{Start: 80 * mib, End: 128 * mib, Name: "[anon: Go: heap reservation]"},
		// Not Go's: a mapping with a gap, or with a begin or end inside a block.
		{Start: 200 * mib, End: 256 * mib, PSS: 10, Private: 10},
		{Start: 320 * mib, End: 370 * mib, PSS: 20, Private: 20},
		{Start: 448 * mib, End: 450 * mib, PSS: 30},
		{Start: 451 * mib, End: 512 * mib, PSS: 40},
		{Start: 512 * mib, End: 576 * mib, Name: "[heap]", PSS: 100, Private: 50},
		{Start: 600 * mib, End: 700 * mib, Name: "/dev/shm/gatehouse-loadtest-1/memory", PSS: 1000, Private: 7},
		{Start: 700 * mib, End: 702 * mib, Name: "/a/build/libgatehouse-nginx.so (deleted)", PSS: 2000},
	})
	want := workerMemory{pss: 3209, private: 96, file: 1000, library: 2000, heap: 9, other: 200}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestGoHeapIsFound fails if Go changes the layout of the heap.
func TestGoHeapIsFound(t *testing.T) {
	const size = 100 << 20
	block := make([]byte, size)
	for i := range block {
		block[i] = 1
	}
	all, err := proc.ReadMappings(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if heap := goHeap(all); heap < size {
		t.Errorf("got a heap of %d bytes, want the %d that were allocated, or more", heap, size)
	}
	runtime.KeepAlive(block)
}
