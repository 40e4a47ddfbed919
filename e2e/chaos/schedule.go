package chaos

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Cards of the deck for two kinds of faults at a time.
const (
	both      FaultKind = "both"      // of different parts
	setBack   FaultKind = "setBack"   // the edge's clock is set back, some time after Redis has become unreachable
	longPause FaultKind = "longPause" // Envoy is paused for longer than max_staleness
)

// decks are the faults of one round, in any order. CutLink, where Redis goes on without the sidecar and answers get
// old, is there twice: once for longer than max_staleness.
var decks = map[Deployment][]FaultKind{
	Single: {
		KillRedis, LosePower, PauseRedis, CutLink, CutLink, HangLink, DelayLink, SlowAnswers, LoseMessages, LoseLast,
		FullRedis,
		KillSidecar, PauseSidecar, KillEnvoy, PauseEnvoy, longPause, BadBatches, EmptyRedis, RevokeAll, both, both,
		StepEdge, StepRedis, setBack, setBack, TrapEdge, TrapPush,
	},
	Sentinel: {Failover, Failover, Failover, EmptyRedis, RevokeAll, KillSidecar, PauseSidecar, KillEnvoy,
		PauseEnvoy, both, both},
	Replica: {CutReplica, CutReplica, HangReplica, DelayReplica, KillReplica, PromoteReplica, PromoteReplica, EmptyRedis,
		RevokeAll, KillSidecar, PauseSidecar, KillEnvoy, PauseEnvoy, both, both},
	Cluster: {MoveSlot, MoveSlot, MoveSlot, MoveSlot, RevokeAll, KillSidecar, PauseSidecar, KillEnvoy,
		PauseEnvoy, both, both},
}

// shortRound is the duration below which a run of a single server begins with a dense round: each kind of fault once,
// most in pairs, so that all fit into a minute.
const shortRound = 2 * time.Minute

// The dense round. Each of the first kinds breaks Redis or its link, together with one of the second kinds, which break
// other parts.
var (
	densePairs = [2][]FaultKind{
		{KillRedis, LosePower, PauseRedis, HangLink, DelayLink, LoseMessages, StepRedis},
		{KillSidecar, PauseSidecar, KillEnvoy, PauseEnvoy, BadBatches, TrapEdge, TrapPush},
	}
	denseSingles = []FaultKind{CutLink, longPause, SlowAnswers, LoseLast, FullRedis, EmptyRedis, RevokeAll, setBack}
)

// ofRedis are the faults of Redis and its link that occur in a pair.
var ofRedis = map[Deployment][]FaultKind{
	Single:   {KillRedis, LosePower, PauseRedis, CutLink, DelayLink, LoseMessages},
	Sentinel: {Failover},
	Cluster:  {MoveSlot},
	Replica:  {CutReplica, DelayReplica, KillReplica, PromoteReplica},
}

// Schedule is an endless sequence of faults, the same for the same seed.
type Schedule struct {
	random *rand.Rand
	redis  Deployment
	only   []FaultKind // empty: all
	round  []FaultKind
	long   bool // the next cut is long
	dense  []Fault
}

// NewSchedule returns a schedule of faults of the kinds in only, or of all kinds if only is empty.
func NewSchedule(seed uint64, redis Deployment, only []FaultKind) *Schedule {
	return &Schedule{random: rand.New(rand.NewPCG(seed, 0)), redis: redis, only: only}
}

// NewScheduleFor is [NewSchedule] for a run of a duration: a short run begins with all kinds of faults, each once.
func NewScheduleFor(duration time.Duration, seed uint64, redis Deployment, only []FaultKind) *Schedule {
	s := NewSchedule(seed, redis, only)
	if redis == Single && len(only) == 0 && duration < shortRound {
		s.dense = s.denseRound()
	}
	return s
}

