package e2e

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

const sessionSecret = "a secret of thirty-two bytes or more"

// sessionConfig is the path of the shipped configuration with the lines for sessions enabled, as its comment describes.
var sessionConfig = sync.OnceValues(func() (string, error) {
	shipped, err := os.ReadFile("../envoy/envoy.yaml")
	if err == nil && strings.Count(string(shipped), "#session ") < 20 {
		err = errors.New("envoy.yaml has no lines for sessions")
	}
	path := filepath.Join(suiteDir, "envoy.yaml")
	return path, errors.Join(err, os.WriteFile(path, []byte(strings.ReplaceAll(string(shipped), "#session ", "")), 0o600))
})

// withSessions returns options for a stack with sessions, and the sidecar's secret in a file. All have the same keys,
// since a reused Envoy has cached those of an earlier test.
func withSessions(t *testing.T, args ...string) *edge {
	t.Helper()
	config, err := sessionConfig()
	if err != nil {
		t.Fatal(err)
	}
	args = append(args, "--session.rotate="+rotate.String(), "--session.secret-file",
		writeFile(t, "secret", sessionSecret+"\n"))
	return reuse(t, stack.Options{ConfigPath: config, SidecarArgs: args})
}

// token is a token from a handshake, with its contents.
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
	if err := json.Unmarshal([]byte(a.body), &answer); err != nil || a.status != 200 || answer.Type != "Bearer" ||
		answer.ExpiresIn != 600 {
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

// letIn registers a device and waits until each worker accepts its token: the edge needs the keys, which it can't fetch
// before the sidecar has started.
func (e *edge) letIn(id, secret string, permissions ...string) token {
	e.t.Helper()
	e.device(id, secret, 4, permissions...)
	e.until("device", status(200), "POST /v1/session", credential(id, secret)...)
	k := e.handshake(id, secret)
	clients := e.workers() // each worker of nginx fetches the keys by itself
	await(e.t, "token", patience, func() error { return e.everyone(clients, status(200), "POST /v1/telemetry", k.line()) })
	return k
}

func TestSession(t *testing.T) {
	t.Parallel()
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
	e.until("payload", says("for dev"), "GET /v1/me/config", k.line())
	if got := e.metric("gatehouse_bcrypt_total") - runs; got != 0 {
		t.Errorf("got %v runs of bcrypt for a token, want none", got)
	}
	t.Run("refusals", func(t *testing.T) { refusals(t, e, k) })
	t.Run("sidecar", func(t *testing.T) { sidecarIsNotReachable(t, e) })
}

// refusals sends requests of which none may reach the upstream; k is a token of dev.
func refusals(t *testing.T, e *edge, k token) {
	e.device("reader", "secret", 4, "config.read")
	e.until("reader", status(200), "POST /v1/session", credential("reader", "secret")...)
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
		{"a token for a token, with a forged identity", "POST /v1/session",
			[]string{k.line(), "x-gatehouse-device: dev"}, 401},
		{"a token and its device id", "POST /v1/session", []string{k.line(), "x-device-id: dev"}, 401},
		{"a token as the secret", "POST /v1/session", credential("dev", k.text[:72]), 401},
		{"a token and a wrong secret", "POST /v1/session", append(credential("dev", "wrong"), k.line()), 401},
		{"a token where a permission is missing", "POST /v1/telemetry", []string{reader.line()}, 403},
		{"a token and half a credential", "POST /v1/telemetry", []string{k.line(), "x-device-id: dev"}, 401},
		{"a token and another device's credential without the permission", "POST /v1/telemetry",
			append(credential("reader", "secret"), k.line()), 403},
		{"nothing but a forged identity", "POST /v1/telemetry",
			[]string{"x-gatehouse-device: dev", "x-gatehouse-permissions: telemetry.write"}, 401},
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

// sidecarIsNotReachable requests at the edge what the sidecar's socket serves: the edge has no route for it, so the
// upstream gets it.
func sidecarIsNotReachable(t *testing.T, e *edge) {
	calls := e.metric("gatehouse_api_requests_total")
	for _, first := range []string{"POST /v1/verify", "POST /v1/fetch", "POST /v1/hits", "POST /v1/apply",
		"GET /v1/session/jwks", "GET /v1/session", "PUT /v1/session", "POST /v1/session/x"} {
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

// TestTokenOfChangedDevice changes the record of a device whose token and verdict have a long life: the edge refuses
// the token after the event, although Envoy finds it valid.
func TestTokenOfChangedDevice(t *testing.T) {
	anyEdge(t)
	t.Parallel()
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
	t.Logf("from the command's return to a 401 on %d connections over both workers: median %s, max %s of %d",
		len(clients), took[2], took[4], len(took))
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

// TestTokenOutlivesItsSidecar kills the sidecar that issued a token.
func TestTokenOutlivesItsSidecar(t *testing.T) {
	behindEdge(t)
	t.Parallel()
	e := withSessions(t)
	k := e.letIn("dev", "secret", "telemetry.write")
	e.pushed() // its verdict has reached the edge
	if err := e.KillSidecar(); err != nil {
		t.Fatal(err)
	}
	if a := e.send("POST /v1/telemetry", k.line()); a.status != 200 {
		t.Errorf("without a sidecar: got %d, want 200 by the verdict", a.status)
	}
	if a := e.send("POST /v1/session", credential("dev", "secret")...); a.status != 503 ||
		a.header.Get("Retry-After") == "" {
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
	if err := e.KillEdge(); err != nil {
		t.Fatal(err)
	}
	if err := e.StartEdge(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.until("token at a new Envoy", status(200), "POST /v1/telemetry", k.line())
}
