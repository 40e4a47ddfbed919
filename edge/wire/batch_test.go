package wire

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"
)

// raw is an operation's write that copies rec.
func raw(rec []byte) func([]byte) []byte {
	return func(dst []byte) []byte { return append(dst, rec...) }
}

// sampleOps returns a record of each region.
func sampleOps() []Op {
	return []Op{
		{RegionBodies, 0, AppendBody(nil, testEpoch, 1, bytes.Repeat([]byte("b"), 1000))},
		{RegionBodies, math.MaxUint32, AppendBody(nil, testEpoch, 0, nil)},
		{RegionObjects, 7, appendBucket(nil)},
		{RegionVerdicts, 8, AppendVerdicts(nil, testEpoch, testVerdicts, testDevices)},
		{RegionState, 0, AppendState(nil, &testState)},
	}
}

func appendOps(b []byte, ops []Op) []byte {
	for _, op := range ops {
		b = AppendOp(b, op.Region, op.Index, raw(op.Record))
	}
	return b
}

func sameOp(a, b Op) bool {
	return a.Region == b.Region && a.Index == b.Index && bytes.Equal(a.Record, b.Record)
}

func TestBatchRoundTrip(t *testing.T) {
	tests := []struct {
		name     string
		replaces uint64
		ops      []Op
	}{
		{"none", testEpoch, nil},
		{"none, takes over", 1, nil},
		{"one", testEpoch, sampleOps()[:1]},
		{"each region", 0, sampleOps()},
		{"many", testEpoch, slices.Repeat(sampleOps(), 1000)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseBatch(appendOps(BeginBatch(nil, testEpoch, tt.replaces), tt.ops))
			if err != nil || got.Epoch != testEpoch || got.Replaces != tt.replaces || got.Len() != len(tt.ops) {
				t.Fatalf("got epoch %x, replaces %x, %d operations, %v, want %x, %x, %d", got.Epoch, got.Replaces,
					got.Len(), err, uint64(testEpoch), tt.replaces, len(tt.ops))
			}
			if ops := slices.Collect(got.Ops()); !slices.EqualFunc(ops, tt.ops, sameOp) {
				t.Errorf("got %v, want %v", ops, tt.ops)
			}
		})
	}
}

func TestBatchOpsStops(t *testing.T) {
	batch, err := ParseBatch(appendOps(BeginBatch(nil, testEpoch, testEpoch), sampleOps()))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for range batch.Ops() {
		if n++; n == 2 {
			break
		}
	}
	if n != 2 {
		t.Errorf("got %d operations, want 2", n)
	}
}

func TestParseBatchRefused(t *testing.T) {
	// One operation: the batch's header is at 0, the operation's at 24, its record at 36.
	body := AppendBody(nil, testEpoch, 1, []byte("hello"))
	good := AppendOp(BeginBatch(nil, testEpoch, testEpoch), RegionBodies, 3, raw(body))
	two := AppendOp(slices.Clone(good), RegionBodies, 4, raw(body))
	stateBatch := AppendOp(BeginBatch(nil, testEpoch, 0), RegionState, 0, func(dst []byte) []byte {
		return AppendState(dst, &State{Epoch: testEpoch})
	})
	if _, err := ParseBatch(stateBatch); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		b    []byte
		want error
	}{
		{"good", good, nil},
		{"empty", nil, ErrMalformed},
		{"cut in its header", edited(good, cut(23)), ErrMalformed},
		{"header only, though it counts one", edited(good, cut(24)), ErrMalformed},
		{"layout before this", edited(good, set8(0, Layout-1)), ErrLayout},
		{"layout after this", edited(good, set8(0, Layout+1)), ErrLayout},
		{"record of a layout after this", edited(good, set8(36, Layout+1)), ErrLayout},
		{"second record of a layout after this", edited(two, set8(len(good)+12, Layout+1)), ErrLayout},
		{"epoch of the batch is another", edited(good, set64(8, testEpoch+1)), ErrEpoch},
		{"epoch of a record is another", edited(good, set64(44, testEpoch^1<<63)), ErrEpoch},
		{"no such region", edited(good, set8(24, byte(regions)), set8(37, byte(regions))), ErrMalformed},
		{"region is not the record's", edited(good, set8(24, byte(RegionObjects))), ErrMalformed},
		{"cut in an operation's header", edited(good, cut(35)), ErrMalformed},
		{"cut in a record", edited(good, cut(len(good)-1)), ErrMalformed},
		{"length one more than is left", edited(good, set32(32, 33)), ErrMalformed},
		{"the greatest length", edited(good, set32(32, math.MaxUint32)), ErrMalformed},
		{"a negative length", edited(good, set32(32, 1<<31)), ErrMalformed},
		{"record below the least", edited(good, set32(32, 31), cut(len(good)-1)), ErrMalformed},
		{"record of none", edited(good, set32(32, 0), cut(36)), ErrMalformed},
		{"counts one more", edited(good, set32(4, 2)), ErrMalformed},
		{"counts one less", edited(good, set32(4, 0)), ErrMalformed},
		{"the greatest count", edited(good, set32(4, math.MaxUint32)), ErrMalformed},
		{"state at another place", edited(stateBatch, set32(28, 1)), ErrMalformed},
		{"state that can't be read", edited(stateBatch, set8(38, 9)), ErrMalformed},
		{"a byte after the last operation", edited(good, add(0)), ErrMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseBatch(tt.b)
			if !errors.Is(err, tt.want) || err != nil && (got.Len() != 0 || got.Epoch != 0) {
				t.Errorf("got %d operations, %v, want %v", got.Len(), err, tt.want)
			}
			sameBeyond(t, tt.b, readBatch)
		})
	}
}

// TestParseBatchMessages checks that an error names the item, the value and the limit.
func TestParseBatchMessages(t *testing.T) {
	good := AppendOp(BeginBatch(nil, testEpoch, testEpoch), RegionBodies, 3, raw(AppendBody(nil, testEpoch, 1, nil)))
	tests := []struct {
		b    []byte
		want string
	}{
		{good[:3], "batch of 3 bytes, want at least 24: malformed"},
		{edited(good, set8(0, 9)),
			"batch of layout version 9, want 5: run sidecar and module of the same release: another layout version"},
		{edited(good, set8(24, 9)), "operation 0: unknown region 9: malformed"},
		{edited(good, set32(32, 40)), "operation 0: 40 bytes of record, 32 are left: malformed"},
		{edited(good, set32(4, 2)), "operation 1 of 2: truncated header: malformed"},
		{edited(good, set64(44, 1)), "operation 0: bodies record: another epoch"},
		{edited(good, add(0, 0)), "2 bytes after the last operation: malformed"},
	}
	for _, tt := range tests {
		if _, err := ParseBatch(tt.b); err == nil || err.Error() != tt.want {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
}