// denseRound returns the faults of the dense round, in any order.
func (s *Schedule) denseRound() (faults []Fault) {
	with := slices.Clone(densePairs[1])
	s.random.Shuffle(len(with), func(i, j int) { with[i], with[j] = with[j], with[i] })
	for i, kind := range densePairs[0] {
		f := s.newFault(kind)
		f.Kinds = []FaultKind{kind, with[i]}
		f.Between = s.drawTime(0, 300*time.Millisecond)
		faults = append(faults, f)
	}
	for i := range faults {
		faults[i].Last = s.drawTime(200*time.Millisecond, 800*time.Millisecond)
		if slices.Contains(faults[i].Kinds, TrapPush) {
			faults[i].Last = time.Second // the module is armed for as long
		}
	}
	for _, kind := range denseSingles {
		f := s.newFault(kind)
		if kind != setBack && kind != longPause && kind != FullRedis && kind != SlowAnswers {
			f.Last = s.drawTime(200*time.Millisecond, 800*time.Millisecond)
		}
		faults = append(faults, f)
	}
	for i := range faults {
		faults[i].Wait = s.drawTime(200*time.Millisecond, 800*time.Millisecond)
	}
	s.random.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	return faults
}

// IsDense reports whether the next fault belongs to the dense round.
func (s *Schedule) IsDense() bool { return len(s.dense) > 0 }

// Next returns the next fault.
func (s *Schedule) Next() Fault {
	if len(s.dense) > 0 {
		f := s.dense[0]
		s.dense = s.dense[1:]
		return f
	}
	for {
		f := s.drawFault()
		if len(s.only) == 0 || !slices.ContainsFunc(f.Kinds, func(k FaultKind) bool { return !slices.Contains(s.only, k) }) {
			return f
		}
	}
}

func (s *Schedule) drawFault() Fault {
	if len(s.round) == 0 {
		s.round = append(s.round, decks[s.redis]...)
		s.random.Shuffle(len(s.round), func(i, j int) { s.round[i], s.round[j] = s.round[j], s.round[i] })
	}
	kind := s.round[0]
	s.round = s.round[1:]
	return s.newFault(kind)
}

// newFault returns a fault of a card.
func (s *Schedule) newFault(kind FaultKind) Fault {
	f := Fault{
		Kinds: []FaultKind{kind},
		Wait:  s.drawTime(500*time.Millisecond, 3*time.Second),
		Last:  s.drawTime(200*time.Millisecond, 2*time.Second),
		Rate:  100 + s.random.Int64N(200),
		Step:  s.drawStep(),
	}
	long := s.random.IntN(8) == 0
	if kind == CutLink || kind == CutReplica {
		s.long = !s.long
		long = s.long
	}
	if long {
		f.Last = s.drawTime(4500*time.Millisecond, 6*time.Second)
	}
	switch kind {
	case longPause:
		f.Kinds, f.Last = []FaultKind{PauseEnvoy}, s.drawTime(4500*time.Millisecond, 5500*time.Millisecond)
	case FullRedis:
		f.Last = s.drawTime(4500*time.Millisecond, 5500*time.Millisecond) // answers may not get old
	case SlowAnswers:
		f.Last = s.drawTime(4*time.Second, 5*time.Second) // until devices aren't authenticated any more
	case TrapPush:
		f.Last = max(f.Last, time.Second) // the module is armed for as long
	case both:
		f.Kinds = s.drawPair()
		f.Between = s.drawTime(0, 500*time.Millisecond)
	case setBack:
		f.Kinds, f.Step = []FaultKind{CutLink, StepEdge}, -f.Step.Abs()
		f.Between = s.drawTime(0, 4*time.Second)
		f.Last = 6*time.Second - f.Between
	}
	return f
}

// drawStep returns the step of a clock: every second time about max_staleness, so that old data can look new.
func (s *Schedule) drawStep() time.Duration {
	step := s.drawTime(1500*time.Millisecond, 30*time.Second)
	if s.random.IntN(2) == 0 {
		step = s.drawTime(1500*time.Millisecond, 6*time.Second)
	}
	if s.random.IntN(2) == 0 {
		return -step
	}
	return step
}

// drawPair returns two kinds of faults of different parts.
func (s *Schedule) drawPair() []FaultKind {
	parts := [][]FaultKind{
		ofRedis[s.redis],
		{KillSidecar, PauseSidecar},
		{KillEnvoy, PauseEnvoy},
	}
	if s.redis == Single {
		parts = append(parts, []FaultKind{StepEdge, StepRedis})
	}
	s.random.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	return []FaultKind{s.pickKind(parts[0]), s.pickKind(parts[1])}
}

func (s *Schedule) pickKind(kinds []FaultKind) FaultKind { return kinds[s.random.IntN(len(kinds))] }

// drawTime returns a random time from low to high.
func (s *Schedule) drawTime(low, high time.Duration) time.Duration {
	return low + time.Duration(s.random.Int64N(int64(high-low)+1))
}
