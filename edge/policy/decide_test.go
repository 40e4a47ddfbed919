package policy

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/wire"
)

const (
	now   = int64(1_700_000_000_000)
	epoch = uint64(7)
)

// memory is shared memory, written with the sidecar's codec.
type memory struct {
	purgedSoftly bool // what is put
	state        wire.State
	records      map[[2]uint32][]byte
	guard        uint64
	guardUp      bool // objects are being written
	bodyGone     bool
	given        []*Body
}

func newMemory() *memory {
	return &memory{
		state: wire.State{Epoch: epoch, InStepMS: now - 1000, HeartbeatMS: now - 100, DevicesComplete: true,
			ObjectBuckets: 1 << 20, VerdictBuckets: 1 << 20,
			Keys: wire.Keys{Placement: [16]byte{1}, Credential: [16]byte{2}}},
		records: map[[2]uint32][]byte{},
	}
}

func (m *memory) Record(region wire.Region, index uint32) []byte {
	return m.records[[2]uint32{uint32(region), index}]
}

func (m *memory) Guard() uint64 {
	if m.guardUp {
		return 0
	}
	return m.guard
}

func (m *memory) Body(epoch uint64, v wire.Variant) *Body {
	body, err := wire.FindBody(m.Record(wire.RegionBodies, v.Slot), epoch, v)
	if err != nil || m.bodyGone {
		return nil
	}
	given := &Body{body}
	m.given = append(m.given, given)
	return given
}

// fieldsOf returns the headers of a reply.
func fieldsOf(d Decision) [][2]string {
	all, ok := headermap.Parse(d.Headers)
	if !ok && d.Headers != nil {
		panic(fmt.Sprintf("malformed headers: %q", d.Headers))
	}
	return all
}

// put stores an object of version 1 with an identity and a gzip body.
func (m *memory) put(key string, ttlMS uint64) { m.putVersion(key, now-5000, ttlMS, `"v1"`, true) }

// putVersion stores an object with an identity body and, if encoded, with a gzip one.
func (m *memory) putVersion(key string, publishedMS int64, ttlMS uint64, etag string, encoded bool) {
	m.putObject(wire.Object{Key: key, Version: 1, PublishedMS: publishedMS, TTLMS: ttlMS, ETag: etag,
		ContentType: "application/json", Stale: m.purgedSoftly}, encoded)
}

// putObject is putVersion of o.
func (m *memory) putObject(o wire.Object, encoded bool) {
	key := o.Key
	for i, text := range []string{`{"key":"` + key + `"}`, "gz:" + key} {
		if i > 0 && !encoded {
			break
		}
		slot := uint32(len(m.records))
		stamp := wire.Stamp(uint64(slot+1), 0)
		o.AddVariant(wire.Variant{Encoding: wire.Encoding(i), Slot: slot, Length: uint32(len(text)), Stamp: stamp})
		m.records[[2]uint32{uint32(wire.RegionBodies), slot}] = wire.AppendBody(nil, m.state.Epoch, stamp, []byte(text))
	}
	bucket, tag := m.state.Keys.Place(key, m.state.ObjectBuckets)
	m.records[[2]uint32{uint32(wire.RegionObjects), bucket}] = wire.FinishRecord(
		wire.AppendObject(wire.AppendObjectsHeader(nil, m.state.Epoch, 1), tag, &o), 0)
}

// drop drops the returned bodies, like a cache without room for them.
func (m *memory) drop() {
	for _, body := range m.given {
		body.Bytes = nil
	}
	m.given = nil
}

// verdict stores a verdict for a credential of a registered device.
func (m *memory) verdict(id, secret string, v wire.Verdict) {
	v.Digest = m.state.Keys.Digest(id, secret)
	m.device(id, false, v)
}

// device stores a registered device with its verdicts; a device without verdicts is new.
func (m *memory) device(id string, closed bool, verdicts ...wire.Verdict) {
	bucket, tag := m.state.Keys.Device(id, m.state.VerdictBuckets)
	isNew := !closed && len(verdicts) == 0
	m.records[[2]uint32{uint32(wire.RegionVerdicts), bucket}] = wire.AppendVerdicts(nil, m.state.Epoch,
		verdicts, []wire.Device{{Tag: tag, Closed: closed, New: isNew}})
}

// neighbour replaces the device in a bucket by another device.
func (m *memory) neighbour(id string) {
	bucket, tag := m.state.Keys.Device(id, m.state.VerdictBuckets)
	m.records[[2]uint32{uint32(wire.RegionVerdicts), bucket}] = wire.AppendVerdicts(nil, m.state.Epoch,
		nil, []wire.Device{{Tag: tag ^ 4, Closed: true}})
}

// request returns headers from "METHOD target" and "name: value" lines.
func request(lines ...string) [][2]string {
	method, target, _ := strings.Cut(lines[0], " ")
	headers := [][2]string{{":method", method}, {":path", target}, {":authority", "edge"}}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ": ")
		headers = append(headers, [2]string{name, value})
	}
	return headers
}

// read returns the request with these lines.
func read(e *Engine, lines ...string) Request { return readHeaders(e, request(lines...)) }

// readHeaders returns the request with these headers.
func readHeaders(e *Engine, headers [][2]string) Request {
	fields, ok := headermap.ParseFields(headermap.Append(nil, headers))
	if !ok {
		panic("malformed headers")
	}
	at := e.Locate(fields)
	r := at.Read(nil)
	if r.Governed() && at.Passes {
		panic(fmt.Sprintf("said to pass: %q", headers))
	}
	return r
}

// decideRequest returns the decision on a request at now, without an answer of the sidecar.
func decideRequest(m Memory, r Request) (d Decision) {
	r.Decide(&d, now, m, &Answers{})
	return d
}

func decide(t *testing.T, m *memory, config string, answers Answers, lines ...string) Decision {
	t.Helper()
	return decideToken(t, m, config, nil, answers, lines...)
}

