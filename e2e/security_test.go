package e2e

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// basicRules is the shipped telemetry rule for devices with HTTP Basic.
const basicRules = `
credentials: {basic: true}
rules:
- match: {prefix: /v1/telemetry, methods: [POST]}
  auth: {permissions: [telemetry.write]}
`

func basicAuth(credential string) string {
	return "authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(credential))
}

// TestBasic sends credentials as HTTP Basic, in many forms.
func TestBasic(t *testing.T) {
	leaveToOtherEdges(t)
	t.Parallel()
	e := start(t, stack.Options{Rules: basicRules})
	e.putDevice("dev", "a:b::c", 4, "telemetry.write")
	e.putDevice("empty", ":", 4, "telemetry.write")
	e.putDevice("bytes", "\xff\xfe", 4, "telemetry.write")
	e.awaitAnswer("device", hasStatus(200), "POST /v1/telemetry", basicAuth("dev:a:b::c"))
	good := basicAuth("dev:a:b::c")
	encoded := strings.TrimPrefix(good, "authorization: Basic ")
	tests := []struct {
		name   string
		lines  []string
		status int
	}{
		{"colons in the secret", []string{good}, 200},
		{"the secret is a colon", []string{basicAuth("empty::")}, 200},
		{"secret that is not UTF-8", []string{basicAuth("bytes:\xff\xfe")}, 200},
		{"scheme in upper case", []string{"authorization: BASIC " + encoded}, 200},
		{"two spaces", []string{"authorization: Basic  " + encoded}, 200},
		{"headers of the other kind beside it", append(credential("dev", "wrong"), good), 200},
		{"secret cut at its colon", []string{basicAuth("dev:a")}, 401},
		{"secret after its first colon", []string{basicAuth("dev:b::c")}, 401},
		{"wrong", []string{basicAuth("dev:wrong")}, 401},
		{"another byte that is not UTF-8", []string{basicAuth("bytes:\xff\xff")}, 401},
		{"NUL at the end", []string{basicAuth("dev:a:b::c\x00")}, 401},
		{"NUL in the id", []string{basicAuth("dev\x00:a:b::c")}, 401},
		{"line end", []string{basicAuth("dev:a:b::c\n")}, 401},
		{"empty secret", []string{basicAuth("dev:")}, 401},
		{"empty id", []string{basicAuth(":a:b::c")}, 401},
		{"no colon", []string{basicAuth("dev")}, 401},
		{"nothing", []string{basicAuth("")}, 401},
		{"over-long secret", []string{basicAuth("dev:" + strings.Repeat("x", 73))}, 401},
		{"over-long id", []string{basicAuth(strings.Repeat("x", 129) + ":s")}, 401},
		{"twice", []string{good, good}, byEdge(401, 400)},
		{"folded", []string{good + ", Basic " + encoded}, 401},
		{"no base64", []string{"authorization: Basic dev:a:b::c"}, 401},
		{"base64 for URLs", []string{"authorization: Basic " + strings.TrimRight(encoded, "=") + "_-"}, 401},
		{"base64 with bits to spare", []string{"authorization: Basic " + flipSpareBit(encoded)}, 401},
		{"no credential", []string{"authorization: Basic"}, 401},
		{"another scheme", []string{"authorization: Bearer " + encoded}, 401},
		{"headers of the other kind only", credential("dev", "a:b::c"), 401},
	}
	for _, tt := range tests {
		a := e.send("POST /v1/telemetry", tt.lines...)
		if a.status != tt.status {
			t.Errorf("%s: got %d %q, want %d", tt.name, a.status, a.body, tt.status)
		}
		if want := `Basic realm="gatehouse", charset="UTF-8"`; a.status == 401 && a.header.Get("Www-Authenticate") != want {
			t.Errorf("%s: got challenge %q, want %q", tt.name, a.header.Get("Www-Authenticate"), want)
		}
	}
	// The edge removes credentials that an auth rule has checked.
	for first, want := range map[string]bool{"POST /v1/telemetry": false, "GET /open": true} {
		if _, kept := e.send(first, good).seenByUpstream(t).Headers["authorization"]; kept != want {
			t.Errorf("%s: the upstream saw Authorization: %v, want %v", first, kept, want)
		}
	}
}

// flipSpareBit sets a bit of the last character that decoding ignores: another text for the same bytes.
func flipSpareBit(encoded string) string {
	n := len(strings.TrimRight(encoded, "="))
	return encoded[:n-1] + string(encoded[n-1]+1) + encoded[n:]
}

