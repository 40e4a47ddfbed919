package wire

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/objectkey"
)

// Whatever a reader accepts, the writers write again byte for byte, except reserved bytes, which readers ignore. The
// fuzz targets zero those first.

// seed adds every golden: each target also starts with input to refuse.
func seed(f *testing.F, add func(b []byte)) {
	for _, s := range samples() {
		add(goldenBytes(f, s.name))
	}
	add(nil)
	add(make([]byte, MinRecord))
}

// epochOf returns the epoch in a record, for lookups that pass the comparison.
func epochOf(rec []byte) uint64 {
	if len(rec) < 16 {
		return 0
	}
	return binary.LittleEndian.Uint64(rec[8:])
}

// zeroed returns b with the stretches of (offset, size) zeroed.
func zeroed(b []byte, stretches ...[2]int) []byte {
	b = slices.Clone(b)
	for _, s := range stretches {
		clear(b[s[0] : s[0]+s[1]])
	}
	return b
}

func FuzzParseState(f *testing.F) {
	seed(f, func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, rec []byte) {
		sameBeyond(t, rec, readState)
		s, err := ParseState(rec)
		if err != nil {
			return
		}
		if got, want := AppendState(nil, &s), zeroed(rec, [2]int{74, 6}); !bytes.HasPrefix(want, got) {
			t.Errorf("got % x, want the first bytes of % x", got, want)
		}
	})
}

// entries returns the entries of a bucket as far as their sizes are valid.
func entries(rec []byte) [][]byte {
	var all [][]byte
	if len(rec) < 16 {
		return nil
	}
	for rest := rec[16:]; len(rest) >= 44; {
		size := uint64(binary.LittleEndian.Uint32(rest))
		if size < 44 || size > uint64(len(rest)) {
			break
		}
		all, rest = append(all, rest[:size]), rest[size:]
	}
	return all
}

func FuzzFindObject(f *testing.F) {
	seed(f, func(b []byte) { f.Add(b, uint32(testTag), productObject.Key) })
	f.Fuzz(func(t *testing.T, rec []byte, tag uint32, key string) {
		sameBeyond(t, rec, func(b []byte) string { return line(FindObject(b, epochOf(b), tag, key)) })
		all := entries(rec)
		if o, err := FindObject(rec, epochOf(rec), tag, key); err == nil &&
			(o.Key != key || !slices.ContainsFunc(all, rewrites(tag, &o))) {
			t.Errorf("got %+v for %q, which is no entry of % x", o, key, rec)
		}
		for _, e := range all[:min(len(all), 100)] {
			// Look for the key of the entry, if its lengths are valid.
			at, n := 44+20*int(e[36]&^stale), int(binary.LittleEndian.Uint16(e[32:]))
			if at+n > len(e) {
				continue
			}
			tag, key := binary.LittleEndian.Uint32(e[4:]), string(e[at:at+n])
			if o, err := FindObject(rec, epochOf(rec), tag, key); err == nil &&
				(o.Key != key || !slices.ContainsFunc(all, rewrites(tag, &o))) {
				t.Errorf("got %+v for %q, which is no entry of % x", o, key, rec)
			}
		}
	})
}

// rewrites returns a function that reports whether an entry is the writer's encoding of o.
func rewrites(tag uint32, o *Object) func(entry []byte) bool {
	want := AppendObject(nil, tag, o)
	return func(e []byte) bool {
		var reserved [][2]int
		for i := range min(int(e[36]&^stale), (len(e)-44)/20) {
			reserved = append(reserved, [2]int{44 + 20*i + 1, 3})
		}
		return bytes.Equal(zeroed(e, reserved...), want)
	}
}

func FuzzFindBody(f *testing.F) {
	seed(f, func(b []byte) { f.Add(b, uint64(101), uint32(5)) })
	f.Fuzz(func(t *testing.T, rec []byte, stamp uint64, length uint32) {
		// The test's own variant, and the one in the record.
		asked := []Variant{{Stamp: stamp, Length: length}}
		if len(rec) >= 24 {
			asked = append(asked, Variant{Stamp: binary.LittleEndian.Uint64(rec[16:]),
				Length: binary.LittleEndian.Uint32(rec[4:])})
		}
		for _, v := range asked {
			sameBeyond(t, rec, func(b []byte) string {
				body, err := FindBody(b, epochOf(b), v)
				return line(string(body), err)
			})
			body, err := FindBody(rec, epochOf(rec), v)
			if err != nil {
				continue
			}
			got := AppendBody(nil, epochOf(rec), v.Stamp, body)
			if want := zeroed(rec, [2]int{2, 2}); !bytes.HasPrefix(want, got[:24+len(body)]) || uint32(len(body)) != v.Length {
				t.Errorf("got % x for %+v, want the first bytes of % x", got, v, want)
			}
		}
	})
}

func FuzzFindVerdict(f *testing.F) {
	seed(f, func(b []byte) { f.Add(b, testVerdicts[1].Digest[:], testDevices[1].Tag) })
	f.Fuzz(func(t *testing.T, rec, digest []byte, device uint64) {
		device &^= 1
		var asked []Digest
		if len(digest) >= 16 {
			asked = append(asked, Digest(digest[:16]))
		}
		for at := 16; at+verdictSize <= len(rec) && len(asked) < 100; at += verdictSize {
			asked = append(asked, Digest(rec[at:at+16]))
		}
		for _, d := range asked {
			sameBeyond(t, rec, func(b []byte) string { return lookup(b, epochOf(b), &d, device) })
			v, status, err := FindVerdict(rec, epochOf(rec), &d, device)
			if err == nil && status != Found {
				checkStatus(t, rec, device, status)
			}
			if status != Found {
				continue
			}
			got, found := AppendVerdicts(nil, 0, []Verdict{v}, nil)[16:], false
			for at := 16; at+verdictSize <= len(rec); at += verdictSize {
				found = found || bytes.Equal(zeroed(rec[at:at+verdictSize], [2]int{33, 1}), got[:verdictSize])
			}
			if !found || !bytes.Contains(rec[16:], got[verdictSize:]) || v.Digest != d {
				t.Errorf("got %+v for %x, which is no entry of % x", v, d, rec)
			}
		}
	})
}