func TestHasName(t *testing.T) {
	for _, tt := range []struct {
		names, name string
		want        bool
	}{
		{"", "a", false}, {"a", "a", true}, {"a", "b", false}, {"ab", "a", false}, {"ab", "b", false}, {"a", "ab", false},
		{"a,b,c", "a", true}, {"a,b,c", "b", true}, {"a,b,c", "c", true}, {"aa,bb", "a", false}, {"aa,bb", "b", false},
		{"a.b,a.c", "a.c", true}, {"a.b,a.c", "a", false}, {"a.bc", "a.b", false},
	} {
		if got := hasName(tt.names, tt.name); got != tt.want {
			t.Errorf("%q in %q: got %v, want %v", tt.name, tt.names, got, tt.want)
		}
	}
}

func TestDecideCache(t *testing.T) {
	tests := []struct {
		name    string
		setup   func(m *memory)
		request []string
		action  Action
		status  int
		body    string
		want    map[string]string // response headers, or cache-status of a pass
		counter Counter
	}{
		{name: "hit", request: []string{"GET /v1/products/1"}, action: Reply, status: 200,
			body: `{"key":"/v1/products/1"}`, counter: CacheHit,
			want: map[string]string{"etag": `"v1"`, "content-type": "application/json", "cache-control": "no-cache",
				"age": "1", "vary": "accept-encoding", "cache-status": "gatehouse; hit",
				"last-modified": "Tue, 14 Nov 2023 22:13:17 GMT"}},
		{name: "hit, gzip", request: []string{"GET /v1/products/1", "accept-encoding: gzip"}, action: Reply,
			status: 200, body: "gz:/v1/products/1", counter: CacheHit,
			want: map[string]string{"etag": `W/"v1"`, "content-type": "application/json", "content-encoding": "gzip",
				"cache-control": "no-cache", "age": "1", "vary": "accept-encoding", "cache-status": "gatehouse; hit",
				"last-modified": "Tue, 14 Nov 2023 22:13:17 GMT"}},
		{name: "hit, HEAD", request: []string{"HEAD /v1/products/1"}, action: Reply, status: 200,
			body: `{"key":"/v1/products/1"}`, counter: CacheHit},
		{name: "hit, other parameters don't count", request: []string{"GET /v1/products/1?utm=x"},
			action: Reply, status: 200, body: `{"key":"/v1/products/1"}`, counter: CacheHit},
		{name: "hit, its parameter counts", request: []string{"GET /v1/products/1?b=1&lang=de"}, action: Reply,
			status: 200, body: `{"key":"/v1/products/1?lang=de"}`, counter: CacheHit},
		{name: "not modified", request: []string{"GET /v1/products/1", `if-none-match: "x", W/"v1"`},
			action: Reply, status: 304, counter: CacheNotModified,
			want: map[string]string{"etag": `"v1"`, "cache-control": "no-cache", "age": "1", "vary": "accept-encoding",
				"cache-status": "gatehouse; hit"}},
		{name: "not modified, two lines", request: []string{"GET /v1/products/1", `if-none-match: "x"`,
			`if-none-match: "v1"`}, action: Reply, status: 304, counter: CacheNotModified},
		{name: "not modified needs no body", setup: func(m *memory) {
			m.bodyGone = true
		}, request: []string{"GET /v1/products/1", `if-none-match: *`}, action: Reply, status: 304,
			counter: CacheNotModified},
		{name: "ttl", request: []string{"GET /v1/products/ttl"}, action: Reply, status: 200,
			body: `{"key":"/v1/products/ttl"}`, counter: CacheHit,
			want: map[string]string{"etag": `"v1"`, "content-type": "application/json", "cache-control": "max-age=55",
				"age": "1", "vary": "accept-encoding", "cache-status": "gatehouse; hit; ttl=55",
				"last-modified": "Tue, 14 Nov 2023 22:13:17 GMT"}},
		{name: "past its ttl", request: []string{"GET /v1/products/old"}, counter: CacheStale,
			want: map[string]string{"cache-status": "gatehouse; fwd=stale; detail=expired"}},
		{name: "miss", request: []string{"GET /v1/products/2"}, counter: CacheMiss,
			want: map[string]string{"cache-status": "gatehouse; fwd=uri-miss"}},
		{name: "unusual spelling is a miss", request: []string{"GET /v1/products//1"}, counter: CacheMiss,
			want: map[string]string{"cache-status": "gatehouse; fwd=uri-miss"}},
		{name: "body of another version is a miss", setup: func(m *memory) {
			m.bodyGone = true
		}, request: []string{"GET /v1/products/1"}, counter: CacheMiss,
			want: map[string]string{"cache-status": "gatehouse; fwd=uri-miss"}},
		{name: "method", request: []string{"POST /v1/products/1"}, counter: CacheBypass,
			want: map[string]string{"cache-status": "gatehouse; fwd=method"}},
		{name: "if-match", request: []string{"GET /v1/products/1", `if-match: "v1"`}, counter: CacheBypass,
			want: map[string]string{"cache-status": "gatehouse; fwd=bypass"}},
		{name: "gRPC, whatever the method", request: []string{"GET /v1/products/1", "content-type: application/grpc+proto"},
			counter: CacheBypass, want: map[string]string{"cache-status": "gatehouse; fwd=bypass"}},
		{name: "another content type", request: []string{"GET /v1/products/1", "content-type: application/json"},
			action: Reply, status: 200, body: `{"key":"/v1/products/1"}`, counter: CacheHit},
		{name: "the longest accept-encoding", request: []string{"GET /v1/products/1",
			"accept-encoding: gzip" + strings.Repeat(",", maxAcceptEncoding-4)}, action: Reply, status: 200,
			body: "gz:/v1/products/1", counter: CacheHit},
		{name: "accept-encoding too long", request: []string{"GET /v1/products/1", "accept-encoding: gzip" +
			strings.Repeat(",", maxAcceptEncoding-3)}, counter: CacheBypass,
			want: map[string]string{"cache-status": "gatehouse; fwd=bypass"}},
		{name: "the most parameters",
			request: []string{"GET /v1/products/1?lang=de" + strings.Repeat("&x", limits.MaxPairs-1)},
			action:  Reply, status: 200, body: `{"key":"/v1/products/1?lang=de"}`, counter: CacheHit},
		{name: "too many parameters", request: []string{"GET /v1/products/1?lang=de" + strings.Repeat("&x", limits.MaxPairs)},
			counter: CacheBypass, want: map[string]string{"cache-status": "gatehouse; fwd=bypass"}},
		{name: "nothing acceptable", request: []string{"GET /v1/products/1", "accept-encoding: identity;q=0"},
			counter: CacheBypass, want: map[string]string{"cache-status": "gatehouse; fwd=bypass; detail=not-acceptable"}},
		{name: "key too long", request: []string{"GET /v1/products/" + strings.Repeat("x", limits.MaxKey)},
			counter: CacheBypass, want: map[string]string{"cache-status": "gatehouse; fwd=bypass"}},
		{name: "not in step", setup: func(m *memory) {
			m.state.InStepMS = now - 30_001
		}, request: []string{"GET /v1/products/1"}, counter: CacheStale,
			want: map[string]string{"cache-status": "gatehouse; fwd=stale; detail=not-in-step"}},
		{name: "in step in time to come", setup: func(m *memory) {
			m.state.InStepMS = now + 1_001
		}, request: []string{"GET /v1/products/1"}, counter: CacheStale,
			want: map[string]string{"cache-status": "gatehouse; fwd=stale; detail=not-in-step"}},
		{name: "just in step", setup: func(m *memory) {
			m.state.InStepMS = now - 30_000
		}, request: []string{"GET /v1/products/1"}, action: Reply, status: 200, body: `{"key":"/v1/products/1"}`,
			counter: CacheHit},
		{name: "no state", setup: func(m *memory) {
			m.state = wire.State{}
		}, request: []string{"GET /v1/products/1"}, counter: CacheStale,
			want: map[string]string{"cache-status": "gatehouse; fwd=stale; detail=no-state"}},
		{name: "another epoch", setup: func(m *memory) {
			m.state.Epoch++
		}, request: []string{"GET /v1/products/1"}, counter: CacheMiss,
			want: map[string]string{"cache-status": "gatehouse; fwd=uri-miss"}},
		{name: "no rule", request: []string{"GET /other"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMemory()
			m.put("/v1/products/1", 0)
			m.put("/v1/products/1?lang=de", 0)
			m.put("/v1/products/ttl", 60_000)
			m.put("/v1/products/old", 5000)
			if tt.setup != nil {
				tt.setup(m)
			}
			d := decide(t, m, `{"rules": [{"match": {"prefix": "/v1/products/"}, "cache": {"query": ["lang"]}}]}`,
				Answers{}, tt.request...)
			if d.Action != tt.action || d.Status != tt.status || string(d.Body) != tt.body || d.Cache != tt.counter {
				t.Errorf("got action %d, status %d, body %q, %q; want %d, %d, %q, %q", d.Action, d.Status,
					d.Body, d.Cache, tt.action, tt.status, tt.body, tt.counter)
			}
			got := map[string]string{}
			for _, h := range fieldsOf(d) {
				got[h[0]] = h[1]
			}
			if d.CacheStatus != "" {
				got["cache-status"] = d.CacheStatus
			}
			if tt.want != nil && !maps.Equal(got, tt.want) {
				t.Errorf("got headers %v, want %v", got, tt.want)
			}
		})
	}
}

