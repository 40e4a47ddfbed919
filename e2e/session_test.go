package e2e

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/e2e/stack"
)

const sessionSecret = "a secret of thirty-two bytes or more"

// withSessions is a stack with the shipped configuration in which the lines for sessions
// are switched on, as its comment says, and the sidecar's secret in a file.
func withSessions(t *testing.T, args ...string) *edge {
	t.Helper()
	shipped, err := os.ReadFile("../envoy/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(shipped), "#session ") < 20 {
		t.Fatal("envoy.yaml has no lines for sessions")
	}
	config := writeFile(t, "envoy.yaml", strings.ReplaceAll(string(shipped), "#session ", ""))
	secret := writeFile(t, "secret", sessionSecret+"\n")
	return start(t, stack.Options{ConfigPath: config, SidecarArgs: append(args, "--session.secret-file", secret)})
}

// token is one got by a handshake, and what is in it.
type token struct {
	text           string
	header, claims map[string]any
}

func (k token) line() string { return "authorization: Bearer " + k.text }

// handshake exchanges a credential for a token.
func (e *edge) handshake(id, secret string) token {
	e.t.Helper()
	a := e.send("POST /v1/session", credential(id, secret)...)
	var answer struct {
		Token     string `json:"token"`
		Type      string `json:"token_type"`
		ExpiresIn int    `json:"expires_in"`
	}
	if err := json.Unmarshal([]byte(a.body), &answer); err != nil || a.status != 200 || answer.Type != "Bearer" || answer.ExpiresIn != 600 {
		e.t.Fatalf("handshake: got %d %q, %v; want a bearer token for ten minutes", a.status, a.body, err)
	}
	if got := a.header.Get("Cache-Control"); got != "no-store" {
		e.t.Errorf("handshake: got Cache-Control %q, want no-store", got)
	}
	k := token{text: answer.Token}
	for i, part := range strings.Split(answer.Token, ".")[:2] {
		text, err := base64.RawURLEncoding.DecodeString(part)
		if err != nil {
			e.t.Fatal(err)
		}
		if err := json.Unmarshal(text, []*map[string]any{&k.header, &k.claims}[i]); err != nil {
			e.t.Fatal(err)
		}
	}
	return k
}

// letIn registers a device and waits until its token is good: Envoy needs the keys, which
// it can't have fetched before the sidecar was there.
func (e *edge) letIn(id, secret string, permissions ...string) token {
	e.t.Helper()
	e.device(id, secret, 4, permissions...)
	await(e.t, "device", patience, func() error {
		return e.everyone([]*http.Client{shared}, status(200), "POST /v1/session", credential(id, secret)...)
	})
	k := e.handshake(id, secret)
	await(e.t, "token", patience, func() error {
		return e.everyone([]*http.Client{shared}, status(200), "POST /v1/telemetry", k.line())
	})
	return k
}

func status(want int) func(answer) bool { return func(a answer) bool { return a.status == want } }

