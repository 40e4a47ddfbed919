package nginx_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/wire"
)

func stateRecord(epoch uint64) []byte {
	return wire.AppendState(nil, &wire.State{Epoch: epoch})
}

func stateOp(b []byte, epoch uint64) []byte {
	return wire.AppendOp(b, wire.RegionState, 0, func(dst []byte) []byte { return append(dst, stateRecord(epoch)...) })
}

func bodyOp(b []byte, epoch uint64, slot uint32, body []byte) []byte {
	return wire.AppendOp(b, wire.RegionBodies, slot, func(dst []byte) []byte { return wire.AppendBody(dst, epoch, 1, body) })
}

func objectsOp(b []byte, epoch uint64, bucket uint32) []byte {
	return wire.AppendOp(b, wire.RegionObjects, bucket, func(dst []byte) []byte {
		return wire.FinishRecord(wire.AppendObjectsHeader(dst, epoch, 0), len(dst))
	})
}

// pushBatch is a batch with the state of an epoch and a body, as in edge/ingest_test.go.
func pushBatch(epoch, replaces uint64) []byte {
	return bodyOp(stateOp(wire.BeginBatch(nil, epoch, replaces), epoch), epoch, 3, []byte("hello"))
}

// push sends a request to the push listener.
func push(t *testing.T, method, path string, body io.Reader) (status int, contentType string, answer []byte) {
	t.Helper()
	req, err := http.NewRequest(method, "http://push"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header.Get("Content-Type"), answer
}

// reset empties shared memory but for a state record, nil for none.
func reset(t *testing.T, state []byte) {
	t.Helper()
	var none []any
	call(t, &none, "push_cases", "reset", orNull(state))
}

// stored returns the record at a place, nil if there is none.
func stored(t *testing.T, region wire.Region, index uint32) []byte {
	t.Helper()
	var result [1][]byte
	call(t, &result, "push_cases", "record", region.String(), index)
	return result[0]
}

// guard returns the guard as readers see it, 0 if they can't use it, and as it is stored.
func guard(t *testing.T) (seen, raw int) {
	t.Helper()
	var values [2]*int
	call(t, &values, "push_cases", "guard")
	for i, to := range []*int{&seen, &raw} {
		if values[i] != nil {
			*to = *values[i]
		}
	}
	return seen, raw
}

func TestPush(t *testing.T) {
	truncated := pushBatch(7, 7)[:48]
	foreign := pushBatch(7, 7)
	foreign[0] = wire.Layout + 1
	record := pushBatch(7, 7)
	record[24+12+8]++ // the state record's own epoch
	elsewhere := wire.AppendOp(wire.BeginBatch(nil, 7, 7), wire.RegionState, 9, func(dst []byte) []byte { return append(dst, stateRecord(7)...) })
	large := bodyOp(pushBatch(7, 7), 7, 4, make([]byte, 1<<20))
	parseError := func(b []byte) string {
		_, err := wire.ParseBatch(b)
		if errors.Is(err, wire.ErrLayout) {
			return `from "Go-http-client/1.1": ` + err.Error() + "\n" // so that the log tells which release it was
		}
		return err.Error() + "\n"
	}
	const tooLarge = "batch of more than 2097152 bytes: send smaller ones\n"
	tests := []struct {
		name, method, path string
		batch              []byte
		chunked            bool
		status             int
		want               string // the answer, "" for the state
		applied            bool
	}{
		{"same epoch", "POST", "/v1/apply", pushBatch(7, 7), false, 200, "", true},
		{"same epoch, chunked", "POST", "/v1/apply", pushBatch(7, 7), true, 200, "", true},
		{"large", "POST", "/v1/apply", large, false, 200, "", true},
		{"another epoch", "POST", "/v1/apply", pushBatch(8, 8), false, 409, "", false},
		{"takeover", "POST", "/v1/apply", pushBatch(8, 7), false, 200, "", true},
		{"takeover from another epoch", "POST", "/v1/apply", pushBatch(8, 6), false, 409, "", false},
		{"takeover from none", "POST", "/v1/apply", pushBatch(8, 0), false, 409, "", false},
		{"no operations", "POST", "/v1/apply", wire.BeginBatch(nil, 7, 7), false, 200, "", false},
		{"truncated", "POST", "/v1/apply", truncated, false, 400, parseError(truncated), false},
		{"another layout", "POST", "/v1/apply", foreign, false, 400, parseError(foreign), false},
		{"record of another epoch", "POST", "/v1/apply", record, false, 400, parseError(record), false},
		{"state elsewhere", "POST", "/v1/apply", elsewhere, false, 400, parseError(elsewhere), false},
		{"empty", "POST", "/v1/apply", nil, false, 400, parseError(nil), false},
		{"maximum", "POST", "/v1/apply", make([]byte, 2<<20), false, 400, parseError(make([]byte, 2<<20)), false},
		{"too large", "POST", "/v1/apply", make([]byte, 2<<20+1), false, 413, tooLarge, false},
		{"too large, chunked", "POST", "/v1/apply", make([]byte, 2<<20+1), true, 413, tooLarge, false},
		{"another path", "POST", "/v1/products/1", pushBatch(7, 7), false, 404, "POST /v1/products/1: only POST /v1/apply is served here\n", false},
		{"query", "POST", "/v1/apply?a=b", pushBatch(7, 7), false, 404, "POST /v1/apply?a=b: only POST /v1/apply is served here\n", false},
		{"another spelling", "POST", "//v1/apply", pushBatch(7, 7), false, 404, "POST //v1/apply: only POST /v1/apply is served here\n", false},
		{"GET", "GET", "/v1/apply", nil, false, 404, "GET /v1/apply: only POST /v1/apply is served here\n", false},
		{"PUT", "PUT", "/v1/apply", pushBatch(7, 7), false, 404, "PUT /v1/apply: only POST /v1/apply is served here\n", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reset(t, stateRecord(7))
			var body io.Reader = bytes.NewReader(tt.batch)
			if tt.chunked {
				body = io.MultiReader(body)
			}
			status, contentType, got := push(t, tt.method, tt.path, body)
			want, wantType := []byte(tt.want), "text/plain"
			if tt.want == "" {
				want, wantType = stored(t, wire.RegionState, 0), "application/octet-stream"
			}
			if status != tt.status || contentType != wantType || !bytes.Equal(got, want) {
				t.Errorf("got %d, %s, %.200q, want %d, %s, %.200q", status, contentType, got, tt.status, wantType, want)
			}
			if applied := stored(t, wire.RegionBodies, 3) != nil; applied != tt.applied {
				t.Errorf("applied: got %v, want %v", applied, tt.applied)
			}
			var counts, wantCounts [2]int
			if call(t, &counts, "push_cases", "counters"); tt.status == 200 {
				wantCounts[0] = 1
			} else {
				wantCounts[1] = 1
			}
			if counts != wantCounts {
				t.Errorf("got %v batches applied and refused, want %v", counts, wantCounts)
			}
			var free [1]bool
			if call(t, &free, "push_cases", "free"); !free[0] {
				t.Error("the lock is still held")
			}
		})
	}
}

