package edgemem_test

import (
	"fmt"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem/edgememtest"
)

// purgeFixture has two objects with a tag, one without, and one of a virtual host, all at the edge.
func purgeFixture(t *testing.T) (edge, *edgememtest.Memory) {
	m, memory := newEdge(edgemem.Config{Objects: 100, Verdicts: 1}), edgememtest.NewMemory()
	m.Reset(nil)
	for _, key := range []string{"/a/tagged", "/b/tagged", "/b/other", "//shop:example.com/b/tagged"} {
		o := object(key, 1, 10)
		if key[len(key)-1] == 'd' {
			o.Tags = []string{"red"}
		}
		m.PutObject(&o)
	}
	push(t, m, memory)
	return m, memory
}

// found returns the keys that the edge finds, with "stale" behind stale objects.
func found(memory *edgememtest.Memory) (keys []string) {
	for _, key := range []string{"/a/tagged", "/b/tagged", "/b/other", "//shop:example.com/b/tagged"} {
		if f, err := memory.Object(key); err == nil && f.Stale {
			keys = append(keys, key+" stale")
		} else if err == nil {
			keys = append(keys, key)
		}
	}
	return keys
}

func TestPurgeAtTheEdge(t *testing.T) {
	tests := []struct {
		id   string
		soft bool
		want string
	}{
		{"#red", false, "[/b/other //shop:example.com/b/tagged]"},
		{"#red", true, "[/a/tagged stale /b/tagged stale /b/other //shop:example.com/b/tagged]"},
		{"/", false, "[//shop:example.com/b/tagged]"},
		{"/b/", false, "[/a/tagged //shop:example.com/b/tagged]"},
		{"//shop#red", false, "[/a/tagged /b/tagged /b/other]"},
		{"//shop/b/", true, "[/a/tagged /b/tagged /b/other //shop:example.com/b/tagged stale]"},
		{"//shop/c/", false, "[/a/tagged /b/tagged /b/other //shop:example.com/b/tagged]"},
		{"//shops/", false, "[/a/tagged /b/tagged /b/other //shop:example.com/b/tagged]"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.id, tt.soft), func(t *testing.T) {
			m, memory := purgeFixture(t)
			end := m.BeginPurge(0, tt.id, tt.soft)
			push(t, m, memory)
			if got := fmt.Sprint(found(memory)); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			reset(m, memory) // the purge lasts into the next epoch
			push(t, m, memory)
			if got := fmt.Sprint(found(memory)); got != tt.want {
				t.Errorf("in another epoch: got %v, want %v", got, tt.want)
			}
			o := object("/b/tagged", 2, 10)
			o.Tags = []string{"red"}
			m.PutObject(&o)
			push(t, m, memory)
			if f, err := memory.Object("/b/tagged"); err != nil || f.Stale || f.Version != 2 {
				t.Errorf("what was written later: got %+v, %v", f, err)
			}
			end()
			push(t, m, memory)
			if state, _ := memory.State(); state.Purges != nil || len(found(memory)) != 4 {
				t.Errorf("after it: got %v, %v", found(memory), state.Purges)
			}
		})
	}
}

// TestPurgeEndsWithItsObjects: the edge keeps a purge until the batch with the last of its objects.
func TestPurgeEndsWithItsObjects(t *testing.T) {
	m, memory := newEdge(edgemem.Config{Objects: 10_000, Verdicts: 1}), edgememtest.NewMemory()
	m.Reset(nil)
	var keys []string
	for i := range 3000 {
		o := object(fmt.Sprintf("/%d", i), 1, 10)
		m.PutObject(&o)
		keys = append(keys, o.Key)
	}
	push(t, m, memory)
	end := m.BeginPurge(0, "/", false)
	m.DeleteObjects(keys)
	end()
	batches := 0
	for more := true; more; batches++ {
		var batch []byte
		var taken edgemem.BatchInfo
		batch, taken = m.TakeBatch(nil)
		memory.AfterOp = func() {
			if f, err := memory.LockedObject(keys[len(keys)-1]); err == nil {
				t.Fatalf("batch %d: found %+v", batches, f)
			}
		}
		if status, answer := memory.Apply(batch); status != 200 {
			t.Fatalf("apply: %d %s", status, answer)
		}
		m.MarkAcked()
		if batches == 0 && taken.Ops > 2 {
			t.Errorf("the batch that announces the purge has %d operations, want only states", taken.Ops)
		}
		state, _ := memory.State()
		if got, want := len(state.Purges) > 0, !taken.Drained; got != want {
			t.Fatalf("batch %d: the edge has %v, drained %v", batches, state.Purges, taken.Drained)
		}
		more = !taken.Drained
	}
	if batches < 3 {
		t.Errorf("%d batches, want more", batches)
	}
}

