// Package events follows Redis: it subscribes, catches up with the change log, and then
// applies event by event. Whatever may have been missed leads to the same catch-up.
package events

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
)

const (
	// callTimeout bounds one call to Redis.
	callTimeout = 5 * time.Second
	minBackoff  = 50 * time.Millisecond
	// maxBackoff is part of how long the edge takes to catch up when Redis is back.
	maxBackoff = 250 * time.Millisecond
)

// compareEvery is how often the position of Redis is compared with ours. Tests shorten it.
var compareEvery = time.Second

// Sink takes what Redis says of one kind of record. It compares versions itself.
type Sink[T any] interface {
	// Apply takes a record that may be newer than the known one.
	Apply(record T)
	// Remove says that Redis has no record of this id, or none that can be read.
	Remove(id string)
	// BeginResync says that all records follow, and that versions start over.
	BeginResync()
	// Unmet are the ids of the records that are known and did not follow yet.
	Unmet() []string
	// EndResync says that what did not follow is gone.
	EndResync()
}

// Objects is a Sink that keeps what it took.
type Objects interface {
	Sink[contract.Object]
	// Confirm reports whether o, but for its bodies, is what was taken last of its key. Then it counts
	// as if it followed.
	Confirm(o contract.Object) bool
}

// Clock takes times at which everything that Redis held had been applied.
type Clock interface {
	SetInStep(t time.Time)
}

// Config says where records go.
type Config struct {
	// Shards is their number, and Shard the one to follow.
	Shards      contract.Shards
	Shard       int
	Objects     Objects
	Credentials Sink[contract.Credential]
	Clock       Clock
}

// Subscriber follows one shard.
type Subscriber struct {
	Config
	keys    contract.Keys
	board   *board
	client  redis.UniversalClient
	metrics *metrics.Metrics
	log     *slog.Logger

	first     chan struct{} // closed when caught up for the first time
	firstOnce sync.Once
	connected atomic.Bool
	noInfo    atomic.Bool // in this session, the server refuses INFO
	noChain   atomic.Bool // likewise, HMGET of the chain

	// Of the goroutine that runs Run.
	epoch     string    // data epoch that seq counts in; "" before the first write
	seq       uint64    // last applied
	chain     chain     // up to seq
	history   history   // of the server that seq is of
	historyAt time.Time // when that was seen
	in        *inbox    // of the session
	synced    bool      // all up to seq was applied
	resynced  bool      // a full resync was made or tried, so that the next one may meet what is known
	catchups  uint64
	ahead     position  // Redis was ahead of us there; its seq is 0 if it was not
	claim     position  // once all up to its seq is applied, we were in step at that time; 0: nothing is to be claimed
	comparing bool      // a comparison is under way
	fullAt    time.Time // when the last full resync ended
	batch     int       // records that are read at once
	unknownAt time.Time // since when the position can't be read; zero: it can

	// What events ask to be read.
	rereads   *rate.Limiter
	rereading bool                     // due is to fire
	due       *time.Timer              // for rereadDue
	doubt     catchUpReason            // why Redis is to be read; "": it is not
	again     map[contract.Member]bool // devices that the next catch-up reads in any case
	unsure    []unsureEvent

	// Devices that events have granted something, see applyDevice.
	waiting map[contract.Member]bool
	reading map[contract.Member]bool // true while the answer counts; nil: no round is under way
	rounds  uint64                   // begun
	held    position                 // in step at that time, when the round of the number seq has ended; 0: none is held
	grants  chan granted             // of the session
	running *sync.WaitGroup          // likewise
}

// New is a Subscriber that reads through client, which stays the caller's to close. To
// follow more than one shard, see [NewGroup].
func New(c Config, client redis.UniversalClient, m *metrics.Metrics, log *slog.Logger) *Subscriber {
	c.Shards, c.Shard = 1, 0
	return newSubscriber(c, newBoard(1, c.Clock, m), client, m, log)
}

func newSubscriber(c Config, b *board, client redis.UniversalClient, m *metrics.Metrics, log *slog.Logger) *Subscriber {
	due := time.NewTimer(0)
	due.Stop()
	return &Subscriber{
		rereads: rate.NewLimiter(rate.Every(rereadEvery), rereadBurst), due: due,
		again: map[contract.Member]bool{}, waiting: map[contract.Member]bool{},
		Config: c, keys: contract.ShardKeys(c.Shard), board: b,
		client: client, metrics: m, log: log, first: make(chan struct{}), in: newInbox(c.Shards.Count()), batch: pipelineSize,
	}
}