func TestPushWithoutState(t *testing.T) {
	for _, state := range [][]byte{nil, make([]byte, wire.MinRecord), append([]byte{wire.Layout + 1}, make([]byte, 79)...)} {
		t.Run(fmt.Sprintf("%d bytes", len(state)), func(t *testing.T) {
			reset(t, state)
			for _, replaces := range []uint64{7, 6} {
				if status, _, got := push(t, "POST", "/v1/apply", bytes.NewReader(pushBatch(7, replaces))); status != 409 || !bytes.Equal(got, state) {
					t.Errorf("replaces %d: got %d with %x, want 409 with %x", replaces, status, got, state)
				}
			}
			for _, replaces := range []uint64{0, 7} {
				if status, _, got := push(t, "POST", "/v1/apply", bytes.NewReader(pushBatch(7, replaces))); status != 200 || !bytes.Equal(got, stateRecord(7)) {
					t.Errorf("replaces %d: got %d with %x, want 200", replaces, status, got)
				}
			}
		})
	}
}

// TestPushIsOvertaken: another worker takes the lock while a batch is applied, and writes the state of another sidecar.
// The batch's sidecar learns of it, and so does the other one if the batch may have overwritten its records.
func TestPushIsOvertaken(t *testing.T) {
	both := stateOp(stateOp(wire.BeginBatch(nil, 8, 7), 8), 8)
	written := stateOp(bodyOp(wire.BeginBatch(nil, 7, 7), 7, 3, nil), 7)
	objects := stateOp(objectsOp(wire.BeginBatch(nil, 7, 7), 7, 3), 7)
	tests := []struct {
		name  string
		batch []byte
		at    int // of the batch's writes
		after bool
		stays bool
	}{
		{"before it writes", pushBatch(7, 7), 0, false, true},
		{"before it takes over", both, 0, false, true},
		{"after its state, which has overwritten the other", pushBatch(7, 7), 1, true, false},
		{"a batch that takes over itself", both, 1, true, false},
		{"a batch that has written by then", written, 1, true, false},
		{"while it writes", written, 1, false, false},
		{"while it writes objects", objects, 1, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reset(t, stateRecord(7))
			rival := stateRecord(9)
			var status int
			var answer []byte
			var lock string
			call(t, &[]any{&status, &answer, &lock}, "push_cases", "overtaken", tt.batch, rival, tt.at, tt.after)
			if status != 409 || !bytes.Equal(answer, rival) {
				t.Errorf("got %d with %x, want 409 with the rival's state", status, answer)
			}
			got := stored(t, wire.RegionState, 0)
			if _, err := wire.RecordEpoch(got, wire.RegionState); bytes.Equal(got, rival) != tt.stays || (err == nil) != tt.stays {
				t.Errorf("got state %x, want the rival's: %v", got, tt.stays)
			}
			if lock != "another" {
				t.Errorf("got lock %q, want the rival's", lock)
			}
			if seen, raw := guard(t); strings.Contains(tt.name, "objects") && (seen != 0 || raw%2 != 1) {
				t.Errorf("got guard %d, %d, want it raised until the rival lowers it", seen, raw)
			}
		})
	}
}

