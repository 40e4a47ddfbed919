package e2e

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/link"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestRevokedWhileCutOff revokes a device while its sidecar can't reach Redis: neither the credential nor the token may
// be accepted for longer than max_auth_staleness. When the link is back, devices that weren't revoked are authenticated
// at once.
func TestRevokedWhileCutOff(t *testing.T) {
	leaveToOtherEdges(t)
	const bound, slack = 3 * time.Second, time.Second
	shipped, err := os.ReadFile("../envoy/envoy.yaml")
	require.NoError(t, err)
	text := strings.ReplaceAll(string(shipped), "#session ", "")
	text = strings.Replace(text, "max_staleness: 30s",
		"max_staleness: 30s\n                      max_auth_staleness: 3s", 1)
	server := redistest.StartServer(t)
	way, err := link.New("127.0.0.1:0", server.Address)
	require.NoError(t, err)
	t.Cleanup(way.Close)
	e := start(t, stack.Options{RedisURL: "redis://" + server.Address, SidecarRedisURL: "redis://" + way.Address(),
		ConfigPath: writeFile(t, "envoy.yaml", text),
		SidecarArgs: []string{"--verdict.allow-ttl=10m", "--session.secret-file",
			writeFile(t, "secret", sessionSecret+"\n")}})
	e.put("/v1/products/1", "open to all")
	good, bad := e.awaitToken("good", "secret", "telemetry.write"), e.awaitToken("bad", "secret", "telemetry.write")
	shows := map[string][]string{"credential": credential("bad", "secret"), "token": {bad.headerLine()}}
	status := func(lines ...string) int { return e.send("POST /v1/telemetry", lines...).status }
	for what, lines := range shows {
		if got := status(lines...); got != 200 {
			t.Fatalf("%s before: got %d, want 200", what, got)
		}
	}
	way.Cut()
	e.ctl("device", "revoke", "bad")
	revoked := time.Now()
	for what, lines := range shows {
		await(t, what+" is no good any more", bound+slack-time.Since(revoked), func() error {
			if a := e.send("POST /v1/telemetry", lines...); a.status != 503 || a.header.Get("Retry-After") == "" {
				return fmt.Errorf("got %d %v", a.status, a.header)
			}
			return nil
		})
	}
	t.Logf("503 %s after the revocation, which can't arrive", time.Since(revoked))
	for what, lines := range map[string][]string{
		"credential": credential("good", "secret"), "token": {good.headerLine()}} {
		if got := status(lines...); got != 503 {
			t.Errorf("%s of a device that wasn't revoked: got %d, want 503", what, got)
		}
	}
	if a := e.send("POST /v1/session", credential("bad", "secret")...); a.status != 503 {
		t.Errorf("a new token: got %d, want 503", a.status)
	}
	if a := e.send("GET /v1/products/1"); a.body != "open to all" {
		t.Errorf("what needs no credential: got %d %q, want it as before: max_staleness is longer", a.status, a.body)
	}
	require.NoError(t, way.Heal())
	await(t, "the link is back", patience, func() error {
		for _, lines := range [][]string{credential("good", "secret"), {good.headerLine()}} {
			if err := e.sendFromAll([]*http.Client{shared}, let, "POST /v1/telemetry", lines...); err != nil {
				return err
			}
		}
		return nil
	})
	for what, lines := range shows {
		if got := status(lines...); got != 401 {
			t.Errorf("%s after: got %d, want 401", what, got)
		}
	}
}
