package main

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/snapshot"
)

// TestStartFromSnapshot: after a start from a snapshot an edge has what it has after a full read, for a tenth of the
// bytes from Redis, or with more objects less. The end-to-end TestMillionFromSnapshot measures the time.
func TestStartFromSnapshot(t *testing.T) {
	f := startFleet(t, 2000)
	f.pid = f.readInfo("server", "process_id")
	start := func() (sent int) {
		t.Helper()
		before, begin := f.readUsage(), time.Now()
		f.startFollowers(1)
		x := f.followers[0]
		<-x.group.Synced()
		synced := time.Since(begin)
		took := f.awaitInStep(begin, fleetLate)[0]
		u := f.readUsage().since(before)
		t.Logf("snapshot %q: sidecar in step after %v, edge after %v; %d bytes from Redis; CPU: Redis %v, both others %v",
			f.snapshot, synced, took, u.sent, u.redis, u.own)
		f.check()
		x.stop()
		f.followers = nil
		return u.sent
	}
	full := start()
	path, begin := filepath.Join(t.TempDir(), "snapshot"), time.Now()
	w, err := snapshot.Write(t.Context(), f.client, contract.Keyspace{}, path)
	require.NoError(t, err)
	t.Logf("%d bytes written in %v", w.Bytes, time.Since(begin))
	for i := range 100 {
		require.NoError(t, f.put(t.Context(), i))
	}
	f.remove(200)
	f.snapshot = path
	if sent := start(); sent*10 > full {
		t.Errorf("got %d bytes, want a tenth of %d", sent, full)
	}
}
