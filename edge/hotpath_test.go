package edge

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/apikey"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
)

func newObject(key string, length int) wire.Object {
	o := wire.Object{Key: key, Version: 1, ETag: `"a"`, ContentType: "text/plain"}
	o.AddVariant(wire.Variant{Encoding: wire.Identity, Length: uint32(length), Stamp: 1})
	return o
}

// putObject puts an object into shared data, alone in its bucket and in body slot 0.
func putObject(e *emulator, key string, length int) { put(e, newObject(key, length)) }

// put is putObject of o.
func put(e *emulator, o wire.Object) {
	key, length := o.Key, int(o.Variants()[0].Length)
	bucket, tag := state.Keys.Place(key, state.ObjectBuckets)
	e.records[place(wire.RegionObjects, bucket)] = wire.FinishRecord(
		wire.AppendObject(wire.AppendObjectsHeader(nil, state.Epoch, 1), tag, &o), 0)
	e.records[place(wire.RegionBodies, 0)] = wire.AppendBody(nil, state.Epoch, 1, bytes.Repeat([]byte("b"), length))
}

// putVerdict stores an allow verdict for device dev until expires, unix ms.
func putVerdict(e *emulator, expires int64) { putVerdictOf(e, "s3cret", expires) }

func putVerdictOf(e *emulator, secret string, expires int64) {
	digest := state.Keys.Digest("dev", secret)
	bucket, _ := state.Keys.Device("dev", state.VerdictBuckets)
	e.records[place(wire.RegionVerdicts, bucket)] = wire.AppendVerdicts(nil, state.Epoch,
		[]wire.Verdict{{Digest: digest, Outcome: wire.Allow, Permissions: "telemetry.write", ExpiresMS: expires}}, nil)
}

// device returns a device's headers, and the headers that Envoy adds.
func device(path string, more ...[2]string) [][2]string {
	return append([][2]string{{":authority", "edge.example.com"}, {":path", path}, {":method", "GET"},
		{":scheme", "https"}, {"user-agent", "device/1.0"}, {"accept", "application/json"}, {"accept-encoding", "gzip, br"},
		{"x-device-id", "dev"}, {"x-device-token", "s3cret"}, {"x-forwarded-for", "203.0.113.7"},
		{"x-forwarded-proto", "https"}, {"x-request-id", "8a4e5a2b-6d0f-4b7f-a2bb-4c6a7e3b3f10"}}, more...)
}

// raiseGuard makes the guard known to the VM, and so enables cached answers.
func raiseGuard(e *emulator) {
	g := guardWriter{host: e}
	if err := g.raise(); err != nil {
		panic(err)
	}
	g.lower()
	e.tick()
}

