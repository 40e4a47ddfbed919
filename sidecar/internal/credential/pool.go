package credential

import (
	"errors"
	"sync"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
)

// Why an attempt got no worker.
var (
	errOverload = errors.New("too many verifications wait for a worker")
	errUnwanted = errors.New("nobody asks for the verification any more")
)

// After restAfter runs for suspects that matched nothing, each further one is followed by a
// rest as long as the run, after twice as many by one twice as long, and so on up to restMost.
const (
	restAfter = 8
	restMost  = 8
)

// pool bounds how much bcrypt runs at a time and how much waits for it; [queue] has the
// order. Suspects whose attempts come to nothing are let in with rests between, since even
// the processor that nobody needs isn't free: who wakes up next to a run of bcrypt is served
// later than beside an idle processor. It is safe for concurrent use.
type pool struct {
	metrics *metrics.Metrics
	workers int

	mu       sync.Mutex // protects all below
	free     int        // workers; while there are any, nobody waits but suspects that rest
	queue    queue
	inVain   int         // runs for suspects since one of them matched
	restEnds time.Time   // until then no suspect gets a worker
	timer    *time.Timer // when the rest ends; nil: nobody waits for that
}

func newPool(workers, limit int, m *metrics.Metrics) *pool {
	return &pool{metrics: m, workers: workers, free: workers, queue: newQueue(limit)}
}

// enter waits for a worker, who is given back by leave. It fails at once if there is no
// room to wait, and later if the room is given to another, or if nobody asks any more.
func (p *pool) enter(w *waiter) error {
	p.mu.Lock()
	if p.free > 0 && w.class != suspect {
		p.free--
		p.observe()
		p.mu.Unlock()
		return nil
	}
	w.ready = make(chan error, 1)
	if refused := p.queue.add(w); refused != nil {
		refused.ready <- errOverload
	}
	p.serve()
	p.mu.Unlock()
	return <-w.ready
}

// leave gives w's worker to who is next.
func (p *pool) leave(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.class == suspect && w.ran > 0 {
		p.inVain++
		if w.matched {
			p.inVain = 0
		}
		p.restEnds = time.Now().Add(w.ran * time.Duration(min(p.inVain/restAfter, restMost)))
	}
	p.free++
	p.serve()
}

// serve gives free workers to who waits for one; mu is held.
func (p *pool) serve() {
	defer p.observe()
	rest := time.Until(p.restEnds)
	worst := suspect
	if rest > 0 {
		worst = clean
	}
	for p.free > 0 {
		w := p.queue.next(worst)
		if w == nil {
			break
		}
		if !w.wanted() {
			w.ready <- errUnwanted
			continue
		}
		p.free--
		w.ready <- nil
	}
	if rest > 0 && p.queue.count > 0 && p.timer == nil {
		p.timer = time.AfterFunc(rest, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.timer = nil
			p.serve()
		})
	}
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

func (p *pool) observe() {
	p.metrics.BcryptRunning.Set(float64(p.workers - p.free))
	p.metrics.BcryptQueued.Set(float64(p.queue.count))
}