// Synced is closed when everything in Redis has been applied once.
func (s *Subscriber) Synced() <-chan struct{} { return s.first }

// caughtUp reports whether that is so.
func (s *Subscriber) caughtUp() bool {
	select {
	case <-s.first:
		return true
	default:
		return false
	}
}

// Connected reports whether the events are being followed.
func (s *Subscriber) Connected() bool { return s.connected.Load() }

// Run follows the events until ctx ends.
func (s *Subscriber) Run(ctx context.Context) error {
	backoff := minBackoff
	said := "" // why, last
	for {
		err := s.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.metrics.RedisErrors.Inc()
		if s.connected.Load() {
			backoff, said = minBackoff, ""
		}
		s.setConnected(false)
		if cluster, ok := s.client.(*redis.ClusterClient); ok {
			cluster.ReloadState(ctx) // another server may have the shard
		}
		why := cause(err)
		switch {
		case why == said:
			s.log.Debug("redis is still not followed", "error", err)
		case refusal(err):
			s.log.Error("redis can't be followed: the edge serves what it has", "error", err)
		case said != "":
			s.log.Warn("redis is still not followed, for another reason", "error", err)
		case !s.caughtUp():
			s.log.Warn("redis can't be followed yet: nothing of it is known", "error", err)
		default:
			s.log.Warn("redis is not followed any more: the edge serves what it has", "error", err)
		}
		said = why
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(backoff/2 + rand.N(backoff/2)): // all sidecars have lost it at once
			backoff = min(2*backoff, maxBackoff)
		}
	}
}

// cause is what an error says at its root, without ports, times and numbers that are others each time.
func cause(err error) string {
	switch e := err.(type) {
	case *net.DNSError:
		return "lookup " + e.Name
	case x509.CertificateInvalidError:
		e.Detail = "" // has the time
		return e.Error()
	case interface{ Unwrap() []error }: // of sentinels, in the order in which they answered
		var causes []string
		for _, inner := range e.Unwrap() {
			causes = append(causes, cause(inner))
		}
		slices.Sort(causes)
		return strings.Join(slices.Compact(causes), "; ")
	}
	if inner := errors.Unwrap(err); inner != nil {
		return cause(inner)
	}
	return err.Error()
}

func (s *Subscriber) setConnected(connected bool) {
	if s.connected.Swap(connected) != connected {
		s.board.connect(map[bool]int{true: 1, false: -1}[connected])
	}
}

var (
	errResubscribed = errors.New("the subscription was made anew: events may be missing")
	errSilent       = errors.New("redis is written to, and no events come: the subscription may be at another server")
	errTrimmed      = errors.New("the log was trimmed while it was read: everything is read")
	errOtherServer  = errors.New("redis was restarted, or another server has taken over: the subscription may be of the old one")
)

// session subscribes, catches up, and applies events until something fails. The order
// matters: what is written after the subscription is acknowledged comes as an event,
// what was written before is in the log.
func (s *Subscriber) session(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	s.noInfo.Store(false)
	s.noChain.Store(false)
	channel := s.keys.EventsChannel()
	sub := s.subscribe(ctx, channel)
	var running sync.WaitGroup
	defer running.Wait()
	stop := context.AfterFunc(ctx, func() { sub.Close() }) // ends a read
	defer stop()
	defer cancel()
	if err := awaitSubscription(ctx, sub, channel); err != nil {
		sub.Close()
		return err
	}
	in := newInbox(s.Shards.Count())
	s.in, s.running, s.grants = in, &running, make(chan granted, 1)
	defer s.abandon()
	running.Go(func() { in.fail(receive(ctx, sub, in)) })
	defer sub.Close()
	if err := s.catchUp(ctx, onConnected); err != nil {
		return err
	}
	if err := s.takeIn(ctx, in); err != nil {
		return err
	}
	s.firstOnce.Do(func() { close(s.first) })
	s.setConnected(true)
	s.log.Info("in step with redis", "epoch", s.epoch, "seq", s.seq)
	return s.follow(ctx, in)
}

// subscribe subscribes to the channel: of a Cluster at the server that has the shard.
func (s *Subscriber) subscribe(ctx context.Context, channel string) *redis.PubSub {
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		return cluster.SSubscribe(ctx, channel)
	}
	return s.client.Subscribe(ctx, channel)
}

