package nginx_test

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dchest/siphash"

	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/wire"
	"github.com/gatehouse/gatehouse/wire/limits"
)

// A wireCase is one call of a function in testdata/wire_cases.lua, and what package wire returns for it.
type wireCase struct {
	args []any
	want string
}

// runCases compares the results of cases, a thousand at a time.
func runCases(t *testing.T, n int, next func() wireCase) {
	t.Helper()
	wrong, usable := 0, 0
	for done := 0; done < n; {
		var cases []wireCase
		var args [][]any
		for ; len(cases) < 1000 && done < n; done++ {
			c := next()
			cases, args = append(cases, c), append(args, c.args)
			if !strings.HasPrefix(c.want, "error") && !strings.HasPrefix(c.want, "unreadable") && !strings.HasPrefix(c.want, " none") {
				usable++
			}
		}
		var results [1][]string
		call(t, &results, "wire_cases", "run", args)
		for i, c := range cases {
			if got := results[0][i]; got != c.want {
				if wrong++; wrong <= 10 {
					t.Errorf("%.3000v\ngot  %.600s\nwant %.600s", c.args, got, c.want)
				}
			}
		}
	}
	t.Logf("%d differences in %d cases, %d of them usable", wrong, n, usable)
}

// code returns an error of package wire as the modules name it.
func code(err error) string {
	for text, is := range map[string]error{"not found": wire.ErrNotFound, "epoch": wire.ErrEpoch, "layout": wire.ErrLayout, "malformed": wire.ErrMalformed} {
		if errors.Is(err, is) {
			return text
		}
	}
	return "nil"
}

func epochBytes(epoch uint64) []byte { return binary.LittleEndian.AppendUint64(nil, epoch) }

// double is a 64-bit integer as a Lua number.
func double(n int64) string { return fmt.Sprintf("%.0f", float64(n)) }

// orNull passes a record, which may be nil, to Lua.
func orNull(rec []byte) any {
	if rec == nil {
		return nil
	}
	return rec
}

func stateCase(rec []byte) wireCase {
	c := wireCase{args: []any{"state", rec}}
	s, err := wire.ParseState(rec)
	if err != nil {
		c.want = "error " + code(err)
		return c
	}
	c.want = fmt.Sprintf("%x %s %s %d %d %d %v %x %x", epochBytes(s.Epoch), double(s.InStepMS), double(s.HeartbeatMS),
		s.ObjectBuckets, s.VerdictBuckets, s.BodySlots, s.DevicesComplete, s.Keys.Placement, s.Keys.Credential)
	for _, name := range s.Permissions {
		c.want += fmt.Sprintf(" %x.", name)
	}
	return c
}

func objectText(o *wire.Object, err error) string {
	if err != nil {
		return "error " + code(err)
	}
	s := fmt.Sprintf("%d %s %s %s %x %x %x", o.Version, double(o.PublishedMS), double(int64(o.TTLMS)), double(o.PublishedMS+int64(o.TTLMS)),
		o.Key, o.ETag, o.ContentType)
	for _, v := range o.Variants() {
		s += fmt.Sprintf(" %d:%d:%d:%x", v.Encoding, v.Slot, v.Length, epochBytes(v.Stamp))
	}
	return s
}

func objectCase(rec []byte, epoch uint64, tag uint32, key string) wireCase {
	o, err := wire.FindObject(rec, epoch, tag, key)
	return wireCase{[]any{"object", orNull(rec), epochBytes(epoch), tag, []byte(key)}, objectText(&o, err)}
}

func bodyCase(rec []byte, epoch, stamp uint64, length uint32) wireCase {
	c := wireCase{args: []any{"body", orNull(rec), epochBytes(epoch), epochBytes(stamp), length}}
	body, err := wire.FindBody(rec, epoch, wire.Variant{Stamp: stamp, Length: length})
	if c.want = fmt.Sprintf("body %x", body); err != nil {
		c.want = "error " + code(err)
	}
	return c
}

