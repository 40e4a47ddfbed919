package nginx_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

const testEpoch = 7

// badByPlugin is the body of the plugin's 400.
const badByPlugin = "bad request\n"

// The key of the tests' tokens.
var tokenKey = ed25519.NewKeyFromSeed([]byte("a seed for the tokens of tests !"))

func newTestSidecar(t *testing.T) *testSidecar {
	t.Helper()
	public, _ := tokenKey.Public().(ed25519.PublicKey)
	return &testSidecar{
		calls:   map[string]int{},
		origins: map[string]origin{},
		jwks: fmt.Sprintf(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":%q}]}`,
			base64.RawURLEncoding.EncodeToString(public)),
	}
}

// token returns a token with a header and claims, signed.
func token(t *testing.T, header, claims map[string]any) string {
	t.Helper()
	encode := func(v any) string {
		text, err := json.Marshal(v)
		require.NoError(t, err)
		return base64.RawURLEncoding.EncodeToString(text)
	}
	text := encode(header) + "." + encode(claims)
	return text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(tokenKey, []byte(text)))
}

// TestEdge sends requests through all phases of the plugin.
func TestEdge(t *testing.T) {
	e := startEdge(t)
	t.Run("no state", func(t *testing.T) {
		if res, _ := e.ask(t, "GET", "/v1/products/1"); res.StatusCode != http.StatusOK ||
			res.Header.Get("Cache-Status") == "" {
			t.Errorf("got %s and Cache-Status %q, want the upstream's answer, and why", res.Status,
				res.Header.Get("Cache-Status"))
		}
		if _, body := e.ask(t, "GET", "/open", "X-Gatehouse-Device: root",
			"X-Gatehouse_Permissions: admin"); strings.Contains(body, "root") || strings.Contains(body, "admin") {
			t.Errorf("the upstream got a client's identity: %s", body)
		}
	})
	e.push(t, testEpoch, 0, "/v1/products/1", false)
	for _, part := range []struct {
		name string
		test func(*testing.T, *testEdge)
	}{
		{"cache", testEdgeCache},
		{"credentials", testEdgeCredentials},
		{"targets", testEdgeTargets},
		{"origin", testEdgeOrigin},
		{"bodies", testEdgeBodies},
		{"tokens", testEdgeTokens},
		{"throttle", testEdgeThrottle},
		{"drain", testEdgeDrain},
		{"counters", testEdgeCounters},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(t, e) })
	}
}

// wantAnswer asks, and compares the answer's status, and its body unless want is "".
func wantAnswer(t *testing.T, e *testEdge, status int, want, method, target string, headers ...string) *http.Response {
	t.Helper()
	res, body := e.ask(t, method, target, headers...)
	if res.StatusCode != status || !strings.Contains(body, want) {
		t.Errorf("%s %.99q %.200q: got %s %q, want %d with %q", method, target, headers, res.Status, body, status, want)
	}
	return res
}

func testEdgeCache(t *testing.T, e *testEdge) {
	await.Until(t, "answer from memory", func() bool {
		res, body := e.ask(t, "GET", "/v1/products/1")
		return res.StatusCode == http.StatusOK && body == "hello"
	})
	res := wantAnswer(t, e, http.StatusOK, "hello", "GET", "/v1/products/1")
	if res.Header.Get("Etag") != `"v1"` || res.ContentLength != 5 ||
		!strings.Contains(res.Header.Get("Cache-Status"), "hit") {
		t.Errorf("got %v, want a hit with the object's entity-tag", res.Header)
	}
	wantAnswer(t, e, http.StatusNotModified, "", "GET", "/v1/products/1", `If-None-Match: "v1"`)
	wantAnswer(t, e, http.StatusOK, "X-Rule: products\n", "GET", "/v1/products/2")
	wantAnswer(t, e, http.StatusOK, "/v1/fetched/a", "GET", "/v1/fetched/a")
	wantAnswer(t, e, http.StatusOK, "GET /v1/fetched/none", "GET", "/v1/fetched/none")
	wantAnswer(t, e, http.StatusOK, "GET /v1/fetched/broken", "GET", "/v1/fetched/broken")
	const since = "If-Modified-Since: Tue, 14 Nov 2023 22:13:17 GMT"
	wantAnswer(t, e, http.StatusOK, since+"\n", "GET", "/open", since)
	if _, body := e.ask(t, "GET", "/v1/products/2", since); strings.Contains(body, since) {
		t.Errorf("the upstream got a date that may be the cache's: %s", body)
	}
	if n := e.sidecar.count("/v1/fetch "); n != 3 {
		t.Errorf("got %d fetches, want 3", n)
	}
	await.Until(t, "report of hits", func() bool {
		e.ask(t, "GET", "/v1/products/1")
		return e.sidecar.reported("/v1/products/1")
	})
}

