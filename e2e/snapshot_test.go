package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	awaiting "github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/snapshot"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestMillionFromSnapshot starts a sidecar with a million objects of 1 KiB from a snapshot, and from Redis alone.
func TestMillionFromSnapshot(t *testing.T) {
	leaveToLongForm(t, "TestStartFromSnapshot of gatehouse-sidecar")
	const objects = 1_000_000
	path := filepath.Join(t.TempDir(), "snapshot")
	e := start(t, stack.Options{SidecarArgs: []string{"--memory.bytes=4GiB", fmt.Sprint("--memory.objects=", objects+1000),
		"--redis.snapshot=" + path}})
	body := []byte(strings.Repeat("x", 1<<10))
	e.putAll(objects, func(i int) publish.Object {
		return publish.Object{Key: fmt.Sprint("/v1/products/", i), Body: body, ContentType: "image/png"}
	})
	await(t, "the edge has all objects", 5*time.Minute, func() error {
		got, waiting := e.metric("gatehouse_edge_memory_objects"), e.metric("gatehouse_edge_memory_dirty_buckets")
		if got != objects || waiting != 0 {
			return fmt.Errorf("got %v, %v buckets wait", got, waiting)
		}
		return nil
	})
	_, err := snapshot.Write(t.Context(), e.redis, contract.Keyspace{}, path)
	require.NoError(t, err)
	for _, from := range []string{"the snapshot", "Redis alone"} {
		require.NoError(t, e.KillSidecar())
		late := awaiting.Late(t)
		require.NoError(t, e.StartSidecar(t.Context())) // until the edge is up to date
		began := e.logged("gatehouse sidecar starts")
		sidecar, edge := e.logged("in step with redis").Sub(began), e.logged("edge is up to date").Sub(began)
		t.Logf("a start from %s: the sidecar has all objects after %v, the edge after %v; the sidecar's memory: %d KiB",
			from, sidecar, edge, peakMemory(t, e.SidecarPID()))
		if from == "the snapshot" && sidecar-late() > 15*time.Second {
			t.Errorf("a start from the snapshot took the sidecar %v, want 15 s", sidecar)
		}
		require.NoError(t, os.RemoveAll(path))
	}
}

// logged returns the time of the last line of the sidecar's log with this message.
func (e *edge) logged(message string) (at time.Time) {
	e.t.Helper()
	for line := range strings.Lines(e.readLog("sidecar")) {
		if text, rest, _ := strings.Cut(strings.TrimPrefix(line, "time="), " "); strings.Contains(rest, message) {
			var err error
			at, err = time.Parse(time.RFC3339, text)
			require.NoError(e.t, err)
		}
	}
	if at.IsZero() {
		e.t.Fatalf("the sidecar's log has no %q", message)
	}
	return at
}
