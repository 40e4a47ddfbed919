package edgemem_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem/edgememtest"
)

// TestNewEpochHidesOldVersions has a worker that has not read the new epoch's state yet, and one that has. The first
// must not find an older version of what the second finds, nor anything when the second may already miss a deleted
// object, nor authenticate a device by a verdict that the second doesn't have.
func TestNewEpochHidesOldVersions(t *testing.T) {
	const objects = 40
	memory := edgememtest.NewMemory()
	before := newEdge(edgemem.Config{Objects: 4000, Verdicts: 4000})
	before.Reset(nil)
	key := func(i int) string { return fmt.Sprintf("/%d", i) }
	for i := range objects {
		before.PutObject(new(object(key(i), 1, 100)))
	}
	hour := wire.Verdict{Outcome: wire.Allow, ExpiresMS: time.Now().Add(time.Hour).UnixMilli()}
	for i := range objects {
		before.PutVerdict(key(i), "s", hour, false)
	}
	push(t, before, memory)
	old, _ := memory.State()

	after := newEdge(edgemem.Config{Objects: 1000, Verdicts: 400})
	for i := range objects - 1 { // the last one was deleted
		after.PutObject(new(object(key(i), 2, 100)))
	}
	after.Reset(&old)
	if err := after.PutDevice("new", true); err != nil {
		t.Fatal(err)
	}
	after.PutVerdict("new", "s", hour, false)
	seen := false // the new epoch's worker has found an object
	memory.AfterOp = func() {
		state, _ := memory.LockedState()
		_, status := memory.LockedCredentialBy(&state, "new", "s")
		for i := range objects {
			if _, err := memory.LockedObject(key(i)); err == nil {
				seen = true
				break
			}
		}
		for i := range objects {
			// An object without its body is enough for a 304.
			if found, err := memory.LockedObjectBy(&old, key(i)); seen && !errors.Is(err, wire.ErrNotFound) {
				t.Fatalf("a worker with the old state finds version %d of %s beside the new epoch's objects", found.Version, key(i))
			}
			if _, stands := memory.LockedCredentialBy(&old, key(i), "s"); (seen || status == wire.Found) &&
				stands == wire.Found {
				t.Fatalf("a worker with the old state lets %s in by the old epoch's verdict beside the new epoch's records", key(i))
			}
		}
	}
	push(t, after, memory)
	if !seen {
		t.Error("no object of the new epoch was found")
	}
}

// TestAwaitObject waits while an older version may be found, and no longer.
func TestAwaitObject(t *testing.T) {
	memory := edgememtest.NewMemory()
	before := newEdge(edgemem.Config{Objects: 8000, Verdicts: 4}) // more buckets than a batch blanks
	before.Reset(nil)
	before.PutObject(new(object("/a", 1, 100)))
	push(t, before, memory)
	old, _ := memory.State()

	after := newEdge(edgemem.Config{Objects: 4, Verdicts: 4}) // one bucket
	now, cancel := context.WithCancel(t.Context())
	cancel()
	check := func(when string, current bool) {
		t.Helper()
		if got := after.AwaitObject(now, "/a") == nil; got != current {
			t.Errorf("%s: got current %v, want %v", when, got, current)
		}
	}
	checkTakeover := func(when string, over bool) {
		t.Helper()
		if got := after.AwaitVerdicts(now, "d") == nil; got != over {
			t.Errorf("%s: got that the takeover is over: %v, want %v", when, got, over)
		}
	}
	send := func(batch []byte) {
		t.Helper()
		if status, answer := memory.Apply(batch); status != http.StatusOK {
			t.Fatalf("apply: %d %s", status, answer)
		}
		after.MarkAcked()
	}
	check("before the epoch", true)
	after.Reset(&old)
	check("before the first batch", true)
	checkTakeover("before the first batch", true)
	batch, _ := after.TakeBatch(nil)
	check("the first batch was taken", false)
	done := make(chan error)
	go func() { done <- after.AwaitObject(t.Context(), "/a") }()
	send(batch)
	check("some of the old buckets are blank", false)
	checkTakeover("some of the old buckets are blank", false)
	push(t, after, memory)
	if err := <-done; err != nil {
		t.Error(err)
	}
	check("all of the old buckets are blank", true)
	checkTakeover("all of the old buckets are blank", true)

	after.PutObject(new(object("/a", 2, 100)))
	check("the edge has no version yet", true)
	first, _ := after.TakeBatch(nil)
	check("version 2 is on its way", false)
	send(first)
	check("the edge has version 2", true)
	after.PutObject(new(object("/a", 3, 100)))
	check("the edge has version 2, we have 3", false)
	second, _ := after.TakeBatch(nil)
	check("version 3 is on its way", false)
	send(second)
	check("the edge has version 3", true)
	after.DeleteObject("/a")
	check("the edge has what was deleted", false)
	push(t, after, memory)
	check("the edge has nothing", true)
}

