package events

import (
	"context"
	"log/slog"
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
	clock              Clock
	metrics            *metrics.Metrics
	infoOnce, headOnce sync.Once      // for the log
	refused            rate.Sometimes // likewise, of records

	mu        sync.Mutex // protects all below
	inStep    []time.Time
	connected int
}

func newBoard(shards int, clock Clock, m *metrics.Metrics) *board {
	return &board{clock: clock, metrics: m, refused: rate.Sometimes{First: 100, Interval: time.Second}, inStep: make([]time.Time, shards)}
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
