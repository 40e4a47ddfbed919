package wire

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/limits"
)

// A sample is a record or message with all data for the tests.
type sample struct {
	name   string // of its golden
	about  string
	append func(dst []byte) []byte
	fields []field
	// read returns the results of the readers, errors included, as text.
	read func(b []byte) string
	want string // result of read for what append appends to nil
}

const testEpoch = 0x8877665544332211

var (
	testKeys = Keys{
		Placement:  [16]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
		Credential: [16]byte{16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31},
	}
	testState = State{
		Epoch: testEpoch, InStepMS: 1763690400123, HeartbeatMS: 1763690400456,
		ObjectBuckets: 4096, VerdictBuckets: 1024, BodySlots: 777, DevicesComplete: true,
		Keys: testKeys,
	}
	testPurges = []Purge{
		{Stamps: []uint64{1 << 63, Stamp(7, 63)}, Tags: 1 << 31},
		{Stamps: []uint64{7}, Soft: true, VirtualHost: "shop", Prefix: "/v1/"},
	}
	testVerdicts = []Verdict{
		{Digest: testKeys.Digest("demo-device", "demo-secret"), Permissions: "config.read,telemetry.write",
			ExpiresMS: 1763690430000, RefreshAfterMS: 1763690420000, NotAfterMS: 1763697600000, Outcome: Allow},
		{Digest: testKeys.Digest("demo-device", "wrong"), ExpiresMS: 1763690405000, Outcome: Deny},
	}
	testDevices = []Device{{Tag: tagOf("demo-device"), Closed: true}, {Tag: tagOf("rotated-device")},
		{Tag: tagOf("new-device"), New: true}}
)

// tagOf returns the tag of a device.
func tagOf(id string) uint64 {
	_, tag := testKeys.Device(id, 1)
	return tag
}

// object returns an Object with variants.
func object(o Object, variants ...Variant) Object {
	for _, v := range variants {
		o.AddVariant(v)
	}
	return o
}

var (
	productObject = object(
		Object{Key: "/v1/products/42?lang=de", Version: 7, PublishedMS: 1763690399000, TTLMS: 60000,
			ETag: `"5d41402abc4b2a76"`, ContentType: "application/json", Tags: 1<<31 | 1},
		Variant{Identity, 11, 5, 101}, Variant{Gzip, 12, 4, 102}, Variant{Brotli, 13, 3, 103}, Variant{Zstd, 14, 2, 104})
	deviceObject = object(
		Object{Key: "@demo-device/v1/me/config", Version: limits.MaxVersion, PublishedMS: 1763690398000,
			ETag: `""`, ContentType: "text/plain", Stale: true, Status: 308, Headers: "location: /v2/me/config\nlink: </>; rel=up"},
		Variant{Identity, 0xfffffffe, limits.MaxBody, 1 << 63})
	productBodies = [][]byte{[]byte("hello"), []byte("gzip"), []byte("br!"), []byte("zs")}
)

// testTag is the tag of both objects of the sample bucket, as if they collided.
const testTag = 0xa1b2c3d4

func appendBucket(dst []byte) []byte {
	start := len(dst)
	dst = AppendObjectsHeader(dst, testEpoch, 2)
	dst = AppendObject(dst, testTag, &productObject)
	return FinishRecord(AppendObject(dst, testTag, &deviceObject), start)
}

func appendBatch(dst []byte) []byte {
	b := BeginBatch(nil, testEpoch, 0x1817161514131211)
	b = AppendOp(b, RegionBodies, 11, func(dst []byte) []byte { return AppendBody(dst, testEpoch, 101, productBodies[0]) })
	b = AppendOp(b, RegionObjects, 4095, func(dst []byte) []byte {
		return FinishRecord(AppendObjectsHeader(dst, testEpoch, 0), len(dst))
	})
	b = AppendOp(b, RegionVerdicts, 1, func(dst []byte) []byte { return AppendVerdicts(dst, testEpoch, nil, nil) })
	b = AppendOp(b, RegionState, 0, func(dst []byte) []byte { return AppendState(dst, &State{Epoch: testEpoch}) })
	return append(dst, b...)
}

// samples returns every record and message, full and empty.
func samples() []sample {
	return slices.Concat(recordSamples(), messageSamples())
}