func verdictCase(rec []byte, epoch uint64, d wire.Digest, device uint64) wireCase {
	c := wireCase{args: []any{"verdict", orNull(rec), epochBytes(epoch), d[:], epochBytes(device)}}
	v, status, err := wire.FindVerdict(rec, epoch, &d, device)
	name := [...]string{"unreadable", "found", "closed", "registered", "new", "unregistered"}[status]
	if status != wire.Found {
		c.want = name + " " + code(err)
		return c
	}
	c.want = fmt.Sprintf("%s %016x %s %s %d %s", name, v.Permissions, double(v.ExpiresMS), double(v.RefreshAfterMS), v.NotAfterMS, v.Outcome)
	return c
}

func batchCase(b []byte) wireCase {
	c := wireCase{args: []any{"batch", b}}
	batch, err := wire.ParseBatch(b)
	if err != nil {
		c.want = "error " + err.Error()
		return c
	}
	c.want = fmt.Sprintf("%x %x", epochBytes(batch.Epoch), epochBytes(batch.Replaces))
	for op := range batch.Ops() {
		c.want += fmt.Sprintf(" %s:%d:%x", op.Region, op.Index, op.Record)
	}
	return c
}

func verifyResponseCase(b []byte) wireCase {
	c := wireCase{args: []any{"verify_response", b}}
	r, err := wire.ParseVerifyResponse(b)
	if c.want = fmt.Sprintf("%s %d %d %016x %x", outcome(r.Outcome), r.RetryAfterS, r.ThrottleMS, r.Permissions, epochBytes(r.Epoch)); err != nil {
		c.want = "error " + err.Error()
	}
	return c
}

func sessionResponseCase(b []byte) wireCase {
	c := wireCase{args: []any{"session_response", b}}
	r, err := wire.ParseSessionResponse(b)
	if c.want = fmt.Sprintf("%s %d %d %x", outcome(r.Outcome), r.RetryAfterS, r.ThrottleMS, r.Body); err != nil {
		c.want = "error " + err.Error()
	}
	return c
}

func fetchResponseCase(b []byte, key string) wireCase {
	c := wireCase{args: []any{"fetch_response", b, []byte(key)}}
	r, err := wire.ParseFetchResponse(b)
	if err != nil {
		c.want = "error " + err.Error()
		return c
	}
	o, err := wire.FindObject(r.Record, r.Epoch, 0, key)
	c.want = fmt.Sprintf("%x %s", epochBytes(r.Epoch), objectText(&o, err))
	for i := range o.Variants() {
		if err != nil {
			break
		}
		if body := r.Body(&o, i); body == nil {
			c.want += " none"
		} else {
			c.want += fmt.Sprintf(" %x.", body)
		}
	}
	return c
}

func addressCase(text string) wireCase {
	network := "none"
	if addr, ok := wire.Network(text); ok {
		b := addr.AsSlice()
		network = hex.EncodeToString(b[:min(len(b), 8)])
	}
	return wireCase{[]any{"address", []byte(text)}, policy.Address(text) + " " + network}
}

// hashCase includes ids and secrets over their limits, for which both panic.
func hashCase(key [16]byte, objectBuckets, verdictBuckets uint32, id, shown string) wireCase {
	keys := wire.Keys{Placement: key, Credential: key}
	var s []string
	try := func(f func() string) {
		defer func() {
			if recover() != nil {
				s = append(s, "panic")
			}
		}()
		s = append(s, f())
	}
	try(func() string { bucket, tag := keys.Place(id+shown, objectBuckets); return fmt.Sprint(bucket, tag) })
	try(func() string { d := keys.Digest(id, shown); return hex.EncodeToString(d[:]) })
	try(func() string { d := keys.SessionDigest(id, shown); return hex.EncodeToString(d[:]) })
	try(func() string {
		bucket, tag := keys.Device(id, verdictBuckets)
		return fmt.Sprintf("%d %x", bucket, epochBytes(tag))
	})
	return wireCase{[]any{"hash", key[:], objectBuckets, verdictBuckets, []byte(id), []byte(shown)}, strings.Join(s, " ")}
}

// A generator makes random records, mostly malformed in few places.
type generator struct{ *rand.Rand }

