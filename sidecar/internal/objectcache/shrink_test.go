package objectcache_test

import (
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/shrink/shrinktest"
	"github.com/gatehouse/gatehouse/sidecar/internal/objectcache"
)

// TestReleasedBodiesAreFree releases an object in each way.
func TestReleasedBodiesAreFree(t *testing.T) {
	tests := map[string]func(f fixture){
		"deleted":  func(f fixture) { f.Apply(tombstone("/a", 2)) },
		"removed":  func(f fixture) { f.Remove("/a") },
		"replaced": func(f fixture) { f.Apply(object("/a", 2, 1)) },
		"evicted": func(f fixture) {
			for i := range 3000 { // more than the budget has room for
				f.Apply(object(fmt.Sprint("/", i), 1, 1<<10))
				f.Get(fmt.Sprint("/", i))
			}
		},
		"not in a full resync": func(f fixture) {
			f.Shard(0).BeginResync()
			f.Shard(0).EndResync()
		},
	}
	for name, release := range tests {
		t.Run(name, func(t *testing.T) {
			f := start(t, objectcache.Config{Shards: 1, Objects: 10_000})
			o := object("/a", 1, 64<<10)
			body := weak.Make(&o.Bodies[0])
			f.Apply(o)
			o = contract.Object{}
			f.Get("/a")
			if release(f); f.edge["/a"].Version == 1 {
				t.Fatal("the edge has it still")
			}
			if runtime.GC(); body.Value() != nil {
				t.Error("the cache still holds its bodies")
			}
			runtime.KeepAlive(f)
		})
	}
}

// noEdge holds nothing.
type noEdge struct{}

func (noEdge) Grow(int)                                  {}
func (noEdge) PutObject(*contract.Object)                {}
func (noEdge) DeleteObject(string)                       {}
func (noEdge) DeleteObjects([]string)                    {}
func (noEdge) MarkStale(string)                          {}
func (noEdge) BeginPurge(int, string, bool) (end func()) { return nil }

// TestCacheIsGivenBack fills the cache with objects, and deletes them in each way.
func TestCacheIsGivenBack(t *testing.T) {
	const n = 20_000
	key := func(i int) string { return fmt.Sprint("/v1/products/", i) }
	tests := map[string]func(f *objectcache.Cache){
		"removed": func(f *objectcache.Cache) {
			for i := range n {
				f.Remove(key(i))
			}
		},
		"not in a full resync": func(f *objectcache.Cache) {
			f.Shard(0).BeginResync()
			f.Shard(0).EndResync()
		},
		"tombstones expire": func(f *objectcache.Cache) {
			for i := range n {
				f.Apply(tombstone(key(i), 2))
			}
			time.Sleep(contract.TombstoneLife + time.Second)
			f.Sweep()
		},
	}
	for name, empty := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, err := objectcache.New(objectcache.Config{Bytes: 64 << 20, Objects: n, Shards: 1}, noEdge{},
					metrics.New(), slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				shrinktest.GivesBack(t, func() {
					for i := range n {
						f.Apply(object(key(i), 1, 100))
					}
				}, func() { empty(f) })
				runtime.KeepAlive(f)
			})
		})
	}
}
