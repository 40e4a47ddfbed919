package chaos

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/gatehouse/gatehouse/e2e/stack"
)

// breaker breaks and mends the parts of a stack.
type breaker struct {
	stack      *stack.Stack
	link       *link // of a single server
	world      *world
	*servers              // of the other deployments
	moved      chan error // what became of a slot that moves
	endCorrupt func()
	empty      func(context.Context) error
}

// close ends what is around the stack.
func (b *breaker) close() {
	if b.link != nil {
		b.link.close()
	}
	if b.servers != nil {
		b.servers.close()
	}
}

// breakIt begins a fault of one kind.
func (b *breaker) breakIt(kind FaultKind, rate int64) error {
	switch kind {
	case KillRedis:
		return b.stack.KillRedis()
	case LosePower:
		set(&b.world.eras, true)
		return b.losePower()
	case PauseRedis:
		return b.stack.SignalRedis(syscall.SIGSTOP)
	case CutLink:
		return b.link.cut()
	case HangLink:
		return b.link.hang()
	case DelayLink:
		by := time.Duration(rate) * time.Millisecond
		return b.link.delay(by, by/2)
	case LoseMessages:
		return b.link.lose(rate)
	case Failover:
		set(&b.world.eras, true)
		return b.try(func() { b.sentinels.Failover(b, func() { wait(b.ctx, lag/2) }) })
	case MoveSlot:
		b.moved = make(chan error, 1)
		go func() { b.moved <- b.moveSlot(b.ctx) }()
		return nil
	case EmptyRedis:
		return b.empty(context.Background())
	case BadBatches:
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); corrupt(ctx, b.stack.PushSocket()) }()
		b.endCorrupt = func() { cancel(); <-done }
		return nil
	case KillSidecar:
		set(&b.world.refills, true)
		return b.stack.KillSidecar()
	case PauseSidecar:
		return b.stack.SignalSidecar(syscall.SIGSTOP)
	case KillEnvoy:
		set(&b.world.refills, true)
		set(&b.world.edges, true)
		return b.stack.KillEnvoy()
	case PauseEnvoy:
		return b.stack.SignalEnvoy(syscall.SIGSTOP)
	}
	return fmt.Errorf("unknown fault %q", kind)
}

// mend ends a fault and returns when all is as before. As soon as it knows, it tells the
// time from which on the edge has to catch up: at once where a process or a link only has to
// go on, and for the sidecar, whose start is part of catching up; Redis and Envoy count from
// when they answer again.
func (b *breaker) mend(ctx context.Context, kind FaultKind, ended func(at time.Duration)) error {
	var act func() error
	answering := false // ended is when act has returned, not before
	switch kind {
	case KillRedis, LosePower:
		act, answering = func() error { return b.stack.StartRedis(ctx) }, true
	case PauseRedis:
		act = func() error { return b.stack.SignalRedis(syscall.SIGCONT) }
	case CutLink:
		act = b.link.mend
	case HangLink, DelayLink:
		act, answering = b.link.clear, true
	case LoseMessages:
		act = func() error { return b.link.lose(0) }
	case Failover:
		act, answering = func() error { return b.try(func() { b.sentinels.Rejoin(b) }) }, true
	case MoveSlot:
		act, answering = func() error { return <-b.moved }, true
	case EmptyRedis:
		act = func() error { return nil } // it ended as it began
	case BadBatches:
		act = func() error { b.endCorrupt(); return nil }
	case KillSidecar:
		act = func() error { return b.stack.StartSidecar(ctx) }
	case PauseSidecar:
		act = func() error { return b.stack.SignalSidecar(syscall.SIGCONT) }
	case KillEnvoy:
		act, answering = func() error { return b.stack.StartEnvoy(ctx) }, true
	case PauseEnvoy:
		act = func() error { return b.stack.SignalEnvoy(syscall.SIGCONT) }
	default:
		return fmt.Errorf("unknown fault %q", kind)
	}
	if !answering {
		ended(b.world.now())
		return act()
	}
	err := act()
	if kind == KillEnvoy {
		set(&b.world.edges, false)
	}
	ended(b.world.now())
	return err
}