func (g generator) bytes(most int) []byte {
	b := make([]byte, g.IntN(most+1))
	for i := range b {
		b[i] = byte(g.Uint32())
	}
	return b
}

func (g generator) key16() (key [16]byte) {
	for i := range key {
		key[i] = byte(g.Uint32())
	}
	return key
}

// epochs are few, so that mutations of one make another.
func (g generator) epoch() uint64 { return [...]uint64{0, 1, 7, 1 << 63, 1<<32 + 7}[g.IntN(5)] }

func (g generator) integer() uint64 {
	edges := [...]uint64{0, 1, math.MaxUint64, 1 << 63, 1<<63 - 1, 1 << 53, 1<<53 - 1, 1<<53 + 1, 1 << 31, 1 << 32, 1<<32 - 1, 1763690400123, 65535, 65536}
	if g.IntN(3) == 0 {
		return g.Uint64() >> g.IntN(64)
	}
	return edges[g.IntN(len(edges))]
}

// mutate changes a few bytes: bits, fields, or the length. It mostly leaves the first ones and the epoch alone.
func (g generator) mutate(b []byte) []byte {
	for range g.IntN(3) {
		at := 0
		if len(b) > 0 {
			at = g.IntN(len(b))
		}
		if (at < 2 || 8 <= at && at < 16) && g.IntN(4) > 0 {
			continue
		}
		switch g.IntN(7) {
		case 0:
			b = b[:at]
		case 1:
			b = append(b, g.bytes(40)...)
		case 2, 3:
			if len(b) > 0 {
				b[at] ^= 1 << g.IntN(8)
			}
		case 4:
			if len(b) > 0 {
				b[at] = byte(g.integer())
			}
		case 5:
			if at = at &^ 3; at+4 <= len(b) {
				binary.LittleEndian.PutUint32(b[at:], uint32(g.integer()))
			}
		case 6:
			if at = at &^ 7; at+8 <= len(b) {
				binary.LittleEndian.PutUint64(b[at:], g.integer())
			}
		}
	}
	if len(b) == 0 {
		return []byte{} // nil is another argument
	}
	return b
}

func (g generator) state(epoch uint64) []byte {
	s := wire.State{Epoch: epoch, InStepMS: int64(g.integer()), HeartbeatMS: int64(g.integer()), ObjectBuckets: uint32(g.integer()),
		VerdictBuckets: uint32(g.integer()), BodySlots: uint32(g.integer()), DevicesComplete: g.IntN(2) == 0,
		Keys: wire.Keys{Placement: g.key16(), Credential: g.key16()}}
	for range [...]int{0, 1, 3, 64, 65}[g.IntN(5)] {
		s.Permissions = append(s.Permissions, string(g.bytes(12)))
	}
	return wire.AppendState(nil, &s)
}

var sampleKeys = []string{"/", "/v1/products/1", "/v1/products/2", "@demo/v1/me", ""}

func (g generator) object() *wire.Object {
	o := &wire.Object{Key: sampleKeys[g.IntN(len(sampleKeys))], Version: g.integer(), PublishedMS: int64(g.integer()), TTLMS: g.integer(),
		ETag: string(g.bytes(10)), ContentType: string(g.bytes(10))}
	for range 1 + g.IntN(int(wire.Encodings)) {
		o.AddVariant(wire.Variant{Encoding: wire.Encoding(g.IntN(4)), Slot: uint32(g.integer()), Length: uint32(g.IntN(20)), Stamp: g.integer()})
	}
	if g.IntN(10) == 0 {
		o.Variants()[0].Length = limits.MaxBody + uint32(g.IntN(2))
	}
	return o
}

// bucket returns an objects record; tags are 0 to 2.
func (g generator) bucket(epoch uint64) []byte {
	count := g.IntN(4)
	b := wire.AppendObjectsHeader(nil, epoch, count)
	for range count {
		b = wire.AppendObject(b, uint32(g.IntN(3)), g.object())
	}
	return wire.FinishRecord(b, 0)
}

func (g generator) body(epoch uint64) (rec []byte, stamp uint64, length uint32) {
	body := g.bytes(40)
	stamp, length = g.integer(), uint32(len(body))
	rec = wire.AppendBody(nil, epoch, stamp, body)
	if g.IntN(8) == 0 {
		stamp = g.integer()
	}
	if g.IntN(8) == 0 {
		length++
	}
	return rec, stamp, length
}