// TestHotPathAllocatesNothing: without allocations the garbage collector has nothing to do while requests are answered;
// a run of it would stop all requests of the worker.
func TestHotPathAllocatesNothing(t *testing.T) {
	inm := [2]string{"if-none-match", `"x", "a"`}
	tests := []struct {
		name    string
		headers [][2]string
		status  int // 0: goes upstream
	}{
		{"pass, no rule", device("/none"), 0},
		{"pass, miss", device("/v1/private/2"), 0},
		{"pass, auth", device("/v1/telemetry"), 0},
		{"304", device("/v1/products/1", inm), 304},
		{"200", device("/v1/products/1"), 200},
		{"auth + 304", device("/v1/private/1", inm), 304},
		{"auth + 200", device("/v1/private/1"), 200},
		{"auth + 200, query", device("/v1/private/1?b=1&lang=de&a"), 200},
		{"206", device("/v1/products/1", [2]string{"range", "bytes=1-2"}, [2]string{"if-range", `"a"`}), 206},
		{"416", device("/v1/products/1", [2]string{"range", "bytes=1024-"}), 416},
	}
	secret := apikey.Secret(strings.Repeat("K", 26))
	key, _ := apikey.Of("dev", secret)
	keyed := strings.Replace(rules, `{"id_header": "x-device-id", "secret_header": "x-device-token"}`,
		`{"api_key_header": "x-api-key", "bearer": true}`, 1)
	configs := []struct{ name, rules, space string }{
		{"", rules, ""}, {"an API key, ", keyed, ""}, {"a bearer, ", keyed, ""},
		{"a virtual host, ", hundredHosts(), "//edge"},
		{"its hosts, ", strings.ReplaceAll(hundredHosts(), `"cache": {`, `"cache": {"scope": "host", `), "//edge:edge.example.com"},
	}
	for _, tt := range tests {
		for n := range 3 * len(configs) {
			config := configs[n/3]
			answers := []string{"composed", "kept", "kept for a moment"}[n%3]
			t.Run(config.name+tt.name+", "+answers, func(t *testing.T) {
				e := emulate(t, config.rules)
				if answers != "composed" {
					raiseGuard(e)
				}
				putVerdict(e, e.clock+60_000)
				shown := tt.headers
				if config.rules == keyed {
					putVerdictOf(e, secret, e.clock+60_000)
					shown = append(slices.Clone(shown), map[string][2]string{"an API key, ": {"x-api-key", key},
						"a bearer, ": {"authorization", "Bearer " + key}}[config.name])
				}
				path, _, _ := strings.Cut(tt.headers[1][1], "?")
				if strings.Contains(tt.headers[1][1], "lang") {
					path += "?lang=de"
				}
				if tt.status != 0 {
					putObject(e, config.space+path, 1024)
				}
				q := &quiet{emulator: e}
				e.vm.host = q
				e.streams[2] = &exchange{request: shown}
				run := func() {
					q.show(2)
					if answers == "kept for a moment" {
						e.clock += 250
					}
				}
				e.vm.hits.report = make([]byte, 0, maxReport) // as after its first second
				run()                                         // so that cached answers were asked for before
				if got := testing.AllocsPerRun(100, run); got != 0 {
					t.Errorf("got %v allocations per request, want 0", got)
				}
				if q.status != tt.status {
					t.Errorf("got status %d, want %d", q.status, tt.status)
				}
			})
		}
	}
}

// TestHeadersAllocateNothing is TestHotPathAllocatesNothing for an object with headers of all sizes; long ones aren't
// kept.
func TestHeadersAllocateNothing(t *testing.T) {
	for size := 64; size <= limits.MaxHeaders; size *= 8 {
		for _, path := range []string{"/v1/products/1", "/v1/private/1"} {
			e := emulate(t, rules)
			raiseGuard(e)
			putVerdict(e, e.clock+60_000)
			o := newObject(path, 1024)
			o.Headers = "cache-control: public, s-maxage=60, max-age=5\n"
			for i := range min(size/64, limits.MaxHeaderLines) - 1 {
				o.Headers += fmt.Sprintf("x-%02d: %s\n", i, strings.Repeat("v", 57))
			}
			o.Headers += "last-modified: " + strings.Repeat("v", size-len(o.Headers)-len("last-modified: "))
			put(e, o)
			q := &quiet{emulator: e}
			e.vm.host = q
			e.streams[2] = &exchange{request: device(path)}
			q.show(2)
			e.vm.hits.report = make([]byte, 0, maxReport)
			q.show(2)
			if got := testing.AllocsPerRun(100, func() { q.show(2) }); got != 0 || q.status != 200 {
				t.Errorf("%d bytes of headers, %s: got %v allocations for a %d, want none", size, path, got, q.status)
			}
		}
	}
}

// hundredHosts has the rules of edge.example.com as one of 100 virtual hosts of 10 domains each.
func hundredHosts() string {
	var hosts strings.Builder
	for i := range 100 {
		fmt.Fprintf(&hosts, `,"h%d": {"rules": %s, "domains": ["*.h%[1]d.example"`, i, rulesOnly)
		for j := range 9 {
			fmt.Fprintf(&hosts, `, "d%d.h%d.example"`, j, i)
		}
		hosts.WriteString("]}")
	}
	return strings.Replace(rules, rulesOnly, `[], "virtual_hosts": {"edge": {"domains": ["*.example.com"], "rules": `+
		rulesOnly+"}"+hosts.String()+"}", 1)
}