// TestRawHeaders sends header lines that no HTTP client would send.
func TestRawHeaders(t *testing.T) {
	t.Parallel()
	e := reuse(t, stack.Options{})
	e.putDevice("dev", "secret", 4, "telemetry.write")
	e.awaitAnswer("device", hasStatus(200), "POST /v1/telemetry", credential("dev", "secret")...)
	before := e.UpstreamRequests()
	for _, tt := range []struct {
		name, lines string
		status      int
	}{
		{"NUL in the secret", "x-device-id: dev\r\nx-device-token: secret\x00\r\n", 400},
		{"NUL in the id", "x-device-id: dev\x00\r\nx-device-token: secret\r\n", 400},
		{"bare CR", "x-device-id: dev\r\nx-device-token: secret\rx\r\n", byEdge(401, 400)},
		{"line folded in the secret", "x-device-id: dev\r\nx-device-token: sec\r\n ret\r\n", byEdge(401, 400)},
		{"a line folded into the secret", "x-device-id: dev\r\nx-device-token: secret\r\n x: y\r\n", byEdge(401, 400)},
		{"space before the colon", "x-device-id: dev\r\nx-device-token : secret\r\n", 400},
		{"secret twice, first one good", "x-device-id: dev\r\nx-device-token: secret\r\nX-Device-Token: wrong\r\n", 401},
		{"secret twice, second one good", "x-device-id: dev\r\nx-device-token: wrong\r\nx-device-token: secret\r\n", 401},
		{"secret folded with a comma", "x-device-id: dev\r\nx-device-token: secret, secret\r\n", 401},
		{"underscores for dashes", "x_device_id: dev\r\nx_device_token: secret\r\n", byEdge(400, 401)},
		{"line folded before the secret: white space around a value",
			"x-device-id: dev\r\nx-device-token:\r\n secret\r\nx: y\r\n", byEdge(200, 400)},
		{"a tab around", "x-device-id:\tdev\t\r\nx-device-token:\tsecret\t\r\n", 200},
	} {
		if got := e.rawStatus("POST /v1/telemetry HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n" + tt.lines +
			"\r\n"); got != tt.status {
			t.Errorf("%s: got %d, want %d", tt.name, got, tt.status)
		}
	}
	if got := e.UpstreamRequests() - before; got != byEdge[int64](2, 1) {
		t.Errorf("the upstream saw %d requests, want those with status 200 only", got)
	}
}

// TestRawTargets sends targets that no HTTP client would send, and malformed bodies, to a resource whose every path
// needs a credential: nothing reaches the upstream.
func TestRawTargets(t *testing.T) {
	t.Parallel()
	e := start(t,
		stack.Options{
			Rules: `{credentials: {id_header: x-device-id, secret_header: x-device-token}, rules: [{match: {prefix: /}, auth: {}}]}`})
	for _, first := range []string{
		"GET / HTTP/1.1", "GET http://h HTTP/1.1", "GET http://h/ HTTP/1.1", "GET http://h?x HTTP/1.1",
		"GET http://h?a=/b HTTP/1.1",
		"GET ?x HTTP/1.1", "GET * HTTP/1.1", "OPTIONS * HTTP/1.1", "GET h:80 HTTP/1.1", "GET x HTTP/1.1",
		"GET //h?x HTTP/1.1", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZZ",
	} {
		if got := e.rawStatus(first + "\r\nHost: x\r\n\r\n"); got != 400 && got != 401 && got != 403 && got != 404 {
			t.Errorf("%q: got %d, want 401, or it refused", first, got)
		}
	}
	if got := e.UpstreamRequests(); got != 0 {
		t.Errorf("the upstream saw %d requests, want none", got)
	}
}

// rawStatus sends the octets of a request, and returns the status of the answer.
func (e *edge) rawStatus(request string) int {
	e.t.Helper()
	return e.sendOctets(request).status
}

// TestTimingOfRefusals logs how long refusals take. The edge itself refuses an unknown device, so that a flood costs
// nothing; by timing, a client can distinguish an unknown device from a registered device that was never authenticated.
// The documentation says that the ids of registered devices are no secret. A wrong secret of an authenticated device
// takes as long as an unknown device.
func TestTimingOfRefusals(t *testing.T) {
	leaveToOtherEdges(t)
	const tries = 60
	e := reuse(t, stack.Options{SidecarArgs: []string{"--limit.device=0", "--limit.source=0"}})
	e.putDevice("resolved", "secret", 8, "telemetry.write")
	e.putDevice("new", "secret", 8, "telemetry.write")
	e.awaitAnswer("device", hasStatus(200), "POST /v1/telemetry", credential("resolved", "secret")...)
	median := map[string]time.Duration{}
	for _, id := range []string{"unknown", "resolved", "new"} {
		var took []time.Duration
		for i := range tries {
			begin := time.Now()
			if a := e.send("POST /v1/telemetry", credential(id, fmt.Sprint("wrong", i))...); a.status != 401 {
				t.Fatalf("%s: got %d, want 401", id, a.status)
			}
			took = append(took, time.Since(begin))
		}
		slices.Sort(took)
		median[id] = took[tries/2]
	}
	t.Logf("median time of a 401: unknown device %s, wrong secret of an authenticated device %s, of a new one (bcrypt, "+
		"cost 8) %s",
		median["unknown"], median["resolved"], median["new"])
	if median["resolved"] > 10*median["unknown"] || median["unknown"] > 10*median["resolved"] {
		t.Errorf("got %s for an authenticated device and %s for an unknown one, want about the same",
			median["resolved"], median["unknown"])
	}
}