func TestSession(t *testing.T) {
	e := withSessions(t)
	k := e.letIn("dev", "secret", "telemetry.write", "config.read")
	runs := e.metric("gatehouse_bcrypt_total")
	seen := e.send("POST /v1/telemetry", k.line(), "x-gatehouse-device: forged", "x-gatehouse-permissions: all").seen(t)
	if got := seen.Headers["x-gatehouse-device"]; !slices.Equal(got, []string{"dev"}) {
		t.Errorf("the upstream saw devices %q, want dev", got)
	}
	names := strings.Split(strings.Join(seen.Headers["x-gatehouse-permissions"], ","), ",")
	slices.Sort(names)
	if !slices.Equal(names, []string{"config.read", "telemetry.write"}) {
		t.Errorf("the upstream saw permissions %q, want both", names)
	}
	for name, values := range seen.Headers {
		if strings.Contains(strings.Join(values, " "), k.text) || name == "authorization" {
			t.Errorf("the upstream saw the token: %s: %q", name, values)
		}
	}
	open := e.send("GET /open", k.line()).seen(t)
	if len(open.Headers["authorization"])+len(open.Headers["x-gatehouse-device"]) != 0 {
		t.Errorf("without a rule the upstream saw %v, want neither token nor device", open.Headers)
	}
	e.put("@dev/v1/me/config", "for dev")
	await(t, "payload", patience, func() error {
		return e.everyone([]*http.Client{shared}, func(a answer) bool { return a.body == "for dev" }, "GET /v1/me/config", k.line())
	})
	if got := e.metric("gatehouse_bcrypt_total") - runs; got != 0 {
		t.Errorf("got %v runs of bcrypt for a token, want none", got)
	}

	e.device("reader", "secret", 4, "config.read")
	await(t, "reader", patience, func() error {
		return e.everyone([]*http.Client{shared}, status(200), "POST /v1/session", credential("reader", "secret")...)
	})
	reader := e.handshake("reader", "secret")
	before := e.UpstreamRequests()
	for _, tt := range []struct {
		name, first string
		lines       []string
		status      int
	}{
		{"wrong secret", "POST /v1/session", credential("dev", "wrong"), 401},
		{"unknown device", "POST /v1/session", credential("nobody", "secret"), 401},
		{"no credential", "POST /v1/session", nil, 401},
		{"forged identity", "POST /v1/session", []string{"x-gatehouse-device: dev"}, 401},
		{"a token for a token", "POST /v1/session", []string{k.line()}, 401},
		{"a token for a token, with a forged identity", "POST /v1/session", []string{k.line(), "x-gatehouse-device: dev"}, 401},
		{"a token and its device id", "POST /v1/session", []string{k.line(), "x-device-id: dev"}, 401},
		{"a token as the secret", "POST /v1/session", credential("dev", k.text[:72]), 401},
		{"a token and a wrong secret", "POST /v1/session", append(credential("dev", "wrong"), k.line()), 401},
		{"a token where a permission is missing", "POST /v1/telemetry", []string{reader.line()}, 403},
		{"a token and half a credential", "POST /v1/telemetry", []string{k.line(), "x-device-id: dev"}, 401},
		{"a token and another device's credential without the permission", "POST /v1/telemetry", append(credential("reader", "secret"), k.line()), 403},
		{"nothing but a forged identity", "POST /v1/telemetry", []string{"x-gatehouse-device: dev", "x-gatehouse-permissions: telemetry.write"}, 401},
		{"the token's record as a secret", "POST /v1/telemetry", credential("dev", fmt.Sprint(k.claims["ver"])), 401},
	} {
		if a := e.send(tt.first, tt.lines...); a.status != tt.status {
			t.Errorf("%s: got %d %q, want %d", tt.name, a.status, a.body, tt.status)
		}
	}
	if got := e.UpstreamRequests() - before; got != 0 {
		t.Errorf("the upstream saw %d of them, want none", got)
	}
}

// TestSidecarIsNotReachable asks at the edge for what the sidecar's socket serves: it is
// no route of the edge's, so the upstream gets it.
func TestSidecarIsNotReachable(t *testing.T) {
	e := withSessions(t)
	e.letIn("dev", "secret", "telemetry.write")
	calls := e.metric("gatehouse_api_requests_total")
	for _, first := range []string{"POST /v1/verify", "POST /v1/fetch", "POST /v1/hits", "POST /v1/apply", "GET /v1/session/jwks", "GET /v1/session", "PUT /v1/session", "POST /v1/session/x"} {
		method, path, _ := strings.Cut(first, " ")
		if got := e.send(first).seen(t); got.Method != method || got.Path != path {
			t.Errorf("%s: the upstream saw %+v", first, got)
		}
	}
	// Envoy may have fetched the keys again meanwhile.
	if got := e.metric("gatehouse_api_requests_total") - calls; got > 1 {
		t.Errorf("the sidecar saw %v calls, want none", got)
	}
}

