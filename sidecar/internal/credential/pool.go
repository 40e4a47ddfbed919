package credential

import (
	"errors"
	"sync"

	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
)

// Why an attempt got no worker.
var (
	errOverload = errors.New("too many verifications wait for a worker")
	errUnwanted = errors.New("nobody asks for the verification any more")
)

// pool bounds how much bcrypt runs at a time and how much waits for it; [queue] has the
// order. It is safe for concurrent use.
type pool struct {
	metrics *metrics.Metrics

	mu    sync.Mutex // protects all below
	free  int        // workers; while there are any, nobody waits
	queue queue
}

func newPool(workers, limit int, m *metrics.Metrics) *pool {
	return &pool{metrics: m, free: workers, queue: newQueue(limit)}
}

// enter waits for a worker, who is given back by leave. It fails at once if there is no
// room to wait, and later if the room is given to another, or if nobody asks any more.
func (p *pool) enter(w *waiter) error {
	p.mu.Lock()
	if p.free > 0 {
		p.free--
		p.mu.Unlock()
		p.metrics.BcryptRunning.Inc()
		return nil
	}
	w.ready = make(chan error, 1)
	if refused := p.queue.add(w); refused != nil {
		refused.ready <- errOverload
	}
	p.observe()
	p.mu.Unlock()
	return <-w.ready
}

// leave gives a worker to who is next.
func (p *pool) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.observe()
	for w := p.queue.next(); w != nil; w = p.queue.next() {
		if w.wanted() {
			w.ready <- nil
			return
		}
		w.ready <- errUnwanted
	}
	p.free++
	p.metrics.BcryptRunning.Dec()
}

// demote puts what waits of a source that has failed behind what waits of others.
func (p *pool) demote(from source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, refused := range p.queue.demote(from) {
		refused.ready <- errOverload
	}
	p.observe()
}

func (p *pool) observe() { p.metrics.BcryptQueued.Set(float64(p.queue.count)) }
