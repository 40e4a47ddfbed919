// Package shrinktest measures whether a component gives back the memory of removed content.
package shrinktest

import (
	"runtime"
	"testing"
)

// Heap returns the bytes of live objects.
func Heap() uint64 {
	var s runtime.MemStats
	for range 2 { // the first collection may only queue finalizers
		runtime.GC()
	}
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

// GivesBack runs fill, and then empty, which removes everything added by fill. GivesBack fails t if more than a fifth
// of the memory of fill is still held.
func GivesBack(t *testing.T, fill, empty func()) {
	t.Helper()
	before := Heap()
	fill()
	full := Heap()
	empty()
	after := Heap()
	took, kept := int64(full)-int64(before), int64(after)-int64(before)
	t.Logf("%d KiB when full, %d KiB when emptied", took>>10, kept>>10)
	if took < 1<<20 {
		t.Fatalf("%d bytes when full are too few to tell", took)
	}
	if kept > took/5 {
		t.Errorf("%d KiB of %d KiB are still held, want at most a fifth", kept>>10, took>>10)
	}
}
