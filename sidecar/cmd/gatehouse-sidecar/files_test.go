package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
)

// TestNoFileDescriptorLeft: a sidecar whose callers hold all its file descriptors logs a warning, and still answers
// probes, each on a new connection. Once the callers have gone, the sidecar answers calls again.
func TestNoFileDescriptorLeft(t *testing.T) {
	t.Parallel()
	const limit = 64
	dir, admin, log := t.TempDir(), redistest.FreeAddress(t), new(logbuffer.Buffer)
	socket := filepath.Join(dir, "api.sock")
	cmd := exec.Command("bash", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, limit), os.Args[0],
		"--redis.url="+redistest.Start(t), "--push.socket="+filepath.Join(dir, "push.sock"), "--admin.address="+admin,
		"--api.socket="+socket)
	cmd.Env, cmd.Stderr = append(os.Environ(), asSidecar+"=1"), log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	probes := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	probe := func() bool {
		response, err := probes.Get("http://" + admin + "/readyz")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == 503 // there is no edge
	}
	await.Until(t, "the sidecar", probe)

	var held []net.Conn
	for range 2 * limit {
		conn, err := net.Dial("unix", socket)
		require.NoError(t, err)
		defer conn.Close()
		held = append(held, conn)
	}
	await.Until(t, "a warning", func() bool {
		return strings.Contains(log.String(), "level=WARN msg=\"connections can't")
	})
	for i := range 20 {
		if !probe() {
			t.Fatalf("probe %d has no answer: %s", i, log.String())
		}
	}
	if n := strings.Count(log.String(), "too many open files"); n > 20 {
		t.Errorf("%d lines of the log have the cause: %s", n, log.String())
	}
	for _, conn := range held {
		conn.Close()
	}
	await.Until(t, "an answered call", func() bool {
		response, err := unixClient(socket).Get("http://api/")
		if err != nil {
			return false
		}
		response.Body.Close()
		return true
	})
}
