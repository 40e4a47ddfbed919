package memory

import (
	"bytes"
	"encoding/binary"
	"sync"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
)

func TestRecords(t *testing.T) {
	var s Store
	regions := []wire.Region{wire.RegionObjects, wire.RegionBodies, wire.RegionVerdicts, 0xff} // the last is the guard's
	for _, region := range regions {
		for _, index := range []uint32{0, 1, pageSize - 1, pageSize, MaxIndex} {
			if got := s.Record(region, index); got != nil {
				t.Errorf("%s %d: got %q before the first write, want nil", region, index, got)
			}
			record := binary.LittleEndian.AppendUint32([]byte{byte(region)}, index)
			if err := s.SetRecord(region, index, record); err != nil {
				t.Error(err)
			}
			want := bytes.Clone(record)
			clear(record) // it belongs to the writer
			if got := s.Record(region, index); !bytes.Equal(got, want) {
				t.Errorf("%s %d: got %x, want %x", region, index, got, want)
			}
		}
	}
	if s.Guard() != 0 {
		t.Errorf("guard: got %d, want 0", s.Guard())
	}
	s.AddGuard(255)
	s.AddGuard(-5)
	if s.Guard() != 250 {
		t.Errorf("guard: got %d, want 250", s.Guard())
	}
}

// TestReadersHoldRecords reads a record, overwrites the place, and still has the old record.
func TestReadersHoldRecords(t *testing.T) {
	var s Store
	for _, text := range []string{"first", "second"} {
		require.NoError(t, s.SetRecord(wire.RegionObjects, 7, []byte(text)))
		if text == "first" {
			held := s.Record(wire.RegionObjects, 7)
			defer func() {
				if string(held) != "first" {
					t.Errorf("got %q, want the record as it was read", held)
				}
			}()
		}
	}
	if got := s.Record(wire.RegionObjects, 7); string(got) != "second" {
		t.Errorf("got %q, want the second record", got)
	}
}

func TestBounds(t *testing.T) {
	var s Store
	for _, region := range []wire.Region{wire.RegionObjects, wire.RegionBodies, wire.RegionVerdicts} {
		for _, index := range []uint32{MaxIndex + 1, 1<<32 - 1} {
			if err := s.SetRecord(region, index, []byte("x")); err == nil {
				t.Errorf("%s %d: got no error beyond the greatest index", region, index)
			}
			if got := s.Record(region, index); got != nil {
				t.Errorf("%s %d: got %q, want nil", region, index, got)
			}
		}
	}
}

func TestState(t *testing.T) {
	var s Store
	if record, number := s.State(); record != nil || number != 0 {
		t.Errorf("got %q, %d, want none", record, number)
	}
	if !s.SetState([]byte("a"), 0) {
		t.Error("unconditional write refused")
	}
	record, number := s.State()
	if string(record) != "a" || number == 0 {
		t.Errorf("got %q, %d", record, number)
	}
	if !s.SetState([]byte("b"), number) {
		t.Error("write with the current number refused")
	}
	if s.SetState([]byte("c"), number) {
		t.Error("write with an overtaken number accepted")
	}
	if err := s.SetRecord(wire.RegionState, 0, []byte("d")); err != nil {
		t.Error(err)
	}
	if after, _ := s.State(); string(after) != "d" || string(s.Record(wire.RegionState, 0)) != "d" {
		t.Errorf("got %q, want d", after)
	}
}

// TestOneWriterWins writes the state from many goroutines that all read the same number before.
func TestOneWriterWins(t *testing.T) {
	var s Store
	s.SetState([]byte("first"), 0)
	_, number := s.State()
	var group sync.WaitGroup
	wins := make(chan struct{}, 8)
	for range cap(wins) {
		group.Go(func() {
			if s.SetState([]byte("next"), number) {
				wins <- struct{}{}
			}
		})
	}
	group.Wait()
	if len(wins) != 1 {
		t.Errorf("%d writers won, want 1", len(wins))
	}
}

// TestWholeRecords reads while records are written, whose bytes are all the same: a reader must never see a mixture.
func TestWholeRecords(t *testing.T) {
	var s Store
	const places, writes = 4 * pageSize, 20_000
	var group sync.WaitGroup
	for w := range 2 {
		group.Go(func() {
			for i := range writes {
				index := uint32(i*(w+1)) % places
				if err := s.SetRecord(wire.RegionVerdicts, index, bytes.Repeat([]byte{byte(i)}, 64)); err != nil {
					t.Error(err)
				}
			}
		})
		group.Go(func() {
			for i := range writes {
				record := s.Record(wire.RegionVerdicts, uint32(i)%places)
				if record != nil && (len(record) != 64 || bytes.Count(record, record[:1]) != 64) {
					t.Errorf("got a mixture: %x", record)
					return
				}
			}
		})
	}
	group.Wait()
}

func TestReadsAllocateNothing(t *testing.T) {
	var s Store
	require.NoError(t, s.SetRecord(wire.RegionObjects, 5, []byte("record")))
	s.SetState([]byte("state"), 0)
	allocs := testing.AllocsPerRun(100, func() {
		s.Record(wire.RegionObjects, 5)
		s.Record(wire.RegionObjects, 1<<20)
		s.State()
		s.Guard()
	})
	if allocs != 0 {
		t.Errorf("got %v allocations, want none", allocs)
	}
}
