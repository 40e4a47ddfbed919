package push_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem/edgememtest"
)

// TestModel changes a memory while pushes are lost, answered wrongly, applied without an answer, or applied long after
// their timeout, and memories are emptied. Between any two operations every object is whole and not older than before;
// at rest the edge's memory equals the sidecar's.
func TestModel(t *testing.T) {
	versions := uint64(3000)
	if testing.Short() {
		versions = 1000
	}
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := newModel(t, seed)
			for version := uint64(1); version < versions; version++ {
				m.step(version)
			}
			m.finish()
		})
	}
}

const modelKeys = 30

func key(i int) string { return fmt.Sprint("/", i) }

// model is a sidecar, a proxy that fails, and the memory's expected content.
type model struct {
	*testing.T
	proxy   *proxy
	sidecar *sidecar
	r       *rand.Rand
	want    map[int]uint64    // versions
	seen    [modelKeys]uint64 // versions that the reader saw

	mu     sync.Mutex // protects all below
	faults *rand.Rand
	calm   bool
	late   func() (int, []byte) // a push that timed out and is still to be applied
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{
		T: t, proxy: newProxy(t), want: map[int]uint64{},
		r: rand.New(rand.NewPCG(seed, 1)), faults: rand.New(rand.NewPCG(seed, 2)),
	}
	m.proxy.AfterOp, m.proxy.fault = m.read, m.fault
	m.sidecar = start(t, m.proxy.socket)
	return m
}

// read looks everything up, as a reader might do between any two operations.
func (m *model) read() {
	for i := range modelKeys {
		f, err := m.proxy.LockedObject(key(i))
		switch {
		case err == nil && string(f.Bodies[0]) != fmt.Sprintf("%s %d", key(i), f.Version):
			m.Errorf("%s version %d has body %q", key(i), f.Version, f.Bodies[0])
		case err == nil && f.Version < m.seen[i]:
			m.Errorf("%s went from version %d to %d", key(i), m.seen[i], f.Version)
		case err == nil:
			m.seen[i] = f.Version
		case !errors.Is(err, wire.ErrNotFound) || errors.Is(err, edgememtest.ErrTorn):
			m.Errorf("%s: %v", key(i), err)
		}
	}
}

// fault makes about one push in three fail.
func (m *model) fault(w http.ResponseWriter, apply func() (int, []byte)) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.calm {
		return false
	}
	if m.late != nil && m.faults.IntN(8) == 0 {
		m.late()
		m.late = nil
	}
	switch m.faults.IntN(12) {
	case 0: // lost
		panic(http.ErrAbortHandler)
	case 1: // applied, but the answer is lost
		apply()
		panic(http.ErrAbortHandler)
	case 2:
		http.Error(w, "no worker", http.StatusServiceUnavailable)
		return true
	case 3:
		m.proxy.Forget()
	case 4: // in place of a timeout; a batch whose connection the edge has closed is never applied later
		m.late = apply
		http.Error(w, "too late", http.StatusGatewayTimeout)
		return true
	}
	return false
}

// step changes the memory, and sometimes waits for the pusher.
func (m *model) step(version uint64) {
	i := m.r.IntN(modelKeys)
	switch m.r.IntN(8) {
	case 0:
		m.sidecar.DeleteObject(key(i))
		delete(m.want, i)
	case 1:
		m.sidecar.PutVerdict(key(i), "s", wire.Verdict{Outcome: wire.Allow,
			ExpiresMS: time.Now().Add(time.Hour).UnixMilli()}, false)
	case 2:
		m.sidecar.DropVerdicts(key(i))
	default:
		m.sidecar.PutObject(new(object(key(i), version)))
		m.want[i] = version
	}
	if version%100 == 0 {
		pushes := func() float64 { return metricstest.Value(m, m.sidecar.metrics, "gatehouse_pushes_total") }
		before := pushes()
		await.Until(m.T, "pushes go on", func() bool { return pushes() > before })
	}
}

// finish ends the faults, and compares.
func (m *model) finish() {
	m.mu.Lock()
	m.calm = true
	m.mu.Unlock()
	await.Until(m.T, "the edge's memory is the sidecar's", func() bool {
		for i := range modelKeys {
			if m.proxy.version(key(i)) != m.want[i] {
				return false
			}
		}
		return m.sidecar.Ready() == nil
	})
	if metricstest.Value(m, m.sidecar.metrics, "gatehouse_epochs_total") < 3 {
		m.Error("hardly any failures: the test shows nothing")
	}
}
