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

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

const sessionSecret = "a secret of thirty-two bytes or more"

// sessionConfig is the path of the shipped configuration with the lines for sessions enabled, as the configuration's
// comment describes.
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
	require.NoError(t, err)
	args = append(args, "--session.rotate="+rotate.String(), "--session.secret-file",
		writeFile(t, "secret", sessionSecret+"\n"))
	return reuse(t, stack.Options{ConfigPath: config, SidecarArgs: args})
}

// token is a token from a handshake, with its contents.
type token struct {
	text           string
	header, claims map[string]any
}

func (k token) headerLine() string { return "authorization: Bearer " + k.text }

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
		require.NoError(e.t, err)
		require.NoError(e.t, json.Unmarshal(text, []*map[string]any{&k.header, &k.claims}[i]))
	}
	return k
}

// awaitToken registers a device and waits until each worker accepts the device's token: the edge can't fetch the keys
// before the sidecar has started.
func (e *edge) awaitToken(id, secret string, permissions ...string) token {
	e.t.Helper()
	e.putDevice(id, secret, 4, permissions...)
	e.awaitAnswer("device", hasStatus(200), "POST /v1/session", credential(id, secret)...)
	k := e.handshake(id, secret)
	clients := e.workerClients() // each worker of nginx fetches the keys by itself
	await(e.t, "token", patience, func() error {
		return e.sendFromAll(clients, hasStatus(200), "POST /v1/telemetry", k.headerLine())
	})
	return k
}

func TestSession(t *testing.T) {
	t.Parallel()
	e := withSessions(t)
	k := e.awaitToken("dev", "secret", "telemetry.write", "config.read")
	runs := e.metric("gatehouse_bcrypt_total")
	seen := e.send("POST /v1/telemetry", k.headerLine(), "x-gatehouse-device: forged",
		"x-gatehouse-permissions: all").seenByUpstream(t)
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
	open := e.send("GET /open", k.headerLine()).seenByUpstream(t)
	if len(open.Headers["authorization"])+len(open.Headers["x-gatehouse-device"]) != 0 {
		t.Errorf("without a rule the upstream saw %v, want neither token nor device", open.Headers)
	}
	e.put("@dev/v1/me/config", "for dev")
	e.awaitAnswer("payload", hasBody("for dev"), "GET /v1/me/config", k.headerLine())
	if got := e.metric("gatehouse_bcrypt_total") - runs; got != 0 {
		t.Errorf("got %v runs of bcrypt for a token, want none", got)
	}
	t.Run("refusals", func(t *testing.T) { checkRefusals(t, e, k) })
	t.Run("sidecar", func(t *testing.T) { sidecarIsNotReachable(t, e) })
}

