package wire

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dchest/siphash"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

// vectors returns a file of SipHash reference vectors: line n is the output for the input 00 01 02 … of n bytes under
// the key 00 01 … 0f. They are never regenerated.
func vectors(t *testing.T, name string) [][]byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var all [][]byte
	for l := range strings.Lines(string(text)) {
		if strings.HasPrefix(l, "#") {
			continue
		}
		b, err := hex.DecodeString(strings.TrimSpace(l))
		if err != nil {
			t.Fatalf("%s: %q: %v", name, l, err)
		}
		all = append(all, b)
	}
	if len(all) != 64 {
		t.Fatalf("%s: got %d vectors, want 64", name, len(all))
	}
	return all
}

func counting(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

func TestSipHash64(t *testing.T) {
	k := Keys{Placement: [16]byte(counting(16))}
	for n, vector := range vectors(t, "siphash-2-4-64.txt") {
		want := binary.LittleEndian.Uint64(vector)
		if got := siphash.Hash(half(k.Placement, 0), half(k.Placement, 8), counting(n)); got != want {
			t.Errorf("%d bytes: got %016x, want %016x", n, got, want)
		}
		// With 2^31 buckets a place shows all bits of the hash but one.
		bucket, tag := k.Place(string(counting(n)), 1<<31)
		if got := uint64(tag)<<31 | uint64(bucket); got != want>>32<<31|want&0xffffffff>>1 {
			t.Errorf("%d bytes: got bucket %08x, tag %08x, want those of %016x", n, bucket, tag, want)
		}
	}
}

func TestSipHash128(t *testing.T) {
	k := Keys{Credential: [16]byte(counting(16))}
	for n, want := range vectors(t, "siphash-2-4-128.txt") {
		lo, hi := siphash.Hash128(half(k.Credential, 0), half(k.Credential, 8), counting(n))
		got := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, lo), hi)
		if string(got) != string(want) {
			t.Errorf("%d bytes: got % x, want % x", n, got, want)
		}
	}
}

var places = []struct {
	key     string
	buckets uint32
}{
	{"/", 1}, {"/", 4096}, {"/v1/products/1", 4096}, {"/v1/products/2", 4096}, {"/v1/products/1?lang=de", 4096},
	{"@demo-device/v1/me/config", 4096}, {"/v1/products/1", 1000}, {"/v1/products/1", 1<<32 - 1}, {"/v1/products/1", 0},
	{"/" + strings.Repeat("x", 60), 4096},
}

// TestPlaceGolden pins the places of objects.
func TestPlaceGolden(t *testing.T) {
	var s strings.Builder
	fmt.Fprintf(&s, "# h = SipHash-2-4(placement key %x, key)\n", testKeys.Placement)
	s.WriteString("# bucket = (h mod 2^32) * buckets div 2^32; tag = h div 2^32\n# bucket of buckets, tag, key\n")
	for _, p := range places {
		bucket, tag := testKeys.Place(p.key, p.buckets)
		fmt.Fprintf(&s, "%d of %d, %08x, %q\n", bucket, p.buckets, tag, p.key)
	}
	golden(t, "place", s.String())
}

var credentials = []struct{ id, secret string }{
	{"demo-device", "demo-secret"}, {"demo-device", "wrong"}, {"demo-devic", "edemo-secret"}, {"a", "bc"}, {"ab", "c"},
	{"", ""}, {"demo-device", ""}, {"demo-device", "sécret\x00"},
	{strings.Repeat("d", limits.MaxDeviceID), strings.Repeat("s", limits.MaxSecret)},
}

// TestDigestGolden pins the digest of a credential.
func TestDigestGolden(t *testing.T) {
	var s strings.Builder
	fmt.Fprintf(&s, "# digest = SipHash-2-4-128(digest key %x, u32 length of id, id, secret)\n", testKeys.Credential)
	s.WriteString("# digest, id, secret\n")
	seen := map[Digest]string{}
	for _, c := range credentials {
		d := testKeys.Digest(c.id, c.secret)
		fmt.Fprintf(&s, "%x, %q, %q\n", d[:], c.id, c.secret)
		if other, dup := seen[d]; dup {
			t.Errorf("%q %q: got the digest of %s", c.id, c.secret, other)
		}
		seen[d] = fmt.Sprintf("%q %q", c.id, c.secret)
	}
	s.WriteString("# of a session: 2^31 + u32 length of id, id, session\n")
	for _, c := range credentials[:7] {
		d := testKeys.SessionDigest(c.id, c.secret)
		fmt.Fprintf(&s, "%x, %q, session %q\n", d[:], c.id, c.secret)
		if other, dup := seen[d]; dup {
			t.Errorf("%q, session %q: got the digest of %s", c.id, c.secret, other)
		}
		seen[d] = fmt.Sprintf("%q, session %q", c.id, c.secret)
	}
	golden(t, "digest", s.String())
}

