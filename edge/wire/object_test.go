package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

func bucket(tags []uint32, objects []Object) []byte {
	rec := AppendObjectsHeader(nil, testEpoch, len(objects))
	for i := range objects {
		rec = AppendObject(rec, tags[i], &objects[i])
	}
	return FinishRecord(rec, 0)
}

func objects(n int) []Object {
	all := make([]Object, n)
	for i := range all {
		all[i] = object(Object{Key: fmt.Sprintf("/v1/products/%d", i), Version: uint64(i) + 1,
			ETag: `"e"`, ContentType: "text/plain"},
			Variant{Identity, uint32(i), 1, uint64(i)})
	}
	return all
}

func TestObjectRoundTrip(t *testing.T) {
	limits := object(Object{
		Key: "/" + strings.Repeat("k", limits.MaxKey-1), Version: limits.MaxVersion, PublishedMS: math.MaxInt64,
		TTLMS: math.MaxUint64,
		ETag:  `"` + strings.Repeat("e", limits.MaxETag-2) + `"`, ContentType: strings.Repeat("c", limits.MaxContentType),
		Status: 410, Headers: strings.Repeat("h", limits.MaxHeaders),
	}, slices.Repeat([]Variant{{Zstd, math.MaxUint32, limits.MaxBody, math.MaxUint64}}, int(Encodings))...)
	same := slices.Repeat([]uint32{testTag}, 1000)
	rising := make([]uint32, 1000)
	for i := range rising {
		rising[i] = uint32(i)
	}
	tests := []struct {
		name    string
		tags    []uint32
		objects []Object
	}{
		{"none", nil, nil},
		{"sample", same, []Object{productObject, deviceObject}},
		{"at the limits", []uint32{math.MaxUint32}, []Object{limits}},
		{"the least", []uint32{0}, []Object{object(Object{Key: "/"}, Variant{})}},
		{"a crowded bucket", rising, objects(1000)},
		{"a crowded bucket of one tag", same, objects(1000)},
		{"published before 1970", same, []Object{object(Object{Key: "/", PublishedMS: -1}, Variant{})}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rec := bucket(tt.tags, tt.objects)
			for i, want := range tt.objects {
				got, err := FindObject(rec, testEpoch, tt.tags[i], want.Key)
				if err != nil || got != want || !slices.Equal(got.Variants(), want.Variants()) {
					t.Errorf("got %+v, %v, want %+v", got, err, want)
				}
				if got, err := FindObject(rec, testEpoch, tt.tags[i]+0x01000000, want.Key); !errors.Is(err, ErrNotFound) {
					t.Errorf("another tag: got %+v, %v, want %v", got, err, ErrNotFound)
				}
				if got, err := FindObject(rec, testEpoch, tt.tags[i], want.Key+"?"); !errors.Is(err, ErrNotFound) ||
					got != (Object{}) {
					t.Errorf("same tag, another key: got %+v, %v, want %v", got, err, ErrNotFound)
				}
			}
		})
	}
}

// TestFindObjectWholeKey checks that only the whole key finds an object, with any tag.
func TestFindObjectWholeKey(t *testing.T) {
	rec := bucket([]uint32{testTag}, []Object{productObject})
	key := productObject.Key
	for _, other := range []string{"", "/", key[:len(key)-1], key + "x", strings.ToUpper(key), "@d" + key, key[1:] + "/"} {
		if got, err := FindObject(rec, testEpoch, testTag, other); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: got %+v, %v, want %v", other, got, err, ErrNotFound)
		}
	}
}

func TestFindObjectMalformed(t *testing.T) {
	// The first entry has 181 bytes from 16 on, so the second begins at 197; the second is looked up. An entry with
	// another tag is skipped by its size alone.
	const first, second = 16, 197
	good := appendBucket(nil)
	another := edited(good, set32(first+4, 0))
	tests := []struct {
		name string
		rec  []byte
		want error
	}{
		{"passed over, though its lengths are wrong", edited(another, set16(first+32, math.MaxUint16)), nil},
		{"size 0", edited(another, set32(first, 0)), ErrMalformed},
		{"size one less than the fixed part", edited(another, set32(first, 43)), ErrMalformed},
		{"size one more than is left", edited(another, set32(first, uint32(len(good)-16+1))), ErrMalformed},
		{"the greatest size", edited(another, set32(first, math.MaxUint32)), ErrMalformed},
		{"a negative size", edited(another, set32(first, 1<<31)), ErrMalformed},
		{"size up to the end", edited(another, set32(first, uint32(len(good)-16))), ErrMalformed},
		{"last entry cut", edited(good, cut(len(good)-1)), ErrMalformed},
		{"last entry cut in its fixed part", edited(good, cut(second+43)), ErrMalformed},
		{"last entry a byte longer", edited(good, set32(second, 137), add(0)), ErrMalformed},
		{"key longer than the entry", edited(good, set16(second+32, math.MaxUint16)), ErrMalformed},
		{"etag longer than the entry", edited(good, set8(second+34, 255)), ErrMalformed},
		{"content type longer than the entry", edited(good, set8(second+35, 255)), ErrMalformed},
		{"no variants", edited(good, set8(second+36, 0)), ErrMalformed},
		{"no variants, and lengths that add up", bucket([]uint32{testTag}, []Object{{Key: deviceObject.Key}}), ErrMalformed},
		{"five variants", edited(good, set8(second+36, 5)), ErrMalformed},
		{"five variants that are there", fiveVariants(), ErrMalformed},
		{"no such encoding", edited(good, set8(second+44, byte(Encodings))), ErrMalformed},
		{"headers longer than the entry", edited(good, set16(second+38, math.MaxUint16)), ErrMalformed},
		{"no such status", edited(good, set8(second+37, 1)), ErrMalformed},
		{"body over its limit", edited(good, set32(second+52, limits.MaxBody+1)), ErrMalformed},
		{"count of one more", edited(good, set16(2, 3)), nil},
		{"count of one less", edited(good, set16(2, 1)), ErrNotFound},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := FindObject(tt.rec, testEpoch, testTag, deviceObject.Key)
			if !errors.Is(err, tt.want) || err != nil && got != (Object{}) {
				t.Errorf("got %+v, %v, want %v", got, err, tt.want)
			}
			sameBeyond(t, tt.rec, readObjects)
		})
	}
}