// checkStatus compares got with the record's first device entry with that tag.
func checkStatus(t *testing.T, rec []byte, device uint64, got CredentialStatus) {
	t.Helper()
	at := 16 + verdictSize*int(binary.LittleEndian.Uint16(rec[2:]))
	for range binary.LittleEndian.Uint32(rec[4:]) {
		bits := binary.LittleEndian.Uint64(rec[at:])
		if at += 8; bits&^3 != device || bits&3 == 3 {
			continue
		}
		if want := []CredentialStatus{Registered, Closed, New}[bits&3]; got != want {
			t.Errorf("got status %d for %x, want %d of % x", got, device, want, rec)
		}
		return
	}
	if got != Unregistered {
		t.Errorf("got status %d for %x, which has no device in % x", got, device, rec)
	}
}

func FuzzParseBatch(f *testing.F) {
	seed(f, func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		sameBeyond(t, b, readBatch)
		batch, err := ParseBatch(b)
		if err != nil {
			return
		}
		got, want := BeginBatch(nil, batch.Epoch, batch.Replaces), zeroed(b, [2]int{1, 3})
		for op := range batch.Ops() {
			if epoch, err := RecordEpoch(op.Record, op.Region); err != nil || epoch != batch.Epoch {
				t.Errorf("%s %d: got epoch %x, %v in a batch of %x", op.Region, op.Index, epoch, err, batch.Epoch)
			}
			clear(want[len(got)+1 : len(got)+4])
			got = AppendOp(got, op.Region, op.Index, raw(op.Record))
		}
		if !bytes.Equal(got, want) {
			t.Errorf("got % x, want % x", got, want)
		}
	})
}

func FuzzParseVerifyRequest(f *testing.F) {
	seed(f, func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		sameBeyond(t, b, readVerifyRequest)
		r, err := ParseVerifyRequest(b)
		if err != nil {
			return
		}
		if got, want := AppendVerifyRequest(nil, &r), b; !bytes.Equal(got, want) {
			t.Errorf("got % x, want % x", got, want)
		}
		testKeys.Digest(r.DeviceID, r.Secret) // whatever is accepted has a digest
		testKeys.SessionDigest(r.DeviceID, r.Session)
	})
}

func FuzzParseSessionResponse(f *testing.F) {
	seed(f, func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		sameBeyond(t, b, readSessionResponse)
		r, err := ParseSessionResponse(b)
		if err != nil {
			return
		}
		if got := AppendSessionResponse(nil, &r); !bytes.Equal(got, b) {
			t.Errorf("got % x, want % x", got, b)
		}
	})
}

func FuzzParseVerifyResponse(f *testing.F) {
	seed(f, func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		sameBeyond(t, b, readVerifyResponse)
		r, err := ParseVerifyResponse(b)
		if err != nil {
			return
		}
		if got := AppendVerifyResponse(nil, &r); !bytes.Equal(got, b) {
			t.Errorf("got % x, want % x", got, b)
		}
	})
}

func FuzzParseFetchResponse(f *testing.F) {
	seed(f, func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		sameBeyond(t, b, readFetchResponse)
		r, err := ParseFetchResponse(b)
		if err != nil {
			return
		}
		o, err := FindObject(r.Record, r.Epoch, 0, productObject.Key)
		if err != nil {
			return
		}
		var bodies []byte
		for i, v := range o.Variants() {
			body := r.Body(&o, i)
			if body != nil && uint32(len(body)) != v.Length {
				t.Errorf("variant %d: got %d bytes, want %d", i, len(body), v.Length)
			}
			bodies = append(bodies, body...)
		}
		if rest := b[8+len(r.Record):]; !bytes.HasPrefix(rest, bodies) {
			t.Errorf("got bodies %q, want the first bytes of %q", bodies, rest)
		}
	})
}

func FuzzCanonicalQuery(f *testing.F) {
	for _, query := range []string{"", "a=1", "b=2&a=1&&c", "%61=1&a&=&a=1", "&", "lang=de&utm=x"} {
		f.Add(query, "a,lang")
	}
	f.Fuzz(func(t *testing.T, query, names string) {
		for _, only := range [][]string{nil, strings.Split(names, ",")} {
			got := objectkey.CanonicalQuery(query, only)
			if again := objectkey.CanonicalQuery(got, only); again != got {
				t.Errorf("%q: got %q, and of that %q", query, got, again)
			}
			// With a different name in front of each half their order doesn't matter.
			half := len(query) / 2
			a, b := "x="+query[:half], "y="+query[half:]
			if strings.ContainsRune(query, '&') {
				continue
			}
			if one, other := objectkey.CanonicalQuery(a+"&"+b, only), objectkey.CanonicalQuery(b+"&"+a, only); one != other {
				t.Errorf("got %q for %q & %q, and %q the other way round", one, a, b, other)
			}
		}
	})
}
