package edgemem_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem/edgememtest"
)

// edge is a memory with one edge.
type edge struct {
	*edgemem.Memory
	*edgemem.Edge
}

func newEdge(c edgemem.Config) edge {
	m := edgemem.New(c)
	return edge{m, m.AddEdge()}
}

// object returns a version of key whose bodies have key and version as their content.
func object(key string, version uint64, size int) contract.Object {
	o := contract.Object{
		Key: key, Version: version, PublishedMS: int64(version) * 10, TTLMS: int64(version % 3),
		ETag: fmt.Sprintf(`"%d"`, version), ContentType: "text/plain",
		Status: []int{0, 404, 410}[version%3], Headers: contract.Headers("x-version: " + key),
	}
	for e := range wire.Encoding(1 + version%3) {
		o.Bodies = append(o.Bodies, contract.Body{Encoding: e, Bytes: body(key, version, e, size)})
	}
	return o
}

func body(key string, version uint64, e wire.Encoding, size int) []byte {
	line := fmt.Appendf(nil, "%s version %d %s\n", key, version, e)
	return bytes.Repeat(line, size/len(line)+1)
}

// check returns an error unless the edge found a whole version of key.
func check(f edgememtest.Found, key string, size int) error {
	want := object(key, f.Version, size)
	if f.Key != key || f.ETag != want.ETag || f.ContentType != want.ContentType ||
		int(f.Status) != want.Status || f.Headers != string(want.Headers) ||
		f.PublishedMS != want.PublishedMS || f.TTLMS != uint64(want.TTLMS) || len(f.Bodies) != len(want.Bodies) {
		return fmt.Errorf("%q: found %+v, want %+v", key, f.Object, want)
	}
	for i, b := range f.Bodies {
		if !bytes.Equal(b, want.Bodies[i].Bytes) {
			return fmt.Errorf("%q version %d: wrong bytes: %.60q", key, f.Version, b)
		}
	}
	return nil
}

// push applies all waiting batches to the memory.
func push(t *testing.T, m edge, memory *edgememtest.Memory) {
	t.Helper()
	for {
		batch, taken := m.TakeBatch(nil)
		if status, answer := memory.Apply(batch); status != http.StatusOK {
			t.Fatalf("apply: %d %s", status, answer)
		}
		m.MarkAcked()
		if !taken.More {
			return
		}
	}
}

func TestResetBlanksWhatAnotherEpochLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := edgememtest.NewMemory()
		before := newEdge(edgemem.Config{Objects: 400, Verdicts: 400})
		before.Reset(nil)
		for i := range 300 {
			before.PutObject(new(object(fmt.Sprintf("/old/%d", i), 1, 2000)))
			before.PutVerdict(fmt.Sprint(i), "s", wire.Verdict{Outcome: wire.Allow,
				ExpiresMS: time.Now().Add(time.Hour).UnixMilli()}, false)
		}
		push(t, before, memory)
		state, _ := memory.State()

		after := newEdge(edgemem.Config{Objects: 4, Verdicts: 4})
		after.PutObject(new(object("/new", 1, 10)))
		after.Reset(&state)
		push(t, after, memory)
		time.Sleep(2 * time.Second)
		push(t, after, memory)
		if _, excess := memory.Size(); excess > 1000 {
			t.Errorf("%d bytes are left in the memory", excess)
		}
		if f, err := memory.Object("/new"); err != nil || f.Version != 1 {
			t.Errorf("Object = %v, %v", f, err)
		}
		if got, _ := memory.State(); got.BodySlots != state.BodySlots {
			t.Errorf("BodySlots = %d, want %d as before", got.BodySlots, state.BodySlots)
		}
	})
}

func TestInStepIsNeverAheadOfChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, memory := newEdge(edgemem.Config{Objects: 4000}), edgememtest.NewMemory()
		m.Reset(nil)
		start := time.Now()
		inStep := func() time.Duration {
			state, _ := memory.State()
			return time.UnixMilli(state.InStepMS).Sub(start)
		}
		deliver := func() {
			batch, _ := m.TakeBatch(nil)
			memory.Apply(batch)
			m.MarkAcked()
		}
		for i := range 3000 {
			m.PutObject(new(object(fmt.Sprint("/", i), 1, 10)))
		}
		m.SetInStep(start.Add(time.Second))
		deliver()
		if got := inStep(); got >= 0 {
			t.Errorf("in step at %v after one batch of many, want not yet", got)
		}
		// New changes keep coming; what waited at SetInStep is still sent at some time.
		batches := 0
		for version := uint64(2); inStep() < time.Second; version++ {
			for i := range 400 {
				m.PutObject(new(object(fmt.Sprint("/more/", i), version, 10)))
			}
			m.SetInStep(start.Add(time.Duration(version) * time.Second))
			deliver()
			if batches++; batches > 100 {
				t.Fatalf("in step at %v after %d batches", inStep(), batches)
			}
		}
		if m.Memory.Stats().DirtyBuckets == 0 {
			t.Error("nothing waits: the test shows nothing")
		}
		push(t, m, memory)
		m.SetInStep(start.Add(time.Hour))
		deliver()
		if got := inStep(); got != time.Hour {
			t.Errorf("in step at %v after all was taken, want 1h", got)
		}
		// A new epoch begins with a time that is true for all writes of the epoch.
		state, _ := memory.State()
		m.Reset(&state)
		m.SetInStep(start.Add(2 * time.Hour))
		deliver()
		if got := inStep(); got != time.Hour {
			t.Errorf("in step at %v after a reset, want 1h", got)
		}
	})
}

