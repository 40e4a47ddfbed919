package objectcache_test

import (
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/objectcache"
)

// TestMemory holds many objects of 1 KiB, as read from Redis, and measures their heap.
func TestMemory(t *testing.T) {
	const objects = 100_000
	im := edgemem.New(edgemem.Config{Objects: objects, Verdicts: objects})
	edge := im.AddEdge()
	edge.Reset(nil)
	m, err := objectcache.New(objectcache.Config{Bytes: 256 << 20, Objects: objects, Shards: 1},
		im, metrics.New(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	heap := func() uint64 {
		debug.FreeOSMemory()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before := heap()
	body := strings.Repeat("x", 1<<10)
	buf := []byte{}
	for i := range objects {
		key := fmt.Sprint("/v1/products/", i)
		o, err := contract.ParseObject(map[string]string{
			"version": "1", "published": "1700000000000", "etag": fmt.Sprintf(`"%032x"`, i),
			"content-type": "application/json", "body": body,
		})
		require.NoError(t, err)
		o.Key = key
		m.Apply(o)
		if i%1000 == 0 {
			buf, _ = edge.TakeBatch(buf)
			edge.MarkAcked()
		}
	}
	for more := true; more; {
		var taken edgemem.BatchInfo
		buf, taken = edge.TakeBatch(buf)
		edge.MarkAcked()
		more = taken.More && !taken.Drained
	}
	each := float64(heap()-before) / objects
	t.Logf("%.0f bytes of heap for each object of 1 KiB", each)
	// In addition an eighth of the resident memory is garbage, see gcPercent in the sidecar's main package.
	if most := 1750.0; each > most {
		t.Errorf("got %.0f bytes, want at most %.0f", each, most)
	}
	runtime.KeepAlive(m)
	runtime.KeepAlive(im)
}