// follow applies what comes in and compares positions.
func (s *Subscriber) follow(ctx context.Context, in *inbox) error {
	tick := time.NewTicker(compareEvery)
	defer tick.Stop()
	compared := make(chan position, 1)
	s.ahead, s.comparing = position{}, false
	for {
		s.readGranted(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case g := <-s.grants:
			if err := s.finish(g); err != nil {
				return err
			}
		case <-s.due.C:
			if err := s.rereadDue(ctx); err != nil {
				return err
			}
		case <-in.wake:
			if err := s.takeIn(ctx, in); err != nil {
				return err
			}
		case <-tick.C:
			if s.comparing {
				continue
			}
			s.comparing = true
			asked := position{seq: s.seq, link: contract.Link{Seq: s.seq, Digest: s.chain.digest}, catchups: s.catchups, at: time.Now(), unsure: s.unsure}
			s.unsure = nil
			s.running.Go(func() { compared <- s.ask(ctx, asked) })
		case p := <-compared:
			s.comparing = false
			if err := s.compare(ctx, p); err != nil {
				return err
			}
		}
	}
}

// takeIn applies what has come in.
func (s *Subscriber) takeIn(ctx context.Context, in *inbox) error {
	payloads, lost, err := in.take()
	if lost {
		// The connection may be fine: what was dropped is in the log.
		if err := s.catchUp(ctx, onOverflow); err != nil {
			return err
		}
	}
	for _, payload := range payloads {
		if err := s.receive(ctx, payload); err != nil {
			return err
		}
	}
	return err
}

// receive applies one event that is the next one of our history, or catches up if it isn't.
func (s *Subscriber) receive(ctx context.Context, payload string) error {
	e, err := contract.ParseEvent(payload)
	if err != nil {
		s.metrics.Events.WithLabelValues("corrupt").Inc()
		s.refuse("event", e.Member.ID, err)
		if e.Seq == 0 {
			return nil // the hole that it leaves will be noticed
		}
	}
	standing := s.judge(&e, payload)
	switch standing {
	case follows:
		s.accept(&e, err)
		return nil
	case known:
		s.metrics.Events.WithLabelValues("duplicate").Inc()
		return nil
	case unsure:
		s.metrics.Events.WithLabelValues("duplicate").Inc()
		s.askLater(&e)
		return nil
	}
	s.distrusted(&e, err != nil)
	switch standing {
	case otherEpoch:
		s.metrics.Events.WithLabelValues("foreign").Inc()
		return s.reread(ctx, onEpoch)
	case missing:
		s.metrics.Events.WithLabelValues("gap").Inc()
		s.board.gaps.Do(func() { s.log.Info("events are missing", "seq", s.seq, "event_seq", e.Seq) })
		return s.reread(ctx, onGap)
	}
	s.metrics.Events.WithLabelValues("mistrusted").Inc()
	return s.mistrust(ctx, &e, breakOf[standing])
}

// accept applies the next event; unreadable is what is wrong with it.
func (s *Subscriber) accept(e *contract.Event, unreadable error) {
	s.setSeq(e.Seq)
	s.chain.set(e.Seq, e.Digest)
	switch stray := s.Shards.Belongs(e.Member, s.Shard); {
	case unreadable != nil && stray != nil: // was refused above, and takes nothing of this shard away
	case stray != nil:
		s.metrics.Events.WithLabelValues("corrupt").Inc()
		s.refuse("member", e.Member.ID, stray)
	case unreadable != nil:
		s.remove(e.Member)
	default:
		s.metrics.Events.WithLabelValues("applied").Inc()
		if e.Member.Kind == contract.KindCredential {
			s.applyDevice(e)
		} else {
			s.apply(e.Member, e.Fields)
		}
	}
	s.moved()
}

// moved says that we are in step, as of when that was found to hold from this number on.
func (s *Subscriber) moved() {
	for _, then := range []*position{&s.claim, &s.ahead} {
		if then.seq != 0 && s.seq >= then.seq {
			s.setInStep(then.at)
			*then = position{}
		}
	}
}

// setSeq sets the last number applied, and counts it in the sum of all shards.
func (s *Subscriber) setSeq(seq uint64) {
	s.metrics.Seq.Add(float64(seq) - float64(s.seq))
	s.seq = seq
}
