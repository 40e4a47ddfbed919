package edgemem_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/nginx/memfile"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/objectcache"
)

// TestRoom fills the budget with small objects, and then publishes large ones again and again, each time after a
// restart of the sidecar. The edge, whose memory has little more room than the budget, must never refuse a push.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const budget, objects = 16 << 20, 4000
		edge, err := memfile.Open(filepath.Join(t.TempDir(), "memory"), memfile.SizeFor(budget, objects, 1000))
		require.NoError(t, err)
		defer edge.Close()
		var peak int64
		for restart := range 3 {
			memory := newEdge(edgemem.Config{Objects: objects, Verdicts: 1000})
			config := objectcache.Config{Bytes: budget, Objects: objects, Shards: 1}
			cache, err := objectcache.New(config, memory, metrics.New(), slog.New(slog.DiscardHandler))
			require.NoError(t, err)
			memory.Reset(nil)
			if before, err := wire.ParseState(edge.Record(wire.RegionState, 0)); err == nil {
				memory.Reset(&before)
			}
			push := func(d time.Duration) {
				var buf []byte
				for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Millisecond) {
					taken := edgemem.BatchInfo{More: true}
					for taken.More && time.Now().Before(end) {
						buf, taken = memory.TakeBatch(buf)
						apply(t, edge, buf)
						used, _ := edge.Usage()
						peak = max(peak, used)
						memory.MarkAcked()
						time.Sleep(time.Millisecond)
					}
				}
			}
			publish := func(name string, version uint64, n, size int) {
				for i := range n {
					cache.Apply(contract.Object{
						Key: fmt.Sprintf("/%d/%s/%d", restart, name, i), Version: version, ETag: `"x"`, ContentType: "text/plain",
						PublishedMS: time.Now().UnixMilli(), Bodies: []contract.Body{{Bytes: bytes.Repeat([]byte{byte(version)}, size)}},
					})
				}
			}
			if restart == 0 {
				publish("small", 1, budget/4400, 4000)
				push(2 * time.Second)
				continue
			}
			for version := range uint64(8) { // each before the edge has all of the last one
				publish("large", version+1, 14, 1_000_000)
				push(10 * time.Millisecond)
			}
			push(time.Second)
			publish("middle", 1, 300, 50_000)
			push(20 * time.Millisecond)
		}
		_, most := edge.Usage()
		t.Logf("a budget of %d bytes took %d, of %d", budget, peak, most)
	})
}

func apply(t *testing.T, edge *memfile.File, bytes []byte) {
	t.Helper()
	batch, err := wire.ParseBatch(bytes)
	require.NoError(t, err)
	for op := range batch.Ops() {
		if err := edge.SetRecord(op.Region, op.Index, op.Record); err != nil {
			t.Fatalf("%s %d: %v", op.Region, op.Index, err)
		}
	}
}
