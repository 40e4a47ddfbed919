package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestHotRestart replaces Envoy by a process that inherits the listeners, as an operator does who upgrades Envoy on a
// machine, under requests: each is answered, and no client's connection fails. The new process begins with an empty
// memory, which the sidecar fills when the connection to the old process ends: until then devices are refused.
func TestHotRestart(t *testing.T) {
	t.Parallel()
	e := start(t, stack.Options{})
	e.putDevice("dev", "secret", 4, "telemetry.write")
	e.put("/v1/products/42", "body")
	e.awaitRecords(1)
	if err := e.KillEdge(); err != nil { // it was started without an id, so nothing can replace it
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(args ...string) (ended <-chan error) {
		t.Helper()
		exit := make(chan error, 1)
		args = append([]string{"--config-path", e.ConfigPath(), "--concurrency", "2", "--log-level", "warn",
			"--drain-strategy", "immediate", "--drain-time-s", "2", "--parent-shutdown-time-s", "3"}, args...)
		child, err := stack.StartChild("envoy", envoyPath(t), args, nil, filepath.Join(dir, "envoy.log"), func(err error) {
			exit <- err
		})
		require.NoError(t, err)
		t.Cleanup(func() { _ = child.Stop() })
		return exit
	}
	idFile := filepath.Join(dir, "id")
	first := run("--use-dynamic-base-id", "--base-id-path", idFile)
	ask := func(body string) error {
		client := newClient()
		defer client.CloseIdleConnections()
		return errors.Join(e.sendFromAll([]*http.Client{client}, hasBody(body), "GET /v1/products/42"),
			e.sendFromAll([]*http.Client{client}, hasStatus(200), "POST /v1/telemetry", credential("dev", "secret")...))
	}
	await(t, "the first process answers", patience, func() error { return ask("body") })
	id, err := os.ReadFile(idFile)
	require.NoError(t, err)
	// Envoy leaves its shared memory, whose name ends with ten times the id.
	t.Cleanup(func() { _ = os.Remove("/dev/shm/envoy_shared_memory_" + string(id) + "0") })

	n, since := 0, time.Now()
	var refused time.Duration // since a device was let in
	stop := keepCalling(t, func() error {
		n++
		client := newClient()
		defer client.CloseIdleConnections()
		object, err := e.try(client, "GET /v1/products/42")
		device, err2 := e.try(client, "POST /v1/telemetry", credential("dev", "secret")...)
		if err = errors.Join(err, err2); err != nil || object.status != 200 || device.status != 200 && device.status != 503 {
			return fmt.Errorf("request %d: got %d and %d, %v", n, object.status, device.status, err)
		}
		if device.status == 200 {
			since = time.Now()
		}
		refused = max(refused, time.Since(since))
		return nil
	})
	run("--base-id", string(id), "--restart-epoch", "1")
	if err := <-first; !strings.Contains(err.Error(), "exit status 0") {
		t.Errorf("the first process: %v", err)
	}
	e.put("/v1/products/42", "new")
	await(t, "the second process answers from its memory", patience, func() error { return ask("new") })
	if err := stop(); err != nil {
		t.Error(err)
	}
	t.Logf("the device was refused for %s", refused)
	if refused > 3*time.Second {
		t.Errorf("the device was refused for %s", refused)
	}
}
