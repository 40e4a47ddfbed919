package inspect

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// Resync reads everything from Redis again and then pushes everything to the edge, on an operator's request.
type Resync struct {
	read, push func(context.Context) error
	requests   chan struct{}
	running    atomic.Bool
	log        *slog.Logger
}

// NewResync returns a Resync of read and push, which return when finished. Run must run.
func NewResync(read, push func(context.Context) error, log *slog.Logger) *Resync {
	return &Resync{read: read, push: push, requests: make(chan struct{}, 1), log: log}
}

// Start begins a resync and logs the request. While a resync runs, Start returns false.
func (r *Resync) Start() bool {
	if !r.running.CompareAndSwap(false, true) {
		return false
	}
	r.log.Warn("an operator asked for a resync: everything is read from redis and pushed again")
	r.requests <- struct{}{} // has room
	return true
}

// Run runs the requested resyncs until ctx ends.
func (r *Resync) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.requests:
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