// TestPushGuard: batches of objects change the guard, others don't.
func TestPushGuard(t *testing.T) {
	reset(t, stateRecord(7))
	if seen, raw := guard(t); seen != 0 || raw != 0 {
		t.Errorf("got guard %d, %d before any batch, want none", seen, raw)
	}
	last := 0
	for i, b := range [][]byte{objectsOp(wire.BeginBatch(nil, 7, 7), 7, 1), pushBatch(7, 7), objectsOp(objectsOp(wire.BeginBatch(nil, 7, 7), 7, 1), 7, 2), objectsOp(wire.BeginBatch(nil, 7, 6), 7, 1)} {
		if status, _, got := push(t, "POST", "/v1/apply", bytes.NewReader(b)); (status == 200) != (i < 3) {
			t.Fatalf("batch %d: got %d %q", i, status, got)
		}
		seen, raw := guard(t)
		if seen == 0 || seen != raw || (seen != last) != (i%2 == 0) {
			t.Errorf("batch %d: got guard %d, %d after %d", i, seen, raw, last)
		}
		last = seen
	}
}

// TestPushAfterCrash: a worker was killed while it wrote objects. The next batch, of whatever, waits until its lock
// expires, and lowers the guard.
func TestPushAfterCrash(t *testing.T) {
	for _, b := range [][]byte{stateOp(wire.BeginBatch(nil, 7, 7), 7), objectsOp(wire.BeginBatch(nil, 7, 7), 7, 1), stateOp(wire.BeginBatch(nil, 8, 8), 8)} {
		reset(t, stateRecord(7))
		var none []any
		call(t, &none, "push_cases", "crash", 0.2, 2)
		seen, before := guard(t)
		if seen != 0 || before%2 != 1 {
			t.Fatalf("got guard %d, %d, want it raised", seen, before)
		}
		start := time.Now()
		want := 200
		if b[8] == 8 {
			want = 409
		}
		if status, _, got := push(t, "POST", "/v1/apply", bytes.NewReader(b)); status != want {
			t.Errorf("got %d %q, want %d", status, got, want)
		}
		if took := time.Since(start); took < 150*time.Millisecond || took > 2*time.Second {
			t.Errorf("took %v, want a wait for the lock", took)
		}
		if seen, raw := guard(t); seen <= before {
			t.Errorf("got guard %d, %d, want it lowered and over %d", seen, raw, before)
		}
	}
}

