// Package follow follows Redis: it subscribes to the events, catches up from the change log, and applies the events in
// order. A catch-up repairs every possible loss of events.
package follow

import (
	"cmp"
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
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/internal/breaker"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/tracing"
)

const (
	// callTimeout bounds a call to Redis.
	callTimeout = 5 * time.Second
	minBackoff  = 50 * time.Millisecond
	// maxBackoff bounds the delay of a new attempt, and so adds to the edge's delay when Redis is back.
	maxBackoff = 250 * time.Millisecond
	// maxRefused bounds the delay while only an operator can fix the cause: an attempt costs Redis two connections per
	// sidecar.
	maxRefused = 2 * time.Second
)

// compareEvery is the interval between comparisons of Redis's position with the follower's. Tests shorten it.
var compareEvery = time.Second

// Sink receives the records of a single kind, and compares versions.
type Sink[T any] interface {
	// Apply receives a record, which may be newer than the known record.
	Apply(record T)
	// Remove removes the record with this id: Redis has no record, or an unreadable object.
	Remove(id string)
	// BeginResync begins a full resync: all records follow, and their versions start over.
	BeginResync()
	// Unapplied returns the ids of known records that the resync has not applied yet.
	Unapplied() []string
	// EndResync removes the records that the resync has not applied.
	EndResync()
}

// Objects is a Sink that stores objects.
type Objects interface {
	Sink[contract.Object]
	// Confirm reports whether o, apart from its bodies, equals the stored version. If so, the resync counts the object
	// as applied.
	Confirm(o contract.Object) bool
	// Grow makes room for n more objects.
	Grow(n int)
}

// Credentials is a Sink that stores credentials.
type Credentials interface {
	Sink[contract.Credential]
	// Doubt disables the record with this id until the record is applied again or removed: Redis may have another
	// record.
	Doubt(id string)
	// Announce applies an event's denial of a device, until the record is applied, in any version, or removed.
	Announce(c contract.Credential)
	// ApplyMalformed refuses the device: its record in Redis can't be read.
	ApplyMalformed(id string)
}

// Purges stores purges, and compares versions.
type Purges interface {
	// Apply receives a purge, which may be newer than the known purge.
	Apply(p contract.Purge)
	// BeginResync begins a full resync: all purges follow, and their versions start over. Earlier purges count until
	// EndResync, which comes before the objects.
	BeginResync()
	// Unapplied returns the IDs of known purges that the resync has not applied yet.
	Unapplied() []string
	// EndResync removes the purges that the resync has not applied.
	EndResync()
}

// Clock receives the times of writes, and the times at which everything in Redis had been applied.
type Clock interface {
	SetInStep(t time.Time)
	// ApplyLive calls apply, which passes a write to its sink, and measures how long the write takes to the edge since
	// published, in the time of Redis.
	ApplyLive(published time.Time, apply func())
}

// Config sets the shard to follow and the sinks for its records.
type Config struct {
	// Keyspace is the keyspace of Redis; its Database is the client's. Shard is the shard to follow.
	Keyspace    contract.Keyspace
	Shard       int
	Objects     Objects
	Credentials Credentials
	Purges      Purges
	Clock       Clock
	// DeviceNamespace is the namespace of the devices, "": that of Keyspace.
	DeviceNamespace string
	// Replicas are followed instead of the master, for objects and purges; nil: the master is.
	Replicas Replicas
	// Snapshot is the path or URL of a snapshot to start from, "": none. That of shard 0 counts.
	Snapshot string
	// AcceptLossAfter is how long a shard must have been empty before the loss is accepted; 0: for ever.
	AcceptLossAfter time.Duration
	// Tracer makes a span of each event with a sampled trace. Trace receives the span when the event's change was
	// applied, for the push of the change. Both may be nil.
	Tracer trace.Tracer
	Trace  func(trace.SpanContext)
}

// shard is what the parts of a Follower share: the configuration, and where the parts report.
type shard struct {
	Config
	slot    int    // of the board
	kinds   string // of records that are followed, see contract.Member; "": all
	keys    contract.Keys
	board   *board
	metrics *metrics.Metrics
	log     *slog.Logger
}

// Follower follows a single shard: it receives events, compares positions, and catches up. Its parts do the rest. Each
// uses only parts above it: the applier applies, the fetcher asks Redis, the tracker judges, deviceReads reads what
// events name, and [catchUpReader] what was missed.
type Follower struct {
	*shard
	*applier
	*fetcher
	*tracker
	*deviceReads
	connected         atomic.Bool
	registeredBreaker breaker.Breaker // of Registered

	// Only the goroutine of Run uses the following fields.
	comparison comparison
	schedule   schedule
	unsure     []unsureEvent // for the next comparison
	replica    replicaState
	snapshot   *openedSnapshot // to start from; nil: none, or used
	reportEnd  func(chainEnd)  // receives the end of the objects' chain; may be nil
}

