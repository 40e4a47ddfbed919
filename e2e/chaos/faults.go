package chaos

import (
	"fmt"
	"strings"
	"time"
)

// FaultKind is a kind of fault.
type FaultKind string

// The kinds of faults.
const (
	KillRedis    FaultKind = "redis killed"
	LosePower    FaultKind = "redis without power"
	PauseRedis   FaultKind = "redis paused"
	CutLink      FaultKind = "link cut"
	HangLink     FaultKind = "link hangs"
	DelayLink    FaultKind = "link delayed"
	SlowAnswers  FaultKind = "answers slow"
	LoseMessages FaultKind = "messages lost"
	LoseLast     FaultKind = "last messages lost"
	FullRedis    FaultKind = "redis full"
	RevokeAll    FaultKind = "all revoked"
	KillSidecar  FaultKind = "sidecar killed"
	PauseSidecar FaultKind = "sidecar paused"
	KillEnvoy    FaultKind = "envoy killed"
	PauseEnvoy   FaultKind = "envoy paused"
	Failover     FaultKind = "redis failed over"
	MoveSlot     FaultKind = "slot moved"
	BadBatches   FaultKind = "bad batches"
	EmptyRedis   FaultKind = "redis emptied"
	StepEdge     FaultKind = "edge clock stepped"
	StepRedis    FaultKind = "redis clock stepped"
	TrapEdge     FaultKind = "edge trapped"
	TrapPush     FaultKind = "push trapped"

	CutReplica     FaultKind = "replica cut"
	HangReplica    FaultKind = "replica hangs"
	DelayReplica   FaultKind = "replica delayed"
	KillReplica    FaultKind = "replica killed"
	PromoteReplica FaultKind = "replica promoted"
)

// FaultKinds are all kinds.
var FaultKinds = []FaultKind{
	KillRedis, LosePower, PauseRedis, CutLink, HangLink, DelayLink, SlowAnswers, LoseMessages, LoseLast, FullRedis,
	RevokeAll, KillSidecar, PauseSidecar, KillEnvoy, PauseEnvoy,
	Failover, MoveSlot, BadBatches, EmptyRedis, StepEdge, StepRedis, TrapEdge, TrapPush,
	CutReplica, HangReplica, DelayReplica, KillReplica, PromoteReplica,
}

// redisDown are the faults in which the sidecar can't reach Redis, or finds Redis empty, and everything else works.
var redisDown = map[FaultKind]bool{KillRedis: true, PauseRedis: true, CutLink: true, HangLink: true, EmptyRedis: true,
	CutReplica: true, HangReplica: true, KillReplica: true, PromoteReplica: true}

// harmless are the faults that only writers may notice.
var harmless = map[FaultKind]bool{FullRedis: true}

// stepping are the faults in which a clock is wrong.
var stepping = map[FaultKind]bool{StepEdge: true, StepRedis: true}

// behind are the faults in which writers reach Redis, but not the edge.
var behind = map[FaultKind]bool{CutLink: true, HangLink: true, PauseSidecar: true, PauseEnvoy: true,
	CutReplica: true, HangReplica: true, KillReplica: true, PromoteReplica: true}

// losing are the faults in which Redis loses writes acknowledged just before.
var losing = map[FaultKind]bool{LosePower: true, Failover: true}

// Fault is one period in which something is broken.
type Fault struct {
	Kinds []FaultKind // one, or two of different parts
	// Wait is the time without faults before this fault.
	Wait time.Duration
	// Last is how long the fault lasts, from when everything is broken.
	Last time.Duration
	// Between is how long after the first kind the second begins, and ends.
	Between time.Duration
	// Rate is how many of 1000 messages are lost, and the link's delay in ms.
	Rate int64
	// Step is the step of a clock.
	Step time.Duration
}

// String returns the fault as the run prints it.
func (f Fault) String() string {
	var kinds []string
	for _, kind := range f.Kinds {
		text := string(kind)
		if kind == StepEdge || kind == StepRedis {
			text += fmt.Sprintf(" by %+.1f s", f.Step.Seconds())
		}
		kinds = append(kinds, text)
	}
	return fmt.Sprintf("%s for %.1f s", strings.Join(kinds, " and "), f.Last.Seconds())
}

// isHarmless reports whether the edge goes on as if nothing were broken.
func (f *Fault) isHarmless() bool { return len(f.Kinds) == 1 && harmless[f.Kinds[0]] }