func TestDecideServeStale(t *testing.T) {
	const config = `{"stale": "serve", "rules": [{"match": {"prefix": "/"}, "cache": {}}]}`
	m := newMemory()
	m.put("/a", 0)
	for name, tt := range map[string]struct {
		age     int64
		status  string
		counter Counter
	}{
		"in step":  {30_000, "gatehouse; hit", CacheHit},
		"too old":  {30_001, "gatehouse; hit; detail=not-in-step", CacheStaleServed},
		"very old": {1 << 40, "gatehouse; hit; detail=not-in-step", CacheStaleServed},
	} {
		m.state.InStepMS = now - tt.age
		d := decide(t, m, config, Answers{}, "GET /a")
		if d.Status != 200 || d.Cache != tt.counter || !slices.Contains(fieldsOf(d), [2]string{"cache-status", tt.status}) {
			t.Errorf("%s: got %d %v %q, want 200 with %q, %q", name, d.Status, fieldsOf(d), d.Cache, tt.status, tt.counter)
		}
	}
}

// TestDecidePurged: what was purged softly counts as expired, except where stale answers are served.
func TestDecidePurged(t *testing.T) {
	const pass, serve = `{"rules": [{"match": {"prefix": "/"}, "cache": {}}]}`,
		`{"stale": "serve", "rules": [{"match": {"prefix": "/"}, "cache": {}}]}`
	m := newMemory()
	m.purgedSoftly = true
	m.put("/a", 60_000)
	d := decide(t, m, pass, Answers{}, "GET /a")
	if d.Action != Pass || d.CacheStatus != "gatehouse; fwd=stale; detail=expired" || d.Cache != CacheStale {
		t.Errorf("got %v %q %q, want it to pass as expired", d.Action, d.CacheStatus, d.Cache)
	}
	for age, status := range map[int64]string{
		0: "gatehouse; hit; detail=purged", 30_001: "gatehouse; hit; detail=not-in-step",
	} {
		m.state.InStepMS = now - age
		d = decide(t, m, serve, Answers{}, "GET /a")
		fields := fieldsOf(d)
		if d.Status != 200 || d.Cache != CacheStaleServed || !slices.Contains(fields, [2]string{"cache-status", status}) ||
			!slices.Contains(fields, [2]string{"cache-control", "no-cache"}) {
			t.Errorf("age %d: got %d %v %q, want %s and no-cache", age, d.Status, fields, d.Cache, status)
		}
	}
	m.putObject(wire.Object{Key: "/b", Version: 1, PublishedMS: now, ETag: `"b"`, ContentType: "text/plain", Stale: true,
		Headers: "cache-control: max-age=600"}, false)
	if fields := fieldsOf(decide(t, m, serve, Answers{}, "GET /b")); !slices.Contains(fields,
		[2]string{"cache-control", "no-cache"}) {
		t.Errorf("got %v, want no-cache instead of the publisher's", fields)
	}
}