// TestPushBusy: the lock is held for longer than a batch waits.
func TestPushBusy(t *testing.T) {
	reset(t, stateRecord(7))
	var none []any
	call(t, &none, "push_cases", "crash", 60, 0.1)
	defer reset(t, nil)
	status, _, got := push(t, "POST", "/v1/apply", bytes.NewReader(pushBatch(7, 7)))
	if status != 503 || !strings.Contains(string(got), "other batches are being applied") || stored(t, wire.RegionBodies, 3) != nil {
		t.Errorf("got %d %q, want 503 and nothing written", status, got)
	}
}

// TestPushWithoutMemory: a batch that doesn't fit is refused, displaces nothing, and later ones are applied.
func TestPushWithoutMemory(t *testing.T) {
	reset(t, stateRecord(7))
	defer reset(t, nil)
	for slot := range uint32(5) {
		status, contentType, got := push(t, "POST", "/v1/apply", bytes.NewReader(bodyOp(wire.BeginBatch(nil, 7, 7), 7, slot, bytes.Repeat([]byte{1}, 1<<20))))
		if status == 200 {
			continue
		}
		if want := fmt.Sprintf("write bodies record %d: no memory\n", slot); status != 500 || contentType != "text/plain" || string(got) != want || slot < 2 {
			t.Errorf("got %d %q for slot %d, want 500 %q", status, got, slot, want)
		}
		for i := range slot {
			if stored(t, wire.RegionBodies, i) == nil {
				t.Errorf("body %d is gone", i)
			}
		}
		if status, _, got := push(t, "POST", "/v1/apply", bytes.NewReader(pushBatch(7, 7))); status != 200 {
			t.Errorf("afterwards: got %d %q, want 200", status, got)
		}
		return
	}
	t.Error("five bodies of 1 MiB fit into 4 MiB")
}

// TestPushFails: after an error of Lua neither the lock nor the guard stays.
func TestPushFails(t *testing.T) {
	reset(t, stateRecord(7))
	var status int
	var body string
	call(t, &[]any{&status, &body}, "push_cases", "fails", objectsOp(wire.BeginBatch(nil, 7, 7), 7, 1))
	var free [1]bool
	call(t, &free, "push_cases", "free")
	if seen, raw := guard(t); status != 500 || !strings.Contains(body, "broken") || !free[0] || seen == 0 {
		t.Errorf("got %d %q, lock free %v, guard %d, %d, want 500, free and lowered", status, body, free[0], seen, raw)
	}
}

// TestKeptBody: the worker's copy of a body is used only for its own epoch, stamp and length.
func TestKeptBody(t *testing.T) {
	reset(t, stateRecord(7))
	body := func(epoch, stamp uint64, length int) string {
		var result [1][]byte
		call(t, &result, "push_cases", "body", epochBytes(epoch), 3, epochBytes(stamp), length)
		return string(result[0])
	}
	if status, _, got := push(t, "POST", "/v1/apply", bytes.NewReader(pushBatch(7, 7))); status != 200 {
		t.Fatalf("got %d %q", status, got)
	}
	for range 2 { // then from the worker's copy
		if got := body(7, 1, 5); got != "hello" {
			t.Errorf("got %q, want hello", got)
		}
	}
	for _, got := range []string{body(8, 1, 5), body(7, 2, 5), body(7, 1, 4)} {
		if got != "" {
			t.Errorf("got %q for another body", got)
		}
	}
	reset(t, nil)
	if got := body(7, 1, 5); got != "hello" {
		t.Errorf("got %q, want the worker's copy", got)
	}
}
