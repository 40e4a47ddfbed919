package events

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
)

// Group follows all shards, each by a Subscriber of its own.
type Group struct {
	subscribers []*Subscriber
	synced      chan struct{}
}

// NewGroup is a Group of n shards, of each of which of is the configuration but for what
// is the same of all: the numbers and the clock. The client stays the caller's to close.
func NewGroup(n contract.Shards, of func(shard int) Config, clock Clock, client redis.UniversalClient, m *metrics.Metrics, log *slog.Logger) *Group {
	g := &Group{synced: make(chan struct{})}
	board := newBoard(n.Count(), clock, m)
	for i := range n.Count() {
		c := of(i)
		c.Shards, c.Shard, c.Clock = n, i, clock
		log := log
		if n.Count() > 1 {
			log = log.With("shard", i)
		}
		g.subscribers = append(g.subscribers, newSubscriber(c, board, client, m, log))
	}
	return g
}

// Synced is closed when everything in Redis has been applied once.
func (g *Group) Synced() <-chan struct{} { return g.synced }

// Run follows the events until ctx ends.
func (g *Group) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for _, s := range g.subscribers {
		running.Go(func() { s.Run(ctx) }) // ends with ctx only
	}
	for _, s := range g.subscribers {
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

// board puts together what the subscribers of all shards report.
type board struct {
	clock   Clock
	metrics *metrics.Metrics
	// For the log.
	infoOnce, headOnce, chainOnce sync.Once
	refused, breaks, gaps         rate.Sometimes

	mu        sync.Mutex // protects all below
	inStep    []time.Time
	connected int
	evicting  []string // of each shard: the maxmemory-policy of its Redis
}

func newBoard(shards int, clock Clock, m *metrics.Metrics) *board {
	sometimes := func() rate.Sometimes { return rate.Sometimes{First: 100, Interval: time.Second} }
	return &board{
		clock: clock, metrics: m, refused: sometimes(), breaks: sometimes(), gaps: sometimes(),
		inStep: make([]time.Time, shards), evicting: make([]string, shards),
	}
}

// setInStep says that the shard was in step at t: all are, as of the oldest.
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
		return // one was never in step
	}
	b.clock.SetInStep(t)
	b.metrics.InStep.Set(float64(t.UnixMilli()) / 1000)
}

// connect counts a shard that is followed from now on, 1, or not any more, -1.
func (b *board) connect(change int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.connected += change
	b.metrics.Connected.Set(map[bool]float64{true: 1}[b.connected == len(b.inStep)])
}

// setPolicy says what the Redis of a shard evicts where memory is short.
func (b *board) setPolicy(shard int, policy string, log *slog.Logger) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.evicting[shard] == policy {
		return
	}
	b.evicting[shard] = policy
	of := func(prefix string) bool {
		return slices.ContainsFunc(b.evicting, func(p string) bool { return strings.HasPrefix(p, prefix) })
	}
	for prefix, keys := range map[string]string{"allkeys-": "any", "volatile-": "expiring"} {
		b.metrics.Evicts.WithLabelValues(keys).Set(map[bool]float64{true: 1}[of(prefix)])
	}
	switch {
	case strings.HasPrefix(policy, "allkeys-"):
		log.Error("redis may evict records, without an event: a device without a record can't be revoked by it; set maxmemory-policy noeviction", "maxmemory_policy", policy)
	case strings.HasPrefix(policy, "volatile-"):
		log.Warn("redis may evict tombstones and shared verdicts: set maxmemory-policy noeviction", "maxmemory_policy", policy)
	}
}
