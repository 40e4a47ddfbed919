package wire

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

// lookups are the lookups of a request, in a bucket of four entries, the mean in sized tables; the last entry is looked
// up.
type lookups struct {
	objects, verdicts, body []byte
	object                  Object
	tag                     uint32
	variant                 Variant
	digest                  Digest
}

func newLookups() *lookups {
	l := &lookups{object: productObject, variant: Variant{Identity, 1, 1024, 9}}
	all := append(objects(3), productObject)
	tags := make([]uint32, len(all))
	for i := range all {
		_, tags[i] = testKeys.Place(all[i].Key, 4096)
	}
	l.tag = tags[3]
	l.objects = bucket(tags, all)
	l.body = AppendBody(nil, testEpoch, 9, make([]byte, 1024))
	l.verdicts = AppendVerdicts(nil, testEpoch, append(verdicts(3), testVerdicts[0]),
		[]Device{{Tag: 2}, {Tag: 4}, {Tag: 6}, testDevices[0]})
	l.digest = testVerdicts[0].Digest
	return l
}

// Sinks: they keep the compiler from removing a lookup.
var (
	sinkErr    error
	sinkStatus CredentialStatus
	sinkBody   []byte
	sinkObject Object
	sinkU32    uint32
	sinkDigest Digest
	sinkAllow  bool
)

// hot returns the steps of a request that must not allocate.
func hot() map[string]func() {
	l := newLookups()
	longest := strings.Repeat("d", limits.MaxDeviceID)
	k := testKeys
	return map[string]func(){
		"FindObject":        func() { sinkObject, sinkErr = FindObject(l.objects, testEpoch, l.tag, l.object.Key) },
		"FindObject/absent": func() { sinkObject, sinkErr = FindObject(l.objects, testEpoch, l.tag, "/absent") },
		"FindObject/epoch":  func() { sinkObject, sinkErr = FindObject(l.objects, 1, l.tag, l.object.Key) },
		"FindBody":          func() { sinkBody, sinkErr = FindBody(l.body, testEpoch, l.variant) },
		"FindBody/absent":   func() { sinkBody, sinkErr = FindBody(l.body, testEpoch, Variant{}) },
		"FindVerdict": func() {
			v, _, err := FindVerdict(l.verdicts, testEpoch, &l.digest, testDevices[0].Tag)
			sinkAllow, sinkErr = v.Outcome == Allow, err
		},
		"FindVerdict/closed": func() { _, sinkStatus, _ = FindVerdict(l.verdicts, testEpoch, &Digest{}, testDevices[0].Tag) },
		"FindVerdict/absent": func() { _, sinkStatus, _ = FindVerdict(l.verdicts, testEpoch, &Digest{}, 8) },
		"Place":              func() { sinkU32, _ = k.Place(l.object.Key, 4096) },
		"Device":             func() { sinkU32, _ = k.Device("demo-device", 4096) },
		"Digest":             func() { sinkDigest = k.Digest("demo-device", "demo-secret") },
		"Digest/longest":     func() { sinkDigest = k.Digest(longest, longest[:limits.MaxSecret]) },
	}
}

func TestNoAllocation(t *testing.T) {
	for name, step := range hot() {
		if got := testing.AllocsPerRun(100, step); got != 0 {
			t.Errorf("%s: got %v allocations, want 0", name, got)
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	steps := hot()
	for _, name := range []string{"FindObject", "FindObject/absent", "FindBody", "FindVerdict",
		"FindVerdict/closed", "FindVerdict/absent", "Place", "Device", "Digest"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				steps[name]()
			}
		})
	}
}

// BenchmarkDigest compares the credential digest with the alternative, SHA-256 of the key and the same input.
func BenchmarkDigest(b *testing.B) {
	for _, c := range []struct{ name, id, secret string }{
		{"short", "demo-device", "demo-secret"},
		{"long", strings.Repeat("d", limits.MaxDeviceID), strings.Repeat("s", limits.MaxSecret)},
	} {
		b.Run("SipHash-2-4-128/"+c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sinkDigest = testKeys.Digest(c.id, c.secret)
			}
		})
		b.Run("SHA-256/"+c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sinkDigest = sha(&testKeys.Credential, c.id, c.secret)
			}
		})
	}
}

// sha returns the SHA-256 of key, u32 length of id, id, secret.
func sha(key *[16]byte, id, secret string) Digest {
	var buf [16 + 4 + limits.MaxDeviceID + limits.MaxSecret]byte
	b := binary.LittleEndian.AppendUint32(append(buf[:0], key[:]...), uint32(len(id)))
	sum := sha256.Sum256(append(append(b, id...), secret...))
	return Digest(sum[:16])
}
