package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/objectkey"
)

// An edit makes an invalid copy of valid bytes.
type edit func(b []byte) []byte

func set8(at int, v byte) edit {
	return func(b []byte) []byte { b[at] = v; return b }
}

func set16(at int, v uint16) edit {
	return func(b []byte) []byte { binary.LittleEndian.PutUint16(b[at:], v); return b }
}

func set32(at int, v uint32) edit {
	return func(b []byte) []byte { binary.LittleEndian.PutUint32(b[at:], v); return b }
}

func set64(at int, v uint64) edit {
	return func(b []byte) []byte { binary.LittleEndian.PutUint64(b[at:], v); return b }
}

func cut(n int) edit { return func(b []byte) []byte { return b[:n] } }

func add(more ...byte) edit { return func(b []byte) []byte { return append(b, more...) } }

func edited(b []byte, edits ...edit) []byte {
	b = slices.Clone(b)
	for _, e := range edits {
		b = e(b)
	}
	return slices.Clip(b)
}

func TestAppendPlace(t *testing.T) {
	tests := []struct {
		name   string
		region Region
		index  uint32
		want   []byte
	}{
		{"state", RegionState, 0, []byte{0, 0, 0, 0, 0}},
		{"objects", RegionObjects, 1, []byte{1, 1, 0, 0, 0}},
		{"bodies", RegionBodies, 0x04030201, []byte{2, 1, 2, 3, 4}},
		{"verdicts", RegionVerdicts, 1<<32 - 1, []byte{3, 255, 255, 255, 255}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := AppendPlace([]byte("x"), tt.region, tt.index)
			if want := append([]byte("x"), tt.want...); !bytes.Equal(got, want) || len(got)-1 != PlaceSize {
				t.Errorf("got % x, want % x", got, want)
			}
			if got := tt.region.String(); got != tt.name {
				t.Errorf("got region %s, want %s", got, tt.name)
			}
		})
	}
}

func TestNames(t *testing.T) {
	tests := []struct{ got, want string }{
		{regions.String(), "region(4)"}, {Region(255).String(), "region(255)"},
		{Identity.String(), "identity"}, {Gzip.String(), "gzip"}, {Brotli.String(), "br"}, {Zstd.String(), "zstd"},
		{Encodings.String(), "encoding(4)"},
		{Allow.String(), "allow"}, {Deny.String(), "deny"}, {Unavailable.String(), "unavailable"},
		{Outcome(0).String(), "unavailable"},
		{objectkey.OfDevice("demo-device", "/v1/me"), "@demo-device/v1/me"},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("got %s, want %s", tt.got, tt.want)
		}
	}
}

// readers has a lookup per region, in a record that would have the item.
var readers = []struct {
	region Region
	good   []byte
	read   func(rec []byte, epoch uint64) error
}{
	{RegionState, AppendState(nil, &testState), func(rec []byte, _ uint64) error {
		_, err := ParseState(rec)
		return err
	}},
	{RegionObjects, appendBucket(nil), func(rec []byte, epoch uint64) error {
		_, err := FindObject(rec, epoch, testTag, deviceObject.Key)
		return err
	}},
	{RegionBodies, AppendBody(nil, testEpoch, 101, []byte("hello")), func(rec []byte, epoch uint64) error {
		_, err := FindBody(rec, epoch, productObject.Variants()[0])
		return err
	}},
	{RegionVerdicts, AppendVerdicts(nil, testEpoch, testVerdicts, testDevices), func(rec []byte, epoch uint64) error {
		_, _, err := FindVerdict(rec, epoch, &testVerdicts[1].Digest, testDevices[0].Tag)
		return err
	}},
}

// TestHeader checks the common part of all records.
func TestHeader(t *testing.T) {
	tests := []struct {
		name  string
		edits []edit
		want  error
	}{
		{"good", nil, nil},
		{"empty", []edit{cut(0)}, ErrMalformed},
		{"a header only", []edit{cut(16)}, ErrMalformed},
		{"a byte short of the least", []edit{cut(MinRecord - 1)}, ErrMalformed},
		{"layout before this", []edit{set8(0, Layout-1)}, ErrLayout},
		{"layout after this", []edit{set8(0, Layout+1)}, ErrLayout},
		{"layout and region of another", []edit{set8(0, 0xff), set8(1, 0xff)}, ErrLayout},
		{"no such region", []edit{set8(1, byte(regions))}, ErrMalformed},
	}
	for _, r := range readers {
		for _, tt := range tests {
			t.Run(r.region.String()+"/"+tt.name, func(t *testing.T) {
				rec := edited(r.good, tt.edits...)
				if got := r.read(rec, testEpoch); !errors.Is(got, tt.want) {
					t.Errorf("got %v, want %v", got, tt.want)
				}
				epoch, err := RecordEpoch(rec, r.region)
				if !errors.Is(err, tt.want) || err == nil && epoch != testEpoch {
					t.Errorf("RecordEpoch: got %x, %v, want %x, %v", epoch, err, uint64(testEpoch), tt.want)
				}
			})
		}
		for region := range regions {
			if got := r.read(edited(r.good, set8(1, byte(region))), testEpoch); (got == nil) != (region == r.region) {
				t.Errorf("%s record under region %s: got %v", r.region, region, got)
			}
		}
	}
}

// TestEpoch checks that no lookup returns anything from a record of an earlier epoch, and that an unwritten record is
// not found.
func TestEpoch(t *testing.T) {
	for _, r := range readers[1:] {
		for _, epoch := range []uint64{0, testEpoch - 1, testEpoch + 1, testEpoch ^ 1<<63, testEpoch & 0xffffffff} {
			if got := r.read(r.good, epoch); !errors.Is(got, ErrEpoch) {
				t.Errorf("%s, epoch %x: got %v, want %v", r.region, epoch, got, ErrEpoch)
			}
			if got := r.read(edited(r.good, set64(8, epoch)), testEpoch); !errors.Is(got, ErrEpoch) {
				t.Errorf("%s, record of epoch %x: got %v, want %v", r.region, epoch, got, ErrEpoch)
			}
		}
		if got := r.read(nil, testEpoch); !errors.Is(got, ErrNotFound) {
			t.Errorf("%s, never written: got %v, want %v", r.region, got, ErrNotFound)
		}
		if got := r.read([]byte{}, testEpoch); !errors.Is(got, ErrMalformed) {
			t.Errorf("%s, empty value: got %v, want %v", r.region, got, ErrMalformed)
		}
	}
	if _, got := ParseState(nil); !errors.Is(got, ErrMalformed) {
		t.Errorf("state, never written: got %v, want %v", got, ErrMalformed)
	}
}
