package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestEnvoyRestart kills and restarts Envoy, without any further action.
func TestEnvoyRestart(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second
	e := reuse(t, stack.Options{})
	e.put("/v1/products/42", "body")
	e.putDevice("dev", "secret", 4, "telemetry.write")
	answers := func() error {
		client := newClient()
		if err := e.sendFromAll([]*http.Client{client}, hasBody("body"), "GET /v1/products/42"); err != nil {
			return err
		}
		return e.sendFromAll([]*http.Client{client}, hasStatus(200), "POST /v1/telemetry", credential("dev", "secret")...)
	}
	await(t, "first answers", patience, answers)
	require.NoError(t, e.KillEdge())
	require.NoError(t, e.StartEdge(t.Context()))
	took := await(t, "the same answers", patience, answers)
	t.Logf("the same answers %s after Envoy accepted connections again", took)
	if took > limit {
		t.Errorf("got %s, want at most %s", took, limit)
	}
}

// TestSidecarAway kills the sidecar: answers from the edge's memory continue, all else is 503.
func TestSidecarAway(t *testing.T) {
	t.Parallel()
	e := reuse(t, stack.Options{})
	e.put("/v1/products/42", "body")
	e.putDevice("known", "secret", 4, "telemetry.write")
	e.putDevice("new", "secret", 4, "telemetry.write")
	clients := e.workerClients()
	hit := hasBody("body")
	let := hasStatus(200)
	await(t, "known", patience, func() error {
		if err := e.sendFromAll(clients, hit, "GET /v1/products/42"); err != nil {
			return err
		}
		return e.sendFromAll(clients, let, "POST /v1/telemetry", credential("known", "secret")...)
	})
	awaitVerdict(t, e)
	require.NoError(t, e.KillSidecar())
	if err := e.sendFromAll(clients, hit, "GET /v1/products/42"); err != nil {
		t.Errorf("cached answer without the sidecar: %v", err)
	}
	if err := e.sendFromAll(clients, let, "POST /v1/telemetry", credential("known", "secret")...); err != nil {
		t.Errorf("unexpired verdict without the sidecar: %v", err)
	}
	if a := e.send("POST /v1/telemetry", credential("new", "secret")...); a.status != 503 ||
		a.header.Get("Retry-After") == "" {
		t.Errorf("new device without the sidecar: got %d %v, want 503 with Retry-After", a.status, a.header)
	}
	await(t, "the reason is in the edge's log", patience, func() error {
		if !strings.Contains(e.edgeLog(), "calls to the sidecar, cluster") {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	require.NoError(t, e.StartSidecar(t.Context()))
	await(t, "new device is authenticated", patience, func() error {
		return e.sendFromAll(clients, let, "POST /v1/telemetry", credential("new", "secret")...)
	})
	e.put("/v1/products/42", "newer")
	await(t, "updates arrive again", patience, func() error {
		return e.sendFromAll(clients, hasBody("newer"), "GET /v1/products/42")
	})
}

// awaitVerdict waits until the sidecar's pushes are acknowledged, so that shared memory has the verdicts of earlier
// answers.
func awaitVerdict(t *testing.T, e *edge) {
	t.Helper()
	before := e.edgeMetric("gatehouse_calls_total", `call="verify"`)
	await(t, "verdict in shared memory", patience, func() error {
		clients := e.workerClients()
		if err := e.sendFromAll(clients, hasStatus(200), "POST /v1/telemetry", credential("known", "secret")...); err != nil {
			return err
		}
		if now := e.edgeMetric("gatehouse_calls_total", `call="verify"`); now != before {
			before = now
			return fmt.Errorf("%d requests have waited for a verification", now)
		}
		return nil
	})
}

// TestCorruptRecords writes invalid hashes into Redis: the sidecar skips, counts and logs the hashes, and all other
// objects are served.
func TestCorruptRecords(t *testing.T) {
	t.Parallel()
	keys := contract.Keys{}
	e := reuse(t, stack.Options{Seed: func(ctx context.Context, url string) error { return seedCorrupt(ctx, url, keys) }})
	e.awaitAnswer("the good one", hasBody("good"), "GET /v1/products/good")
	for _, path := range []string{"/v1/products/bad", "/v1/products/%c3", "/v1/products/%C3"} {
		if a := e.send("GET " + path); a.header.Get("Cache-Status") != "gatehouse; fwd=uri-miss" {
			t.Errorf("%s: got %v, want a miss", path, a.header)
		}
	}
	if a := e.send("POST /v1/telemetry", credential("bad", "secret")...); a.status != 401 {
		t.Errorf("got %d for a device with a corrupt record, want 401", a.status)
	}
	// A corrupt event, after the snapshot.
	require.NoError(t, e.redis.Publish(t.Context(), keys.EventsChannel(), "5:hello").Err())
	e.put("/v1/products/after", "after")
	e.awaitAnswer("events go on", hasBody("after"), "GET /v1/products/after")
	for _, want := range []string{"kind=object id=/v1/products/bad", "kind=credential id=bad", "kind=event",
		"kind=member id=o:/v1/products/%c3"} {
		if !strings.Contains(e.readLog("sidecar"), want) {
			t.Errorf("the sidecar's log doesn't name %s:\n%s", want, e.readLog("sidecar"))
		}
	}
	if got := e.metric("gatehouse_corrupt_total"); got < 4 {
		t.Errorf("got %v skipped records, want at least 4", got)
	}
}

// TestPushSocket sends requests to the push listener as a client other than this release's sidecar: nothing is lost,
// and the answer names the error.
func TestPushSocket(t *testing.T) {
	t.Parallel()
	e := reuse(t, stack.Options{})
	e.put("/v1/products/42", "body")
	e.awaitAnswer("published", hasBody("body"), "GET /v1/products/42")
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _,
		_ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", e.PushSocket())
	}}}
	push := func(path string, batch []byte) (int, string) {
		response, err := client.Post("http://push"+path, "application/octet-stream", bytes.NewReader(batch))
		require.NoError(t, err)
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(body)
	}
	whole := wire.AppendOp(wire.BeginBatch(nil, 7, 7), wire.RegionState, 0, func(dst []byte) []byte {
		return wire.AppendState(dst, &wire.State{Epoch: 7})
	})
	foreign := bytes.Clone(whole)
	foreign[0] = wire.Layout + 1
	tests := []struct {
		name, path string
		batch      []byte
		status     int
		want       string
	}{
		{"truncated", "/v1/apply", whole[:58], 400, "operation 0"},
		{"another layout", "/v1/apply", foreign, 400,
			`from "Go-http-client/1.1": batch of layout version 6, want 5: run sidecar and module of the same release`},
		{"empty", "/v1/apply", nil, 400, "batch of 0 bytes"},
		{"another epoch", "/v1/apply", whole, 409, ""},
		{"too large", "/v1/apply", make([]byte, 3<<20), 413, "batch of more than"},
		{"another path", "/v1/products/42", whole, 404, "only POST /v1/apply"},
	}
	for _, tt := range tests {
		if status, body := push(tt.path, tt.batch); status != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%s: got %d %.200q, want %d %q", tt.name, status, body, tt.status, tt.want)
		}
	}
	if a := e.send("GET /v1/products/42"); a.body != "body" {
		t.Errorf("got %d %q, want the object as before", a.status, a.body)
	}
}

// TestLimits publishes objects that are too large.
func TestLimits(t *testing.T) {
	t.Parallel()
	e := reuse(t, stack.Options{})
	for _, tt := range []struct{ name, key, file, want string }{
		{"body", "/v1/products/big", strings.Repeat("x", limits.MaxBody+1), "1048576"},
		{"key", "/v1/products/" + strings.Repeat("x", limits.MaxKey), "x", "2048"},
	} {
		out, err := gatehousectl(t, "put", tt.key, "--file", writeFile(t, "f.txt", tt.file), "--redis", e.RedisURL())
		if err == nil || !strings.Contains(out, tt.want) {
			t.Errorf("%s: got %v %.300q, want an error with the limit, %s", tt.name, err, out, tt.want)
		}
	}
	body := strings.Repeat("0123456789abcdef", limits.MaxBody/16)
	e.ctl("put", "/v1/products/largest", "--file", writeFile(t, "f.txt", body))
	e.awaitAnswer("the largest body", hasBody(body), "GET /v1/products/largest")
}