// TestManyPurges: purges beyond the bound are not announced.
func TestManyPurges(t *testing.T) {
	m, memory := purgeFixture(t)
	var ends []func()
	for i := range wire.MaxPurges {
		ends = append(ends, m.BeginPurge(0, fmt.Sprintf("/c/%d/", i), false))
	}
	if m.BeginPurge(0, "/", false) != nil {
		t.Error("a purge beyond the bound was begun")
	}
	push(t, m, memory)
	if state, _ := memory.State(); len(state.Purges) != wire.MaxPurges || len(found(memory)) != 4 {
		t.Errorf("got %d purges, found %v", len(state.Purges), found(memory))
	}
	ends[0]()
	push(t, m, memory)
	m.BeginPurge(0, "/", false)
	push(t, m, memory)
	if got := found(memory); len(got) != 1 {
		t.Errorf("found %v after another purge ended", got)
	}
}

// TestPurgeOfShards: a purge begins and ends in each shard by itself. In a state it is one purge.
func TestPurgeOfShards(t *testing.T) {
	const shards = contract.Shards(8)
	m, memory := newEdge(edgemem.Config{Objects: 100, Verdicts: 1, Shards: shards}), edgememtest.NewMemory()
	m.Reset(nil)
	keys := make([]string, shards)
	put := func(shard int, version uint64) {
		for i := 0; keys[shard] == ""; i++ {
			if key := fmt.Sprint("/", i); shards.Of(key) == shard {
				keys[shard] = key
			}
		}
		m.PutObject(new(object(keys[shard], version, 10)))
	}
	for i := range shards.Count() {
		put(i, 1)
	}
	expect := func(when string, want string, purges int) {
		t.Helper()
		push(t, m, memory)
		var versions []uint64
		for _, key := range keys {
			f, _ := memory.Object(key)
			versions = append(versions, f.Version)
		}
		if state, _ := memory.State(); fmt.Sprint(versions) != want || len(state.Purges) != purges {
			t.Errorf("%s: got versions %v, want %s; purges %+v", when, versions, want, state.Purges)
		}
	}
	var ends []func()
	for i := range shards.Count() - 1 {
		ends = append(ends, m.BeginPurge(i, "/", false))
	}
	expect("begun but in the last shard", "[0 0 0 0 0 0 0 1]", 1)
	put(0, 2)
	put(7, 2)
	ends = append(ends, m.BeginPurge(7, "/", false))
	expect("begun in the last shard", "[2 0 0 0 0 0 0 0]", 1)
	put(7, 3)
	ends = append(ends, m.BeginPurge(0, "/", false))
	ends[0]()
	ends[1]()
	expect("begun once more in the first shard, ended in the second", "[0 1 0 0 0 0 0 3]", 1)
	soft := m.BeginPurge(7, "/", true)
	expect("a soft purge besides", "[0 1 0 0 0 0 0 3]", 2)
	for _, end := range append(ends[2:], soft) {
		end()
	}
	expect("ended", "[2 1 1 1 1 1 1 3]", 0)
}

// TestPurgesLeaveRoom: objects reach the edge although a purge begins before each batch, also in the same place.
func TestPurgesLeaveRoom(t *testing.T) {
	m, memory := purgeFixture(t)
	m.PutObject(new(object("/b/other", 2, 10)))
	for range 2 {
		end := m.BeginPurge(0, "/c/", false)
		batch, _ := m.TakeBatch(nil)
		if status, answer := memory.Apply(batch); status != 200 {
			t.Fatalf("apply: %d %s", status, answer)
		}
		m.MarkAcked()
		end()
	}
	if f, err := memory.Object("/b/other"); err != nil || f.Version != 2 {
		t.Errorf("after two batches: got %+v, %v; want version 2", f, err)
	}
}