// verdicts returns a record of verdicts with digests of one byte, and of devices with the tags 0, 4 and 2^40.
func (g generator) verdicts(epoch uint64) []byte {
	var verdicts []wire.Verdict
	var devices []wire.Device
	for range g.IntN(4) {
		verdicts = append(verdicts, wire.Verdict{Digest: wire.Digest{15: byte(g.IntN(3))}, Permissions: g.integer(), ExpiresMS: int64(g.integer()),
			RefreshAfterMS: int64(g.integer()), NotAfterMS: int64(g.integer() >> 16), Outcome: wire.Outcome(1 + g.IntN(2))})
	}
	for range g.IntN(4) {
		devices = append(devices, wire.Device{Tag: g.tag(), Closed: g.IntN(3) == 0, New: g.IntN(3) == 0})
	}
	return wire.AppendVerdicts(nil, epoch, verdicts, devices)
}

func (g generator) tag() uint64 { return [...]uint64{0, 4, 1 << 40, 1<<63 + 4}[g.IntN(4)] }

func (g generator) batch() []byte {
	epoch := g.epoch()
	b := wire.BeginBatch(nil, epoch, g.epoch())
	for range g.IntN(4) {
		region := wire.Region(g.IntN(4))
		index := uint32(g.integer())
		if region == wire.RegionState && g.IntN(4) > 0 {
			index = 0
		}
		b = wire.AppendOp(b, region, index, func(dst []byte) []byte {
			var rec []byte
			switch region {
			case wire.RegionState:
				rec = g.state(epoch)
			case wire.RegionObjects:
				rec = g.bucket(epoch)
			case wire.RegionBodies:
				rec, _, _ = g.body(epoch)
			default:
				rec = g.verdicts(epoch)
			}
			if g.IntN(4) == 0 {
				rec = g.mutate(rec)
			}
			return append(dst, rec...)
		})
	}
	return b
}

func (g generator) fetchResponse() []byte {
	if g.IntN(4) == 0 {
		return wire.AppendFetchResponse(nil, g.epoch(), nil, nil)
	}
	o := g.object()
	var bodies [][]byte
	for _, v := range o.Variants() {
		bodies = append(bodies, make([]byte, min(v.Length, 64)))
	}
	return wire.AppendFetchResponse(nil, g.epoch(), o, bodies)
}

// orOther returns epoch, rarely another one.
func (g generator) orOther(epoch uint64) uint64 {
	if g.IntN(10) == 0 {
		return g.epoch()
	}
	return epoch
}

func (g generator) wireCase() wireCase {
	epoch := g.epoch()
	switch g.IntN(10) {
	case 0:
		return stateCase(g.mutate(g.state(epoch)))
	case 1, 2:
		return objectCase(g.mutate(g.bucket(epoch)), g.orOther(epoch), uint32(g.IntN(3)), sampleKeys[g.IntN(len(sampleKeys))])
	case 3:
		rec, stamp, length := g.body(epoch)
		return bodyCase(g.mutate(rec), g.orOther(epoch), stamp, length)
	case 4, 5:
		return verdictCase(g.mutate(g.verdicts(epoch)), g.orOther(epoch), wire.Digest{15: byte(g.IntN(3))}, g.tag())
	case 6:
		return batchCase(g.mutate(g.batch()))
	case 7:
		r := wire.VerifyResponse{Outcome: wire.Outcome(1 + g.IntN(4)), RetryAfterS: uint16(g.integer()), ThrottleMS: uint32(g.integer()), Permissions: g.integer(), Epoch: epoch}
		if g.IntN(2) == 0 {
			return verifyResponseCase(g.mutate(wire.AppendVerifyResponse(nil, &r)))
		}
		s := wire.SessionResponse{Outcome: r.Outcome, RetryAfterS: r.RetryAfterS, ThrottleMS: r.ThrottleMS, Body: g.bytes(1 + 20*g.IntN(2))}
		return sessionResponseCase(g.mutate(wire.AppendSessionResponse(nil, &s)))
	case 8:
		return fetchResponseCase(g.mutate(g.fetchResponse()), sampleKeys[g.IntN(len(sampleKeys))])
	default:
		id, shown := string(g.bytes(20)), string(g.bytes(limits.MaxSecret+2))
		if g.IntN(8) == 0 {
			id = string(g.bytes(limits.MaxDeviceID + 2))
		}
		return hashCase(g.key16(), uint32(g.integer()), uint32(g.integer()), id, shown)
	}
}

