package edge

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// push sends a batch in parts and returns the answer.
func push(e *emulator, method, path string, batch []byte) *reply {
	id := e.begin([][2]string{{":method", method}, {":path", path}, {"user-agent", "gatehouse-sidecar/9"}},
		len(batch) == 0)
	for _, end := range []int{len(batch) / 2, len(batch)} {
		if e.streams[id].reply == nil {
			e.body = batch[:end]
			e.callback(id, func() { e.vm.RequestBody(id, end, end == len(batch)) })
		}
	}
	return e.streams[id].reply
}

// batch returns a batch with the state of an epoch and a body.
func batch(epoch, replaces uint64) []byte {
	b := wire.BeginBatch(nil, epoch, replaces)
	b = wire.AppendOp(b, wire.RegionState, 0, func(dst []byte) []byte {
		return wire.AppendState(dst, &wire.State{Epoch: epoch})
	})
	return wire.AppendOp(b, wire.RegionBodies, 3, func(dst []byte) []byte {
		return wire.AppendBody(dst, epoch, 1, []byte("hello"))
	})
}

func TestIngest(t *testing.T) {
	truncated := batch(7, 7)[:48]
	foreign := batch(7, 7)
	foreign[0] = wire.Layout + 1
	record := batch(7, 7)
	record[24+12+8]++ // the state record's own epoch
	tests := []struct {
		name, method, path string
		batch              []byte
		status             int
		want               string // in the answer
		applied            bool
	}{
		{"same epoch", "POST", "/v1/apply", batch(7, 7), 200, "", true},
		{"another epoch", "POST", "/v1/apply", batch(8, 8), 409, "", false},
		{"takeover", "POST", "/v1/apply", batch(8, 7), 200, "", true},
		{"takeover from another epoch", "POST", "/v1/apply", batch(8, 6), 409, "", false},
		{"takeover from none", "POST", "/v1/apply", batch(8, 0), 409, "", false},
		{"truncated", "POST", "/v1/apply", truncated, 400, "operation 0", false},
		{"another layout", "POST", "/v1/apply", foreign, 400,
			`module unknown, from "gatehouse-sidecar/9": batch of layout version 6, want 5`, false},
		{"record of another epoch", "POST", "/v1/apply", record, 400, "state record: another epoch", false},
		{"empty", "POST", "/v1/apply", nil, 400, "batch of 0 bytes", false},
		{"too large", "POST", "/v1/apply", make([]byte, 2*limits.MaxBatch+2), 413, "batch of more than", false},
		{"another path", "POST", "/v1/products/1", batch(7, 7), 404, "only POST /v1/apply", false},
		{"another method", "GET", "/v1/apply", nil, 404, "only POST /v1/apply", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := emulate(t, `{"push_listener": true}`)
			e.records[place(wire.RegionState, 0)] = wire.AppendState(nil, &wire.State{Epoch: 7})
			got := push(e, tt.method, tt.path, tt.batch)
			if got == nil || got.status != tt.status || !strings.Contains(string(got.body), tt.want) {
				t.Fatalf("got %+v, want %d with %q", got, tt.status, tt.want)
			}
			if applied := e.records[place(wire.RegionBodies, 3)] != nil; applied != tt.applied {
				t.Errorf("applied: got %v, want %v", applied, tt.applied)
			}
			if (tt.status == 200 || tt.status == 409) && !bytes.Equal(got.body, e.records[place(wire.RegionState, 0)]) {
				t.Errorf("got answer %x, want the state as it is", got.body)
			}
		})
	}
}

