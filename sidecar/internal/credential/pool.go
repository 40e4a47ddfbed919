package credential

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
)

var errOverload = errors.New("too many verifications wait for a worker")

// pool bounds how much bcrypt runs at a time and how much waits for it. Who waits
// longest goes first.
type pool struct {
	workers chan struct{} // a value in it is a run
	queue   int64
	waiting atomic.Int64
	metrics *metrics.Metrics
}

func newPool(workers, queue int, m *metrics.Metrics) *pool {
	return &pool{workers: make(chan struct{}, workers), queue: int64(queue), metrics: m}
}

// enter waits for a worker, or fails at once if too many wait already. leave gives it back.
func (p *pool) enter(ctx context.Context) (leave func(), err error) {
	select {
	case p.workers <- struct{}{}:
	default:
		if err := p.wait(ctx); err != nil {
			return nil, err
		}
	}
	p.metrics.BcryptRunning.Inc()
	return func() {
		p.metrics.BcryptRunning.Dec()
		<-p.workers
	}, nil
}

func (p *pool) wait(ctx context.Context) error {
	defer p.waiting.Add(-1)
	if p.waiting.Add(1) > p.queue {
		return errOverload
	}
	p.metrics.BcryptQueued.Inc()
	defer p.metrics.BcryptQueued.Dec()
	select {
	case p.workers <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
