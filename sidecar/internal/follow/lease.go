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

// lease is the permission to read all objects. The zero value belongs to a sidecar that got no lease, and reads
// nonetheless.
type lease struct {
	*Follower
	master      server
	prolongedAt time.Time // time of the last prolongation
}

// acquireLease waits for permission to read all objects, so that the sidecars of a restarted Redis, or of a starting
// fleet, don't all read at once: with a lease, sidecars read in sequence; without permission for a lease, after a
// random delay, except at the start. Events of devices don't wait.
func (f *Follower) acquireLease(ctx context.Context, master server, meanwhile func() error) (*lease, error) {
	if err := f.waitFor(ctx, time.Until(f.resync.endedAt.Add(fullEvery)), meanwhile); err != nil {
		return nil, err
	}
	for began := time.Now(); time.Since(began) < leaseWait; {
		taken, err := master.SetNX(ctx, f.keys.ResyncKey(), 1, leaseLife).Result()
		switch {
		case err != nil && f.caughtUp():
			return &lease{}, f.waitFor(ctx, rand.N(maxJitter), meanwhile)
		case err != nil:
			return &lease{}, nil
		case taken:
			return &lease{f, master, time.Now()}, nil
		}
		if err := f.waitFor(ctx, leaseEvery/2+rand.N(leaseEvery), meanwhile); err != nil {
			return nil, err
		}
	}
	return &lease{}, nil
}

// prolongDuring returns a function that prolongs the lease and calls meanwhile. If the lease has expired and another
// sidecar has it, a third sidecar may start too early.
func (l *lease) prolongDuring(ctx context.Context, meanwhile func() error) func() error {
	return func() error {
		if l.Follower != nil && time.Since(l.prolongedAt) > leaseLife/4 {
			l.prolongedAt = time.Now()
			l.master.SetXX(ctx, l.keys.ResyncKey(), 1, leaseLife)
		}
		return meanwhile()
	}
}

// release ends the lease.
func (l *lease) release(ctx context.Context) {
	if l.Follower != nil {
		l.master.SetXX(ctx, l.keys.ResyncKey(), 1, time.Millisecond)
	}
}

// waitFor waits for d, and calls meanwhile when an event arrives.
func (f *Follower) waitFor(ctx context.Context, d time.Duration, meanwhile func() error) error {
	if d <= 0 {
		return meanwhile()
	}
	if err := waitUntil(ctx, time.After(d), f.inbox, meanwhile); err != nil {
		return err
	}
	return meanwhile()
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
