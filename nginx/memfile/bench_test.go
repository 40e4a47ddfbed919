//go:build linux

package memfile

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/native-filter/memory"
)

var lengths = []struct {
	name   string
	length int
}{{"100B", 100}, {"1KiB", 1 << 10}, {"48KiB", 48 << 10}}

// BenchmarkRecord reads one record again and again, or 1,000 records with scattered pages.
func BenchmarkRecord(b *testing.B) {
	for _, l := range lengths {
		for _, places := range []int{1, 1000} {
			b.Run(fmt.Sprintf("%s/%d", l.name, places), func(b *testing.B) {
				f := scattered(b, l.length, places)
				b.SetBytes(int64(l.length))
				b.ResetTimer()
				for i := range b.N {
					if f.Record(wire.RegionBodies, uint32(i%places)) == nil {
						b.Fatal("no record")
					}
				}
			})
			b.Run(fmt.Sprintf("%s/%d/heap", l.name, places), func(b *testing.B) { // what native-filter has
				var s memory.Store
				for i := range places {
					s.SetRecord(wire.RegionBodies, uint32(i), make([]byte, l.length))
				}
				var scratch []byte
				b.SetBytes(int64(l.length))
				b.ResetTimer()
				for i := range b.N {
					scratch = append(scratch[:0], s.Record(wire.RegionBodies, uint32(i%places))...)
				}
			})
		}
	}
}

func BenchmarkSetRecord(b *testing.B) {
	for _, l := range lengths {
		b.Run(l.name, func(b *testing.B) {
			f := scattered(b, l.length, 1000)
			record := make([]byte, l.length)
			b.SetBytes(int64(l.length))
			b.ResetTimer()
			for i := range b.N {
				require.NoError(b, f.SetRecord(wire.RegionBodies, uint32(i%1000), record))
			}
		})
	}
}

// BenchmarkRepair is what a killed writer, or a restart of nginx, costs with the sidecar's default settings.
func BenchmarkRepair(b *testing.B) {
	f := scattered(b, 2000, 100_000)
	for b.Loop() {
		f.repair()
	}
}

// scattered returns a file with records, whose pages lie in no order.
func scattered(b *testing.B, length, places int) *File {
	f, err := Open(filepath.Join(b.TempDir(), "memory"), 400<<20)
	require.NoError(b, err)
	b.Cleanup(func() { f.Close() })
	order := make([]uint32, 100_000)
	for i, at := range rand.Perm(len(order)) {
		order[i] = uint32(at)
		f.SetRecord(wire.RegionObjects, uint32(i), make([]byte, pageSize-lengthSize))
	}
	if places > 1 {
		for _, at := range order {
			f.SetRecord(wire.RegionObjects, at, nil)
		}
	}
	for i := range places {
		require.NoError(b, f.SetRecord(wire.RegionBodies, uint32(i), make([]byte, length)))
	}
	return f
}
