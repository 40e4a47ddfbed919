package credential

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/gatehouse/gatehouse/internal/metrics"
)

// Why an attempt got no worker.
var (
	errOverload = errors.New("too many verifications wait for a worker")
	errUnwanted = errors.New("no request waits for the verification any more")
)

// After restAfter suspect runs without a match, each further run is followed by a rest as long as the run; after twice
// as many, by a rest twice as long, and so on up to maxRestFactor. A run counts for maxRestRun at most: without CPU, a
// run takes far longer.
const (
	restAfter     = 8
	maxRestFactor = 8
	maxRestRun    = time.Second
)

// slice is how long a suspect's run keeps its worker while other attempts wait: about the time of a run at cost 12 on
// an idle core.
const slice = 250 * time.Millisecond

// pool bounds concurrent runs of bcrypt and the number of waiting attempts of each edge. The edge that was served the
// longest ago goes first; [queue] defines the order within an edge. Since suspects' runs may get no CPU at all, a run
// is paused when its slice is over and other attempts, of any edge, wait. A paused run continues at its turn, before a
// new suspect's run of its edge begins, so runs never outnumber workers. The pool's methods are safe for concurrent
// use.
type pool struct {
	metrics *metrics.Metrics
	workers int
	limit   int // waiting attempts of an edge

	mu sync.Mutex
	// +checklocks:mu
	free int // free workers; if > 0, only resting suspects wait
	// +checklocks:mu
	waiting []*edgeQueue // edges with waiting or paused attempts, first the edge that was served the longest ago
	turn    uint64       // number of runs so far; +checklocks:mu
	// +checklocks:mu
	running []*waiter // suspects with a worker, the longest first
	// +checklocks:mu
	timer   *time.Timer // fires when a rest or a slice ends; nil: no attempt waits for an end
	timerAt time.Time   // +checklocks:mu
}

// edgeQueue has the waiting attempts of an edge; the pool's lock guards it. While suspects' attempts match nothing,
// rests separate their runs, since even spare CPU isn't free: a thread that wakes next to a run of bcrypt is served
// later than next to an idle core. Each edge has rests of its own: failures at an edge slow down no other edge's
// suspects, and a match at an edge shortens no other edge's rest.
type edgeQueue struct {
	queue
	lastTurn         uint64    // pool.turn when the edge was last served
	runsWithoutMatch int       // suspects' runs since the last match
	restEnds         time.Time // suspects get no worker until then
}

func newPool(workers, limit int, m *metrics.Metrics) *pool {
	return &pool{metrics: m, workers: workers, limit: limit, free: workers}
}

func (p *pool) newEdge() *edgeQueue { return &edgeQueue{queue: newQueue(p.limit)} }

// removeEdge refuses the waiting attempts of an edge that has gone. Paused runs continue and end: other edges may wait
// for their results.
func (p *pool) removeEdge(e *edgeQueue) {
	p.mu.Lock()
	defer p.mu.Unlock()
	paused := e.paused
	e.paused = nil
	for w := e.next(suspect); w != nil; w = e.next(suspect) {
		w.ready <- errUnwanted
	}
	e.paused = paused
	p.updateWaiting(e)
	p.updateMetrics()
}

// updateWaiting lists an edge with waiting or paused attempts at its place, and no other edge.
// +checklocks:p.mu
func (p *pool) updateWaiting(e *edgeQueue) {
	i := slices.Index(p.waiting, e)
	switch waits := e.hasWaiting(familiar, suspect); {
	case i >= 0 && !waits:
		p.waiting = slices.Delete(p.waiting, i, i+1)
	case i < 0 && waits:
		at := slices.IndexFunc(p.waiting, func(other *edgeQueue) bool { return other.lastTurn > e.lastTurn })
		if at < 0 {
			at = len(p.waiting)
		}
		p.waiting = slices.Insert(p.waiting, at, e)
	}
}

// hasWaiting reports whether any edge has waiting attempts of these classes.
// +checklocks:p.mu
func (p *pool) hasWaiting(from, to class) bool {
	return slices.ContainsFunc(p.waiting, func(e *edgeQueue) bool { return e.hasWaiting(from, to) })
}

// takeNext removes and returns the next attempt of the classes up to worst, nil if none may run.
// +checklocks:p.mu
func (p *pool) takeNext(worst class, now time.Time) *waiter {
	for _, e := range p.waiting {
		admitted := worst
		if now.Before(e.restEnds) {
			admitted = min(worst, clean)
		}
		if w := e.next(admitted); w != nil {
			p.updateWaiting(e)
			return w
		}
	}
	return nil
}

