package abi

import (
	"runtime"
	"testing"
	"unsafe"
)

func TestArena(t *testing.T) {
	var a Arena
	first := a.Allocate(5)
	second := a.Allocate(3)
	copy(first, "first")
	copy(second, "two")
	if string(a.Last(3)) != "two" || string(first) != "first" {
		t.Errorf("got %q and %q, want two and first", a.Last(3), first)
	}
	if at := uintptr(unsafe.Pointer(&second[0])); at%8 != 0 {
		t.Errorf("got address %x, want a multiple of 8", at)
	}
	if a.Last(4) != nil {
		t.Errorf("got %q, want nothing: only 3 bytes were handed out", a.Last(4))
	}
	if len(a.Allocate(0)) != 0 || len(a.Last(0)) != 0 {
		t.Error("want nothing for nothing")
	}
	a.Reset()
	if a.Last(1) != nil {
		t.Error("a result outlives its callback")
	}
	if again := a.Allocate(5); &again[0] != &first[0] {
		t.Error("what was handed out isn't taken back")
	}
}

// TestArenaSpills requests more than the arena's size: each result has its own memory, which stays until the callback
// is over although only the address is known.
func TestArenaSpills(t *testing.T) {
	var a Arena
	sizes := []int{arenaSize - 8, 16, 8, 1, arenaSize, 4 << 20}
	var addresses []*byte
	for i, size := range sizes {
		b := a.Allocate(size)
		if len(b) != size {
			t.Fatalf("got %d bytes, want %d", len(b), size)
		}
		for j := range b {
			b[j] = byte(i + 1)
		}
		addresses = append(addresses, &b[0])
	}
	if len(a.spilled) != 4 {
		t.Errorf("got %d results with memory of their own, want 4", len(a.spilled))
	}
	runtime.GC()
	for i, size := range sizes {
		for j, c := range unsafe.Slice(addresses[i], size) {
			if c != byte(i+1) {
				t.Fatalf("result %d: byte %d is another's", i, j)
			}
		}
	}
	if a.Reset(); a.spilled != nil {
		t.Error("memory is held when the callback is over")
	}
	if got := testing.AllocsPerRun(10, func() { a.Reset(); a.Allocate(arenaSize) }); got != 0 {
		t.Errorf("got %v allocations for what fits, want 0", got)
	}
}
