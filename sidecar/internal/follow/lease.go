package follow

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// maxJitter bounds the random delay of a full resync if the sidecar has no permission for a lease.
	maxJitter = 500 * time.Millisecond
	// leaseLife is the lifetime of a lease that is not released, and the maximum wait for one.
	leaseLife = 10 * time.Second
	// leaseEvery is the average interval between attempts to get the lease.
	leaseEvery = 100 * time.Millisecond
)

// fullEvery is the minimum interval between two full resyncs. Tests shorten it.
var fullEvery = time.Second

// takeTurn waits for permission to read all objects again, so that the sidecars of a restarted Redis don't all do so at
// once: by a lease one after the other, otherwise after a random delay. Events of devices don't wait. release releases
// the lease.
func (f *Follower) takeTurn(ctx context.Context, master server, meanwhile func() error) (release func(), err error) {
	if err := f.wait(ctx, time.Until(f.fullAt.Add(fullEvery)), meanwhile); err != nil {
		return nil, err
	}
	for began := time.Now(); time.Since(began) < leaseLife; {
		taken, err := master.SetNX(ctx, f.keys.ResyncKey(), 1, leaseLife).Result()
		if err != nil {
			return func() {}, f.wait(ctx, rand.N(maxJitter), meanwhile)
		}
		if taken { //mutant:TestLease true
			// If the lease has expired and another sidecar has it, a third one may start too early.
			return func() { master.SetXX(ctx, f.keys.ResyncKey(), 1, time.Millisecond) }, nil
		}
		if err := f.wait(ctx, leaseEvery/2+rand.N(leaseEvery), meanwhile); err != nil {
			return nil, err
		}
	}
	return func() {}, nil
}

// wait waits for d, and calls meanwhile when an event arrives.
func (f *Follower) wait(ctx context.Context, d time.Duration, meanwhile func() error) error {
	if d <= 0 {
		return meanwhile()
	}
	defer f.in.notify() // take has not read the events yet
	over := time.After(d)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over:
			return meanwhile()
		case <-f.in.wake:
			if err := meanwhile(); err != nil {
				return err
			}
		}
	}
}
