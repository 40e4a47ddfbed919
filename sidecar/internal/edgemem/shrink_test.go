package edgemem_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/shrink/shrinktest"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
)

// drain delivers all waiting batches.
func drain(m edge) {
	var buf []byte
	for {
		batch, taken := m.TakeBatch(buf)
		m.MarkAcked()
		if buf = batch; taken.Drained {
			return
		}
	}
}

// TestDroppedObjectIsFree drops objects from the beginning, the middle and the end of a bucket, of each length.
func TestDroppedObjectIsFree(t *testing.T) {
	for length := 1; length <= 4; length++ {
		for drop := range length {
			t.Run(fmt.Sprintf("%d of %d", drop, length), func(t *testing.T) {
				m := newEdge(edgemem.Config{Objects: 1, Verdicts: 1}) // one bucket
				m.Reset(nil)
				var dropped weak.Pointer[contract.Object]
				for i := range length {
					o := &contract.Object{Key: fmt.Sprint("/", i), Bodies: []contract.Body{{Bytes: make([]byte, 1<<10)}}}
					if m.PutObject(o); i == drop {
						dropped = weak.Make(o)
					}
				}
				drain(m)
				m.DeleteObject(fmt.Sprint("/", drop))
				drain(m)
				if runtime.GC(); dropped.Value() != nil {
					t.Error("the memory still holds the dropped object")
				}
				runtime.KeepAlive(m)
			})
		}
	}
}

// TestMemoryIsGivenBack fills the memory and empties it.
func TestMemoryIsGivenBack(t *testing.T) {
	const n = 20_000
	key := func(i int) string { return fmt.Sprint("/v1/products/", i) }
	device := func(i int) string { return fmt.Sprint("device-", i) }
	m := newEdge(edgemem.Config{Objects: n, Verdicts: n})
	m.Reset(nil)
	drain(m)
	tests := []struct {
		name      string
		add, drop func(i int)
	}{
		{"objects", func(i int) {
			m.PutObject(&contract.Object{Key: key(i), Bodies: []contract.Body{{}}})
		}, func(i int) { m.DeleteObject(key(i)) }},
		{"devices", func(i int) { _ = m.PutDevice(device(i), true) }, func(i int) { m.DropDevice(device(i)) }},
		{"verdicts", func(i int) {
			m.PutVerdict(device(i), "s", wire.Verdict{Outcome: wire.Allow,
				ExpiresMS: time.Now().Add(time.Hour).UnixMilli()}, false)
		}, func(i int) { m.DropVerdicts(device(i)) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			each := func(do func(i int)) func() {
				return func() {
					for i := range n {
						do(i)
					}
					drain(m)
				}
			}
			shrinktest.GivesBack(t, each(tt.add), each(tt.drop))
		})
	}
	runtime.KeepAlive(m)
}
