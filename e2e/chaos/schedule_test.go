package chaos

import (
	"reflect"
	"slices"
	"testing"
	"time"
)

func TestScheduleIsTheSeeds(t *testing.T) {
	take := func(seed uint64) (faults []Fault) {
		s := NewSchedule(seed, Single, nil)
		for range 100 {
			faults = append(faults, s.Next())
		}
		return faults
	}
	if !reflect.DeepEqual(take(1), take(1)) {
		t.Error("one seed makes two schedules")
	}
	if reflect.DeepEqual(take(1), take(2)) {
		t.Error("two seeds make one schedule")
	}
}

func TestScheduleHasAll(t *testing.T) {
	ever := map[FaultKind]bool{} // in any deployment
	for _, redis := range Deployments {
		for seed := range uint64(50) {
			longCut, back := redis != Single, redis != Single
			seen := map[FaultKind]bool{}
			s := NewSchedule(seed, redis, nil)
			for range decks[redis] {
				f := s.Next()
				for _, kind := range f.Kinds {
					seen[kind], ever[kind] = true, true
				}
				if len(f.Kinds) == 2 && f.Kinds[0] == f.Kinds[1] {
					t.Errorf("%s, seed %d: a pair of one kind: %v", redis, seed, f)
				}
				if f.Last > 6*time.Second || f.Wait > 3*time.Second {
					t.Errorf("%s, seed %d: %v after %v is too long", redis, seed, f, f.Wait)
				}
				longCut = longCut || f.Kinds[0] == CutLink && len(f.Kinds) == 1 && f.Last > maxStaleness+promised.Slack
				stepped := slices.Contains(f.Kinds, StepEdge)
				back = back || stepped && f.Kinds[0] == CutLink && f.Step < 0 && f.Between+f.Last > maxStaleness+promised.Slack
				if step := f.Step.Abs(); stepped && (step < promised.Slack || step > 30*time.Second) {
					t.Errorf("%s, seed %d: %v: the step is too small or too large", redis, seed, f)
				}
			}
			for _, kind := range decks[redis] {
				if kind != both && kind != setBack && kind != longPause && !seen[kind] {
					t.Errorf("%s, seed %d: no %q in one round", redis, seed, kind)
				}
			}
			if !back {
				t.Errorf("seed %d: the edge's clock is never set back while the link is cut for longer than max_staleness", seed)
			}
			if !longCut {
				t.Errorf("seed %d: the link is never cut for longer than max_staleness", seed)
			}
		}
	}
	for _, kind := range FaultKinds {
		if !ever[kind] {
			t.Errorf("%q is in no deployment", kind)
		}
	}
}

// TestDenseRound: a minute has each kind of fault, a pause of Envoy and a cut that are longer than max_staleness, and
// some time for recovery.
func TestDenseRound(t *testing.T) {
	ofOthers := map[FaultKind]bool{Failover: true, MoveSlot: true, CutReplica: true, HangReplica: true,
		DelayReplica: true, KillReplica: true, PromoteReplica: true}
	for seed := range uint64(50) {
		s := NewScheduleFor(time.Minute, seed, Single, nil)
		seen, took, long := map[FaultKind]bool{}, time.Duration(0), map[FaultKind]bool{}
		for s.IsDense() {
			f := s.Next()
			took += f.Wait + f.Last + f.Between
			for _, kind := range f.Kinds {
				seen[kind] = true
				long[kind] = long[kind] || f.Last+f.Between > maxStaleness+promised.Slack
			}
		}
		for _, kind := range FaultKinds {
			if !seen[kind] && !ofOthers[kind] {
				t.Errorf("seed %d: no %q", seed, kind)
			}
		}
		if took > 40*time.Second || !long[CutLink] || !long[PauseEnvoy] || !long[StepEdge] {
			t.Errorf("seed %d: took %v, long %v", seed, took, long)
		}
	}
	if s := NewScheduleFor(10*time.Minute, 1, Single, nil); s.IsDense() {
		t.Error("a long run is dense")
	}
	if s := NewScheduleFor(time.Minute, 1, Single, []FaultKind{CutLink}); s.IsDense() {
		t.Error("a run of one kind is dense")
	}
}

func TestScheduleOnly(t *testing.T) {
	only := []FaultKind{KillSidecar, PauseEnvoy}
	s := NewSchedule(1, Single, only)
	pairs := 0
	for range 1000 {
		f := s.Next()
		for _, kind := range f.Kinds {
			if !slices.Contains(only, kind) {
				t.Fatalf("got %v, want only %q", f, only)
			}
		}
		pairs += len(f.Kinds) - 1
	}
	if pairs == 0 {
		t.Error("no pair of the two")
	}
}