// TestWire compares the readers with package wire for random records, most of them malformed.
func TestWire(t *testing.T) {
	n, r := caseCount(t, 10_000)
	g := generator{r}
	runCases(t, n, g.wireCase)
}

// TestWireTruncated compares the readers for every prefix of a record or message, and for none.
func TestWireTruncated(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(2, 0))}
	cases := []wireCase{objectCase(nil, 7, 0, "/"), bodyCase(nil, 7, 1, 0), verdictCase(nil, 7, wire.Digest{}, 0)}
	each := func(b []byte, f func(b []byte) wireCase) {
		for n := range len(b) + 1 {
			cases = append(cases, f(append([]byte{}, b[:n]...)))
		}
	}
	each(g.state(7), stateCase)
	bucket := wire.FinishRecord(wire.AppendObject(wire.AppendObject(wire.AppendObjectsHeader(nil, 7, 2), 1, g.object()), 1, g.object()), 0)
	each(bucket, func(b []byte) wireCase { return objectCase(b, 7, 1, "absent") })
	each(wire.AppendBody(nil, 7, 1, g.bytes(40)), func(b []byte) wireCase { return bodyCase(b, 7, 1, 9) })
	verdicts := wire.AppendVerdicts(nil, 7, []wire.Verdict{{Outcome: wire.Deny, Digest: wire.Digest{1}}, {Outcome: wire.Allow}}, []wire.Device{{Tag: 8, New: true}})
	each(verdicts, func(b []byte) wireCase { return verdictCase(b, 7, wire.Digest{}, 0) })
	each(verdicts, func(b []byte) wireCase { return verdictCase(b, 7, wire.Digest{9}, 8) })
	each(g.batch(), batchCase)
	each(g.batch(), batchCase)
	each(wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Deny}), verifyResponseCase)
	each(wire.AppendSessionResponse(nil, &wire.SessionResponse{Outcome: wire.Allow, Body: []byte("{}")}), sessionResponseCase)
	fetch := g.object()
	each(wire.AppendFetchResponse(nil, 7, fetch, [][]byte{g.bytes(9)}), func(b []byte) wireCase { return fetchResponseCase(b, fetch.Key) })
	i := 0
	runCases(t, len(cases), func() wireCase { i++; return cases[i-1] })
}

// TestWireGoldens reads the goldens of package wire with every reader.
func TestWireGoldens(t *testing.T) {
	paths, err := filepath.Glob("../wire/testdata/*.golden")
	if err != nil || len(paths) == 0 {
		t.Fatalf("got %d goldens and error %v", len(paths), err)
	}
	const epoch = 0x8877665544332211
	var cases []wireCase
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b := []byte{}
		for _, line := range strings.Split(string(text), "\n") {
			if columns := strings.SplitN(line, "  ", 3); line != "" && line[0] != '#' && len(columns) > 1 {
				chunk, err := hex.DecodeString(strings.ReplaceAll(columns[1], " ", ""))
				if err != nil {
					t.Fatalf("%s: %v", path, err)
				}
				b = append(b, chunk...)
			}
		}
		cases = append(cases, stateCase(b), objectCase(b, epoch, 0xa1b2c3d4, "/v1/products/42?lang=de"), objectCase(b, epoch, 0xa1b2c3d4, "@demo-device/v1/me/config"),
			bodyCase(b, epoch, 101, 5), verdictCase(b, epoch, wire.Digest{}, 0), batchCase(b), verifyResponseCase(b), sessionResponseCase(b),
			fetchResponseCase(b, "/v1/products/42?lang=de"))
	}
	i := 0
	runCases(t, len(cases), func() wireCase { i++; return cases[i-1] })
}