func recordSamples() []sample {
	bare := State{Epoch: 1}
	purging := State{Epoch: 1, Purges: testPurges}
	return []sample{
		{"state", "state record", func(dst []byte) []byte { return AppendState(dst, &testState) },
			stateFields(), readState, ok(testState)},
		{"state-bare", "state record: no tables", func(dst []byte) []byte { return AppendState(dst, &bare) },
			stateFields(), readState, ok(bare)},
		{"state-purging", "state record: two purges", func(dst []byte) []byte { return AppendState(dst, &purging) },
			slices.Concat(stateFields(), purgeFields(&testPurges[0]), purgeFields(&testPurges[1])),
			readState, ok(purging)},
		{"objects", "objects record: two entries of one tag", appendBucket,
			slices.Concat(header(zero), entryFields(&productObject), entryFields(&deviceObject)),
			readObjects, ok(productObject) + ok(deviceObject) + notFound},
		{"objects-none", "objects record: tombstone", func(dst []byte) []byte {
			return FinishRecord(AppendObjectsHeader(dst, testEpoch, 0), len(dst))
		},
			append(header(zero), field{zero, 16}), readObjects, notFound + notFound + notFound},
		{"body", "bodies record: stamp 101, five bytes, padded", func(dst []byte) []byte {
			return AppendBody(dst, testEpoch, 101, productBodies[0])
		},
			append(header("body length"), field{"stamp", 8}, field{"text body", 5}, field{zero, 3}), readBody, ok("hello")},
		{"body-none", "bodies record: tombstone", func(dst []byte) []byte { return AppendBody(dst, testEpoch, 0, nil) },
			append(header("body length"), field{"stamp", 8}, field{zero, 8}), readBody, notFound},
		{"verdicts", "verdicts record: allow, deny, a closed device, an open one, a new one", func(dst []byte) []byte {
			return AppendVerdicts(dst, testEpoch, testVerdicts, testDevices)
		},
			slices.Concat(header("devices"), verdictFields(), verdictFields(),
				[]field{{"device: tag, closed", 8}, {"device: tag", 8}, {"device: tag, new", 8}, {"text permissions", 27}}),
			readVerdicts,
			ok(testVerdicts[0]) + ok(testVerdicts[1]) + ok(Closed) + ok(Registered) + ok(New) + ok(Unregistered)},
		{"verdicts-none", "verdicts record: tombstone", func(dst []byte) []byte {
			return AppendVerdicts(dst, testEpoch, nil, nil)
		},
			append(header("devices"), field{zero, 16}), readVerdicts, strings.Repeat(ok(Unregistered), 6)},
	}
}