func testEdgeCredentials(t *testing.T, e *testEdge) {
	wantAnswer(t, e, http.StatusUnauthorized, "", "GET", "/v1/me")
	wantAnswer(t, e, http.StatusUnauthorized, "", "GET", "/v1/me", device("dev", "wrong")...)
	res, body := e.ask(t, "GET", "/v1/me", append(device("dev", "good"), "X-Gatehouse-Device: root",
		"X_Gatehouse_Permissions: root", "X_Device_Token: other")...)
	if res.StatusCode != http.StatusOK || !strings.Contains(body, "X-Gatehouse-Device: dev\n") ||
		strings.Contains(strings.ToLower(body), "token") || strings.Contains(body, "root") {
		t.Errorf("got %s %q, want the device's id, no secret, and no identity of the client's", res.Status, body)
	}
	if res.Header.Get("Cache-Control") != "private" ||
		!strings.Contains(strings.ToLower(res.Header.Get("Vary")), "x-device-id") {
		t.Errorf("got %v, want an answer that no cache gives to others", res.Header)
	}
	wantAnswer(t, e, http.StatusOK, "X-Rule: 4\n", "GET", "/v1/me", device("dev", "good")...)
	wantAnswer(t, e, http.StatusOK, "X-Gatehouse-Device: old\n", "GET", "/v1/me", device("old", "good")...)
	await.Until(t, "a verdict is refreshed in the background", func() bool {
		return e.sidecar.count("/v1/verify old") == 1
	})
	wantAnswer(t, e, http.StatusForbidden, "", "GET", "/v1/admin", device("dev", "good")...)
	wantAnswer(t, e, http.StatusOK, "X-Gatehouse-Permissions: admin\n", "GET", "/v1/admin", device("dev", "admin")...)
	wantAnswer(t, e, http.StatusOK, `{"token":"t"}`, "POST", "/v1/session",
		append(device("dev", "good"), "Content-Length: 0")...)
	wantAnswer(t, e, http.StatusUnauthorized, "", "POST", "/v1/session", append(device("dev", "wrong"),
		"Content-Length: 0")...)
}

// testEdgeOrigin: calls have nginx's id of their request, and the request's traceparent unless malformed.
func testEdgeOrigin(t *testing.T, e *testEdge) {
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	seen := map[string]bool{}
	for i, tt := range []struct{ name, sent, want string }{
		{"none", "", ""},
		{"sampled", traceparent, traceparent},
		{"not sampled", traceparent[:53] + "00", traceparent[:53] + "00"},
		{"short", traceparent[:54], ""},
		{"long", traceparent + "0", ""},
		{"another version", "01" + traceparent[2:], ""},
		{"upper case", strings.ToUpper(traceparent), ""},
		{"no hex", strings.Replace(traceparent, "0af", "0ag", 1), ""},
		{"a dash elsewhere", strings.Replace(traceparent, "c-b", "-cb", 1), ""},
	} {
		id := fmt.Sprint("traced", i)
		headers := device(id, "good")
		if tt.sent != "" {
			headers = append(headers, "Traceparent: "+tt.sent)
		}
		wantAnswer(t, e, http.StatusOK, "", "GET", "/v1/me", headers...)
		got := e.sidecar.origin("/v1/verify " + id)
		if got.traceparent != tt.want || len(got.requestID) != 32 || seen[got.requestID] {
			t.Errorf("%s: got %+v, want the traceparent %q and an id of its own", tt.name, got, tt.want)
		}
		seen[got.requestID] = true
	}
	wantAnswer(t, e, http.StatusOK, "", "GET", "/v1/fetched/traced", "Traceparent: "+traceparent)
	if got := e.sidecar.origin("/v1/fetch "); got.traceparent != traceparent || len(got.requestID) != 32 {
		t.Errorf("fetch: got %+v, want the request's origin", got)
	}
}

