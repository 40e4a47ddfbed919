package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/internal/metrics"
)

// Group follows all shards, with a Follower for each shard.
type Group struct {
	keyspace    contract.Keyspace
	source      string // of a snapshot; "": none
	startBytes  atomic.Int64
	log         *slog.Logger
	board       *board
	followers   []*Follower
	devices     []*Follower // by shard
	synced      chan struct{}
	lookupSlots chan struct{} // a slot per call of Registered
}

// NewGroup returns a Group of all shards of k; of returns the configuration of a shard, to which NewGroup adds
// Keyspace, Shard and Clock. If the objects are read from replicas, or devices have a namespace of their own, a shard
// has two followers: that of the devices is always at the master. The caller still closes client.
func NewGroup(k contract.Keyspace, of func(shard int) Config, clock Clock, client redis.UniversalClient,
	m *metrics.Metrics, log *slog.Logger) *Group {
	first := of(0)
	devicesApart := first.DeviceNamespace != "" && first.DeviceNamespace != k.Namespace
	split := first.Replicas != nil || devicesApart
	board := newBoard(k.Count()*map[bool]int{false: 1, true: 2}[split], clock, m)
	g := &Group{keyspace: k, source: first.Snapshot, log: log, board: board,
		synced: make(chan struct{}), lookupSlots: make(chan struct{}, maxLookups)}
	for i := range k.Count() {
		c := first
		if i > 0 {
			c = of(i)
		}
		c.Keyspace, c.Shard, c.Clock = k, i, clock
		log := log
		if k.Count() > 1 {
			log = log.With("shard", i)
		}
		if !split {
			g.followers = append(g.followers, newFollower(c, i, "", board, client, m, log))
			continue
		}
		objects := newFollower(c, i, objectKinds, board, client, m, log.With("of", "objects"))
		objectKeys := objects.keys
		if devicesApart {
			c.Keyspace.Namespace = c.DeviceNamespace
		}
		replicas := c.Replicas != nil
		c.Replicas = nil
		devices := newFollower(c, k.Count()+i, deviceKinds, board, client, m, log.With("of", "devices"))
		if replicas {
			devices.endKeys, devices.reportEnd = &objectKeys, objects.replica.putEnd
		}
		g.followers, g.devices = append(g.followers, objects), append(g.devices, devices)
	}
	g.followers = append(g.followers, g.devices...) // in the order of the board's slots
	g.devices = g.followers[len(g.followers)-k.Count():]
	return g
}

// Synced is closed when everything in Redis has been applied once.
func (g *Group) Synced() <-chan struct{} { return g.synced }

// Applied returns the last applied write of a shard of objects, for [AskProof], or an error if the shard is empty or
// lacks keys, and the loss was not accepted.
func (g *Group) Applied(shard int) (contract.Link, error) {
	return g.followers[shard].lastApplied()
}

// lastApplied is [Group.Applied] for what f follows.
func (f *Follower) lastApplied() (contract.Link, error) {
	if err := f.board.emptyReason(f.slot); err != nil && !isFollowedAnyway(err) {
		return contract.Link{}, err
	}
	return *f.applied.Load(), nil
}

// Failure returns why Redis isn't followed, or its position can't be read; "": no call has failed since a successful
// call. Of several shards, the first with a failure counts.
func (g *Group) Failure() string {
	g.board.mu.Lock()
	defer g.board.mu.Unlock()
	for slot, err := range g.board.failures {
		switch {
		case err == nil:
		case len(g.followers) > 1:
			return g.followers[slot].describe() + ": " + summarize(err)
		default:
			return summarize(err)
		}
	}
	return ""
}

// Degraded returns a sentence for each command that Redis refuses, and each key or ability that it has lost, but can be
// followed without.
func (g *Group) Degraded() (sentences []string) {
	add := func(is bool, format string, args ...any) {
		if text := fmt.Sprintf(format, args...); is && !slices.Contains(sentences, text) {
			sentences = append(sentences, text)
		}
	}
	for i, f := range g.followers {
		g.board.mu.Lock()
		chainless, v := g.board.chainless[i], g.board.vitals[i]
		g.board.mu.Unlock()
		if why := g.board.emptyReason(i); isFollowedAnyway(why) {
			add(true, "A sidecar that starts isn't ready: %v", why)
		}
		add(chainless != "", "Redis has lost %s: lost writes may go unnoticed until the next write begins a new one",
			chainless)
		add(v.unsaved != "", "Redis can't save its data (%s): by default it then refuses all writes (MISCONF)", v.unsaved)
		add(f.withheld.chain.Load(), "Redis doesn't permit HMGET (NOPERM): forged events and lost writes may go unnoticed; "+
			"permit +hmget")
		add(f.withheld.info.Load(), "Redis doesn't permit INFO (NOPERM): a replica, or a failover to an older one, may go "+
			"unnoticed; permit +info")
		add(f.withheld.memory.Load(), "Redis doesn't permit MEMORY USAGE (NOPERM): records are read a few at a time, and "+
			"one without bounds can exhaust the memory; permit +memory|usage")
	}
	return sentences
}