// BenchmarkVirtualHosts measures a hit, a 304 and a request that no rule covers, without and with virtual hosts.
func BenchmarkVirtualHosts(b *testing.B) {
	for _, c := range []struct{ name, rules, space string }{{"none", rules, ""}, {"100", hundredHosts(), "//edge"}} {
		b.Run(c.name, func(b *testing.B) {
			e := emulate(b, c.rules)
			raiseGuard(e)
			putObject(e, c.space+"/v1/products/1", 1024)
			for i, headers := range [][][2]string{device("/none"), device("/v1/products/1"),
				device("/v1/products/1", [2]string{"if-none-match", `"a"`})} {
				e.streams[uint32(i)+2] = &exchange{request: headers}
			}
			q := &quiet{emulator: e}
			e.vm.host = q
			for b.Loop() {
				for id := range uint32(len(e.streams)) {
					q.show(id + 2)
				}
			}
		})
	}
}

// TestRefusalAllocatesLittle bounds the garbage of a flood of wrong credentials.
func TestRefusalAllocatesLittle(t *testing.T) {
	e := emulate(t, rules)
	q := &quiet{emulator: e}
	e.vm.host = q
	e.streams[2] = &exchange{request: device("/v1/private/1", [2]string{"x-device-id", "dev"})} // twice
	if got := testing.AllocsPerRun(100, func() { q.show(2) }); got > 4 || q.status != 401 {
		t.Errorf("got %v allocations for a %d, want at most 4 for a 401", got, q.status)
	}
}

// BenchmarkHotPath makes default.pgo, the profile that the compiler optimizes the module with:
//
//	go test ./edge -run '^$' -bench HotPath -benchtime 5s -cpuprofile edge/default.pgo
func BenchmarkHotPath(b *testing.B) {
	inm := [2]string{"if-none-match", `"x", "a"`}
	e := emulate(b, rules)
	raiseGuard(e)
	putVerdict(e, e.clock+1000)
	putObject(e, "/v1/private/1", 1024)
	for i, headers := range [][][2]string{device("/none"), device("/v1/telemetry"), device("/v1/private/1"),
		device("/v1/private/1", inm), device("/v1/private/2", inm)} {
		e.streams[uint32(i)+2] = &exchange{request: headers}
	}
	q := &quiet{emulator: e}
	e.vm.host = q
	for b.Loop() {
		for id := range uint32(len(e.streams)) {
			q.show(id + 2)
		}
	}
}

// quiet is an emulator that records only the status of replies.
type quiet struct {
	*emulator
	status int
}

// show passes the headers of a stream to the VM.
func (q *quiet) show(id uint32) {
	q.arena.Reset()
	q.handed = q.handed[:0]
	q.current, q.status = id, 0
	q.vm.RequestHeaders(id, true)
}

func (q *quiet) Reply(status int, _ string, _, _ []byte) { q.status = status }
func (*quiet) RemoveRequestHeader(string)                {}
func (*quiet) AddRequestHeader(string, string)           {}
func (*quiet) AwaitResponse() bool                       { return true }
func (*quiet) SetNote(policy.Note, string)               {}

