//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// startFilled starts a stack with a number of objects, and an edge with memory for all objects.
func startFilled(ctx context.Context, name string, objects int) (*bench, error) {
	r := capacity{objects: objects}
	return startBench(ctx, stack.Options{Name: name, ReadyTimeout: time.Minute, SidecarArgs: r.sidecarArgs(),
		ModifyNginx: r.limitNginx},
		func(ctx context.Context, p *publish.Publisher) error { return publishObjects(ctx, p, objects) })
}

// coldstart measures a sidecar that starts without data: the time until the edge has acknowledged everything in Redis.
func coldstart(ctx context.Context, o *Options, out *Recorder) (err error) {
	b, err := startFilled(ctx, "coldstart", o.Objects)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	var took []time.Duration
	for range 3 {
		if err := b.KillSidecar(); err != nil {
			return err
		}
		begin := time.Now()
		if err := b.StartSidecar(ctx); err != nil {
			return err
		}
		took = append(took, time.Since(begin).Round(time.Millisecond))
	}
	held, err := b.Metric(ctx, "gatehouse_edge_memory_objects")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "coldstart: %d objects of 1 KiB in Redis; sidecar started → everything acknowledged by the edge: "+
		"%s, %s, %s (%.0f objects at the edge)\n",
		o.Objects, took[0], took[1], took[2], held)
	return nil
}

// missedChanges is the number of changes missed by the sidecar in catchup.
const missedChanges = 1000

// catchup measures a sidecar after missed changes: the sidecar is paused until Redis has closed the subscription, and
// then catches up.
func catchup(ctx context.Context, o *Options, out *Recorder) (err error) {
	b, err := startFilled(ctx, "catchup", o.Objects)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	var took []time.Duration
	for range 5 {
		if err := b.SignalSidecar(syscall.SIGSTOP); err != nil {
			return err
		}
		// The sidecar's connections are closed before the sidecar can read the changes.
		for _, kind := range []string{"pubsub", "normal"} {
			if err := b.client.ClientKillByFilter(ctx, "TYPE", kind, "SKIPME", "yes").Err(); err != nil {
				return err
			}
		}
		if err := publishObjects(ctx, b.publisher, missedChanges); err != nil {
			return err
		}
		if err := b.SignalSidecar(syscall.SIGCONT); err != nil {
			return err
		}
		begin := time.Now()
		if err := b.awaitApplied(ctx); err != nil {
			return err
		}
		took = append(took, time.Since(begin).Round(time.Millisecond))
	}
	fmt.Fprintf(out, "catchup: %d changes of %d objects missed; connection back → all applied: %v (reconnecting "+
		"included)\n", missedChanges, o.Objects, took)
	return nil
}
