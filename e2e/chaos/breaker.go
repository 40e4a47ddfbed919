package chaos

import (
	"context"
	"fmt"
	"net/http"
	"syscall"
	"time"

	"github.com/gatehouse/gatehouse/testbed/link"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// breaker breaks and restores the parts of a stack.
type breaker struct {
	stack      *stack.Stack
	link       *link.Link // of a single server
	losses     losses     // on the link
	clocks     *clocks    // of a single server
	world      *world
	*servers              // of the other deployments
	moved      chan error // the result of moving a slot
	endCorrupt func()
	emptyRedis func(context.Context) error
	revokeAll  func() error
	writeBulk  func() // writes much
}

// comparisonTime is how long the sidecar may take to see twice that Redis is ahead.
const comparisonTime = 2 * time.Second

// close closes the link, the clocks and the servers.
func (b *breaker) close() {
	if b.link != nil {
		b.link.Close()
	}
	if b.clocks != nil {
		b.clocks.close()
	}
	if b.servers != nil {
		b.servers.close()
	}
}

// beginFault begins a fault of one kind.
func (b *breaker) beginFault(kind FaultKind, f *Fault) error {
	switch kind {
	case KillRedis:
		return b.stack.KillRedis()
	case LosePower:
		setOdd(&b.world.eras, true)
		return b.losePower()
	case PauseRedis:
		return b.stack.SignalRedis(syscall.SIGSTOP)
	case CutLink:
		b.link.Cut()
		return nil
	case HangLink:
		b.link.Hang()
		return nil
	case DelayLink:
		by := time.Duration(f.Rate) * time.Millisecond
		b.link.Delay(by, by/2)
		return nil
	case SlowAnswers: // the sidecar connects again, and has much to read
		b.link.Cut()
		b.writeBulk()
		b.losses.slow.Store(true)
		return b.link.Heal()
	case LoseMessages:
		b.losses.perMille.Store(f.Rate)
		return nil
	case LoseLast:
		b.losses.perMille.Store(1000)
		return nil
	case FullRedis:
		return b.limitMemory("1")
	case RevokeAll:
		return b.revokeAll()
	case Failover:
		setOdd(&b.world.eras, true)
		return b.catchFatal(func() { b.sentinels.Failover(b, func() { wait(b.ctx, lag/2) }) })
	case CutReplica, HangReplica, DelayReplica, KillReplica, PromoteReplica:
		return b.catchFatal(func() { b.replica.breakIt(b, kind, time.Duration(f.Rate)*time.Millisecond) })
	case MoveSlot:
		b.moved = make(chan error, 1)
		go func() { b.moved <- b.moveSlot(b.ctx) }()
		return nil
	case EmptyRedis:
		return b.emptyRedis(context.Background())
	case BadBatches:
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); sendCorruptBatches(ctx, b.stack.PushSocket()) }()
		b.endCorrupt = func() { cancel(); <-done }
		return nil
	case StepEdge:
		return b.clocks.edge.Step(f.Step)
	case StepRedis:
		return b.clocks.redis.Step(f.Step)
	case TrapEdge:
		if b.stack.EdgeKind() == stack.NginxEdge { // its code can't trap
			return b.killWorker()
		}
		setOdd(&b.world.traps, true)
		TrapModule(&http.Client{Timeout: time.Second}, b.stack.EdgeURL()+"/chaos/trap")
		return nil
	case TrapPush:
		if b.stack.EdgeKind() == stack.NginxEdge {
			return b.killWorker()
		}
		setOdd(&b.world.refills, true)
		TrapModule(overSocket(b.stack.PushSocket()), pushURL)
		return nil
	case KillSidecar:
		setOdd(&b.world.refills, true)
		return b.stack.KillSidecar()
	case PauseSidecar:
		return b.stack.SignalSidecar(syscall.SIGSTOP)
	case KillEnvoy:
		setOdd(&b.world.refills, true)
		setOdd(&b.world.edges, true)
		return b.stack.KillEdge()
	case PauseEnvoy:
		return b.stack.SignalEdge(syscall.SIGSTOP)
	}
	return fmt.Errorf("unknown fault %q", kind)
}

// limitMemory sets Redis's maxmemory in bytes; 0: no limit.
func (b *breaker) limitMemory(bytes string) error {
	client, err := newRedis(b.stack.RedisURL())
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if err := client.ConfigSet(context.Background(), "maxmemory", bytes).Err(); err != nil {
		return fmt.Errorf("set maxmemory: %w", err)
	}
	return nil
}

// killWorker kills a worker of nginx. If the worker was applying a batch, the sidecar pushes everything again.
func (b *breaker) killWorker() error {
	setOdd(&b.world.refills, true)
	setOdd(&b.world.traps, true)
	return b.stack.KillWorker()
}

// endFault ends a fault and returns when everything is as before. heal calls ended with the time from which the edge
// has to catch up: for Redis and Envoy, when they answer again; for a process or a link that only has to continue, at
// once; at once also for the sidecar, whose start is part of catching up.
func (b *breaker) endFault(ctx context.Context, kind FaultKind, ended func(at time.Duration)) error {
	var act func() error
	answering := false // call ended when act has returned, not before
	switch kind {
	case KillRedis, LosePower:
		act, answering = func() error { return b.stack.StartRedis(ctx) }, true
	case PauseRedis:
		act = func() error { return b.stack.SignalRedis(syscall.SIGCONT) }
	case CutLink:
		act = b.link.Heal
	case HangLink, DelayLink:
		act, answering = func() error { b.link.Clear(); return nil }, true
	case LoseLast: // no other write follows, so only the comparison can find it, twice in a row
		act, answering = func() error { b.losses.perMille.Store(0); wait(ctx, comparisonTime); return nil }, true
	case FullRedis:
		act = func() error { return b.limitMemory("0") }
	case SlowAnswers:
		act = func() error { b.losses.slow.Store(false); return nil }
	case LoseMessages:
		act = func() error { b.losses.perMille.Store(0); return nil }
	case Failover:
		act, answering = func() error { return b.catchFatal(func() { b.sentinels.Rejoin(b) }) }, true
	case CutReplica, HangReplica, DelayReplica, KillReplica, PromoteReplica:
		act, answering = func() error { return b.catchFatal(func() { b.replica.repair(b, kind) }) }, true
	case MoveSlot:
		act, answering = func() error { return <-b.moved }, true
	case EmptyRedis, RevokeAll, TrapEdge, TrapPush:
		act = func() error { return nil } // it has no duration
	case BadBatches:
		act = func() error { b.endCorrupt(); return nil }
	case StepEdge:
		act = func() error { return b.clocks.edge.Step(0) }
	case StepRedis:
		act = func() error { return b.clocks.redis.Step(0) }
	case KillSidecar:
		act = func() error { return b.stack.StartSidecar(ctx) }
	case PauseSidecar:
		act = func() error { return b.stack.SignalSidecar(syscall.SIGCONT) }
	case KillEnvoy:
		act, answering = func() error { return b.stack.StartEdge(ctx) }, true
	case PauseEnvoy:
		act = func() error { return b.stack.SignalEdge(syscall.SIGCONT) }
	default:
		return fmt.Errorf("unknown fault %q", kind)
	}
	if !answering {
		ended(b.world.now())
		return act()
	}
	err := act()
	if kind == KillEnvoy {
		setOdd(&b.world.edges, false)
	}
	ended(b.world.now())
	return err
}
