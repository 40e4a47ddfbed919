package edgemem_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem/edgememtest"
)

// TestSessionVerdict distinguishes verdicts on a secret and on a session, and drops both with their device's.
func TestSessionVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newEdge(edgemem.Config{Verdicts: 8})
		m.Reset(nil)
		memory := edgememtest.NewMemory()
		expires := time.Now().Add(time.Minute).UnixMilli()
		m.PutSession("d", "7-1", wire.Verdict{Outcome: wire.Allow, Permissions: "a", ExpiresMS: expires})
		m.PutVerdict("d", "7-1", wire.Verdict{Outcome: wire.Deny, ExpiresMS: expires}, false)
		push(t, m, memory)
		if v, err := memory.Session("d", "7-1"); err != nil || v.Outcome != wire.Allow || v.Permissions != "a" {
			t.Errorf("session: got %+v, %v; want an allow", v, err)
		}
		if v, err := memory.Verdict("d", "7-1"); err != nil || v.Outcome != wire.Deny {
			t.Errorf("secret: got %+v, %v; want a deny", v, err)
		}
		m.DropVerdicts("d")
		push(t, m, memory)
		if v, err := memory.Session("d", "7-1"); !errors.Is(err, wire.ErrNotFound) {
			t.Errorf("dropped: got %+v, %v; want none", v, err)
		}
	})
}

// TestSameVerdictAgain verifies a credential again and again, as for tokens: only changes and refreshes are pushed.
func TestSameVerdictAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newEdge(edgemem.Config{Verdicts: 8})
		m.Reset(nil)
		require.NoError(t, m.PutDevice("d", true))
		memory := edgememtest.NewMemory()
		verdict := func() wire.Verdict {
			return wire.Verdict{Outcome: wire.Allow, Permissions: "a",
				ExpiresMS:      time.Now().Add(30 * time.Second).UnixMilli(),
				RefreshAfterMS: time.Now().Add(20 * time.Second).UnixMilli()}
		}
		put := func(v wire.Verdict, only, want bool) {
			t.Helper()
			push(t, m, memory)
			m.PutVerdict("d", "s", v, only)
			if got := m.Memory.Stats().DirtyBuckets > 0; got != want {
				t.Errorf("got a bucket to push: %v, want %v", got, want)
			}
		}
		put(verdict(), true, true)
		time.Sleep(time.Second)
		put(verdict(), true, false)
		put(verdict(), false, true) // another secret may be right, too
		put(verdict(), false, false)
		other := verdict()
		other.Permissions = "a,b"
		put(other, false, true)
		ends := other
		ends.NotAfterMS = ends.ExpiresMS
		put(ends, false, true)
		deny := wire.Verdict{Outcome: wire.Deny, ExpiresMS: other.ExpiresMS}
		put(deny, false, true)
		put(deny, false, false)
		put(verdict(), true, true)
		time.Sleep(20 * time.Second) // time for a refresh
		put(verdict(), true, true)
		m.DropVerdicts("d")
		put(verdict(), true, true)
	})
}

// TestLongNames: verdicts with long permission names take room from one another only.
func TestLongNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const verdicts = 1000
		m, memory := newEdge(edgemem.Config{Verdicts: verdicts}), edgememtest.NewMemory()
		m.Reset(nil)
		expires := time.Now().Add(time.Hour).UnixMilli()
		put := func(prefix string, n, names int) (found int) {
			for i := range n {
				m.PutVerdict(fmt.Sprint(prefix, i), "s", wire.Verdict{Outcome: wire.Allow, ExpiresMS: expires,
					Permissions: strings.Repeat("p", names)}, false)
			}
			push(t, m, memory)
			for i := range n {
				if v, err := memory.Verdict(fmt.Sprint(prefix, i), "s"); err == nil && len(v.Permissions) == names {
					found++
				}
			}
			return found
		}
		if got := put("short", 100, 64); got != 100 {
			t.Errorf("the edge has %d verdicts, want 100", got)
		}
		for round := range 3 {
			got, room := put(fmt.Sprint("long", round), 800, 4000), verdicts*64/4000
			if got > room || got < room/2 {
				t.Errorf("the edge has %d verdicts with long names, want about %d", got, room)
			}
		}
		if got := put("short", 100, 64); got != 100 || m.Memory.Stats().EvictedVerdicts == 0 {
			t.Errorf("the edge has %d verdicts with short names, want 100", got)
		}
		if records, size := memory.Size(); size > verdicts*(64+64+100) {
			t.Errorf("%d bytes in %d records", size, records)
		}
		for i := range 3 * 800 {
			m.DropVerdicts(fmt.Sprintf("long%d%d", i%3, i/3))
		}
		if got := put("again", 5, 4000); got != 5 {
			t.Errorf("the edge has %d verdicts, want 5", got)
		}
	})
	m := newEdge(edgemem.Config{Verdicts: 1}) // with less room than for one
	m.Reset(nil)
	for range 2 {
		m.PutVerdict("d", "s", wire.Verdict{Outcome: wire.Allow, Permissions: strings.Repeat("p", 4159),
			ExpiresMS: time.Now().Add(time.Hour).UnixMilli()}, false)
		m.PutVerdict("e", "s", wire.Verdict{Outcome: wire.Allow, Permissions: strings.Repeat("p", 4158),
			ExpiresMS: time.Now().Add(time.Hour).UnixMilli()}, false)
	}
	if s := m.Memory.Stats(); s.Allows != 1 {
		t.Errorf("%d verdicts, want 1", s.Allows)
	}
}

func TestVerdictBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newEdge(edgemem.Config{Verdicts: 8}) // two buckets
		m.Reset(nil)
		put := func(device string, outcome wire.Outcome, life time.Duration) {
			m.PutVerdict(device, "s", wire.Verdict{Outcome: outcome, ExpiresMS: time.Now().Add(life).UnixMilli()}, false)
		}
		for i := range 8 {
			put(fmt.Sprint("good", i), wire.Allow, time.Minute)
		}
		for i := range 1000 {
			put(fmt.Sprint("bad", i), wire.Deny, time.Second)
		}
		if s := m.Memory.Stats(); s.Allows != 8 || s.Denies != 8 {
			t.Errorf("%d allows and %d denies after a flood, want 8 and 8", s.Allows, s.Denies)
		}
		memory := edgememtest.NewMemory()
		push(t, m, memory)
		for i := range 8 {
			if v, err := memory.Verdict(fmt.Sprint("good", i), "s"); err != nil || v.Outcome != wire.Allow {
				t.Errorf("good%d: %v, %v", i, v.Outcome, err)
			}
		}
		put("one more", wire.Allow, time.Minute)
		if s := m.Memory.Stats(); s.Allows != 8 {
			t.Errorf("%d allows, want 8", s.Allows)
		}
		time.Sleep(2 * time.Second)
		m.Sweep()
		m.Sweep()
		if s := m.Memory.Stats(); s.Allows != 8 || s.Denies != 0 {
			t.Errorf("%d allows and %d denies after the denies expired, want 8 and 0", s.Allows, s.Denies)
		}
		for i := range 8 {
			m.DropVerdicts(fmt.Sprint("good", i))
		}
		m.DropVerdicts("one more")
		push(t, m, memory)
		if s := m.Memory.Stats(); s.Allows != 0 {
			t.Errorf("%d allows after all were dropped", s.Allows)
		}
		if _, err := memory.Verdict("one more", "s"); !errors.Is(err, wire.ErrNotFound) {
			t.Errorf("dropped verdict: %v, want not found", err)
		}
	})
}

func TestLastVerdictOfACredentialCounts(t *testing.T) {
	m, memory := newEdge(edgemem.Config{}), edgememtest.NewMemory()
	m.Reset(nil)
	expires := time.Now().Add(time.Hour).UnixMilli()
	m.PutVerdict("d", "s", wire.Verdict{Outcome: wire.Deny, ExpiresMS: expires}, false)
	m.PutVerdict("d", "s", wire.Verdict{Outcome: wire.Allow, ExpiresMS: expires}, false)
	push(t, m, memory)
	if v, err := memory.Verdict("d", "s"); err != nil || v.Outcome != wire.Allow {
		t.Errorf("Verdict = %v, %v; want allow", v.Outcome, err)
	}
	if s := m.Memory.Stats(); s.Allows != 1 || s.Denies != 0 {
		t.Errorf("%d allows, %d denies; want 1, 0", s.Allows, s.Denies)
	}
	m.PutVerdict("d", "t", wire.Verdict{Outcome: wire.Allow, ExpiresMS: time.Now().Add(-time.Hour).UnixMilli()}, false)
	if s := m.Memory.Stats(); s.Allows != 1 {
		t.Errorf("an expired verdict was stored")
	}
}

// TestAnswerIsKept: an authority's verdict stays for verdict_grace after its end, while the table has room.
func TestAnswerIsKept(t *testing.T) {
	for _, test := range []struct {
		name  string
		after time.Duration
		more  int // other verdicts
		kept  bool
	}{
		{"within its time", time.Hour, 3, true},
		{"after it", time.Hour + 2*time.Minute, 0, false},
		{"over half full", time.Minute, 5, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newEdge(edgemem.Config{Verdicts: 8})
			m.Reset(nil)
			memory := edgememtest.NewMemory()
			end := time.Now().Add(30 * time.Second)
			m.PutAnswer("d", "s", wire.Verdict{Outcome: wire.Allow, ExpiresMS: end.UnixMilli()}, end.Add(time.Hour))
			time.Sleep(test.after)
			for i := range test.more {
				m.PutVerdict(fmt.Sprint(i), "s", wire.Verdict{Outcome: wire.Allow,
					ExpiresMS: time.Now().Add(time.Minute).UnixMilli()}, false)
			}
			for range 64 {
				m.Sweep()
			}
			push(t, m, memory)
			if _, err := memory.Verdict("d", "s"); (err == nil) != test.kept {
				t.Errorf("%s: got %v", test.name, err)
			}
			m.DropVerdicts("d")
			push(t, m, memory)
			if _, err := memory.Verdict("d", "s"); !errors.Is(err, wire.ErrNotFound) {
				t.Errorf("%s: dropped, got %v", test.name, err)
			}
		})
	}
}