// comparison is the state of comparisons with the position of Redis.
type comparison struct {
	running   bool      // a comparison is running
	ahead     position  // position at which Redis was ahead of the follower; seq 0: none
	pending   position  // the follower is in step as of pending.at once pending.seq is applied; seq 0: none
	unknownAt time.Time // first time the position was unreadable; zero: readable
}

// schedule is the schedule of catch-ups that events require.
type schedule struct {
	limiter   *rate.Limiter
	scheduled bool          // timer is running
	timer     *time.Timer   // for runDueCatchUp
	reason    catchUpReason // for a pending catch-up; "": none
}

// newFollower returns a Follower that reports in a slot of the board; kinds: see shard.
func newFollower(c Config, slot int, kinds string, b *board, client redis.UniversalClient, m *metrics.Metrics,
	log *slog.Logger) *Follower {
	due := time.NewTimer(0)
	due.Stop()
	s := &shard{Config: c, slot: slot, kinds: kinds, keys: c.Keyspace.Keys(c.Shard), board: b, metrics: m, log: log}
	s.dropUnfollowed()
	t := &tracker{shard: s, firstSync: make(chan struct{}), resync: resyncState{demands: make(chan chan<- struct{})}}
	t.applied.Store(new(contract.Link))
	d := &deviceReads{
		shard: s, applier: &applier{s}, fetcher: &fetcher{shard: s, client: client, batch: pipelineSize}, tracker: t,
		inbox: newInbox(c.Keyspace.Count(), &b.waitingBytes), rereads: rereads{members: map[contract.Member]bool{}},
		grants: grants{waiting: map[contract.Member]bool{}, registered: make(chan contract.Member, maxRegistered)},
	}
	f := &Follower{shard: s, applier: d.applier, fetcher: d.fetcher, tracker: t, deviceReads: d,
		schedule: schedule{limiter: rate.NewLimiter(rate.Every(rereadEvery), rereadBurst), timer: due}}
	if c.Replicas != nil {
		f.fetcher.replicas = true
		f.replica.ends, f.replica.master = make(chan chainEnd, 1), &fetcher{shard: s, client: client}
	}
	return f
}

// Synced is closed when everything in Redis has been applied once.
func (f *Follower) Synced() <-chan struct{} { return f.firstSync }

// Connected reports whether the follower receives events.
func (f *Follower) Connected() bool { return f.connected.Load() }

// Run follows the events until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	backoff := minBackoff
	logged := "" // the last logged cause
	for {
		err := f.followOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		f.metrics.RedisErrors.Inc()
		if f.connected.Load() {
			backoff, logged = minBackoff, ""
		}
		f.setConnected(false)
		if cluster, ok := f.client.(*redis.ClusterClient); ok {
			cluster.ReloadState(ctx) // another server may have the shard
		}
		why := rootCause(err)
		f.board.setFailure(f.slot, err)
		switch {
		case why == logged:
			f.log.Debug("redis is still not followed", "error", err)
		case needsOperator(err):
			f.log.Error("redis can't be followed: the edge serves what it has", "error", err)
		case logged != "":
			f.log.Warn("redis is still not followed, for another reason", "error", err)
		case !f.caughtUp():
			f.log.Warn("redis can't be followed yet: nothing was read from it", "error", err)
		default:
			f.log.Warn("redis is not followed any more: the edge serves what it has", "error", err)
		}
		logged = why
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(backoff/2 + rand.N(backoff/2)): // random, since all sidecars lose Redis at the same time
			backoff = nextBackoff(backoff, err)
		}
	}
}

// nextBackoff returns the backoff after a backoff and an attempt that ended with err.
func nextBackoff(backoff time.Duration, err error) time.Duration {
	switch {
	case backoff < maxBackoff:
		return min(2*backoff, maxBackoff)
	case needsOperator(err):
		return min(backoff+backoff/10, maxRefused)
	}
	return maxBackoff
}

// rootCause returns the root cause of an error, without the ports, times and numbers of the single attempt.
func rootCause(err error) string {
	switch e := err.(type) {
	case *net.DNSError:
		return "lookup " + e.Name
	case x509.CertificateInvalidError:
		e.Detail = "" // contains the time
		return e.Error()
	case interface{ Unwrap() []error }: // of sentinels, in the order of their answers
		var causes []string
		for _, inner := range e.Unwrap() {
			causes = append(causes, rootCause(inner))
		}
		slices.Sort(causes)
		return strings.Join(slices.Compact(causes), "; ")
	}
	if inner := errors.Unwrap(err); inner != nil {
		return rootCause(inner)
	}
	return err.Error()
}

