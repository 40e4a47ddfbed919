package publish

import (
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// crowd is a writer that counts how many write at a time, and all.
type crowd struct{ running, most, all *atomic.Int64 }

func (c crowd) Reset(io.Writer) {}
func (c crowd) Close() error    { return nil }
func (c crowd) Write(p []byte) (int, error) {
	n := c.running.Add(1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
	}
	for range 1000 {
		runtime.Gosched()
	}
	c.running.Add(-1)
	c.all.Add(1)
	return len(p), nil
}

// TestManyLargeBodies: however many large bodies are published, no more are encoded at a time than there are encoders.
func TestManyLargeBodies(t *testing.T) {
	var running, most, all atomic.Int64
	var before []encoders
	for len(idleEncoders) > 0 { // of other tests
		before = append(before, <-idleEncoders)
	}
	for range cap(idleEncoders) {
		e, err := newEncoders()
		require.NoError(t, err)
		e.brotli = crowd{&running, &most, &all}
		idleEncoders <- e
	}
	defer func() {
		for len(idleEncoders) > 0 {
			<-idleEncoders
		}
		for _, e := range before {
			idleEncoders <- e
		}
	}()
	n := 8 * cap(idleEncoders)
	var group sync.WaitGroup
	for range n {
		group.Add(1)
		go func() {
			defer group.Done()
			if _, err := encodeBody(make([]byte, smallBody), "text/plain"); err != nil {
				t.Error(err)
			}
		}()
	}
	group.Wait()
	if all.Load() != int64(n) || most.Load() < 1 || most.Load() > int64(cap(idleEncoders)) {
		t.Errorf("%d bodies, %d at a time; want %d, 1 to %d", all.Load(), most.Load(), n, cap(idleEncoders))
	}
}
