package inspect

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// Resync reads everything from Redis again and then pushes everything to the edge, when an operator asks for it.
type Resync struct {
	read, push func(context.Context) error
	asked      chan struct{}
	running    atomic.Bool
	log        *slog.Logger
}

// NewResync returns a Resync by read and push, which return when they have ended. Its Run must run.
func NewResync(read, push func(context.Context) error, log *slog.Logger) *Resync {
	return &Resync{read: read, push: push, asked: make(chan struct{}, 1), log: log}
}

// Start begins a resync and logs it. It returns false, and begins none, while one runs.
func (r *Resync) Start() bool {
	if !r.running.CompareAndSwap(false, true) {
		return false
	}
	r.log.Warn("an operator asked for a resync: everything is read from redis and pushed again")
	r.asked <- struct{}{} // has room
	return true
}

// Run does what Start asks for, until ctx ends.
func (r *Resync) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.asked:
		}
		began := time.Now()
		for _, part := range []func(context.Context) error{r.read, r.push} {
			if part(ctx) != nil {
				return nil // ctx has ended
			}
		}
		r.log.Info("resync ended", "duration", time.Since(began))
		r.running.Store(false)
	}
}