func (f *Follower) setConnected(connected bool) {
	if f.connected.Swap(connected) != connected {
		f.board.countConnected(map[bool]int{true: 1, false: -1}[connected])
	}
	if connected {
		f.board.setFailure(f.slot, nil)
	}
}

var (
	errResubscribed = errors.New("the client has subscribed again: events may be missing")
	errSilent       = errors.New("redis is written to, but no events arrive: the subscription may be at another server")
	errTrimmed      = errors.New("the log was trimmed while it was read: everything is read again")
	errOtherServer  = errors.New(
		"redis was restarted, or another server has taken over: the subscription may be at the old one")
)

// followOnce subscribes, catches up, and applies events until a failure. The order matters: writes after the
// acknowledgement of the subscription arrive as events, earlier writes are in the log.
func (f *Follower) followOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.withheld.info.Store(false)
	f.withheld.chain.Store(false)
	f.withheld.memory.Store(false)
	if f.Replicas != nil {
		replica, err := f.pickReplica(ctx)
		if err != nil {
			return err
		}
		defer f.closeReplica(replica)
	}
	channel := f.keys.EventsChannel()
	sub := redisurl.Subscribe(ctx, f.client, channel)
	stop := context.AfterFunc(ctx, func() { sub.Close() }) // ends a blocked read
	defer stop()
	if err := awaitSubscription(ctx, sub, channel); err != nil {
		sub.Close()
		return err
	}
	in, running := newInbox(f.Keyspace.Count(), &f.board.waitingBytes), new(sync.WaitGroup)
	f.inbox, f.readers, f.grants.replies = in, running, make(chan grantReplies, 1)
	defer f.abandonSubscription() // when nothing more arrives
	defer running.Wait()
	running.Go(func() { in.fail(readSubscription(ctx, sub, in)) })
	defer sub.Close()
	defer cancel()
	if err := f.catchUp(ctx, catchUpConnected); err != nil {
		return err
	}
	if err := f.applyInbox(ctx, in); err != nil {
		return err
	}
	if f.Replicas == nil {
		f.endFirstSync()
	}
	f.setConnected(true)
	connected := map[bool]string{false: "in step with redis", true: "the replica is followed"}[f.replicas]
	f.log.Info(connected, "data_epoch", f.dataEpoch, "seq", f.seq)
	return f.followEvents(ctx, in)
}

// followEvents applies events and compares positions.
func (f *Follower) followEvents(ctx context.Context, in *inbox) error {
	tick := time.NewTicker(compareEvery)
	defer tick.Stop()
	compared := make(chan position, 1)
	f.comparison.ahead, f.comparison.running = position{}, false
	for {
		f.readGrants(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case g := <-f.grants.replies:
			if err := f.applyGrants(g); err != nil {
				return err
			}
		case <-f.grants.deadline:
			f.doubtLateGrants()
		case m := <-f.grants.registered:
			f.queueRegistered(m)
		case f.resync.done = <-f.resync.demands:
			f.requireResync(cmp.Or(f.resync.pending, resyncDemand))
			if err := f.catchUp(ctx, catchUpDemand); err != nil {
				return err
			}
		case <-f.schedule.timer.C:
			if err := f.runDueCatchUp(ctx); err != nil {
				return err
			}
		case <-in.wake:
			if err := f.applyInbox(ctx, in); err != nil {
				return err
			}
		case <-tick.C:
			if f.comparison.running {
				continue
			}
			f.comparison.running = true
			f.replica.ours, f.replica.oursAt = f.seq, time.Now()
			asked := position{seq: f.seq, link: contract.Link{Seq: f.seq, Digest: f.chain.digest}, catchups: f.catchups,
				at: time.Now(), unsure: f.unsure}
			f.unsure = nil
			f.readers.Go(func() { compared <- f.askPosition(ctx, asked) })
		case end := <-f.replica.ends:
			if err := f.compareEnd(end); err != nil {
				return err
			}
		case p := <-compared:
			f.comparison.running = false
			if err := f.comparePosition(ctx, p); err != nil {
				return err
			}
		}
	}
}

// applyInbox applies the received events.
func (f *Follower) applyInbox(ctx context.Context, in *inbox) error {
	payloads, lost, err := in.take()
	if lost {
		// The connection may be fine: the log has the dropped events.
		if err := f.catchUp(ctx, catchUpOverflow); err != nil {
			f.lookAhead(payloads, f.dataEpoch)
			return err
		}
	}
	for i, payload := range payloads {
		payloads[i] = "" // frees a payload, which may be large
		if err := f.handleEvent(ctx, payload); err != nil {
			f.lookAhead(payloads[i+1:], f.dataEpoch)
			return err
		}
	}
	return err
}