const authRules = `{
	"credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"},
	"rules": [
		{"match": {"prefix": "/t"}, "auth": {"permissions": ["telemetry.write"]}},
		{"match": {"prefix": "/any"}, "auth": {}},
		{"match": {"prefix": "/nobody"}, "auth": {"permissions": ["unheard.of"]}},
		{"match": {"prefix": "/me"}, "auth": {}, "cache": {"scope": "device"}},
		{"match": {"prefix": "/fetch"}, "cache": {"on_miss": "fetch"}}]}`

// authCase is a request with the expected decision.
type authCase struct {
	name    string
	setup   func(m *memory)
	token   claims
	answers Answers
	request []string
	action  Action
	status  int
	counter Counter
	check   func(d Decision) bool
}

// run tests the decision for the request with a token, nil for none.
func (c *authCase) run(t *testing.T, rules string, token Claims) {
	t.Run(c.name, func(t *testing.T) {
		m := newMemory()
		if c.setup != nil {
			c.setup(m)
		}
		d := decideToken(t, m, rules, token, c.answers, c.request...)
		if d.Action != c.action || d.Status != c.status || d.Auth != c.counter || c.check != nil && !c.check(d) {
			t.Errorf("got %+v; want action %d, status %d, %q", d, c.action, c.status, c.counter)
		}
	})
}