// signingKey is the key that signs at a time, derived as package session says.
func signingKey(t *testing.T, at time.Time, rotate time.Duration) ed25519.PrivateKey {
	t.Helper()
	length := int64(rotate / time.Second)
	info := fmt.Sprintf("gatehouse session key %d %d", at.Unix()/length*length, length)
	seed, err := hkdf.Key(sha256.New, []byte(sessionSecret), nil, info, ed25519.SeedSize)
	if err != nil {
		t.Fatal(err)
	}
	return ed25519.NewKeyFromSeed(seed)
}

// with is m with one more or another field; nil takes it out.
func with(m map[string]any, name string, value any) map[string]any {
	m = maps.Clone(m)
	m[name] = value
	if value == nil {
		delete(m, name)
	}
	return m
}

// forge makes a token of any header and claims.
func forge(t *testing.T, header, claims map[string]any, sign func([]byte) []byte) string {
	t.Helper()
	var parts []string
	for _, part := range []map[string]any{header, claims} {
		text, err := json.Marshal(part)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, base64.RawURLEncoding.EncodeToString(text))
	}
	signed := strings.Join(parts, ".")
	return signed + "." + base64.RawURLEncoding.EncodeToString(sign([]byte(signed)))
}

// TestForgedTokens sends tokens that nobody gave out: some with the right key, which an
// attacker doesn't have, to see each check at work by itself.
func TestForgedTokens(t *testing.T) {
	const rotate = 720 * time.Hour // the longest, so that a period hardly ends within the test
	e := withSessions(t, "--session.rotate="+rotate.String())
	good := e.letIn("dev", "secret", "telemetry.write")
	key := signingKey(t, time.Now(), rotate)
	_, other, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	by := func(k ed25519.PrivateKey) func([]byte) []byte {
		return func(b []byte) []byte { return ed25519.Sign(k, b) }
	}
	hs256 := func(secret []byte) func([]byte) []byte {
		return func(b []byte) []byte {
			mac := hmac.New(sha256.New, secret)
			mac.Write(b)
			return mac.Sum(nil)
		}
	}
	public := key.Public().(ed25519.PublicKey)
	ours := func(name string, value any) string {
		return forge(t, good.header, with(good.claims, name, value), by(key))
	}
	parts := strings.Split(good.text, ".")
	sub := forge(t, good.header, with(good.claims, "sub", "other"), by(other))
	seconds := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	none := func([]byte) []byte { return nil }
	unnamed := func(periods int) string {
		return forge(t, with(good.header, "kid", nil), good.claims, by(signingKey(t, time.Now().Add(time.Duration(periods)*rotate), rotate)))
	}

	tests := []struct {
		name, token string
		status      int
	}{
		{"made by the same key", ours("jti", "another"), 200},
		{"no key named", forge(t, with(good.header, "kid", nil), good.claims, by(key)), 200},
		{"claims of another", strings.Split(sub, ".")[0] + "." + strings.Split(sub, ".")[1] + "." + parts[2], 401},
		{"a bit of the signature", parts[0] + "." + parts[1] + "." + flip(parts[2]), 401},
		{"no signature", parts[0] + "." + parts[1] + ".", 401},
		{"two parts", parts[0] + "." + parts[1], 401},
		{"another key of that name", forge(t, good.header, good.claims, by(other)), 401},
		{"a key that isn't published", forge(t, with(good.header, "kid", "x"), good.claims, by(other)), 401},
		{"the key of the period before", unnamed(-1), 200},
		{"the key of the next period, of a sidecar whose clock is ahead", unnamed(+1), 200},
		{"the key of the period before that", unnamed(-2), 401},
		{"the key of the period after that", unnamed(+2), 401},
		{"the key of a period of another length", forge(t, with(good.header, "kid", nil), good.claims, by(signingKey(t, time.Now(), 24*time.Hour))), 401},
		{"alg none", forge(t, map[string]any{"alg": "none", "typ": "JWT"}, good.claims, none), 401},
		{"alg none with the key's name", forge(t, with(good.header, "alg", "none"), good.claims, none), 401},
		{"alg None", forge(t, with(good.header, "alg", "None"), good.claims, none), 401},
		{"alg none with a signature", forge(t, with(good.header, "alg", "none"), good.claims, by(key)), 401},
		{"no alg", forge(t, with(good.header, "alg", nil), good.claims, by(key)), 401},
		{"HS256 with the public key", forge(t, with(good.header, "alg", "HS256"), good.claims, hs256(public)), 401},
		{"HS256 with the published text", forge(t, with(good.header, "alg", "HS256"), good.claims, hs256([]byte(base64.RawURLEncoding.EncodeToString(public)))), 401},
		{"its own key in its header", forge(t, with(good.header, "jwk", map[string]any{"kty": "OKP", "crv": "Ed25519",
			"x": base64.RawURLEncoding.EncodeToString(other.Public().(ed25519.PublicKey))}), good.claims, by(other)), 401},
		{"expired", ours("exp", seconds(-11*time.Second)), 401},
		{"expired long ago", ours("exp", 1), 401},
		{"without an end", ours("exp", nil), 401},
		{"an end that is no number", ours("exp", "never"), 401},
		{"not yet good", ours("nbf", seconds(time.Hour)), 401},
		{"another issuer", ours("iss", "somebody"), 401},
		{"no issuer", ours("iss", nil), 401},
		{"no device", ours("sub", nil), 401},
		{"empty device", ours("sub", ""), 401},
		{"unknown device", ours("sub", "nobody"), 401},
		{"device with a slash", ours("sub", "dev/x"), 401},
		{"device with a comma", ours("sub", "dev,dev"), 401},
		{"device with a line end", ours("sub", "dev\r\nx-gatehouse-permissions: all"), 401},
		{"device with a NUL", ours("sub", "dev\x00"), 401},
		{"device in another script", ours("sub", "dév"), 401},
		{"long device", ours("sub", strings.Repeat("d", 129)), 401},
		{"device that is a number", ours("sub", 1), 401},
		{"devices", ours("sub", []string{"dev"}), 401},
		{"no record", ours("ver", nil), 401},
		{"another record", ours("ver", "9-9"), 401},
		{"record that is a number", ours("ver", 1), 401},
		{"record over its limit", ours("ver", strings.Repeat("1", 42)), 401},
		{"empty", "", 401},
		{"garbage", "x", 401},
		{"dots", "..", 401},
		{"no JSON", "eA.eA.eA", 401},
	}
	for _, tt := range tests {
		if a := e.send("POST /v1/telemetry", "authorization: Bearer "+tt.token); a.status != tt.status {
			t.Errorf("%s: got %d %q, want %d", tt.name, a.status, a.body, tt.status)
		}
	}
	// Envoy remembers whose signature was good: that must not outlive the token. It gives ten
	// seconds for clocks that differ.
	ending := "authorization: Bearer " + ours("exp", seconds(-5*time.Second))
	if a := e.send("POST /v1/telemetry", ending); a.status != 200 {
		t.Errorf("token within the difference of clocks: got %d, want 200", a.status)
	}
	await(t, "the token's end", patience, func() error {
		return e.everyone([]*http.Client{shared}, status(401), "POST /v1/telemetry", ending)
	})
	for _, tt := range []struct {
		name   string
		lines  []string
		path   string
		status int
	}{
		{"token in the query", nil, "/v1/telemetry?access_token=" + good.text, 401},
		{"token in a cookie", []string{"cookie: access_token=" + good.text}, "/v1/telemetry", 401},
		{"token in another header", []string{"x-authorization: Bearer " + good.text}, "/v1/telemetry", 401},
		{"token without its scheme", []string{"authorization: " + good.text}, "/v1/telemetry", 401},
		{"a good token, then a bad one", []string{good.line(), "authorization: Bearer x"}, "/v1/telemetry", 200},
		{"a bad token, then a good one", []string{"authorization: Bearer x", good.line()}, "/v1/telemetry", 401},
		{"another scheme, then a good token", []string{"authorization: Basic eDp5", good.line()}, "/v1/telemetry", 200},
		{"bad token on an open path", []string{"authorization: Bearer x"}, "/open", 401},
		{"bad token beside a good credential", append(credential("dev", "secret"), "authorization: Bearer x"), "/v1/telemetry", 401},
		{"other scheme beside a good credential", append(credential("dev", "secret"), "authorization: Basic eDp5"), "/v1/telemetry", 200},
	} {
		if a := e.send("POST "+tt.path, tt.lines...); a.status != tt.status {
			t.Errorf("%s: got %d %q, want %d", tt.name, a.status, a.body, tt.status)
		}
	}
}