// handleEvent applies an event that is next in the chain; for other events it catches up or does nothing.
func (f *Follower) handleEvent(ctx context.Context, payload string) error {
	e, err := contract.ParseEvent(payload)
	if err != nil {
		f.metrics.Events.WithLabelValues("corrupt").Inc()
		f.reportUnreadable("event", e.Member.ID, err)
		if e.Seq == 0 {
			return nil // the gap will be noticed
		}
	}
	standing := f.judgeEvent(&e, payload)
	switch standing {
	case follows:
		f.applyEvent(&e, err)
		return nil
	case applied:
		f.metrics.Events.WithLabelValues("duplicate").Inc()
		return nil
	case unsure:
		f.metrics.Events.WithLabelValues("duplicate").Inc()
		f.addUnsure(&e)
		return nil
	}
	f.doubtIfDenied(&e, err != nil)
	switch standing {
	case otherDataEpoch:
		f.metrics.Events.WithLabelValues("foreign").Inc()
		return f.requestCatchUp(ctx, catchUpDataEpoch)
	case gap:
		f.metrics.Events.WithLabelValues("gap").Inc()
		f.board.gapsLog.Do(func() { f.log.Info("events are missing", "seq", f.seq, "event_seq", e.Seq) })
		return f.requestCatchUp(ctx, catchUpGap)
	}
	f.metrics.Events.WithLabelValues("mistrusted").Inc()
	return f.rejectEvent(ctx, &e)
}

// applyEvent applies the next event; unreadable is the event's parse error, or nil.
func (f *Follower) applyEvent(e *contract.Event, unreadable error) {
	f.setLast(e.Seq, e.Digest)
	switch stray := f.Keyspace.Belongs(e.Member, f.Shard); {
	case !f.follows(e.Member.Kind):
	case unreadable != nil && stray != nil: // of another shard, and already reported
	case stray != nil:
		f.metrics.Events.WithLabelValues("corrupt").Inc()
		f.reportUnreadable("member", e.Member.ID, stray)
	case unreadable != nil:
		f.removeMalformed(e.Member)
		if e.Member.Kind == contract.KindCredential {
			f.queueRead(e.Member, false)
		}
	case isForgedPurge(e):
		f.metrics.Events.WithLabelValues("corrupt").Inc()
		f.reportUnreadable("purge", e.Member.ID, errOtherSeq)
	default:
		f.metrics.Events.WithLabelValues("applied").Inc()
		span := f.startSpan(e)
		defer span.End()
		f.applyLive(e.Fields, func() {
			if e.Member.Kind == contract.KindCredential {
				f.applyDevice(e)
			} else {
				f.applyRecord(e.Member, e.Fields)
			}
		})
		if span.IsRecording() && !f.grants.waiting[e.Member] {
			f.Trace(span.SpanContext())
		}
	}
	f.reportInStep()
}

// startSpan starts the span of an event, in the trace of the event's write.
func (f *Follower) startSpan(e *contract.Event) trace.Span {
	ctx := context.Background()
	if e.Traceparent == "" || f.Tracer == nil {
		return trace.SpanFromContext(ctx)
	}
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": e.Traceparent})
	_, span := f.Tracer.Start(ctx, "apply", trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(tracing.Kind.String(kindName(e.Member))))
	return span
}

// setInStep reports the shard in step as of t, once all grants received by now were read. At a replica, only
// [Follower.compareEnd] knows.
func (f *Follower) setInStep(t time.Time) {
	switch {
	case f.Replicas != nil:
	case f.schedule.reason != "": // until Redis was read
	case len(f.grants.waiting) > 0 && f.grants.inStep.seq == 0:
		f.grants.inStep = position{seq: f.grants.rounds + 1, at: t}
	case f.grants.reading != nil && f.grants.inStep.seq == 0:
		f.grants.inStep = position{seq: f.grants.rounds, at: t}
	case len(f.grants.waiting) == 0 && f.grants.reading == nil:
		f.board.setInStep(f.slot, t)
	}
}

// reportInStep reports the shard in step if everything up to a pending position was applied.
func (f *Follower) reportInStep() {
	for _, then := range []*position{&f.comparison.pending, &f.comparison.ahead} {
		if then.seq != 0 && f.seq >= then.seq {
			f.setInStep(then.at)
			*then = position{}
		}
	}
	if f.replica.end.seq != 0 && f.seq >= f.replica.end.seq {
		select {
		case f.replica.ends <- f.replica.end: // unless a newer end is waiting
		default:
		}
	}
}