// acquireWorker waits for a worker; releaseWorker returns the worker. acquireWorker fails at once if the queue is full,
// and later if another attempt displaces w or no request wants w any more.
func (p *pool) acquireWorker(w *waiter) error {
	p.mu.Lock()
	if p.free > 0 && w.class != suspect {
		p.startRun(w, time.Now())
		p.updateMetrics()
		p.mu.Unlock()
		return nil
	}
	w.ready = make(chan error, 1)
	if refused := w.edge.add(w); refused != nil {
		refused.ready <- errOverload
	}
	p.updateWaiting(w.edge)
	p.serveQueue()
	p.mu.Unlock()
	return <-w.ready
}

// releaseWorker gives w's worker, if w still has a worker, to the next attempt.
func (p *pool) releaseWorker(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := w.edge
	if w.class == suspect && w.ran > 0 {
		e.runsWithoutMatch++
		if w.matched {
			e.runsWithoutMatch = 0
		}
		e.restEnds = time.Now().Add(min(w.ran, maxRestRun) * time.Duration(min(e.runsWithoutMatch/restAfter, maxRestFactor)))
	}
	if removeWaiter(&e.paused, w) {
		p.updateWaiting(e)
	} else {
		removeWaiter(&p.running, w)
		p.free++
	}
	p.serveQueue()
}

// removeWaiter removes w from a list and reports whether the list had w.
func removeWaiter(list *[]*waiter, w *waiter) bool {
	i := slices.Index(*list, w)
	if i >= 0 {
		*list = slices.Delete(*list, i, i+1)
	}
	return i >= 0
}

// serveQueue gives free workers, and those of suspects whose slice is over, to waiting attempts.
// +checklocks:p.mu
func (p *pool) serveQueue() {
	defer p.updateMetrics()
	now := time.Now()
	p.assignWorkers(suspect, now)
	for p.hasWaiting(familiar, clean) && p.pauseOldest(now) {
		p.assignWorkers(clean, now)
	}
	p.assignWorkers(suspect, now) // for the case that no attempt of the better classes was wanted
	p.scheduleServe(now)
}

// assignWorkers gives free workers to waiting attempts of the classes up to worst.
// +checklocks:p.mu
func (p *pool) assignWorkers(worst class, now time.Time) {
	for p.free > 0 {
		w := p.takeNext(worst, now)
		switch {
		case w == nil:
			return
		case w.pace != nil:
			p.startRun(w, now)
			w.setPace(false)
		case !w.wanted():
			w.ready <- errUnwanted
		default:
			p.startRun(w, now)
			w.ready <- nil
		}
	}
}

// startRun records that w has a worker, and moves its edge behind all other edges.
// +checklocks:p.mu
func (p *pool) startRun(w *waiter, now time.Time) {
	p.free--
	p.turn++
	w.edge.lastTurn = p.turn
	if i := slices.Index(p.waiting, w.edge); i >= 0 {
		p.waiting = append(slices.Delete(p.waiting, i, i+1), w.edge)
	}
	if w.class == suspect {
		if w.pace == nil {
			w.pace = make(chan bool, 1)
		}
		w.sliceEnds = now.Add(slice)
		p.running = append(p.running, w)
	}
}

// pauseOldest takes the worker from the suspect with the longest run, if its slice is over.
// +checklocks:p.mu
func (p *pool) pauseOldest(now time.Time) bool {
	if len(p.running) == 0 || now.Before(p.running[0].sliceEnds) {
		return false
	}
	w := p.running[0]
	p.running = slices.Delete(p.running, 0, 1)
	w.edge.paused = append(w.edge.paused, w)
	p.updateWaiting(w.edge)
	w.setPace(true)
	p.free++
	return true
}

// scheduleServe schedules serveQueue for the end of the rest or of a slice, if an attempt waits for that end.
// +checklocks:p.mu
func (p *pool) scheduleServe(now time.Time) {
	var next time.Time
	if p.free > 0 {
		for _, e := range p.waiting { // only resting suspects
			if next.IsZero() || e.restEnds.Before(next) {
				next = e.restEnds
			}
		}
	}
	if p.free == 0 && p.hasWaiting(familiar, clean) && len(p.running) > 0 {
		next = p.running[0].sliceEnds
	}
	if next.IsZero() || p.timer != nil && !next.Before(p.timerAt) {
		return
	}
	if p.timer != nil {
		p.timer.Stop()
	}
	var timer *time.Timer
	timer = time.AfterFunc(next.Sub(now), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.timer == timer {
			p.timer = nil
		}
		p.serveQueue()
	})
	p.timer, p.timerAt = timer, next
}

// demoteSource moves the waiting attempts of a source that failed at an edge behind the attempts of clean sources.
func (p *pool) demoteSource(e *edgeQueue, from source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, refused := range e.demoteSource(from) {
		refused.ready <- errOverload
	}
	p.updateMetrics()
}

// updateMetrics sets the gauges of the pool.
// +checklocks:p.mu
func (p *pool) updateMetrics() {
	p.metrics.BcryptRunning.Set(float64(p.workers - p.free))
	queued := 0
	for _, e := range p.waiting {
		queued += e.count
	}
	p.metrics.BcryptQueued.Set(float64(queued))
}