// flip changes the first character of base64.
func flip(text string) string {
	if text[0] == 'A' {
		return "B" + text[1:]
	}
	return "A" + text[1:]
}

// TestTokenOfChangedDevice changes the record of a device whose token and verdict have long
// to live: the token ends with the event, though Envoy finds nothing wrong with it.
func TestTokenOfChangedDevice(t *testing.T) {
	e := withSessions(t, "--verdict.allow-ttl=10m")
	clients := e.workers()
	denied := func() int { return e.stat("http.edge.jwt_authn.denied") }
	var took []time.Duration
	for i := range 5 {
		id := fmt.Sprintf("device-%d", i)
		k := e.letIn(id, "secret", "telemetry.write")
		if err := e.everyone(clients, status(200), "POST /v1/telemetry", k.line()); err != nil {
			t.Fatal(err)
		}
		before := denied()
		e.ctl("device", "revoke", id)
		took = append(took, await(t, "revocation", patience, func() error {
			return e.everyone(clients, status(401), "POST /v1/telemetry", k.line())
		}))
		if got := denied() - before; got != 0 {
			t.Errorf("jwt_authn has refused %d, want Gatehouse to", got)
		}
		if a := e.send("POST /v1/session", credential(id, "secret")...); a.status != 401 {
			t.Errorf("handshake of a revoked device: got %d, want 401", a.status)
		}
	}
	slices.Sort(took)
	t.Logf("from the command's return to a 401 on %d connections over both workers: median %s, max %s of %d", len(clients), took[2], took[4], len(took))
	if took[2] > 100*time.Millisecond {
		t.Errorf("median: got %s, want at most 100ms", took[2])
	}

	k := e.letIn("changed", "secret", "telemetry.write")
	e.device("changed", "secret", 4, "config.read")
	await(t, "other permissions", patience, func() error {
		return e.everyone(clients, status(401), "POST /v1/telemetry", k.line())
	})
	k = e.handshake("changed", "secret")
	if err := e.everyone(clients, status(403), "POST /v1/telemetry", k.line()); err != nil {
		t.Errorf("a new token: %v", err)
	}
	if a := e.send("GET /v1/me/config", k.line()); a.status != 200 {
		t.Errorf("a new token under its new permission: got %d, want 200", a.status)
	}
}