func TestDecideAuth(t *testing.T) {
	const read, write = "config.read", "telemetry.write"
	good := []string{"x-device-id: dev", "x-device-token: s3cret"}
	with := func(first string, more ...string) []string { return append([]string{first}, more...) }
	allow := wire.Verdict{Outcome: wire.Allow, Permissions: read + "," + write, ExpiresMS: now + 1000}
	verdict := func(v wire.Verdict) func(*memory) { return func(m *memory) { m.verdict("dev", "s3cret", v) } }
	tests := []authCase{
		{name: "allow", setup: verdict(allow), request: with("POST /t", good...), counter: AuthAllow,
			check: func(d Decision) bool { return d.Device == "dev" && d.Permissions == read+","+write }},
		{name: "allow without permissions asked", setup: verdict(wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1}),
			request: with("POST /any", good...), counter: AuthAllow,
			check: func(d Decision) bool { return d.Device == "dev" && d.Permissions == "" }},
		{name: "a permission is missing",
			setup:   verdict(wire.Verdict{Outcome: wire.Allow, Permissions: read, ExpiresMS: now + 1}),
			request: with("POST /t", good...), action: Reply, status: 403, counter: AuthForbidden},
		{name: "a permission that nobody has", setup: verdict(allow), request: with("POST /nobody", good...),
			action: Reply, status: 403, counter: AuthForbidden},
		{name: "deny", setup: verdict(wire.Verdict{Outcome: wire.Deny, ExpiresMS: now + 1}),
			request: with("POST /t", good...), action: Reply, status: 401, counter: AuthDeny},
		{name: "expired", setup: verdict(wire.Verdict{Outcome: wire.Allow, Permissions: write, ExpiresMS: now}),
			request: with("POST /t", good...), action: Verify, counter: CallVerify},
		{name: "expired deny", setup: verdict(wire.Verdict{Outcome: wire.Deny, ExpiresMS: now}),
			request: with("POST /t", good...), action: Verify, counter: CallVerify},
		{name: "refresh", setup: verdict(wire.Verdict{Outcome: wire.Allow, Permissions: write, ExpiresMS: now + 1,
			RefreshAfterMS: now}), request: with("POST /t", good...), counter: AuthAllow,
			check: func(d Decision) bool { return d.Refresh && d.Credential == Credential{ID: "dev", Secret: "s3cret"} }},
		{name: "no refresh yet",
			setup:   verdict(wire.Verdict{Outcome: wire.Allow, Permissions: write, ExpiresMS: now + 2, RefreshAfterMS: now + 1}),
			request: with("POST /t", good...), counter: AuthAllow,
			check: func(d Decision) bool { return !d.Refresh }},
		{name: "unknown", request: with("POST /t", good...), action: Verify, counter: CallVerify,
			check: func(d Decision) bool { return d.Credential == Credential{ID: "dev", Secret: "s3cret"} }},
		{name: "verdict of another epoch", setup: func(m *memory) {
			verdict(allow)(m)
			m.state.Epoch++
		}, request: with("POST /t", good...), action: Verify, counter: CallVerify,
			check: func(d Decision) bool { return d.ReloadState }},
		{name: "no state", setup: func(m *memory) {
			m.state = wire.State{}
		}, request: with("POST /t", good...), action: Reply, status: 503, counter: AuthUnavailable,
			check: func(d Decision) bool { return d.ReloadState }},
		{name: "verified", answers: Answers{Verify: &wire.VerifyResponse{Outcome: wire.Allow, Permissions: write,
			Epoch: epoch}}, request: with("POST /t", good...), counter: AuthAllow},
		{name: "verified, refused", answers: Answers{Verify: &wire.VerifyResponse{Outcome: wire.Deny, Epoch: epoch}},
			request: with("POST /t", good...), action: Reply, status: 401, counter: AuthDeny},
		{name: "verified, refused by who isn't in step", setup: func(m *memory) {
			m.state.InStepMS = now - 30_001
		}, answers: Answers{Verify: &wire.VerifyResponse{Outcome: wire.Deny, Epoch: epoch}},
			request: with("POST /t", good...), action: Reply, status: 503, counter: AuthUnavailable},
		{name: "verified, overloaded",
			answers: Answers{Verify: &wire.VerifyResponse{Outcome: wire.Unavailable, RetryAfterS: 3}},
			request: with("POST /t", good...), action: Reply, status: 503, counter: AuthUnavailable,
			check: func(d Decision) bool { return slices.Contains(fieldsOf(d), [2]string{"retry-after", "3"}) }},
		{name: "verified under another epoch",
			answers: Answers{Verify: &wire.VerifyResponse{Outcome: wire.Allow, Permissions: write, Epoch: epoch + 1}},
			request: with("POST /t", good...), action: Reply, status: 503, counter: AuthUnavailable,
			check: func(d Decision) bool { return d.ReloadState }},
		{name: "unreachable", answers: Answers{Unreachable: true}, request: with("POST /t", good...),
			action: Reply, status: 503, counter: AuthUnavailable},
		{name: "unreachable, expired", setup: verdict(wire.Verdict{Outcome: wire.Allow, Permissions: write, ExpiresMS: now}),
			answers: Answers{Unreachable: true}, request: with("POST /t", good...), action: Reply, status: 503,
			counter: AuthUnavailable},
		{name: "no id", setup: verdict(allow), request: with("POST /t", good[1]), action: Reply, status: 401,
			counter: AuthDeny},
		{name: "no secret", setup: verdict(allow), request: with("POST /t", good[0]), action: Reply,
			status: 401, counter: AuthDeny},
		{name: "empty secret", request: with("POST /t", good[0], "x-device-token: "), action: Reply,
			status: 401, counter: AuthDeny},
		{name: "two ids", setup: verdict(allow), request: with("POST /t", good[0], good[0], good[1]),
			action: Reply, status: 401, counter: AuthDeny},
		{name: "two secrets", setup: verdict(allow), request: with("POST /t", good[0], good[1], "x-device-token: other"),
			action: Reply, status: 401, counter: AuthDeny},
		{name: "folded ids", request: with("POST /t", "x-device-id: dev, dev", good[1]), action: Reply,
			status: 401, counter: AuthDeny},
		{name: "id with a slash", request: with("POST /t", "x-device-id: dev/x", good[1]), action: Reply,
			status: 401, counter: AuthDeny},
		{name: "swapped", setup: verdict(allow), request: with("POST /t", "x-device-id: s3cret", "x-device-token: dev"),
			action: Verify, counter: CallVerify},
		{name: "secret of 72 bytes", request: with("POST /t", good[0], "x-device-token: "+strings.Repeat("s", 72)),
			action: Verify, counter: CallVerify},
		{name: "secret of 73 bytes", request: with("POST /t", good[0], "x-device-token: "+strings.Repeat("s", 73)),
			action: Reply, status: 401, counter: AuthDeny},
		{name: "payload of the device", setup: func(m *memory) {
			verdict(allow)(m)
			m.put("@dev/me", 0)
		}, request: with("GET /me", good...), action: Reply, status: 200, counter: AuthAllow,
			check: func(d Decision) bool {
				return string(d.Body) == `{"key":"@dev/me"}` &&
					slices.Contains(fieldsOf(d), [2]string{"cache-control", "private, no-cache"}) &&
					slices.Contains(fieldsOf(d), [2]string{"vary", "accept-encoding, x-device-id, x-device-token"})
			}},
		{name: "payload of another device", setup: func(m *memory) {
			verdict(allow)(m)
			m.put("@dev2/me", 0)
			m.put("/me", 0)
		}, request: with("GET /me", good...), counter: AuthAllow,
			check: func(d Decision) bool { return d.Cache == CacheMiss && d.Device == "dev" }},
		{name: "no key that could have been published", request: []string{"GET /fetch?\f"},
			check: func(d Decision) bool { return d.CacheStatus == statusBypass }},
		{name: "payload needs the credential", setup: func(m *memory) {
			m.put("@dev/me", 0)
		}, request: with("GET /me", good[0]), action: Reply, status: 401, counter: AuthDeny},
	}
	for _, tt := range tests {
		tt.run(t, authRules, nil)
	}
}

