package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// FaultKind is what gets broken.
type FaultKind string

// The kinds of faults.
const (
	KillRedis    FaultKind = "redis killed"
	LosePower    FaultKind = "redis without power"
	PauseRedis   FaultKind = "redis paused"
	CutLink      FaultKind = "link cut"
	HangLink     FaultKind = "link hangs"
	DelayLink    FaultKind = "link delayed"
	LoseMessages FaultKind = "messages lost"
	KillSidecar  FaultKind = "sidecar killed"
	PauseSidecar FaultKind = "sidecar paused"
	KillEnvoy    FaultKind = "envoy killed"
	PauseEnvoy   FaultKind = "envoy paused"
	Failover     FaultKind = "redis failed over"
	MoveSlot     FaultKind = "slot moved"
	BadBatches   FaultKind = "bad batches"
	EmptyRedis   FaultKind = "redis emptied"
)

// FaultKinds are all of them.
var FaultKinds = []FaultKind{
	KillRedis, LosePower, PauseRedis, CutLink, HangLink, DelayLink, LoseMessages, KillSidecar, PauseSidecar, KillEnvoy, PauseEnvoy,
	Failover, MoveSlot, BadBatches, EmptyRedis,
}

// both is a card of the deck: two kinds of faults at a time.
const both FaultKind = "both"

// Redis is unreachable for the sidecar in these, and all else is as it should be.
var redisDown = map[FaultKind]bool{KillRedis: true, PauseRedis: true, CutLink: true, HangLink: true}

// Fault is one time during which something is broken.
type Fault struct {
	Kinds []FaultKind // one, or two of different parts
	// Wait is how long everything is well before it.
	Wait time.Duration
	// Last is how long it lasts, from the moment when all is broken.
	Last time.Duration
	// Between is how long the second kind begins after the first, and ends after it.
	Between time.Duration
	// Rate is how many of thousand messages get lost, and how many ms the link is delayed.
	Rate int64
}

// String is the fault as the run prints it.
func (f Fault) String() string {
	name := string(f.Kinds[0])
	if len(f.Kinds) > 1 {
		name += " and " + string(f.Kinds[1])
	}
	return fmt.Sprintf("%s for %.1f s", name, f.Last.Seconds())
}

// losing are the faults in which Redis loses what it acknowledged just before.
var losing = map[FaultKind]bool{LosePower: true, Failover: true}

// decks are what comes in one round, in any order. Where Redis goes on without the sidecar,
// answers get old, so that is there twice: once for longer than max_staleness.
var decks = map[Deployment][]FaultKind{
	Single: {
		KillRedis, LosePower, PauseRedis, CutLink, CutLink, HangLink, DelayLink, LoseMessages,
		KillSidecar, PauseSidecar, KillEnvoy, PauseEnvoy, BadBatches, EmptyRedis, both, both,
	},
	Sentinel: {Failover, Failover, Failover, EmptyRedis, KillSidecar, PauseSidecar, KillEnvoy, PauseEnvoy, both, both},
	Cluster:  {MoveSlot, MoveSlot, MoveSlot, MoveSlot, KillSidecar, PauseSidecar, KillEnvoy, PauseEnvoy, both, both},
}

// ofRedis are the faults of Redis and of the way to it that come in a pair.
var ofRedis = map[Deployment][]FaultKind{
	Single:   {KillRedis, LosePower, PauseRedis, CutLink, DelayLink, LoseMessages},
	Sentinel: {Failover},
	Cluster:  {MoveSlot},
}

// Schedule is a sequence of faults without an end, the same for the same seed.
type Schedule struct {
	random *rand.Rand
	redis  Deployment
	only   []FaultKind // empty: all
	round  []FaultKind
	long   bool // the next cut link is
}

// NewSchedule begins a schedule. Faults of other kinds than only are left out; if it is
// empty, none are.
func NewSchedule(seed uint64, redis Deployment, only []FaultKind) *Schedule {
	return &Schedule{random: rand.New(rand.NewPCG(seed, 0)), redis: redis, only: only}
}

// Next is the next fault.
func (s *Schedule) Next() Fault {
	for {
		f := s.next()
		if len(s.only) == 0 || !slices.ContainsFunc(f.Kinds, func(k FaultKind) bool { return !slices.Contains(s.only, k) }) {
			return f
		}
	}
}

func (s *Schedule) next() Fault {
	if len(s.round) == 0 {
		s.round = append(s.round, decks[s.redis]...)
		s.random.Shuffle(len(s.round), func(i, j int) { s.round[i], s.round[j] = s.round[j], s.round[i] })
	}
	kind := s.round[0]
	s.round = s.round[1:]
	f := Fault{
		Kinds: []FaultKind{kind},
		Wait:  s.between(500*time.Millisecond, 3*time.Second),
		Last:  s.between(200*time.Millisecond, 2*time.Second),
		Rate:  100 + s.random.Int64N(200),
	}
	long := s.random.IntN(8) == 0
	if kind == CutLink {
		s.long = !s.long
		long = s.long
	}
	if long {
		f.Last = s.between(4500*time.Millisecond, 6*time.Second)
	}
	if kind == both {
		f.Kinds = s.pair()
		f.Between = s.between(0, 500*time.Millisecond)
	}
	return f
}

// pair is two kinds of faults of different parts.
func (s *Schedule) pair() []FaultKind {
	parts := [][]FaultKind{
		ofRedis[s.redis],
		{KillSidecar, PauseSidecar},
		{KillEnvoy, PauseEnvoy},
	}
	s.random.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	return []FaultKind{s.one(parts[0]), s.one(parts[1])}
}

func (s *Schedule) one(kinds []FaultKind) FaultKind { return kinds[s.random.IntN(len(kinds))] }

// between is a time from low to high.
func (s *Schedule) between(low, high time.Duration) time.Duration {
	return low + time.Duration(s.random.Int64N(int64(high-low)+1))
}
