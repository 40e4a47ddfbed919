package edgemem_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
)

// TestPropagation measures from a write to the acknowledgement of the write's batch.
func TestPropagation(t *testing.T) {
	const (
		ms   = time.Millisecond
		long = time.Hour
	)
	allow := wire.Verdict{Outcome: wire.Allow, ExpiresMS: time.Now().Add(1000 * long).UnixMilli()}
	for _, tt := range []struct {
		name string
		run  func(m edge)
		want []time.Duration
	}{
		{"one object", func(m edge) {
			m.ApplyLive(time.Now(), func() { m.PutObject(new(object("/a", 1, 10))) })
			time.Sleep(3 * ms)
			m.TakeBatch(nil)
			time.Sleep(2 * ms)
			m.MarkAcked()
			time.Sleep(long)
			m.TakeBatch(nil)
			m.MarkAcked()
		}, []time.Duration{5 * ms}},
		{"two in one batch, and a deletion in the next one", func(m edge) {
			m.ApplyLive(time.Now(), func() { m.PutObject(new(object("/a", 1, 10))) })
			time.Sleep(ms)
			m.ApplyLive(time.Now(), func() { m.PutObject(new(object("/b", 1, 10))) })
			m.TakeBatch(nil)
			m.ApplyLive(time.Now(), func() { m.DeleteObject("/a") })
			time.Sleep(ms)
			m.MarkAcked()
			time.Sleep(ms)
			m.TakeBatch(nil)
			m.MarkAcked()
		}, []time.Duration{2 * ms, ms, 2 * ms}},
		{"a revocation", func(m edge) {
			m.PutVerdict("d", "s", allow, true)
			m.TakeBatch(nil)
			m.MarkAcked()
			m.ApplyLive(time.Now(), func() { m.DropVerdicts("d") })
			time.Sleep(ms)
			m.TakeBatch(nil)
			m.MarkAcked()
		}, []time.Duration{ms}},
		{"Redis's clock is ahead", func(m edge) {
			m.ApplyLive(time.Now().Add(long), func() { m.PutObject(new(object("/a", 1, 10))) })
			m.TakeBatch(nil)
			m.MarkAcked()
		}, []time.Duration{0}},
		{"not live", func(m edge) {
			m.PutObject(new(object("/a", 1, 10)))
			m.TakeBatch(nil)
			m.MarkAcked()
		}, nil},
		{"no change", func(m edge) {
			m.ApplyLive(time.Now(), func() { m.DeleteObject("/a") })
			time.Sleep(long) // a heartbeat is not its acknowledgement
			m.TakeBatch(nil)
			m.MarkAcked()
		}, nil},
		{"taken while it was applied", func(m edge) {
			m.ApplyLive(time.Now(), func() { m.PutObject(new(object("/a", 1, 10))); m.TakeBatch(nil) })
			time.Sleep(ms)
			m.MarkAcked()
		}, []time.Duration{ms}},
		{"acknowledged while it was applied", func(m edge) {
			m.ApplyLive(time.Now(), func() {
				m.PutObject(new(object("/a", 1, 10)))
				m.TakeBatch(nil)
				time.Sleep(ms)
				m.MarkAcked()
			})
			time.Sleep(long)
			m.TakeBatch(nil)
			m.MarkAcked()
		}, []time.Duration{ms}},
		{"behind a body that fills a batch", func(m edge) {
			m.PutObject(new(object("/large", 1, 300<<10)))
			m.ApplyLive(time.Now(), func() { m.PutObject(new(object("/a", 1, 10))) })
			for more := true; more; {
				_, taken := m.TakeBatch(nil)
				time.Sleep(ms)
				m.MarkAcked()
				more = !taken.Drained
			}
		}, []time.Duration{3 * ms}},
		{"pushed again after the edge was lost", func(m edge) {
			m.ApplyLive(time.Now(), func() { m.PutObject(new(object("/a", 1, 10))) })
			m.TakeBatch(nil)
			time.Sleep(ms)
			m.Reset(&wire.State{Epoch: 1, ObjectBuckets: 600}) // the first batch blanks these
			for more := true; more; {
				_, taken := m.TakeBatch(nil)
				time.Sleep(ms)
				m.MarkAcked()
				more = !taken.Drained
			}
		}, []time.Duration{3 * ms}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got []time.Duration
				m := newEdge(edgemem.Config{Objects: 4, Verdicts: 4,
					Propagation: prometheus.ObserverFunc(func(seconds float64) {
						got = append(got, time.Duration(seconds*float64(time.Second)).Round(time.Microsecond))
					})})
				m.Reset(nil)
				for more := true; more; {
					_, taken := m.TakeBatch(nil)
					m.MarkAcked()
					more = taken.More
				}
				tt.run(m)
				if !slices.Equal(got, tt.want) {
					t.Errorf("got %v, want %v", got, tt.want)
				}
			})
		})
	}
}