// TestSipHash compares the hashes of messages of each length up to 300 bytes.
func TestSipHash(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(3, 0))}
	n := -1
	runCases(t, 301, func() wireCase {
		n++
		key, message := g.key16(), make([]byte, n)
		for i := range message {
			message[i] = byte(g.Uint32())
		}
		k0, k1 := binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:])
		h := siphash.Hash(k0, k1, message)
		lo, hi := siphash.Hash128(k0, k1, message)
		return wireCase{[]any{"siphash", key[:], message}, fmt.Sprintf("%d %d %x%x", uint32(h), h>>32, epochBytes(lo), epochBytes(hi))}
	})
	var results [1][]string
	call(t, &results, "wire_cases", "run", [][]any{{"siphash", make([]byte, 15), []byte("x")}})
	if got := results[0][0]; !strings.Contains(got, "SipHash failed") {
		t.Errorf("a key of 15 bytes: got %s, want an error", got)
	}
}

// TestRequests compares the writers.
func TestRequests(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(4, 0))}
	runCases(t, 500, func() wireCase {
		if g.IntN(4) == 0 {
			report, keys := wire.BeginHits(nil), [][]byte{}
			for range g.IntN(5) {
				key := g.bytes(limits.MaxKey)
				report, keys = wire.AppendHit(report, string(key)), append(keys, key)
			}
			return wireCase{[]any{"hits", keys}, hex.EncodeToString(report)}
		}
		r := wire.VerifyRequest{DeviceID: string(g.bytes(limits.MaxDeviceID)), Secret: string(g.bytes(limits.MaxSecret)),
			Source: string(g.bytes(wire.MaxSource)), Session: string(g.bytes(limits.MaxSession))}
		return wireCase{[]any{"verify_request", []byte(r.DeviceID), []byte(r.Secret), []byte(r.Source), []byte(r.Session)},
			hex.EncodeToString(wire.AppendVerifyRequest(nil, &r))}
	})
}

var sampleAddresses = []string{
	"", "192.0.2.1", "192.0.2.1:80", "0.0.0.0", "255.255.255.255:65535", "1.2.3.4:65536", "1.2.3.4:0000080", "1.2.3.4:", ":80", "1.2.3", "1.2.3.4.5", "01.2.3.4", "256.1.1.1", "1.2.3.4%eth0",
	"::", "::1", "[::1]:80", "[::1]", "[::1", "::1]", "[1.2.3.4]:80", "[1.2.3.4]", "2001:db8::1", "2001:DB8:0:0:1:0:0:1", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8::",
	"1::2::3", ":::", ":", "fe80::1%eth0", "[fe80::1%eth0]:80", "fe80::1%", "%eth0", "::%x:1", "::ffff:192.0.2.1", "::ffff:c000:201", "[::ffff:1.2.3.4%z]:1", "::1.2.3.4", "1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:1.2.3.4",
	"1:2:3:4:5:6:7:1.2.3.4", "::1.2.3.4:80", "::1.2.3.4%z", "::1.2.3.04", "12345::", "::g", " 1.2.3.4", "\t1.2.3.4 \t", " ", "[]", "[]:1", "[:80", "1.2.3.4:+1", "1.2.3.4:1_0", "1:0:0:2:0:0:0:3", "0:0:1:0:0:1:0:0", "1:0:2:0:3:0:4:0",
	"::ffff:0:1.2.3.4", "0:0:0:0:0:ffff:1.2.3.4", "64:ff9b::1.2.3.4", "::1%%", "[[::1]]", "1.2.3.4\x00", "::1\x00:80", "[::1]80", "[::1]:80:90", "::1:80", "a.b.c.d", ".1.2.3", "1..2.3", "1.2.3.", "::1.2.3", "localhost",
}

