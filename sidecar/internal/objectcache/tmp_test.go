package objectcache_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/objectcache"
)

func TestTmp(t *testing.T) {
	im := edgemem.New(edgemem.Config{Objects: 200000, Verdicts: 10})
	im.Reset(nil)
	cache, err := objectcache.New(objectcache.Config{Bytes: 1 << 30, Objects: 200000}, im, metrics.New(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	seq := uint64(0)
	put := func(i int) {
		seq++
		o := tagged(fmt.Sprintf("/v1/products/%d", i), seq, seq)
		if i%10 == 0 {
			o.Tags = []string{"t"}
		}
		o.PublishedMS = time.Now().UnixMilli()
		cache.Apply(o)
	}
	buf := []byte{}
	drain := func() (batches, ops, bytes int, took time.Duration) {
		for more := true; more; {
			var taken edgemem.Taken
			begin := time.Now()
			buf, taken = im.Take(buf)
			im.Acked()
			took += time.Since(begin)
			batches++
			ops += taken.Ops
			bytes += len(buf)
			more = !taken.Drained
		}
		return
	}
	for i := range 100000 {
		put(i)
	}
	drain()
	for range 8 {
		seq++
		begin := time.Now()
		cache.Purges(0).Apply(hard("#t", seq, seq))
		applied := time.Since(begin)
		b, o, n, took := drain()
		t.Logf("apply %v; %d batches, %d ops, %d bytes in %v", applied, b, o, n, took)
		for i := 0; i < 100000; i += 10 {
			put(i)
		}
		drain()
	}
}