func TestIngestWithoutState(t *testing.T) {
	e := emulate(t, `{"push_listener": true}`)
	if got := push(e, "POST", "/v1/apply", batch(7, 7)); got.status != 409 || len(got.body) != 0 {
		t.Errorf("got %d with %x, want 409 with nothing: there is no state", got.status, got.body)
	}
	if got := push(e, "POST", "/v1/apply", batch(7, 6)); got.status != 409 || len(got.body) != 0 {
		t.Errorf("takeover from another: got %d with %x, want 409 with nothing", got.status, got.body)
	}
	if got := push(e, "POST", "/v1/apply", batch(7, 0)); got.status != 200 {
		t.Errorf("takeover: got %d, want 200", got.status)
	}
	if got := push(e, "POST", "/v1/apply", batch(7, 7)); got.status != 200 {
		t.Errorf("after it: got %d, want 200", got.status)
	}
}

// TestIngestIsOvertaken: another sidecar takes over, on another worker, while a batch is applied. The batch's sidecar
// learns of the takeover, and so does the new sidecar if the batch may have overwritten records.
func TestIngestIsOvertaken(t *testing.T) {
	stateOp := func(b []byte, epoch uint64) []byte {
		return wire.AppendOp(b, wire.RegionState, 0, func(dst []byte) []byte {
			return wire.AppendState(dst, &wire.State{Epoch: epoch})
		})
	}
	both := stateOp(stateOp(wire.BeginBatch(nil, 8, 7), 8), 8)
	body := wire.AppendOp(wire.BeginBatch(nil, 7, 7), wire.RegionBodies, 3, func(dst []byte) []byte {
		return wire.AppendBody(dst, 7, 1, nil)
	})
	tests := []struct {
		name  string
		batch []byte
		at    int // number of earlier writes of the state
		stays bool
	}{
		{"a batch of its epoch", batch(7, 7), 0, true},
		{"a batch that takes over itself", both, 1, true},
		{"a batch that has written by then", stateOp(body, 7), 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := emulate(t, `{"push_listener": true}`)
			e.records[place(wire.RegionState, 0)] = wire.AppendState(nil, &wire.State{Epoch: 7})
			rival, writings := wire.AppendState(nil, &wire.State{Epoch: 9}), 0
			e.beforeState = func() {
				if writings == tt.at {
					e.records[place(wire.RegionState, 0)] = rival
					e.stateCAS++
				}
				writings++
			}
			if got := push(e, "POST", "/v1/apply", tt.batch); got.status != 409 || !bytes.Equal(got.body, rival) {
				t.Errorf("got %d with %x, want 409 with the rival's state", got.status, got.body)
			}
			got := e.records[place(wire.RegionState, 0)]
			if _, err := wire.RecordEpoch(got, wire.RegionState); bytes.Equal(got, rival) != tt.stays ||
				(err == nil) != tt.stays {
				t.Errorf("got state %x, want the rival's: %v", got, tt.stays)
			}
		})
	}
}

// TestIngestOfPurge: the begin or end of a purge counts as written objects: no VM uses earlier cached answers or
// purges.
func TestIngestOfPurge(t *testing.T) {
	one := []wire.Purge{{Stamps: []uint64{1}, Prefix: "/"}}
	for name, states := range map[string][2][]wire.Purge{"none": {}, "begins": {nil, one}, "ends": {one, nil}} {
		before, purges := states[0], states[1]
		e := emulate(t, `{"push_listener": true}`)
		e.records[place(wire.RegionState, 0)] = wire.AppendState(nil, &wire.State{Epoch: 7, Purges: before})
		b := wire.AppendOp(wire.BeginBatch(nil, 7, 7), wire.RegionState, 0, func(dst []byte) []byte {
			return wire.AppendState(dst, &wire.State{Epoch: 7, Purges: purges})
		})
		gauge := e.gauge
		if got := push(e, "POST", "/v1/apply", b); got.status != 200 {
			t.Fatalf("got %d %s", got.status, got.body)
		}
		if changed := e.gauge != gauge; changed != (name != "none") || e.gauge&guardUp != 0 {
			t.Errorf("%s: the guard was %x and is %x", name, gauge, e.gauge)
		}
	}
}