// TestHostileRequests sends requests at the limits of the proxy, and larger ones than the arena. Each gets an answer,
// and the next good request its own.
func TestHostileRequests(t *testing.T) {
	many := func(n int, name, value string) (more [][2]string) {
		for i := range n {
			more = append(more, [2]string{name + strconv.Itoa(i%7), value})
		}
		return more
	}
	long := strings.Repeat("x", 16<<10)
	tests := []struct {
		name string
		path string
		more [][2]string
		want int // 0: goes upstream
	}{
		{"16 KiB in one header", "/v1/private/1", [][2]string{{"x-filler", long}}, 200},
		{"a hundred headers", "/v1/private/1", many(100, "x-filler-", "v"), 200},
		{"more than the arena", "/v1/private/1", many(60, "x-filler-", long), 200},
		{"a name of 16 KiB", "/v1/private/1", [][2]string{{long, "v"}}, 200},
		{"an empty name", "/v1/private/1", [][2]string{{"", "v"}}, 200},
		{"NUL in a header", "/v1/private/1", [][2]string{{"x-filler", "a\x00b"}}, 200},
		{"a path of 8,000 bytes", "/v1/private/" + long[:8000-len("/v1/private/")], nil, 0},
		{"a path of 16 KiB", "/v1/private/" + long, nil, 403},
		{"the secret twice", "/v1/private/1", [][2]string{{"x-device-token", "s3cret"}}, 401},
		{"the id twice", "/v1/private/1", [][2]string{{"x-device-id", "dev"}}, 401},
		{"a list over two lines", "/v1/private/1", [][2]string{{"if-none-match", `"x"`}, {"if-none-match", `"a"`}}, 304},
		{"If-None-Match of 16 KiB", "/v1/private/1", [][2]string{{"if-none-match", `"` + long + `", "a"`}}, 304},
		{"forged, by the hundred", "/v1/telemetry", slices.Repeat([][2]string{{"x_gatehouse-device", "v"}}, 100), 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := emulate(t, rules)
			putVerdict(e, e.clock+1000)
			putObject(e, "/v1/private/1", 1024)
			for range 2 {
				x := e.streams[e.begin(device(tt.path, tt.more...), true)]
				if tt.want == 0 && !x.went() || tt.want != 0 && (x.reply == nil || x.reply.status != tt.want) {
					t.Errorf("got %+v, want %d", x.reply, tt.want)
				}
				good := e.streams[e.begin(device("/v1/private/1"), true)]
				if good.reply == nil || good.reply.status != 200 || len(good.reply.body) != 1024 ||
					fields(good.reply.headers)["etag"] != `"a"` {
					t.Errorf("the next request: got %+v, want its 200", good.reply)
				}
			}
		})
	}
}

// TestLargeBody serves a body that doesn't fit into the arena, first from shared data and then from the VM's own cache.
func TestLargeBody(t *testing.T) {
	e := emulate(t, rules)
	putObject(e, "/v1/products/1", limits.MaxBody)
	for i := range 2 {
		got := e.streams[send(e, "/v1/products/1")].reply
		if got == nil || got.status != 200 || !bytes.Equal(got.body, bytes.Repeat([]byte("b"), limits.MaxBody)) {
			t.Errorf("request %d: not the body of 1 MiB", i)
		}
		e.tick()
	}
}

func TestBodyCache(t *testing.T) {
	var c bodyCache
	variant := func(slot uint32, length int) wire.Variant {
		return wire.Variant{Slot: slot, Stamp: uint64(slot) + 1, Length: uint32(length)}
	}
	first := c.put(1, variant(0, 4), []byte("body"))
	if got := c.get(1, variant(0, 4)); got != first || string(got.Bytes) != "body" {
		t.Errorf("got %+v, want body", got)
	}
	other := variant(0, 4)
	other.Stamp = 99
	if c.get(2, variant(0, 4)) != nil || c.get(1, other) != nil || c.get(1, variant(1, 4)) != nil {
		t.Error("a body was given for another epoch, stamp or slot")
	}
	const length = 1 << 20
	var put []*policy.Body
	for slot := range uint32(3 * maxBodies / length) {
		put = append(put, c.put(1, variant(slot, length), make([]byte, length)))
		if c.get(1, variant(slot, length)) == nil {
			t.Fatalf("slot %d isn't there right after it was put", slot)
		}
	}
	total, left := 0, 0
	for _, e := range c.entries {
		total += len(e.body.Bytes)
	}
	for _, body := range put {
		left += len(body.Bytes)
	}
	if first.Bytes != nil || left != total {
		t.Errorf("got %d bytes of bodies that were put, want those of the %d that are kept", left, total)
	}
	if c.size != total || c.size > maxBodies {
		t.Errorf("got a size of %d for %d bytes, want them equal and at most %d", c.size, total, maxBodies)
	}
}
