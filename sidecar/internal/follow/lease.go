package follow

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// maxJitter bounds the random delay of a full resync if the sidecar has no permission for a lease.
	maxJitter = 500 * time.Millisecond
	// leaseLife is the lifetime of a lease that is not prolonged: if its holder was killed, other sidecars wait for
	// leaseLife.
	leaseLife = 3 * time.Second
	// leaseWait is the maximum wait for a lease.
	leaseWait = 10 * time.Second
	// leaseEvery is the average interval between attempts to get the lease.
	leaseEvery = 100 * time.Millisecond
)

// fullEvery is the minimum interval between two full resyncs. Tests shorten it.
var fullEvery = time.Second

// acquireLease waits for permission to read all objects, so that the sidecars of a restarted Redis, or of a starting
// fleet, don't all read at once: with a lease, sidecars read in sequence; at a replica, or without permission for a
// lease, after a random delay, except at the start. A sidecar that gets no lease in time reads nonetheless. Events of
// devices don't wait.
func (c *catchUpReader) acquireLease(ctx context.Context) error {
	if err := c.waitFor(ctx, time.Until(c.resync.endedAt.Add(fullEvery))); err != nil {
		return err
	}
	if c.replicas { // nothing can be written there
		if c.caughtUp() {
			return c.waitFor(ctx, rand.N(maxJitter))
		}
		return nil
	}
	for began := time.Now(); time.Since(began) < leaseWait; {
		taken, err := c.server.SetNX(ctx, c.keys.ResyncKey(), 1, leaseLife).Result()
		switch {
		case err != nil && c.caughtUp():
			return c.waitFor(ctx, rand.N(maxJitter))
		case err != nil:
			return nil
		case taken:
			c.leaseAt = time.Now()
			return nil
		}
		if err := c.waitFor(ctx, leaseEvery/2+rand.N(leaseEvery)); err != nil {
			return err
		}
	}
	return nil
}

// prolongLease prolongs a lease. If the lease has expired and another sidecar has it, a third sidecar may start too
// early.
func (c *catchUpReader) prolongLease(ctx context.Context) {
	if !c.leaseAt.IsZero() && time.Since(c.leaseAt) > leaseLife/4 {
		c.leaseAt = time.Now()
		c.server.SetXX(ctx, c.keys.ResyncKey(), 1, leaseLife)
	}
}

// releaseLease ends a lease.
func (c *catchUpReader) releaseLease(ctx context.Context) {
	if !c.leaseAt.IsZero() {
		c.server.SetXX(ctx, c.keys.ResyncKey(), 1, time.Millisecond)
	}
}

// waitFor waits for d, and calls meanwhile when an event arrives.
func (c *catchUpReader) waitFor(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return c.meanwhile()
	}
	if err := waitUntil(ctx, time.After(d), c.inbox, c.meanwhile); err != nil {
		return err
	}
	return c.meanwhile()
}

// waitUntil waits until ready has a value, and calls meanwhile when an event arrives.
func waitUntil[T any](ctx context.Context, ready <-chan T, in *inbox, meanwhile func() error) error {
	defer in.notify() // take has not read the events yet
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ready:
			return nil
		case <-in.wake:
			if err := meanwhile(); err != nil {
				return err
			}
		}
	}
}