func messageSamples() []sample {
	request := VerifyRequest{DeviceID: "demo-device", Secret: "demo-secret", Source: "203.0.113.7"}
	session := VerifyRequest{DeviceID: "demo-device", Source: "203.0.113.7", Session: "7-1763690399000"}
	token := SessionResponse{Outcome: Allow, Body: []byte(`{"token":"a.b.c"}`)}
	later := SessionResponse{Outcome: Unavailable, RetryAfterS: 0x0201, ThrottleMS: 0x06050403, Body: []byte{}}
	allow := VerifyResponse{Outcome: Allow, Permissions: "config.read,telemetry.write", Epoch: testEpoch}
	busy := VerifyResponse{Outcome: Unavailable, RetryAfterS: 0x0201, ThrottleMS: 0x06050403, Epoch: 1}
	return []sample{
		{"batch", "batch: takes over, a record of each region", appendBatch, batchFields(), readBatch,
			ok("8877665544332211 1817161514131211") + opLine(RegionBodies, 11, 32) + opLine(RegionObjects, 4095, 32) +
				opLine(RegionVerdicts, 1, 32) + opLine(RegionState, 0, 80)},
		{"batch-none", "batch: no operations", func(dst []byte) []byte {
			return append(dst, BeginBatch(nil, testEpoch, testEpoch)...)
		},
			batchHeader(), readBatch, ok("8877665544332211 8877665544332211")},
		{"verify-request", "verify request", func(dst []byte) []byte { return AppendVerifyRequest(dst, &request) },
			[]field{{"layout", 1}, {"id length", 1}, {"secret length", 1}, {"source length", 1}, {"session length", 1},
				{"text id", 11}, {"text secret", 11}, {"text source", 11}}, readVerifyRequest, ok(request)},
		{"verify-request-session", "verify request: a token's session", func(dst []byte) []byte {
			return AppendVerifyRequest(dst, &session)
		},
			[]field{{"layout", 1}, {"id length", 1}, {"secret length", 1}, {"source length", 1}, {"session length", 1},
				{"text id", 11}, {"text source", 11}, {"text session", 15}}, readVerifyRequest, ok(session)},
		{"session-response", "session response: allow", func(dst []byte) []byte { return AppendSessionResponse(dst, &token) },
			[]field{{"layout", 1}, {"outcome", 1}, {"retry after, s", 2}, {"throttle, ms", 4}, {"body length", 4},
				{"text body", 17}}, readSessionResponse, ok(token)},
		{"session-response-busy", "session response: unavailable", func(dst []byte) []byte {
			return AppendSessionResponse(dst, &later)
		},
			[]field{{"layout", 1}, {"outcome", 1}, {"retry after, s", 2}, {"throttle, ms", 4}, {"body length", 4}},
			readSessionResponse, ok(later)},
		{"verify-response", "verify response: allow", func(dst []byte) []byte { return AppendVerifyResponse(dst, &allow) },
			append(verifyResponseFields(), field{"text permissions", 27}), readVerifyResponse, ok(allow)},
		{"verify-response-busy", "verify response: unavailable", func(dst []byte) []byte {
			return AppendVerifyResponse(dst, &busy)
		},
			verifyResponseFields(), readVerifyResponse, ok(busy)},
		{"fetch-response", "fetch response: an object and its bodies", func(dst []byte) []byte {
			return AppendFetchResponse(dst, testEpoch, &productObject, productBodies)
		},
			slices.Concat(fetchHeader(), header(zero), entryFields(&productObject),
				[]field{{"text identity", 5}, {"text gzip", 4}, {"text br", 3}, {"text zstd", 2}}),
			readFetchResponse, ok(uint64(testEpoch)) + notFound + ok(productObject) + ok("hello") + ok("gzip") +
				ok("br!") + ok("zs")},
		{"fetch-response-none", "fetch response: no such object", func(dst []byte) []byte {
			return AppendFetchResponse(dst, testEpoch, nil, nil)
		},
			slices.Concat(fetchHeader(), header(zero), []field{{zero, 16}}), readFetchResponse,
			ok(uint64(testEpoch)) + notFound + notFound},
	}
}

// Layouts as in the package comment and the comments of the messages.

func header(extra string) []field {
	return []field{{"layout", 1}, {"region", 1}, {"count", 2}, {extra, 4}, {"epoch", 8}}
}

func stateFields() []field {
	return append(header("object buckets"), field{"in step, ms", 8}, field{"verdict buckets", 4}, field{"body slots", 4},
		field{"placement key", 16}, field{"digest key", 16}, field{"heartbeat, ms", 8}, field{"flags", 1}, field{"purges", 1},
		field{zero, 6})
}

func purgeFields(p *Purge) []field {
	f := []field{{"purge: tags", 4}, {"soft", 1}, {"stamps", 1}, {"virtual host length", 1}, {"prefix length", 2}}
	for range p.Stamps {
		f = append(f, field{"stamp", 8})
	}
	return append(f, field{"text virtual host", len(p.VirtualHost)}, field{"text prefix", len(p.Prefix)})
}

func entryFields(o *Object) []field {
	f := []field{{"entry: size", 4}, {"tag", 4}, {"version", 8}, {"published, ms", 8}, {"ttl, ms", 8},
		{"key length", 2}, {"etag length", 1}, {"content type length", 1}, {"variants and stale", 1}, {"status less 200", 1},
		{"headers length", 2}, {"tags", 4}}
	for range o.Variants() {
		f = append(f, field{"variant: encoding", 1}, field{zero, 3}, field{"slot", 4}, field{"length", 4}, field{"stamp", 8})
	}
	return append(f, field{"text key", len(o.Key)}, field{"text etag", len(o.ETag)},
		field{"text content type", len(o.ContentType)}, field{"text headers", len(o.Headers)})
}