// TestVerdictGrace uses an expired verdict while the sidecar is unreachable.
func TestVerdictGrace(t *testing.T) {
	const config = `{"verdict_grace": "1m", "credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"},
		"rules": [{"match": {"prefix": "/"}, "auth": {"permissions": ["telemetry.write"]}}]}`
	const write, minute = "telemetry.write", 60_000
	tests := []struct {
		name    string
		verdict wire.Verdict
		answers Answers
		action  Action
		status  int
		counter Counter
	}{
		{"reachable", wire.Verdict{Outcome: wire.Allow, Permissions: write, ExpiresMS: now}, Answers{},
			Verify, 0, CallVerify},
		{"within it", wire.Verdict{Outcome: wire.Allow, Permissions: write, ExpiresMS: now - minute + 1},
			Answers{Unreachable: true}, Pass, 0, AuthGrace},
		{"past it", wire.Verdict{Outcome: wire.Allow, Permissions: write, ExpiresMS: now - minute},
			Answers{Unreachable: true}, Reply, 503, AuthUnavailable},
		{"without the permission", wire.Verdict{Outcome: wire.Allow, ExpiresMS: now - 1}, Answers{Unreachable: true},
			Reply, 403, AuthForbidden},
		{"before not-after", wire.Verdict{Outcome: wire.Allow, Permissions: write, ExpiresMS: now - 1, NotAfterMS: now + 1},
			Answers{Unreachable: true}, Pass, 0, AuthGrace},
		{"not after that", wire.Verdict{Outcome: wire.Allow, Permissions: write, ExpiresMS: now - 1, NotAfterMS: now},
			Answers{Unreachable: true}, Reply, 503, AuthUnavailable},
		{"a deny has no grace", wire.Verdict{Outcome: wire.Deny, ExpiresMS: now - 1}, Answers{Unreachable: true},
			Reply, 503, AuthUnavailable},
		{"overloaded is not unreachable", wire.Verdict{Outcome: wire.Allow, Permissions: write, ExpiresMS: now - 1},
			Answers{Verify: &wire.VerifyResponse{Outcome: wire.Unavailable}}, Reply, 503, AuthUnavailable},
		{"the authority is away", wire.Verdict{Outcome: wire.Allow, Permissions: write, ExpiresMS: now - minute + 1},
			Answers{Verify: &wire.VerifyResponse{Outcome: wire.Away}}, Pass, 0, AuthGrace},
		{"away for too long", wire.Verdict{Outcome: wire.Allow, Permissions: write, ExpiresMS: now - minute},
			Answers{Verify: &wire.VerifyResponse{Outcome: wire.Away, RetryAfterS: 1}}, Reply, 503, AuthUnavailable},
		{"away, not after", wire.Verdict{Outcome: wire.Allow, Permissions: write, ExpiresMS: now - 1, NotAfterMS: now},
			Answers{Verify: &wire.VerifyResponse{Outcome: wire.Away}}, Reply, 503, AuthUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMemory()
			m.verdict("dev", "s3cret", tt.verdict)
			d := decide(t, m, config, tt.answers, "POST /t", "x-device-id: dev", "x-device-token: s3cret")
			if d.Action != tt.action || d.Status != tt.status || d.Auth != tt.counter {
				t.Errorf("got action %d, status %d, %q; want %d, %d, %q", d.Action, d.Status, d.Auth, tt.action,
					tt.status, tt.counter)
			}
		})
	}
}

func TestDecideBasic(t *testing.T) {
	const rules = `{"credentials": {"basic": true}, "rules": [{"match": {"prefix": "/"}, "auth": {}}]}`
	basic := func(s string) string { return "authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	tests := []struct {
		name   string
		lines  []string
		action Action
		want   Credential
	}{
		{"good", []string{basic("dev:s3cret")}, Verify, Credential{ID: "dev", Secret: "s3cret"}},
		{"colon in the secret", []string{basic("dev:s:3")}, Verify, Credential{ID: "dev", Secret: "s:3"}},
		{"scheme in another case", []string{"authorization: bAsIc ZGV2OnM="}, Verify, Credential{ID: "dev", Secret: "s"}},
		{"scheme with U+017F", []string{"authorization: Ba\u017fic ZGV2OnM="}, Reply, Credential{}},
		{"no colon", []string{basic("dev")}, Reply, Credential{}},
		{"empty secret", []string{basic("dev:")}, Reply, Credential{}},
		{"NUL", []string{basic("dev:a\x00b")}, Reply, Credential{}},
		{"not UTF-8", []string{basic("dev:\xff\xfe")}, Verify, Credential{ID: "dev", Secret: "\xff\xfe"}},
		{"twice", []string{basic("dev:s"), basic("dev:s")}, Reply, Credential{}},
		{"folded", []string{basic("dev:s") + ", Basic ZGV2OnM="}, Reply, Credential{}},
		{"spaces", []string{"authorization: Basic   ZGV2OnM="}, Verify, Credential{ID: "dev", Secret: "s"}},
		{"too many spaces", []string{"authorization: Basic" + strings.Repeat(" ", 1000) + "ZGV2OnM="}, Reply, Credential{}},
		{"not base64", []string{"authorization: Basic !!!"}, Reply, Credential{}},
		{"other scheme", []string{"authorization: Bearer ZGV2OnM="}, Reply, Credential{}},
		{"none", nil, Reply, Credential{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := decide(t, newMemory(), rules, Answers{}, append([]string{"GET /"}, tt.lines...)...)
			if d.Action != tt.action || d.Credential != tt.want {
				t.Errorf("got action %d, credential %+v; want %d, %+v", d.Action, d.Credential, tt.action, tt.want)
			}
			if tt.action == Reply &&
				(d.Status != 401 ||
					!slices.Contains(fieldsOf(d), [2]string{"www-authenticate", `Basic realm="gatehouse", charset="UTF-8"`})) {
				t.Errorf("got %d %v, want a 401 with its challenge", d.Status, fieldsOf(d))
			}
		})
	}
}

func TestDecideFetch(t *testing.T) {
	object := wire.Object{Key: "/fetch", Version: 3, ETag: `"v3"`, ContentType: "text/plain"}
	object.AddVariant(wire.Variant{Encoding: wire.Identity, Length: 2})
	object.AddVariant(wire.Variant{Encoding: wire.Gzip, Length: 1})
	fetched := func(o *wire.Object, bodies ...string) Answers {
		var raw [][]byte
		for _, b := range bodies {
			raw = append(raw, []byte(b))
		}
		r, err := wire.ParseFetchResponse(wire.AppendFetchResponse(nil, epoch+9, o, raw))
		if err != nil {
			t.Fatal(err)
		}
		return Answers{Fetch: &r}
	}
	tests := []struct {
		name    string
		answers Answers
		lines   []string
		action  Action
		status  int
		body    string
		passes  string // Cache-Status of a request that goes upstream
	}{
		{"asks", Answers{}, []string{"GET /fetch?b&a"}, Fetch, 0, "", ""},
		{"found", fetched(&object, "id", "g"), []string{"GET /fetch"}, Reply, 200, "id", ""},
		{"found, gzip", fetched(&object, "id", "g"), []string{"GET /fetch", "accept-encoding: gzip"}, Reply, 200, "g", ""},
		{"found, not modified", fetched(&object, "id", "g"), []string{"GET /fetch", `if-none-match: "v3"`},
			Reply, 304, "", ""},
		{"truncated", fetched(&object, "i"), []string{"GET /fetch"}, Pass, 0, "", "gatehouse; fwd=uri-miss"},
		{"not found", fetched(nil), []string{"GET /fetch"}, Pass, 0, "", "gatehouse; fwd=uri-miss"},
		{"another key", fetched(&object, "id", "g"), []string{"GET /fetch/x"}, Pass, 0, "", "gatehouse; fwd=uri-miss"},
		{"no answer", Answers{Fetch: &wire.FetchResponse{}}, []string{"GET /fetch"}, Pass, 0,
			"", "gatehouse; fwd=uri-miss; detail=fetch-failed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := decide(t, newMemory(), authRules, tt.answers, tt.lines...)
			if d.Action != tt.action || d.Status != tt.status || string(d.Body) != tt.body || d.CacheStatus != tt.passes {
				t.Errorf("got action %d, status %d, body %q, %q; want %d, %d, %q, %q", d.Action, d.Status,
					d.Body, d.CacheStatus, tt.action, tt.status, tt.body, tt.passes)
			}
			if tt.action == Fetch && d.Key != "/fetch?a&b" {
				t.Errorf("got key %q, want /fetch?a&b", d.Key)
			}
		})
	}
}