func testEdgeTargets(t *testing.T, e *testEdge) {
	wantAnswer(t, e, http.StatusBadRequest, "", "OPTIONS", "*")
	wantAnswer(t, e, http.StatusUnauthorized, "", "GET", "http://edge/v1/me")
	wantAnswer(t, e, http.StatusUnauthorized, "", "GET", "http://edge?a=b")
	// An internal redirect by the operator's configuration: the request was judged before.
	wantAnswer(t, e, http.StatusOK, "GET /v1/me", "GET", "/fails")
}

// testEdgeBodies: the octets behind a refused request's body are the next request, and no part of the body is.
func testEdgeBodies(t *testing.T, e *testEdge) {
	wantAnswer(t, e, http.StatusUnauthorized, "", "POST", "/v1/me", "Content-Length: 5\r\n\r\nhello")
	wantAnswer(t, e, http.StatusUnauthorized, "", "POST", "/v1/me", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0")
	const malformed = "Transfer-Encoding: chunked\r\n\r\nzz\r\nhello"
	wantAnswer(t, e, http.StatusBadRequest, "", "POST", "/v1/me", malformed)
	// An error_page would send the request elsewhere, while nginx-lua removes no header.
	const forged = "X-Gatehouse-Device: root"
	// Nobody reads the rest of the body, so the connection ends.
	const more = "GET /v1/products/1 HTTP/1.1\r\nHost: edge\r\n\r\n"
	for _, rest := range []string{
		"/v1/me HTTP/1.1\r\nHost: edge\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloXX" + more,
		fmt.Sprintf("/status HTTP/1.1\r\nHost: edge\r\n%s\r\nContent-Length: %d\r\n\r\n%s", forged, len(more), more),
	} {
		all := e.exchange(t, "edge.sock", "POST "+rest)
		if strings.Count(all, "HTTP/1.1 ") != 1 || !strings.HasSuffix(all, "\r\n\r\n"+badByPlugin) {
			t.Errorf("POST %s: got %q, want one answer, and the end of the connection", rest, all)
		}
	}
	wantAnswer(t, e, http.StatusBadRequest, badByPlugin, "POST", "/refused", forged, malformed)
	for _, target := range []string{"/exits", "/exits/200", "/exits/named", "/status"} {
		wantAnswer(t, e, http.StatusBadRequest, badByPlugin, "GET", target, forged)
	}
	for _, target := range []string{"/v1/exits", "/v1/status"} {
		wantAnswer(t, e, http.StatusBadRequest, badByPlugin, "GET", target, device("dev", "good")...)
	}
	// Without anything to remove it does as the operator wants.
	wantAnswer(t, e, http.StatusBadRequest, "GET /open", "GET", "/exits")
	wantAnswer(t, e, http.StatusOK, "GET /open", "GET", "/exits/200")
}

func testEdgeTokens(t *testing.T, e *testEdge) {
	header := map[string]any{"alg": "EdDSA", "kid": "a"}
	claims := func(name string, value any) map[string]any {
		c := map[string]any{"iss": "gatehouse", "aud": "gatehouse-edge", "sub": "dev", "ver": "1-2",
			"exp": time.Now().Unix() + 60}
		c[name] = value
		return c
	}
	good := token(t, header, claims("", nil))
	await.Until(t, "keys of tokens", func() bool {
		res, _ := e.ask(t, "GET", "/open", "Authorization: Bearer "+good)
		if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("a good token, before there are keys: got %s", res.Status)
		}
		return res.StatusCode == http.StatusOK
	})
	for _, scheme := range []string{"Bearer ", "bearer ", "BEARER   "} { // after the first time its signature is known
		res, body := e.ask(t, "GET", "/v1/me", "Authorization: "+scheme+good)
		if res.StatusCode != http.StatusOK || !strings.Contains(body, "X-Gatehouse-Device: dev\n") ||
			strings.Contains(body, good) {
			t.Errorf("got %s %q, want the device's id, and no token", res.Status, body)
		}
	}
	for _, target := range []string{"/status", "/v1/status"} {
		wantAnswer(t, e, http.StatusBadRequest, badByPlugin, "GET", target, "Authorization: Bearer "+good)
	}
	wantAnswer(t, e, http.StatusOK, "Authorization: Basic x", "GET", "/open", "Authorization: Basic x")
	now := time.Now().Unix()
	for name, bad := range map[string]string{
		"another signature":  good[:len(good)-8] + "AAAAAAAA",
		"short signature":    good[:len(good)-8],
		"no signature":       good[:strings.LastIndex(good, ".")],
		"no JSON":            "AAAA.AAAA.AAAA",
		"another algorithm":  token(t, map[string]any{"alg": "none"}, claims("", nil)),
		"critical extension": token(t, map[string]any{"alg": "EdDSA", "crit": []string{"x"}}, claims("", nil)),
		"no key named":       token(t, map[string]any{"alg": "EdDSA"}, claims("", nil)),
		"another key":        token(t, map[string]any{"alg": "EdDSA", "kid": "b"}, claims("", nil)),
		"another issuer":     token(t, header, claims("iss", "other")),
		"another audience":   token(t, header, claims("aud", "other")),
		"other audiences":    token(t, header, claims("aud", []string{"a", "b"})),
		"no audience":        token(t, header, claims("aud", nil)),
		"no end":             token(t, header, claims("exp", "never")),
		"ended":              token(t, header, claims("exp", now-60)),
		"not yet":            token(t, header, claims("nbf", now+60)),
		"too long":           token(t, header, claims("x", strings.Repeat("x", 4096))),
	} {
		if res, _ := e.ask(t, "GET", "/open", "Authorization: Bearer "+bad); res.StatusCode != http.StatusUnauthorized ||
			!strings.Contains(res.Header.Get("Www-Authenticate"), "invalid_token") {
			t.Errorf("%s: got %s %v, want 401 for the token", name, res.Status, res.Header)
		}
	}
}

