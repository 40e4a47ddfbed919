package main

import (
	"path/filepath"
	"runtime/debug"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/snapshot"
)

// TestStartFromSnapshot: after a start from a snapshot an edge has what it has after a full read, for a hundredth of
// the bytes from Redis. In the long form, with a million objects, the edge is in step within ten seconds.
func TestStartFromSnapshot(t *testing.T) {
	objects, part, most := 1_000_000, 100, 10*time.Second
	if testing.Short() {
		objects, part, most = 2000, 10, fleetLate
	}
	f := startFleet(t, objects)
	f.pid = f.readInfo("server", "process_id")
	start := func() (took time.Duration, sent int) {
		t.Helper()
		debug.FreeOSMemory()
		before, begin := f.readUsage(), time.Now()
		f.startFollowers(1)
		x := f.followers[0]
		<-x.group.Synced()
		synced := time.Since(begin)
		took = f.awaitInStep(begin, fleetLate)[0]
		u := f.readUsage().since(before)
		t.Logf("snapshot %q: sidecar in step after %v, edge after %v; %d bytes from Redis; CPU: Redis %v, both others %v",
			f.snapshot, synced, took, u.sent, u.redis, u.own)
		f.check()
		x.stop()
		f.followers = nil
		return took, u.sent
	}
	_, full := start()
	path, begin := filepath.Join(t.TempDir(), "snapshot"), time.Now()
	w, err := snapshot.Write(t.Context(), f.client, contract.Keyspace{}, path)
	require.NoError(t, err)
	t.Logf("%d bytes written in %v", w.Bytes, time.Since(begin))
	for i := range 100 {
		require.NoError(t, f.put(t.Context(), i))
	}
	f.remove(200)
	f.snapshot = path
	late := await.Late(t)
	took, sent := start()
	if sent*part > full || took-late() > most {
		t.Errorf("got %d bytes in %v, want a %dth of %d in %v", sent, took, part, full, most)
	}
}
