package edgemem_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem/edgememtest"
)

// TestSessionVerdict distinguishes verdicts on a secret and on a session, and drops both with their device's.
func TestSessionVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgemem.New(edgemem.Config{Verdicts: 8})
		m.Reset(nil)
		memory := edgememtest.NewMemory()
		expires := time.Now().Add(time.Minute).UnixMilli()
		m.PutSession("d", "7-1", wire.Verdict{Outcome: wire.Allow, Permissions: 1, ExpiresMS: expires})
		m.PutVerdict("d", "7-1", wire.Verdict{Outcome: wire.Deny, ExpiresMS: expires}, false)
		push(t, m, memory)
		if v, err := memory.Session("d", "7-1"); err != nil || v.Outcome != wire.Allow || v.Permissions != 1 {
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
		m := edgemem.New(edgemem.Config{Verdicts: 8})
		m.Reset(nil)
		if err := m.PutDevice("d", true); err != nil {
			t.Fatal(err)
		}
		memory := edgememtest.NewMemory()
		verdict := func() wire.Verdict {
			return wire.Verdict{Outcome: wire.Allow, Permissions: 1,
				ExpiresMS:      time.Now().Add(30 * time.Second).UnixMilli(),
				RefreshAfterMS: time.Now().Add(20 * time.Second).UnixMilli()}
		}
		put := func(v wire.Verdict, only, want bool) {
			t.Helper()
			push(t, m, memory)
			m.PutVerdict("d", "s", v, only)
			if got := m.Stats().DirtyBuckets > 0; got != want {
				t.Errorf("got a bucket to push: %v, want %v", got, want)
			}
		}
		put(verdict(), true, true)
		time.Sleep(time.Second)
		put(verdict(), true, false)
		put(verdict(), false, true) // another secret may be right, too
		put(verdict(), false, false)
		other := verdict()
		other.Permissions = 3
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

func TestPermissionNames(t *testing.T) {
	m := edgemem.New(edgemem.Config{})
	for _, names := range [][]string{{"b", "a"}, {"c"}, {"c", "a"}, nil} {
		set, err := m.Permissions(names)
		if err != nil {
			t.Fatal(err)
		}
		got := m.PermissionNames(set)
		slices.Sort(got)
		slices.Sort(names)
		if !slices.Equal(got, names) {
			t.Errorf("got %q, want %q", got, names)
		}
	}
}

func TestVerdictBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgemem.New(edgemem.Config{Verdicts: 8}) // two buckets
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
		if s := m.Stats(); s.Allows != 8 || s.Denies != 8 {
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
		if s := m.Stats(); s.Allows != 8 {
			t.Errorf("%d allows, want 8", s.Allows)
		}
		time.Sleep(2 * time.Second)
		m.Sweep()
		m.Sweep()
		if s := m.Stats(); s.Allows != 8 || s.Denies != 0 {
			t.Errorf("%d allows and %d denies after the denies expired, want 8 and 0", s.Allows, s.Denies)
		}
		for i := range 8 {
			m.DropVerdicts(fmt.Sprint("good", i))
		}
		m.DropVerdicts("one more")
		push(t, m, memory)
		if s := m.Stats(); s.Allows != 0 {
			t.Errorf("%d allows after all were dropped", s.Allows)
		}
		if _, err := memory.Verdict("one more", "s"); !errors.Is(err, wire.ErrNotFound) {
			t.Errorf("dropped verdict: %v, want not found", err)
		}
	})
}

func TestLastVerdictOfACredentialCounts(t *testing.T) {
	m, memory := edgemem.New(edgemem.Config{}), edgememtest.NewMemory()
	m.Reset(nil)
	expires := time.Now().Add(time.Hour).UnixMilli()
	m.PutVerdict("d", "s", wire.Verdict{Outcome: wire.Deny, ExpiresMS: expires}, false)
	m.PutVerdict("d", "s", wire.Verdict{Outcome: wire.Allow, ExpiresMS: expires}, false)
	push(t, m, memory)
	if v, err := memory.Verdict("d", "s"); err != nil || v.Outcome != wire.Allow {
		t.Errorf("Verdict = %v, %v; want allow", v.Outcome, err)
	}
	if s := m.Stats(); s.Allows != 1 || s.Denies != 0 {
		t.Errorf("%d allows, %d denies; want 1, 0", s.Allows, s.Denies)
	}
	m.PutVerdict("d", "t", wire.Verdict{Outcome: wire.Allow, ExpiresMS: time.Now().Add(-time.Hour).UnixMilli()}, false)
	if s := m.Stats(); s.Allows != 1 {
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
			m := edgemem.New(edgemem.Config{Verdicts: 8})
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