// fiveVariants returns an entry with lengths for one variant more than there are codings: the codec's output with one
// variant, and 80 bytes of the key declared as four more.
func fiveVariants() []byte {
	o := object(Object{Key: strings.Repeat("\x00", 99) + "/"}, Variant{})
	return edited(bucket([]uint32{testTag}, []Object{o}), set8(16+36, 5), set16(16+32, 100-80))
}

func TestAddVariantTooMany(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("got a fifth variant, want a panic")
		}
	}()
	object(Object{}, make([]Variant, Encodings+1)...)
}

func TestBodyRoundTrip(t *testing.T) {
	for _, n := range []int{0, 1, 7, 8, 9, 1024, limits.MaxBody} {
		body := bytes.Repeat([]byte{0xa5}, n)
		rec := AppendBody(nil, testEpoch, 9, body)
		got, err := FindBody(rec, testEpoch, Variant{Length: uint32(n), Stamp: 9})
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("%d bytes: got %d bytes, %v", n, len(got), err)
		}
	}
}

func TestFindBodyTombstone(t *testing.T) {
	if got, err := FindBody(AppendBody(nil, testEpoch, 0, nil), testEpoch, Variant{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %q, %v; want %v", got, err, ErrNotFound)
	}
}

// TestFindBodyNeverAnother checks that a slot with another body than the entry's is no answer: entry or slot was
// written since.
func TestFindBodyNeverAnother(t *testing.T) {
	good := AppendBody(nil, testEpoch, 101, []byte("hello"))
	named := Variant{Identity, 11, 5, 101}
	tests := []struct {
		name    string
		rec     []byte
		variant Variant
		want    error
	}{
		{"the same", good, named, nil},
		{"the same, whatever the slot and encoding say", good, Variant{Gzip, 12, 5, 101}, nil},
		{"an older stamp", good, Variant{Identity, 11, 5, 100}, ErrNotFound},
		{"a newer stamp", good, Variant{Identity, 11, 5, 102}, ErrNotFound},
		{"a stamp equal in its low half", good, Variant{Identity, 11, 5, 101 + 1<<32}, ErrNotFound},
		{"shorter than is there", good, Variant{Identity, 11, 4, 101}, ErrNotFound},
		{"longer than is there", good, Variant{Identity, 11, 6, 101}, ErrNotFound},
		{"blanked", AppendBody(nil, testEpoch, 0, nil), named, ErrNotFound},
		{"length up to the end of the padding", edited(good, set32(4, 8)), named, ErrNotFound},
		{"length one more than is there", edited(good, set32(4, 9)), named, ErrMalformed},
		{"length one more than is there, and named", edited(good, set32(4, 9)), Variant{Identity, 11, 9, 101}, ErrMalformed},
		{"the greatest length", edited(good, set32(4, math.MaxUint32)),
			Variant{Identity, 11, math.MaxUint32, 101}, ErrMalformed},
		{"cut", edited(AppendBody(nil, testEpoch, 101, make([]byte, 9)), cut(32)),
			Variant{Identity, 11, 9, 101}, ErrMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			read := func(rec []byte) string {
				got, err := FindBody(rec, testEpoch, tt.variant)
				return line(string(got), err)
			}
			want := ok("hello")
			if tt.want != nil {
				want = failed(tt.want)
			}
			if got := read(tt.rec); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			sameBeyond(t, tt.rec, read)
		})
	}
}

// TestIsBlank: a tombstone of a body is one, and no body is.
func TestIsBlank(t *testing.T) {
	for _, c := range []struct {
		stamp uint64
		body  string
		want  bool
	}{{0, "", true}, {1, "", false}, {1 << 63, "", false}, {1, "eight ch", false}, {0, "eight ch", false}} {
		if got := IsBlank(AppendBody(nil, 7, c.stamp, []byte(c.body))); got != c.want {
			t.Errorf("stamp %d, body %q: got %v, want %v", c.stamp, c.body, got, c.want)
		}
	}
	if IsBlank(nil) || IsBlank(make([]byte, MinRecord-1)) {
		t.Error("a record that is too short is a tombstone")
	}
}