func verdictFields() []field {
	return []field{{"verdict: digest", 16}, {"expires, ms", 8}, {"refresh after, ms", 8},
		{"outcome", 1}, {zero, 1}, {"not after, ms", 6}, {"permissions length", 4}}
}

func verifyResponseFields() []field {
	return []field{{"layout", 1}, {"outcome", 1}, {"retry after, s", 2}, {"throttle, ms", 4},
		{"epoch", 8}, {"permissions length", 4}}
}

func fetchHeader() []field { return []field{{"layout", 1}, {zero, 3}, {"record length", 4}} }

func batchHeader() []field {
	return []field{{"layout", 1}, {zero, 3}, {"operations", 4}, {"epoch", 8}, {"replaces", 8}}
}

func batchFields() []field {
	op := []field{{"op: region", 1}, {zero, 3}, {"index", 4}, {"record length", 4}}
	return slices.Concat(batchHeader(),
		op, header("body length"), []field{{"stamp", 8}, {"text body", 5}, {zero, 3}}, op, header(zero), []field{{zero, 16}},
		op, header(zero), []field{{zero, 16}},
		op, stateFields())
}

// Transcripts: results of readers, one per line, copied to outlive the bytes.

var notFound = failed(ErrNotFound)

func ok(v any) string         { return fmt.Sprintf("%+v\n", v) }
func failed(err error) string { return fmt.Sprintf("error: %v\n", err) }

func line(v any, err error) string {
	if err != nil {
		return failed(err)
	}
	return ok(v)
}

func opLine(region Region, index uint32, size int) string {
	return fmt.Sprintf("%s %d: %d bytes\n", region, index, size)
}

func readState(b []byte) string { return line(ParseState(b)) }

// readObjects looks up both keys and a missing key, to scan everything.
func readObjects(b []byte) string {
	return line(FindObject(b, testEpoch, testTag, productObject.Key)) +
		line(FindObject(b, testEpoch, testTag, deviceObject.Key)) +
		line(FindObject(b, testEpoch, testTag, "/absent"))
}

func readBody(b []byte) string {
	body, err := FindBody(b, testEpoch, productObject.Variants()[0])
	return line(string(body), err)
}

func readVerdicts(b []byte) string {
	return lookup(b, testEpoch, &testVerdicts[0].Digest, testDevices[0].Tag) +
		lookup(b, testEpoch, &testVerdicts[1].Digest, testDevices[0].Tag) +
		lookup(b, testEpoch, &Digest{}, testDevices[0].Tag) +
		lookup(b, testEpoch, &Digest{}, testDevices[1].Tag) +
		lookup(b, testEpoch, &Digest{}, testDevices[2].Tag) +
		lookup(b, testEpoch, &Digest{}, tagOf("nobody"))
}

// lookup returns the result of FindVerdict: the verdict, or why there is none.
func lookup(b []byte, epoch uint64, d *Digest, device uint64) string {
	v, status, err := FindVerdict(b, epoch, d, device)
	if (status == Unreadable) != (err != nil) {
		return fmt.Sprintf("status %d with error %v\n", status, err)
	}
	if status == Found {
		return ok(v)
	}
	return line(status, err)
}

func readBatch(b []byte) string {
	batch, err := ParseBatch(b)
	var s strings.Builder
	s.WriteString(line(fmt.Sprintf("%x %x", batch.Epoch, batch.Replaces), err))
	for op := range batch.Ops() {
		s.WriteString(opLine(op.Region, op.Index, len(op.Record)))
	}
	return s.String()
}

func readVerifyRequest(b []byte) string   { return line(ParseVerifyRequest(b)) }
func readVerifyResponse(b []byte) string  { return line(ParseVerifyResponse(b)) }
func readSessionResponse(b []byte) string { return line(ParseSessionResponse(b)) }

func readFetchResponse(b []byte) string {
	r, err := ParseFetchResponse(b)
	if err != nil {
		return failed(err)
	}
	s := ok(r.Epoch) + line(FindObject(r.Record, testEpoch, 0, "/absent"))
	o, err := FindObject(r.Record, testEpoch, 0, productObject.Key)
	s += line(o, err)
	for i := range o.Variants() {
		if body := r.Body(&o, i); body == nil {
			s += failed(ErrMalformed)
		} else {
			s += ok(string(body))
		}
	}
	return s
}