// checkRefusals sends requests of which none may reach the upstream; k is a token of dev.
func checkRefusals(t *testing.T, e *edge, k token) {
	e.putDevice("reader", "secret", 4, "config.read")
	e.awaitAnswer("reader", hasStatus(200), "POST /v1/session", credential("reader", "secret")...)
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
		{"a token for a token", "POST /v1/session", []string{k.headerLine()}, 401},
		{"a token for a token, with a forged identity", "POST /v1/session",
			[]string{k.headerLine(), "x-gatehouse-device: dev"}, 401},
		{"a token and its device id", "POST /v1/session", []string{k.headerLine(), "x-device-id: dev"}, 401},
		{"a token as the secret", "POST /v1/session", credential("dev", k.text[:72]), 401},
		{"a token and a wrong secret", "POST /v1/session", append(credential("dev", "wrong"), k.headerLine()), 401},
		{"a token where a permission is missing", "POST /v1/telemetry", []string{reader.headerLine()}, 403},
		{"a token and half a credential", "POST /v1/telemetry", []string{k.headerLine(), "x-device-id: dev"}, 401},
		{"a token and another device's credential without the permission", "POST /v1/telemetry",
			append(credential("reader", "secret"), k.headerLine()), 403},
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

// sidecarIsNotReachable requests paths of the sidecar's socket at the edge: the edge has no route for the paths, so the
// upstream gets the requests.
func sidecarIsNotReachable(t *testing.T, e *edge) {
	calls := e.metric("gatehouse_api_requests_total")
	for _, first := range []string{"POST /v1/verify", "POST /v1/fetch", "POST /v1/hits", "POST /v1/apply",
		"GET /v1/session/jwks", "GET /v1/session", "PUT /v1/session", "POST /v1/session/x"} {
		method, path, _ := strings.Cut(first, " ")
		if got := e.send(first).seenByUpstream(t); got.Method != method || got.Path != path {
			t.Errorf("%s: the upstream saw %+v", first, got)
		}
	}
	// Envoy may have fetched the keys again meanwhile.
	if got := e.metric("gatehouse_api_requests_total") - calls; got > 1 {
		t.Errorf("the sidecar saw %v calls, want none", got)
	}
}

// TestTokenOfChangedDevice changes the record of a device whose token and verdict have a long life: the edge refuses
// the token after the event, although Envoy finds the token valid.
func TestTokenOfChangedDevice(t *testing.T) {
	leaveToOtherEdges(t)
	t.Parallel()
	e := withSessions(t, "--verdict.allow-ttl=10m")
	clients := e.workerClients()
	denied := func() int { return e.stat("http.edge.jwt_authn.denied") }
	var took []time.Duration
	for i := range 5 {
		id := fmt.Sprintf("device-%d", i)
		k := e.awaitToken(id, "secret", "telemetry.write")
		require.NoError(t, e.sendFromAll(clients, hasStatus(200), "POST /v1/telemetry", k.headerLine()))
		before := denied()
		e.ctl("device", "revoke", id)
		took = append(took, await(t, "revocation", patience, func() error {
			return e.sendFromAll(clients, hasStatus(401), "POST /v1/telemetry", k.headerLine())
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

	k := e.awaitToken("changed", "secret", "telemetry.write")
	e.putDevice("changed", "secret", 4, "config.read")
	await(t, "other permissions", patience, func() error {
		return e.sendFromAll(clients, hasStatus(401), "POST /v1/telemetry", k.headerLine())
	})
	k = e.handshake("changed", "secret")
	if err := e.sendFromAll(clients, hasStatus(403), "POST /v1/telemetry", k.headerLine()); err != nil {
		t.Errorf("a new token: %v", err)
	}
	if a := e.send("GET /v1/me/config", k.headerLine()); a.status != 200 {
		t.Errorf("a new token under its new permission: got %d, want 200", a.status)
	}
}

// TestTokenOutlivesItsSidecar kills the sidecar that issued a token.
func TestTokenOutlivesItsSidecar(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	e := withSessions(t)
	k := e.awaitToken("dev", "secret", "telemetry.write")
	e.awaitPushed() // its verdict has reached the edge
	require.NoError(t, e.KillSidecar())
	if a := e.send("POST /v1/telemetry", k.headerLine()); a.status != 200 {
		t.Errorf("without a sidecar: got %d, want 200 by the verdict", a.status)
	}
	if a := e.send("POST /v1/session", credential("dev", "secret")...); a.status != 503 ||
		a.header.Get("Retry-After") == "" {
		t.Errorf("handshake without a sidecar: got %d %v, want 503 with Retry-After", a.status, a.header)
	}
	require.NoError(t, e.StartSidecar(t.Context()))
	if a := e.send("POST /v1/telemetry", k.headerLine()); a.status != 200 {
		t.Errorf("with another sidecar: got %d, want 200", a.status)
	}
	if again := e.handshake("dev", "secret"); again.header["kid"] != k.header["kid"] {
		t.Errorf("got key %v after the restart, want %v", again.header["kid"], k.header["kid"])
	}
	require.NoError(t, e.KillEdge())
	require.NoError(t, e.StartEdge(t.Context()))
	e.awaitAnswer("token at a new Envoy", hasStatus(200), "POST /v1/telemetry", k.headerLine())
}