// TestDecideWithoutACall: shared memory refuses some credentials by itself.
func TestDecideWithoutACall(t *testing.T) {
	right := wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1000}
	right.Digest = newMemory().state.Keys.Digest("dev", "right")
	expired := right
	expired.ExpiresMS = now
	marked := func(m *memory) { m.device("dev", false, right) }
	closed := func(m *memory) { m.device("dev", true, right) }
	isNew := func(m *memory) { m.device("dev", false) }
	neighbour := func(m *memory) { m.neighbour("dev") }
	after := func(setup func(*memory), change func(s *wire.State)) func(*memory) {
		return func(m *memory) { setup(m); change(&m.state) }
	}
	silent := func(s *wire.State) { s.HeartbeatMS = now - 30_001 }
	tests := []struct {
		name   string
		setup  func(m *memory)
		secret string
		action Action
		status int
	}{
		{"right secret", closed, "right", Pass, 0},
		{"wrong secret, the right one is another", closed, "wrong", Reply, 401},
		{"the same, its verdict has expired", func(m *memory) { m.device("dev", true, expired) }, "wrong", Reply, 401},
		{"right secret, its verdict has expired", func(m *memory) { m.device("dev", true, expired) }, "right", Verify, 0},
		{"the same, and the sidecar is silent", after(func(m *memory) {
			m.device("dev", true, expired)
		}, silent), "right", Verify, 0},
		{"another secret, which may be right too", marked, "wrong", Verify, 0},
		{"the same, of a device that was never let in", isNew, "wrong", Verify, 0},
		{"the same, and the sidecar is silent", after(isNew, silent), "wrong", Verify, 0},
		{"unknown device", neighbour, "right", Reply, 401},
		{"unknown device in an empty bucket", func(m *memory) {
			bucket, _ := m.state.Keys.Device("dev", m.state.VerdictBuckets)
			m.records[[2]uint32{uint32(wire.RegionVerdicts), bucket}] = wire.AppendVerdicts(nil, epoch, nil, nil)
		}, "right", Reply, 401},
		{"unknown device, not all have a mark", after(neighbour, func(s *wire.State) {
			s.DevicesComplete = false
		}), "right", Verify, 0},
		{"wrong secret, not all have a mark", after(closed, func(s *wire.State) {
			s.DevicesComplete = false
		}), "wrong", Reply, 401},
		{"bucket that was never written", func(*memory) {}, "right", Verify, 0},
		{"bucket of another epoch", after(closed, func(s *wire.State) { s.Epoch++ }), "wrong", Verify, 0},
		{"unknown device, the sidecar is silent", after(neighbour, silent), "right", Verify, 0},
		{"wrong secret, the sidecar is silent", after(closed, silent), "wrong", Verify, 0},
		{"unknown device, not in step with Redis", after(neighbour, func(s *wire.State) {
			s.InStepMS = now - 30_001
		}), "right", Reply, 503},
		{"wrong secret, not in step with Redis", after(closed, func(s *wire.State) {
			s.InStepMS = now - 30_001
		}), "wrong", Reply, 503},
		{"right secret, not in step with Redis", after(closed, func(s *wire.State) {
			s.InStepMS = now - 30_001
		}), "right", Pass, 0},
		{"unknown device, as long as it may be silent", after(neighbour, func(s *wire.State) {
			s.HeartbeatMS = now - 30_000
		}), "right", Reply, 401},
		{"wrong secret, as long as it may be silent", after(closed, func(s *wire.State) {
			s.HeartbeatMS = now - 30_000
		}), "wrong", Reply, 401},
		{"unknown device, a heartbeat ahead of the clock", after(neighbour, func(s *wire.State) {
			s.HeartbeatMS = now + 1000
		}), "right", Reply, 401},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMemory()
			tt.setup(m)
			lines := []string{"POST /any", "x-device-id: dev", "x-device-token: " + tt.secret}
			d := decide(t, m, authRules, Answers{}, lines...)
			if d.Action != tt.action || d.Status != tt.status {
				t.Errorf("got action %d, status %d; want %d, %d", d.Action, d.Status, tt.action, tt.status)
			}
			if want := map[int]Counter{401: AuthDeny, 503: AuthUnavailable}[tt.status]; tt.action == Reply && d.Auth != want {
				t.Errorf("got %q, want %q", d.Auth, want)
			}
			if tt.action != Verify {
				return
			}
			if want := strings.HasSuffix(tt.name, "never let in"); d.New != want {
				t.Errorf("got new %v, want %v", d.New, want)
			}
			if d := decide(t, m, authRules, Answers{Unreachable: true}, lines...); d.Status != 503 {
				t.Errorf("unreachable: got %d, want 503", d.Status)
			}
		})
	}
}