// TestAddress compares addresses with those of package net/netip.
func TestAddress(t *testing.T) {
	n, r := caseCount(t, 10_000)
	const alphabet = "0123456789abcdefABCDEFg::::....[]% \t\x00\n-+"
	i := 0
	runCases(t, n, func() wireCase {
		if i++; i <= len(sampleAddresses) {
			return addressCase(sampleAddresses[i-1])
		}
		if r.IntN(4) == 0 { // words and ellipses
			var s strings.Builder
			for range 1 + r.IntN(9) {
				s.WriteString([...]string{"0", "ffff", "1", "0", "::", "abc", "1.2.3.4", "10"}[r.IntN(8)])
				s.WriteString([...]string{":", ":", ":", ":", ":", "::", ""}[r.IntN(7)])
			}
			return addressCase(s.String())
		}
		text := []byte(sampleAddresses[r.IntN(len(sampleAddresses))])
		for range 1 + r.IntN(3) {
			c, at := alphabet[r.IntN(len(alphabet))], r.IntN(len(text)+1)
			switch {
			case r.IntN(2) == 0:
				text = append(text[:at:at], append([]byte{c}, text[at:]...)...)
			case at < len(text) && r.IntN(2) == 0:
				text[at] = c
			case at < len(text):
				text = append(text[:at], text[at+1:]...)
			}
		}
		return addressCase(string(text))
	})
}

// outcome returns an outcome as the plugin names it.
func outcome(o wire.Outcome) string {
	if o == wire.Throttled {
		return "throttled"
	}
	return o.String()
}

// TestThrottle compares the throttles' results with those that edge/throttle_test.go expects of throttle.go.
func TestThrottle(t *testing.T) {
	type step = []any
	steps := []step{
		{"retry_after", "203.0.113.7", 0},
		{"add", "203.0.113.7", 1000, 0},
		{"retry_after", "203.0.113.7", 1000},
		{"add", "203.0.113.7", 1000, 1500},
		{"retry_after", "203.0.113.7", 1000},
		{"retry_after", "203.0.113.7", 1500},
		{"retry_after", "203.0.113.7", 2499},
		{"retry_after", "203.0.113.7", 2500},
		{"retry_after", "203.0.113.7", 2501},
		{"retry_after", "203.0.113.7", 999}, // the clock was set back
		{"retry_after", "203.0.113.8", 1000},
		{"retry_after", "::ffff:203.0.113.7", 1000},
		{"add", "2001:db8::1", 1000, uint32(math.MaxUint32)},
		{"retry_after", "2001:db8::ffff", 1000},
		{"retry_after", "2001:db8:0:1::1", 1000},
		{"add", "", 1000, 1000},
		{"retry_after", "", 1000},
		{"sweep", 2500},
		{"retry_after", "203.0.113.7", 1500},
		{"retry_after", "2001:db8::1", 1000},
	}
	want := []int{0, 0, 0, 0, 2, 1, 1, 0, 0, 0, 0, 2, 0, 65535, 0, 0, 0, 0, 0, 65535}
	var results struct {
		steps []int
		count int
	}
	raw := []any{&results.steps, &results.count}
	call(t, &raw, "wire_cases", "throttle", steps)
	for i := range steps {
		if results.steps[i] != want[i] {
			t.Errorf("step %d, %v: got %d, want %d", i, steps[i], results.steps[i], want[i])
		}
	}
	if results.count != 1 {
		t.Errorf("got %d sources after the sweep, want 1", results.count)
	}
	var filled [1]int
	if call(t, &filled, "wire_cases", "fill", 9000); filled[0] != 8192 {
		t.Errorf("got %d sources, want 8192", filled[0])
	}
}

// TestHitReportIsBounded: the sidecar refuses a report of more than 64 KiB, and would not know what is used.
func TestHitReportIsBounded(t *testing.T) {
	var size [1]int
	if call(t, &size, "wire_cases", "report_hits"); size[0] < 16<<10 || size[0] > 32<<10 {
		t.Errorf("got %d bytes, want 16 to 32 KiB", size[0])
	}
}

