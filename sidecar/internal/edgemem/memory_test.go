package edgemem_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
)

// TestMemoryOfFurtherEdges bounds the heap of an edge beside others, before anything was pushed to the edge, and after
// everything was; batches are smaller the more edges there are.
func TestMemoryOfFurtherEdges(t *testing.T) {
	const objects, edges, most, mostBatch = 50_000, 40, 96 << 10, 110 << 10
	m := edgemem.New(edgemem.Config{Objects: objects, Shards: 1})
	for i := range objects {
		m.PutObject(new(object(fmt.Sprint("/v1/products/", i), 3, 100)))
	}
	heap := func() int {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return int(s.HeapAlloc)
	}
	before := heap()
	all := make([]*edgemem.Edge, edges)
	for i := range all {
		all[i] = m.AddEdge()
		all[i].Reset(nil)
	}
	if each := (heap() - before) / edges; each > most {
		t.Errorf("an edge without anything takes %d bytes, want at most %d", each, most)
	}
	largest := 0
	for _, e := range all {
		var batch []byte
		for more := true; more; {
			var taken edgemem.BatchInfo
			batch, taken = e.TakeBatch(batch)
			e.MarkAcked()
			largest = max(largest, len(batch))
			more = taken.More
		}
	}
	if each := (heap() - before) / edges; each > most {
		t.Errorf("an edge with all objects takes %d bytes, want at most %d", each, most)
	}
	if largest > mostBatch {
		t.Errorf("the largest batch of %d edges has %d bytes, want at most %d", edges, largest, mostBatch)
	}
	runtime.KeepAlive(all)
}