// TestSuspect: wrong secrets of the device came from the request's network, so shared memory's word on a secret doesn't
// count, and the answers for a right and a wrong one are the same.
func TestSuspect(t *testing.T) {
	right := wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1000}
	right.Digest = newMemory().state.Keys.Digest("dev", "right")
	expired := right
	expired.ExpiresMS = now
	closed := func(m *memory) { m.device("dev", true, right) }
	of := func(secret, session string) []string {
		if session != "" {
			return []string{"POST /v1/session", "x-device-id: dev", "x-device-token: " + secret}
		}
		return []string{"POST /me", "x-device-id: dev", "x-device-token: " + secret}
	}
	tests := []struct {
		name    string
		setup   func(m *memory)
		answers Answers
		action  Action
		counter Counter
		reason  Reason
	}{
		{"ask", closed, Answers{}, Verify, CallVerify, 0},
		{"throttled", closed, Answers{ThrottledS: 3}, Reply, AuthThrottled, TooManyGuesses},
		{"no answer", closed, Answers{Unreachable: true}, Reply, AuthUnavailable, NoAnswer},
		{"no answer, the verdict has expired", func(m *memory) {
			m.device("dev", true, expired)
		}, Answers{Unreachable: true}, Reply, AuthUnavailable, NoAnswer},
		{"not in step", func(m *memory) { closed(m); m.state.InStepMS = now - 30_001 }, Answers{}, Verify, CallVerify, 0},
		{"the sidecar allows", closed, Answers{Verify: &wire.VerifyResponse{Outcome: wire.Allow, Epoch: epoch}},
			Pass, AuthAllow, 0},
		{"the sidecar denies", closed, Answers{Verify: &wire.VerifyResponse{Outcome: wire.Deny, Epoch: epoch}},
			Reply, AuthDeny, Denied},
		{"the sidecar throttles", closed,
			Answers{Verify: &wire.VerifyResponse{Outcome: wire.Throttled, RetryAfterS: 3, Epoch: epoch}},
			Reply, AuthUnavailable, NotVerified},
	}
	for _, tt := range tests {
		for _, secret := range []string{"right", "wrong"} {
			for _, session := range []string{"", "session"} {
				t.Run(tt.name+", "+secret+" "+session, func(t *testing.T) {
					if session != "" && tt.answers.Verify != nil {
						return
					}
					m := newMemory()
					tt.setup(m)
					tt.answers.Suspect = true
					want := tt.action
					if want == Verify && session != "" {
						want = Exchange
					}
					d := decide(t, m, hintRules, tt.answers, of(secret, session)...)
					if d.Action != want || d.Auth != tt.counter || want == Reply && d.Reason != tt.reason {
						t.Errorf("got action %d, %q, %q; want %d, %q, %q", d.Action, d.Auth, d.Details(), want,
							tt.counter, tt.reason)
					}
				})
			}
		}
	}
}

const hintRules = `{"credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"}, "session": {"metadata": "gatehouse"},
	"verdict_grace": "60s", "rules": [
		{"match": {"path": "/v1/session", "methods": ["POST"]}, "session": "issue"},
		{"match": {"prefix": "/me"}, "auth": {}}]}`

// TestHint: the decision has shared memory's hint about a secret, also if the decision differs from the hint.
func TestHint(t *testing.T) {
	right := wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1000}
	right.Digest = newMemory().state.Keys.Digest("dev", "right")
	refused := wire.Verdict{Outcome: wire.Deny, ExpiresMS: now + 1000}
	refused.Digest = newMemory().state.Keys.Digest("dev", "wrong")
	token := claims{sub: "dev", ver: "7-1"}
	tests := []struct {
		name    string
		setup   func(m *memory)
		request []string
		want    Hint
	}{
		{"right", func(m *memory) {
			m.device("dev", true, right)
		}, []string{"POST /me", "x-device-id: dev", "x-device-token: right"}, Right},
		{"wrong", func(m *memory) {
			m.device("dev", true, right)
		}, []string{"POST /me", "x-device-id: dev", "x-device-token: wrong"}, Wrong},
		{"wrong, for a token", func(m *memory) {
			m.device("dev", true, right)
		}, []string{"POST /v1/session", "x-device-id: dev", "x-device-token: wrong"}, Wrong},
		{"another, which may be right too", func(m *memory) {
			m.device("dev", false, right)
		}, []string{"POST /me", "x-device-id: dev", "x-device-token: wrong"}, NoHint},
		{"refused before", func(m *memory) {
			m.device("dev", true, right, refused)
		}, []string{"POST /me", "x-device-id: dev", "x-device-token: wrong"}, NoHint},
		{"a token", func(m *memory) { m.device("dev", true, right) }, []string{"POST /me"}, NoHint},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMemory()
			tt.setup(m)
			if d := decideToken(t, m, hintRules, &token, Answers{}, tt.request...); d.Hint != tt.want {
				t.Errorf("got %d, want %d", d.Hint, tt.want)
			}
		})
	}
}

func TestReadRequestForged(t *testing.T) {
	e := newEdge(t, `{"default": "deny"}`)
	r := read(e, "GET /", "x-gatehouse-device: me", "x-gatehouse-permissions: all", "x_gatehouse-device: me",
		"x_gatehouse_permissions: all", "x.gatehouse~device: me", "x-gatehouse-devices: 1", "xegatehouse-device: 1",
		"y-gatehouse-device: 1", "x-gatehouse-devicf: 1")
	if want := []string{DeviceHeader, PermissionsHeader, "x_gatehouse-device", "x_gatehouse_permissions",
		"x.gatehouse~device"}; !slices.Equal(r.Removed, want) {
		t.Errorf("got %v, want %v", r.Removed, want)
	}
	if d := decideRequest(newMemory(), r); d.Action != Reply || d.Status != 403 {
		t.Errorf("default deny: got action %d, status %d; want a 403", d.Action, d.Status)
	}
}