// TestGuesses compares what a worker remembers about guesses with what edge/guesses_test.go expects of
// guesses.go.
func TestGuesses(t *testing.T) {
	const life, bad, own = 60_000, "203.0.113.7", "203.0.113.8"
	type step = []any
	steps := []struct {
		step step
		want int // seconds; 1 for true
	}{
		{step{"doubts", "dev", "", 1000, "wrong"}, 0},
		{step{"doubts", "dev", bad, 1000, "right"}, 0},
		{step{"doubts", "dev", bad, 1000, "wrong"}, 0}, // the first
		{step{"doubts", "dev", bad, 1000, "wrong"}, 1},
		{step{"doubts", "dev", bad, 999, "wrong"}, 0},         // the clock was set back
		{step{"doubts", "dev", bad, 1000 + life, "wrong"}, 0}, // long after
		{step{"doubts", "dev", own, 1000, "wrong"}, 0},        // another network
		{step{"doubts", "other", bad, 1000, "wrong"}, 0},      // another device
		{step{"throttled_s", "dev", bad, 1000, true}, 0},      // a right one makes nobody suspect
		{step{"doubts", "dev", bad, 1000, "right"}, 0},
		{step{"throttled_s", "dev", bad, 1000, false}, 0}, // asked
		{step{"doubts", "dev", bad, 1000, "right"}, 1},
		{step{"answered", "dev", bad, 1000, "throttled", 11_500}, 0},
		{step{"throttled_s", "dev", bad, 1000, true}, 12},
		{step{"throttled_s", "dev", bad, 12_499, false}, 1},
		{step{"throttled_s", "dev", bad, 12_500, false}, 0},
		{step{"throttled_s", "dev", bad, 999, false}, 0}, // the clock was set back, and it is asked about at 999
		{step{"answered", "dev", bad, 1000, "throttled", uint32(math.MaxUint32)}, 0},
		{step{"throttled_s", "dev", "::ffff:203.0.113.7", 1000, true}, 65535},
		{step{"throttled_s", "dev", own, 1000, true}, 0},
		{step{"answered", "dev", bad, 1000, "unavailable", 0}, 0}, // changes nothing
		{step{"throttled_s", "dev", bad, 1000, true}, 65535},
		{step{"answered", "dev", bad, 1000, "allow", 0}, 0},
		{step{"doubts", "dev", bad, 1000, "right"}, 0},
		{step{"answered", "dev", own, 1000, "deny", 1000}, 0},
		{step{"doubts", "dev", own, 1999, "wrong"}, 0},
		{step{"doubts", "dev", own, 2000, "wrong"}, 1},
		{step{"throttled_s", "dev", own, 1500, false}, 0},
		{step{"answered", "dev", own, 2000}, 0}, // no answer: the last one holds
		{step{"doubts", "dev", own, 2999, "right"}, 0},
		{step{"answered", "dev", own, 2900, false, 0, true}, 0}, // also about the right secret
		{step{"doubts", "dev", own, 3899, "right"}, 0},
		{step{"answered", "dev", own, 3000, "deny", 0}, 0},
		{step{"doubts", "dev", own, 3000, "right"}, 1},
		{step{"answered", "dev", own, 4000, false, 0, true}, 0}, // a right secret is no guess
		{step{"sweep", 3000 + life - 1}, 0},
		{step{"doubts", "dev", own, 3000, "right"}, 1},
		{step{"sweep", 3000 + life}, 0},
		{step{"doubts", "dev", own, 3000, "right"}, 0},
	}
	var all []step
	for _, s := range steps {
		all = append(all, s.step)
	}
	var results struct {
		steps []int
		count int
	}
	raw := []any{&results.steps, &results.count}
	call(t, &raw, "wire_cases", "guesses", all)
	for i, s := range steps {
		if results.steps[i] != s.want {
			t.Errorf("step %d, %v: got %d, want %d", i, s.step, results.steps[i], s.want)
		}
	}
	if results.count != 0 {
		t.Errorf("got %d after the sweep, want none", results.count)
	}
	var filled [5]int
	if call(t, &filled, "wire_cases", "fill_guesses", 20_000); filled != [5]int{8192, 8192, 4096, 4096, 0} {
		t.Errorf("got %d, counted %d, at most %d with one wrong secret, %d first ones, %d left; want 8192, 8192, 4096, 4096 and 0",
			filled[0], filled[1], filled[2], filled[3], filled[4])
	}
}
