package push_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
)

// TestHostileEdge pushes to an edge whose answers claim more than any edge has: the sidecar allocates by its own needs,
// and pushes everything as soon as the edge is a true one again.
func TestHostileEdge(t *testing.T) {
	state := func(s wire.State) []byte {
		s.Epoch = rand.Uint64() | 1
		return wire.AppendState(nil, &s)
	}
	large := wire.State{ObjectBuckets: math.MaxUint32, VerdictBuckets: math.MaxUint32, BodySlots: math.MaxUint32}
	for _, tt := range []struct {
		name   string
		answer func(w http.ResponseWriter, push int64)
	}{
		{"conflict with a large state", func(w http.ResponseWriter, _ int64) {
			w.WriteHeader(http.StatusConflict)
			w.Write(state(large))
		}},
		{"large state, every second push refused", func(w http.ResponseWriter, push int64) {
			if push%2 == 0 {
				w.WriteHeader(http.StatusBadRequest)
			}
			w.Write(state(large))
		}},
		{"state of many names", func(w http.ResponseWriter, _ int64) {
			record := state(large)
			binary.LittleEndian.PutUint16(record[2:], math.MaxUint16)
			w.WriteHeader(http.StatusConflict)
			w.Write(record)
		}},
		{"long answer", func(w http.ResponseWriter, _ int64) {
			w.Header().Set("Content-Length", strconv.Itoa(1<<40))
			w.WriteHeader(http.StatusConflict)
			for record := state(large); ; record = make([]byte, 1<<20) {
				if _, err := w.Write(record); err != nil {
					return
				}
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newProxy(t)
			var honest atomic.Bool
			var pushes atomic.Int64
			p.fault = func(w http.ResponseWriter, _ func() (int, []byte)) bool {
				if honest.Load() {
					return false
				}
				tt.answer(w, pushes.Add(1))
				return true
			}
			s := start(t, p.socket)
			s.PutObject(new(object("/a", 1)))
			before := new(runtime.MemStats)
			runtime.ReadMemStats(before)
			await.Until(t, "pushes", func() bool {
				return metricstest.Value(t, s.metrics, "gatehouse_pushes_total") >= 3
			})
			after := new(runtime.MemStats)
			runtime.ReadMemStats(after)
			if got := after.TotalAlloc - before.TotalAlloc; got > 64<<20 {
				t.Errorf("%d MiB allocated", got>>20)
			}
			honest.Store(true)
			await.Until(t, "the object", func() bool { return p.version("/a") == 1 })
		})
	}
}