// TestAwaitVerdicts waits while the edge may have a verdict that was dropped, and no longer.
func TestAwaitVerdicts(t *testing.T) {
	memory, edge := edgememtest.NewMemory(), newEdge(edgemem.Config{Verdicts: 4})
	now, cancel := context.WithCancel(t.Context())
	cancel()
	check := func(when string, current bool) {
		t.Helper()
		_, err := edge.AwaitEpoch(now, "d")
		for _, err := range []error{err, edge.AwaitVerdicts(now, "d")} {
			if got := err == nil; got != current {
				t.Errorf("%s: got current %v, want %v", when, got, current)
			}
		}
	}
	hour := wire.Verdict{Outcome: wire.Allow, ExpiresMS: time.Now().Add(time.Hour).UnixMilli()}
	reset(edge, memory)
	edge.PutVerdict("d", "s", hour, false)
	edge.DropVerdicts("d")
	push(t, edge, memory)
	check("the edge never had the verdict", true)
	edge.PutVerdict("d", "s", hour, false)
	push(t, edge, memory)
	edge.DropVerdicts("d")
	check("the edge has a dropped verdict", false)
	batch, _ := edge.TakeBatch(nil)
	check("the drop is on its way", false)
	edge.PutVerdict("d", "t", hour, false)
	edge.DropVerdicts("d") // in the next batch
	memory.Apply(batch)
	edge.MarkAcked()
	check("the second drop waits", false)
	push(t, edge, memory)
	check("the edge has nothing", true)
	edge.DropVerdicts("d")
	check("there was nothing to drop", true)
}

// TestDroppedUnseen: the edge may have a verdict that the memory doesn't know any more: of an earlier epoch, dropped
// while the edge was detached, or evicted before.
func TestDroppedUnseen(t *testing.T) {
	hour := wire.Verdict{Outcome: wire.Allow, ExpiresMS: time.Now().Add(time.Hour).UnixMilli()}
	now, cancel := context.WithCancel(t.Context())
	cancel()
	for name, drop := range map[string]func(e edge, memory *edgememtest.Memory){
		"an earlier epoch": func(e edge, memory *edgememtest.Memory) {
			state, _ := memory.State()
			state.VerdictBuckets = 4000 // more than a batch blanks
			e.Reset(&state)
			batch, _ := e.TakeBatch(nil)
			memory.Apply(batch)
			e.MarkAcked()
		},
		"detached before": func(e edge, _ *edgememtest.Memory) {
			e.Detach()
			e.DropVerdicts("d")
		},
		"detached afterwards": func(e edge, _ *edgememtest.Memory) {
			e.DropVerdicts("d")
			e.Detach()
		},
		"attached again": func(e edge, memory *edgememtest.Memory) {
			e.DropVerdicts("d")
			reset(e, memory)
		},
		"evicted": func(e edge, _ *edgememtest.Memory) {
			e.PutVerdict("other", "s", hour, false) // of the only allow
			e.DropVerdicts("d")
		},
		"evicted, on its way": func(e edge, _ *edgememtest.Memory) {
			e.PutVerdict("other", "s", hour, false)
			e.TakeBatch(nil)
			e.DropVerdicts("d")
		},
	} {
		t.Run(name, func(t *testing.T) {
			memory, e := edgememtest.NewMemory(), newEdge(edgemem.Config{Verdicts: 1})
			reset(e, memory)
			e.PutVerdict("d", "s", hour, false)
			push(t, e, memory)
			drop(e, memory)
			if _, err := e.AwaitEpoch(now, "d"); err == nil {
				t.Error("AwaitEpoch returned before the edge had dropped the verdict")
			}
			if err := e.AwaitVerdicts(now, "d"); err == nil {
				t.Error("AwaitVerdicts returned before the edge had dropped the verdict")
			}
			reset(e, memory)
			push(t, e, memory)
			if _, err := e.AwaitEpoch(now, "d"); err != nil || e.AwaitVerdicts(now, "d") != nil {
				t.Error("the edge has dropped the verdict, and the call waits")
			}
		})
	}
}
