package wire

import (
	"bytes"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestEveryBitCounts flips each bit of each sample: readers must return something else, unless the bit belongs to a
// reserved byte.
func TestEveryBitCounts(t *testing.T) {
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			b := s.append(nil)
			at := 0
			for _, f := range s.fields {
				for i := range f.size * 8 {
					flipped := slices.Clone(b)
					flipped[at+i/8] ^= 1 << (i % 8)
					same := s.read(flipped) == s.want
					if want := f.name == zero; same != want && !unread(s.name, f.name) {
						t.Errorf("%s: bit %d of byte %d flipped: got the same answer %t, want %t", f.name, i%8, at+i/8, same, want)
					}
				}
				at += f.size
			}
		})
	}
}

// unread reports whether a field may make no difference to a sample's reader: of a batch only the headers of its
// records are read, a body's count means nothing, a tombstone is not found whatever its stamp, and a device of zeroes
// matches none.
func unread(sample, name string) bool {
	switch sample {
	case "batch", "batch-none":
		return !slices.Contains([]string{"layout", zero, "operations", "epoch", "replaces", "op: region",
			"index", "record length", "region"}, name)
	case "verdicts-none": // up to two devices of zeroes fit into its padding
		return name == "devices"
	case "body":
		return name == "count"
	case "body-none":
		return name == "count" || name == "body length" || name == "stamp"
	}
	return false
}

// TestNumbersSizeNoAllocation replaces each number of each sample by the largest number, and by other large numbers:
// readers allocate by the bytes received, not by a peer's claims.
func TestNumbersSizeNoAllocation(t *testing.T) {
	for _, s := range samples() {
		b := s.append(nil)
		at := 0
		for _, f := range s.fields {
			for _, high := range []byte{0xff, 0x7f, 0x40} { // of an integer's bytes, the last one
				claim := slices.Clone(b)
				for i := range f.size {
					claim[at+i] = 0xff
				}
				if f.size > 0 {
					claim[at+f.size-1] = high
				}
				if got := allocated(func() { s.read(claim) }); got > 64<<10 {
					t.Errorf("%s with a large %s: %d bytes allocated", s.name, f.name, got)
				}
			}
			at += f.size
		}
	}
}

// allocated returns how many bytes run allocates, if nothing else runs.
func allocated(run func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestTruncated cuts each sample at each length.
func TestTruncated(t *testing.T) {
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			b := s.append(nil)
			for n := range b {
				if got := s.read(slices.Clip(b[:n])); !strings.Contains(got, "error: ") {
					t.Errorf("%d of %d bytes: got %q, want an error", n, len(b), got)
				}
				sameBeyond(t, b[:n], s.read)
			}
		})
	}
}

// sameBeyond fails if the result of read depends on bytes beyond the end of b. A slice expression may reach up to the
// capacity without a panic, so truncation alone would not reveal a late check of a bound.
func sameBeyond(t *testing.T, b []byte, read func([]byte) string) {
	t.Helper()
	want := read(slices.Clip(append([]byte{}, b...)))
	for _, beyond := range []byte{0x00, 0x01, 0xff} {
		buf := append(append([]byte{}, b...), bytes.Repeat([]byte{beyond}, 4096)...)
		if got := read(buf[:len(b)]); got != want {
			t.Fatalf("% x, followed by %02x: got %q, want %q", b, beyond, got, want)
		}
	}
}

// TestAppend checks that every writer preserves the content of dst, and writes the same as at the start of a slice.
func TestAppend(t *testing.T) {
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			want := append([]byte("before"), s.append(nil)...)
			if got := s.append([]byte("before")); !bytes.Equal(got, want) {
				t.Errorf("got % x, want % x", got, want)
			}
		})
	}
}

// TestMinRecord checks that no record is shorter than the minimum.
func TestMinRecord(t *testing.T) {
	for _, s := range recordSamples() {
		if got := len(s.append(nil)); got < MinRecord {
			t.Errorf("%s: got %d bytes, want at least %d", s.name, got, MinRecord)
		}
	}
}