// TestDeviceGolden pins the places of devices, and their tags.
func TestDeviceGolden(t *testing.T) {
	var s strings.Builder
	fmt.Fprintf(&s, "# h = SipHash-2-4-128(digest key %x, u32 2^32-1, id)\n", testKeys.Credential)
	s.WriteString("# bucket = (third u32 of h) * buckets div 2^32; tag = first u64 of h without bit 0\n# bucket of " +
		"buckets, tag, id\n")
	for _, d := range []struct {
		id      string
		buckets uint32
	}{{"demo-device", 1}, {"demo-device", 1024}, {"demo-devicf", 1024}, {"", 1024}, {"demo-device", 1<<32 - 1},
		{"demo-device", 0}, {strings.Repeat("d", limits.MaxDeviceID), 1024}} {
		bucket, tag := testKeys.Device(d.id, d.buckets)
		fmt.Fprintf(&s, "%d of %d, %016x, %q\n", bucket, d.buckets, tag, d.id)
	}
	golden(t, "device", s.String())
}

// TestDeviceInput recomputes places and tags from the documented input, which no credential has.
func TestDeviceInput(t *testing.T) {
	for i := range 1000 {
		id := fmt.Sprint("device-", i)
		lo, hi := siphash.Hash128(0x1716151413121110, 0x1f1e1d1c1b1a1918, append([]byte{0xff, 0xff, 0xff, 0xff}, id...))
		bucket, tag := testKeys.Device(id, 1<<31)
		if bucket != uint32(hi)>>1 || tag != lo&^3 {
			t.Errorf("%s: got bucket %d, tag %x, want %d, %x", id, bucket, tag, uint32(hi)>>1, lo&^3)
		}
	}
}

// TestDigestInput recomputes digests from the documented input.
func TestDigestInput(t *testing.T) {
	for _, c := range credentials {
		input := binary.LittleEndian.AppendUint32(nil, uint32(len(c.id)))
		input = append(append(input, c.id...), c.secret...)
		lo, hi := siphash.Hash128(0x1716151413121110, 0x1f1e1d1c1b1a1918, input)
		var want Digest
		binary.LittleEndian.PutUint64(want[:], lo)
		binary.LittleEndian.PutUint64(want[8:], hi)
		if got := testKeys.Digest(c.id, c.secret); got != want {
			t.Errorf("%q %q: got %x, want %x", c.id, c.secret, got, want)
		}
	}
}

func TestSessionDigestOverLimits(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("got a digest, want a panic")
		}
	}()
	testKeys.SessionDigest("d", strings.Repeat("7", limits.MaxSession+1))
}

func TestDigestOverLimits(t *testing.T) {
	for _, c := range []struct{ name, id, secret string }{
		{"id", strings.Repeat("d", limits.MaxDeviceID+1), "s"},
		{"secret", "d", strings.Repeat("s", limits.MaxSecret+1)},
		{"id that fits with its secret", strings.Repeat("d", limits.MaxDeviceID+1), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("got a digest, want a panic")
				}
			}()
			testKeys.Digest(c.id, c.secret)
		})
	}
	defer func() {
		if recover() == nil {
			t.Error("got the place of a device whose id is over its limit, want a panic")
		}
	}()
	testKeys.Device(strings.Repeat("d", limits.MaxDeviceID+1), 1)
}

// TestKeysApart checks that each key is used completely, and for its own purpose only.
func TestKeysApart(t *testing.T) {
	bucket, tag := testKeys.Place("/v1/products/1", 1<<31)
	digest := testKeys.Digest("demo-device", "demo-secret")
	home, deviceTag := testKeys.Device("demo-device", 1<<31)
	for i := range 16 {
		k := testKeys
		k.Placement[i] ^= 0x80
		if b, g := k.Place("/v1/products/1", 1<<31); b == bucket && g == tag {
			t.Errorf("placement key, byte %d changed: got the same place", i)
		}
		if k.Digest("demo-device", "demo-secret") != digest {
			t.Errorf("placement key, byte %d changed: got another digest", i)
		}
		if b, g := k.Device("demo-device", 1<<31); b != home || g != deviceTag {
			t.Errorf("placement key, byte %d changed: got another place for a device", i)
		}
		k = testKeys
		k.Credential[i] ^= 0x80
		if b, g := k.Device("demo-device", 1<<31); b == home && g == deviceTag {
			t.Errorf("credential key, byte %d changed: got the same place for a device", i)
		}
		if k.Digest("demo-device", "demo-secret") == digest {
			t.Errorf("credential key, byte %d changed: got the same digest", i)
		}
		if b, g := k.Place("/v1/products/1", 1<<31); b != bucket || g != tag {
			t.Errorf("credential key, byte %d changed: got another place", i)
		}
	}
}

// TestSpread checks that places are below the number of buckets and fill them evenly: with a mean of 4 objects no
// bucket has more than 20, in tables of any size.
func TestSpread(t *testing.T) {
	for _, buckets := range []uint32{1, 3, 256, 1000, 1024} {
		objects, devices := make([]int, buckets), make([]int, buckets)
		for i := range 4 * buckets {
			bucket, _ := testKeys.Place(fmt.Sprintf("/v1/products/%d", i), buckets)
			objects[bucket]++
			home, _ := testKeys.Device(fmt.Sprintf("device-%d", i), buckets)
			devices[home]++
		}
		for i := range objects {
			if objects[i] > 20 || devices[i] > 20 {
				t.Errorf("bucket %d of %d: got %d objects and %d devices, want at most 20", i, buckets, objects[i], devices[i])
			}
		}
	}
}