// testEdgeThrottle: after the sidecar has refused credentials of new devices from this source, the edge doesn't ask
// again.
func testEdgeThrottle(t *testing.T, e *testEdge) {
	e.push(t, testEpoch, testEpoch, "/v1/products/1", true)
	id := 0
	await.Until(t, "unknown devices are refused without a call", func() bool {
		id++
		unknown := fmt.Sprint("unknown", id)
		res, _ := e.ask(t, "GET", "/v1/me", device(unknown, "x")...)
		return res.StatusCode == http.StatusUnauthorized && e.sidecar.count("/v1/verify "+unknown) == 0
	})
	busy := append(device("new", "busy"), "X-Client: 192.0.2.1")
	for range 2 {
		res := wantAnswer(t, e, http.StatusServiceUnavailable, "", "GET", "/v1/me", busy...)
		if res.Header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	if n := e.sidecar.count("/v1/verify new"); n != 1 {
		t.Errorf("got %d calls, want 1", n)
	}
	// Another sidecar's epoch ends the throttle.
	e.push(t, testEpoch+1, testEpoch, "/v1/products/1", true)
	await.Until(t, "call after the throttle", func() bool {
		e.ask(t, "GET", "/v1/me", busy...)
		return e.sidecar.count("/v1/verify new") > 1
	})
}

func testEdgeDrain(t *testing.T, e *testEdge) {
	if res, _ := e.send(t, "admin.sock", "GET /healthcheck/fail HTTP/1.1\r\nHost: a\r\n\r\n"); res.StatusCode !=
		http.StatusMethodNotAllowed {
		t.Errorf("GET: got %s, want 405", res.Status)
	}
	for headers, want := range map[string]int{
		"Host: rebound.example": 403, "Host: localhost.example": 403, "Host: 127.0.0.1.example:9901": 403,
		"Host: 127.0.0.1:9901\r\nSec-Fetch-Site: cross-site": 403, "Host: 127.0.0.1:9901\r\nSec-Fetch-Site: same-site": 403,
		"Host: 127.0.0.1:9901\r\nOrigin: http://other.example": 403, "Host: 127.0.0.1:9901\r\nOrigin: null": 403,
		"Host: 127.0.0.1:9901\r\nOrigin: http://127.0.0.1:9901": 200, "Host: 127.0.0.1\r\nSec-Fetch-Site: none": 200,
		"Host: [::1]:9901": 200, "Host: localhost:9901\r\nSec-Fetch-Site: same-origin": 200, "Host: localhost": 200,
	} {
		if res, _ := e.send(t, "admin.sock", "POST /healthcheck/ok HTTP/1.1\r\n"+headers+
			"\r\nContent-Length: 0\r\n\r\n"); res.StatusCode != want {
			t.Errorf("POST with %q: got %s, want %d", headers, res.Status, want)
		}
	}
	for _, draining := range []bool{false, true, false} {
		path, status := "/healthcheck/ok", http.StatusOK
		if draining {
			path, status = "/healthcheck/fail", http.StatusServiceUnavailable
		}
		e.send(t, "admin.sock", "POST "+path+" HTTP/1.1\r\nHost: 127.0.0.1:9901\r\nContent-Length: 0\r\n\r\n")
		if res, _ := e.send(t, "admin.sock", "GET /ready HTTP/1.1\r\nHost: a\r\n\r\n"); res.StatusCode != status {
			t.Errorf("draining: %v: got %s, want %d", draining, res.Status, status)
		}
		if res, _ := e.ask(t, "GET", "/v1/products/1"); res.Close != draining {
			t.Errorf("draining: %v: the answer closes the connection: %v", draining, res.Close)
		}
	}
}

func testEdgeCounters(t *testing.T, e *testEdge) {
	await.Until(t, "counters of what the test did", func() bool {
		_, body := e.send(t, "admin.sock", "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
		for _, series := range []string{`cache_requests_total{rule="products",outcome="hit"}`,
			`cache_requests_total{rule="products",outcome="not_modified"}`,
			`calls_total{rule="2",call="fetch"}`, `auth_requests_total{rule="4",outcome="allow"}`,
			`calls_total{rule="4",call="refresh"}`,
			`auth_requests_total{rule="4",outcome="deny"}`, `auth_requests_total{rule="3",outcome="forbidden"}`,
			`auth_requests_total{rule="4",outcome="unavailable"}`,
			`sessions_issued_total`, `calls_failed_total`, `batches_total{result="applied"}`} {
			if !strings.Contains(body, "\ngatehouse_"+series+" ") || strings.Contains(body, "\ngatehouse_"+series+" 0\n") {
				return false
			}
		}
		return true
	})
}

// TestNamesThatStick: nginx can be configured to pass on names with invalid characters. nginx-lua can't remove headers
// with invalid names, so a request with such a header is refused if no upstream may get the header.
func TestNamesThatStick(t *testing.T) {
	e := startEdge(t, "underscores_in_headers on;", "underscores_in_headers on; ignore_invalid_headers off;")
	e.push(t, testEpoch, 0, "/v1/products/1", false)
	// The upstream is a server in Go, which refuses invalid names.
	const ofUpstream = "400 Bad Request"
	if _, body := e.ask(t, "GET", "/open", "X-Other(Name: a"); body != ofUpstream {
		t.Errorf("got %q, want the upstream's answer", body)
	}
	for _, target := range []string{"/open", "/v1/products/2"} {
		wantAnswer(t, e, http.StatusBadRequest, badByPlugin, "GET", target, "X-Gatehouse(Device: root")
	}
	shown := append(device("dev", "good"), "X-Device(Token: other")
	wantAnswer(t, e, http.StatusBadRequest, badByPlugin, "GET", "/v1/me", shown...)
}

// TestSocketInUse: nginx doesn't take the push socket from another process.
func TestSocketInUse(t *testing.T) {
	e := startEdge(t)
	out, err := e.command(t).CombinedOutput()
	log, _ := os.ReadFile(e.socket("error.log"))
	if err == nil || !strings.Contains(string(out)+string(log), "Address already in use") {
		t.Errorf("got %v, %s %s; want a failure", err, out, log)
	}
	conn, err := net.Dial("unix", e.socket("push.sock"))
	if err != nil {
		t.Fatalf("the socket of the first nginx: %v", err)
	}
	require.NoError(t, conn.Close())
}
