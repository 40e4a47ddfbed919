package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestSeen: with the documented permissions, gatehousectl shows what devices did at one edge, and who registered the
// devices.
func TestSeen(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	server := redistest.StartServer(t)
	namespacedUsers(t, server.Client(t), contract.Keyspace{})
	e := reuse(t, stack.Options{RedisURL: "redis://" + server.Address, SidecarRedisURL: userURL(server, "reader", "")})
	writer := userURL(server, "writer", "")
	for _, id := range []string{"here", "away"} {
		if out, err := gatehousectl(t, "device", "put", id, "--secret-file", writeFile(t, "secret", "secret"), "--cost", "4",
			"--permissions", "telemetry.write", "--redis", writer); err != nil {
			t.Fatal(err, out)
		}
	}
	e.awaitAnswer("allowed", hasStatus(200), "POST /v1/telemetry", credential("here", "secret")...)
	e.awaitAnswer("refused", hasStatus(401), "POST /v1/telemetry", credential("away", "wrong")...)
	if err := e.SignalSidecar(syscall.SIGTERM); err != nil { // it writes the last batch
		t.Fatal(err)
	}
	var device struct {
		LastSeen time.Time `json:"last_seen"`
		Failed   []struct {
			Network string
			Count   int
		} `json:"failed_attempts"`
	}
	get := func(id string) error {
		device.LastSeen, device.Failed = time.Time{}, nil
		return json.Unmarshal([]byte(e.ctl("device", "get", id, "--json")), &device)
	}
	await(t, "seen", patience, func() error {
		if err := get("here"); err != nil || device.LastSeen.IsZero() {
			return fmt.Errorf("got %+v, %w", device, err)
		}
		return nil
	})
	if err := get("away"); err != nil || !device.LastSeen.IsZero() || len(device.Failed) != 1 ||
		device.Failed[0].Network != "127.0.0.1/32" || device.Failed[0].Count < 1 {
		t.Errorf("away: %+v, %v", device, err)
	}
	if out := e.ctl("device", "list", "--not-seen", "0s", "--json"); !strings.Contains(out, `"away"`) {
		t.Errorf("not seen: %s", out)
	}
	if out := e.ctl("audit"); strings.Count(out, " as writer\n") != 2 {
		t.Errorf("the audit: %s", out)
	}
	_ = e.KillSidecar()
	require.NoError(t, e.StartSidecar(t.Context()))
	require.NoError(t, e.AwaitReady(t.Context()))
	out, err := gatehousectl(t, "explain", "http://127.0.0.1/v1/telemetry", "--method", "POST", "--device", "here",
		"--sidecar", strings.TrimPrefix(e.SidecarAdminURL(), "http://"))
	if err != nil || !strings.Contains(out, "  last seen") {
		t.Errorf("explain: %v, %s", err, out)
	}
	out, err = gatehousectl(t, "explain", "http://127.0.0.1/v1/telemetry", "--method", "POST", "--device", "away",
		"--sidecar", strings.TrimPrefix(e.SidecarAdminURL(), "http://"))
	if err != nil || !strings.Contains(out, "from 127.0.0.1/32 since yesterday") {
		t.Errorf("explain of wrong secrets: %v, %s", err, out)
	}
	response, err := shared.Get(e.SidecarAdminURL() + "/?device=away")
	require.NoError(t, err)
	defer response.Body.Close()
	if page, err := io.ReadAll(response.Body); err != nil || !strings.Contains(string(page), " from 127.0.0.1/32</td>") {
		t.Errorf("the page lacks wrong secrets: %v", err)
	}
	if log := e.readLog("sidecar"); strings.Contains(log, "does not permit to write") || strings.Contains(log, "NOPERM") {
		t.Errorf("the documented permissions are not enough:\n%s", log)
	}
}