// summarize returns the text of an error: with the word timeout if the error is a timeout, and cut if it is long.
func summarize(err error) string {
	text := err.Error()
	timeout, is := errors.AsType[net.Error](err)
	if (is && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded)) && !strings.Contains(text, "timeout") {
		text += " (timeout)"
	}
	const most = 400
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// Run follows the events until ctx ends.
func (g *Group) Run(ctx context.Context) error {
	defer g.openSnapshot(ctx)()
	var running sync.WaitGroup
	defer running.Wait()
	for _, s := range g.followers {
		running.Go(func() { s.Run(ctx) }) // returns only when ctx ends
	}
	for _, s := range g.followers {
		select {
		case <-s.Synced():
		case <-ctx.Done():
			return nil
		}
	}
	close(g.synced)
	<-ctx.Done()
	return nil
}

// Resync reads everything in Redis again, as soon as Redis is followed. It returns nil or ctx's error; until Resync
// returns, don't call it again.
func (g *Group) Resync(ctx context.Context) error {
	done := make(chan struct{}, len(g.followers))
	for _, f := range g.followers {
		select {
		case f.resync.demands <- done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for range g.followers {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// board combines the reports of all shards' followers.
type board struct {
	clock   Clock
	metrics *metrics.Metrics
	// Limits on logging.
	infoOnce, headOnce, chainOnce, memoryOnce sync.Once
	refusedLog, breaksLog, gapsLog            rate.Sometimes

	readSlots    chan struct{} // an element per read of objects that may begin
	waitingBytes atomic.Int64  // bytes in the inboxes

	mu        sync.Mutex // protects all below
	inStep    []time.Time
	connected int
	vitals    []vitals // of each shard's Redis
	empty     []error  // by shard: loss that was not accepted; nil: none
	chainless []string // by shard: the name of the lost chain, or ""
	failures  []error  // by shard: of the last call; nil: success
}

func newBoard(shards int, clock Clock, m *metrics.Metrics) *board {
	sometimes := func() rate.Sometimes { return rate.Sometimes{First: 100, Interval: time.Second} }
	b := &board{
		clock: clock, metrics: m, refusedLog: sometimes(), breaksLog: sometimes(), gapsLog: sometimes(),
		inStep: make([]time.Time, shards), vitals: make([]vitals, shards), empty: make([]error, shards),
		chainless: make([]string, shards), failures: make([]error, shards),
		readSlots: make(chan struct{}, maxReads),
	}
	for range maxReads {
		b.readSlots <- struct{}{}
	}
	return b
}

// setInStep records that the shard was in step at t. The clock gets the oldest time of all shards.
func (b *board) setInStep(shard int, t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inStep[shard] = t
	for _, other := range b.inStep {
		if other.Before(t) {
			t = other
		}
	}
	if t.IsZero() {
		return // a shard was never in step
	}
	b.clock.SetInStep(t)
	b.metrics.InStep.Set(float64(t.UnixMilli()) / 1000)
}

// setFailure records why a shard can't be followed or read now; nil: no failure.
func (b *board) setFailure(shard int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures[shard] = err
}

// countConnected counts a shard as connected (1) or disconnected (-1).
func (b *board) countConnected(change int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.connected += change
	b.metrics.Connected.Set(map[bool]float64{true: 1}[b.connected == len(b.inStep)])
}

// From this part of maxmemory on, Redis counts as nearly full.
const nearlyFull = 0.9

// A difference from Redis's clock beyond clocksDiffer causes a warning; the edge allows for as much (settleMS).
const clocksDiffer = time.Second

// setVitals records the vitals of a shard's Redis, and logs new problems.
func (b *board) setVitals(shard int, v vitals, log *slog.Logger) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.vitals[shard]
	if v.warned = before.warned && v.ahead.Abs() > clocksDiffer/2; !v.warned && v.ahead.Abs() > clocksDiffer {
		v.warned = true
		log.Warn("the clock of redis differs from this machine's: if it is behind, objects with a ttl end as much too "+
			"early; if it is ahead, a restart of the sidecar prolongs them; correct the one that is wrong",
			"ahead", v.ahead)
	}
	b.vitals[shard] = v
	fullest, ahead := 0.0, time.Duration(0)
	for _, v := range b.vitals {
		fullest = max(fullest, v.fillRatio())
		if v.ahead.Abs() > ahead.Abs() {
			ahead = v.ahead
		}
	}
	b.metrics.RedisFill.Set(fullest)
	b.metrics.RedisAhead.Set(ahead.Seconds())
	if v.fillRatio() >= nearlyFull && before.fillRatio() < nearlyFull {
		log.Warn(
			"redis is nearly full: then it refuses all writes but deletions and revocations; raise maxmemory, or remove objects",
			"used_bytes", v.used, "maxmemory_bytes", v.max)
	}
	if v.policy != before.policy {
		b.setPolicy(v.policy, log)
	}
}

// setPolicy reports that a shard's Redis has another maxmemory-policy now.
func (b *board) setPolicy(policy string, log *slog.Logger) {
	of := func(prefix string) bool {
		return slices.ContainsFunc(b.vitals, func(v vitals) bool { return strings.HasPrefix(v.policy, prefix) })
	}
	for prefix, keys := range map[string]string{"allkeys-": "any", "volatile-": "expiring"} {
		b.metrics.Evicts.WithLabelValues(keys).Set(map[bool]float64{true: 1}[of(prefix)])
	}
	switch {
	case strings.HasPrefix(policy, "allkeys-"):
		log.Error("redis may evict records, without an event: a device without a record can't be revoked by it; set "+
			"maxmemory-policy noeviction", "maxmemory_policy", policy)
	case strings.HasPrefix(policy, "volatile-"):
		log.Warn("redis may evict tombstones and shared verdicts: set maxmemory-policy noeviction",
			"maxmemory_policy", policy)
	}
}
