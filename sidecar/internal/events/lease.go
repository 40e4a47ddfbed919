package events

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// maxJitter is by how much sidecars that read everything again, because of one Redis, are spread where
	// they have no permission for a lease.
	maxJitter = 500 * time.Millisecond
	// leaseLife is how long a lease counts that nobody gives back, and how long it is waited for.
	leaseLife = 10 * time.Second
	// leaseEvery is how often it is asked for, about.
	leaseEvery = 100 * time.Millisecond
)

// fullEvery is how much is between two full resyncs, at least. Tests shorten it.
var fullEvery = time.Second

// takeTurn waits until it is our turn to read all objects again, so that not all sidecars of a Redis that was
// restarted do so at once: one after the other by a lease, or by chance. What comes of devices doesn't
// wait. release gives the lease back.
func (s *Subscriber) takeTurn(ctx context.Context, master server, meanwhile func() error) (release func(), err error) {
	if err := s.wait(ctx, time.Until(s.fullAt.Add(fullEvery)), meanwhile); err != nil {
		return nil, err
	}
	for began := time.Now(); time.Since(began) < leaseLife; {
		taken, err := master.SetNX(ctx, s.keys.ResyncKey(), 1, leaseLife).Result()
		if err != nil {
			return func() {}, s.wait(ctx, rand.N(maxJitter), meanwhile)
		}
		if taken { //mutant:TestLease true
			// Where it has ended and another has it, that one only has company.
			return func() { master.SetXX(ctx, s.keys.ResyncKey(), 1, time.Millisecond) }, nil
		}
		if err := s.wait(ctx, leaseEvery/2+rand.N(leaseEvery), meanwhile); err != nil {
			return nil, err
		}
	}
	return func() {}, nil
}

// wait waits, and calls meanwhile when something has come in.
func (s *Subscriber) wait(ctx context.Context, d time.Duration, meanwhile func() error) error {
	if d <= 0 {
		return meanwhile()
	}
	defer s.in.notify() // what has come in still waits for its turn
	over := time.After(d)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over:
			return meanwhile()
		case <-s.in.wake:
			if err := meanwhile(); err != nil {
				return err
			}
		}
	}
}