// TestTokenOutlivesItsSidecar kills the sidecar that made a token.
func TestTokenOutlivesItsSidecar(t *testing.T) {
	e := withSessions(t)
	k := e.letIn("dev", "secret", "telemetry.write")
	if err := e.KillSidecar(); err != nil {
		t.Fatal(err)
	}
	if a := e.send("POST /v1/telemetry", k.line()); a.status != 200 {
		t.Errorf("without a sidecar: got %d, want 200 by the verdict", a.status)
	}
	if a := e.send("POST /v1/session", credential("dev", "secret")...); a.status != 503 || a.header.Get("Retry-After") == "" {
		t.Errorf("handshake without a sidecar: got %d %v, want 503 with Retry-After", a.status, a.header)
	}
	if err := e.StartSidecar(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := e.send("POST /v1/telemetry", k.line()); a.status != 200 {
		t.Errorf("with another sidecar: got %d, want 200", a.status)
	}
	if again := e.handshake("dev", "secret"); again.header["kid"] != k.header["kid"] {
		t.Errorf("got key %v after the restart, want %v", again.header["kid"], k.header["kid"])
	}
	if err := e.KillEnvoy(); err != nil {
		t.Fatal(err)
	}
	if err := e.StartEnvoy(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "token at a new Envoy", patience, func() error {
		return e.everyone([]*http.Client{shared}, status(200), "POST /v1/telemetry", k.line())
	})
}