// TestDetachedEdgeHoldsNothing: slots and purges don't wait for an edge whose pushes fail.
func TestDetachedEdgeHoldsNothing(t *testing.T) {
	m := edgemem.New(edgemem.Config{Objects: 4, Shards: 1})
	live, lost := edge{m, m.AddEdge()}, edge{m, m.AddEdge()}
	memory := edgememtest.NewMemory()
	live.Reset(nil)
	lost.Reset(nil)
	m.PutObject(new(object("/a", 1, 10)))
	push(t, live, memory)
	push(t, lost, edgememtest.NewMemory())
	bodies := m.Stats().Slots
	end := m.BeginPurge(0, "/", false)
	m.PutObject(new(object("/a", 4, 10))) // as many bodies as before
	end()
	push(t, live, memory)
	lost.Detach()
	if s := m.Stats(); s.FreeSlots != s.Slots-bodies {
		t.Errorf("%d of %d slots are free, want all but %d: bodies wait for the lost edge", s.FreeSlots, s.Slots, bodies)
	}
	if state, _ := memory.State(); state.Purges != nil {
		t.Errorf("the edge still has %v", state.Purges)
	}
	for i := range wire.MaxPurges {
		if m.BeginPurge(0, fmt.Sprint("/", i, "/"), false) == nil {
			t.Fatalf("only %d purges can begin: the first waits for the lost edge", i)
		}
	}
}

func TestBodyOverTheBoundGoesAlone(t *testing.T) {
	m := newEdge(edgemem.Config{})
	m.Reset(nil)
	big := object("/big", 1, 10)
	for i := range big.Bodies {
		big.Bodies[i].Bytes = bytes.Repeat([]byte{'x'}, limits.MaxBody)
	}
	m.PutObject(new(big))
	memory := edgememtest.NewMemory()
	for {
		batch, taken := m.TakeBatch(nil)
		if len(batch) > limits.MaxBody+1000 {
			t.Fatalf("batch of %d bytes", len(batch))
		}
		memory.Apply(batch)
		m.MarkAcked()
		if taken.Drained {
			break
		}
	}
	if f, err := memory.Object("/big"); err != nil || len(f.Bodies) != len(big.Bodies) {
		t.Errorf("Object: %d bodies, %v", len(f.Bodies), err)
	}
}

// TestBodyOverTheBoundIsNotCrowdedOut sends verdicts, which go first, in each batch: an object that needs its own batch
// is still sent, as is the in-step time.
func TestBodyOverTheBoundIsNotCrowdedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newEdge(edgemem.Config{Verdicts: 1 << 10})
		m.Reset(nil)
		memory := edgememtest.NewMemory()
		push(t, m, memory)
		big := object("/big", 1, 10)
		big.Bodies[0].Bytes = bytes.Repeat([]byte{'x'}, limits.MaxBody)
		m.PutObject(new(big))
		m.PutObject(new(object("/behind", 1, 10)))
		inStep := time.Now()
		m.SetInStep(inStep)
		for i := 0; ; i++ {
			state, _ := memory.State()
			_, err := memory.Object("/behind")
			if err == nil && state.InStepMS == inStep.UnixMilli() {
				return
			}
			if i == 20 {
				t.Fatalf("%d batches, the edge is told of %d, and the object behind: %v", i, state.InStepMS, err)
			}
			m.PutVerdict(fmt.Sprint("d", i), "s", wire.Verdict{Outcome: wire.Allow,
				ExpiresMS: time.Now().Add(time.Minute).UnixMilli()}, false)
			batch, _ := m.TakeBatch(nil)
			memory.Apply(batch)
			m.MarkAcked()
			if _, err := memory.Verdict(fmt.Sprint("d", i-1), "s"); i > 0 && err != nil {
				t.Errorf("a verdict waits for more than two batches: %v", err)
			}
		}
	})
}

// TestAwait waits until the edge has a state of the epoch.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, memory := newEdge(edgemem.Config{}), edgememtest.NewMemory()
		for range 2 {
			reset(m, memory)
			done := make(chan uint64)
			go func() {
				epoch, err := m.AwaitEpoch(t.Context(), "d")
				if err != nil {
					t.Error(err)
				}
				done <- epoch
			}()
			synctest.Wait()
			select {
			case <-done:
				t.Fatal("AwaitEpoch returned before the epoch was acknowledged")
			default:
			}
			push(t, m, memory)
			if got := <-done; got != m.Epoch() {
				t.Errorf("AwaitEpoch = %x, want %x", got, m.Epoch())
			}
		}
	})
}

func TestStampsAreUnique(t *testing.T) {
	m := newEdge(edgemem.Config{})
	m.Reset(nil)
	stamps := map[uint64]bool{}
	for version := range uint64(50) {
		m.PutObject(new(object("/a", version+1, 10)))
		m.PutObject(new(object("/b", version+1, 10)))
		batch, _ := m.TakeBatch(nil)
		parsed, err := wire.ParseBatch(batch)
		if err != nil {
			t.Fatal(err)
		}
		m.MarkAcked()
		for op := range parsed.Ops() {
			if op.Region != wire.RegionBodies {
				continue
			}
			stamp := binary.LittleEndian.Uint64(op.Record[16:])
			if stamp != 0 && stamps[stamp] {
				t.Fatalf("stamp %d twice", stamp)
			}
			stamps[stamp] = true
		}
	}
}

func BenchmarkPutTake(b *testing.B) {
	m := newEdge(edgemem.Config{Objects: 100000})
	m.Reset(nil)
	objects := make([]contract.Object, 1000)
	for i := range objects {
		objects[i] = object(fmt.Sprint("/v1/products/", i), 1, 1000)
	}
	var buf []byte
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		m.PutObject(new(objects[i%len(objects)]))
		if i%100 == 99 {
			buf, _ = m.TakeBatch(buf)
			m.MarkAcked()
		}
	}
}
