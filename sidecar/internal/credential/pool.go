package credential

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
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

// pool bounds concurrent runs of bcrypt and the number of waiting attempts; [queue] defines the order. While suspects'
// attempts match nothing, rests separate their runs, since even spare CPU isn't free: a thread that wakes next to a run
// of bcrypt is served later than next to an idle core. Since suspects' runs may get no CPU at all, a run is paused when
// its slice is over and other attempts wait. A paused run continues at its turn, before a new suspect's run begins, so
// runs never outnumber workers. The pool's methods are safe for concurrent use.
type pool struct {
	metrics *metrics.Metrics
	workers int

	mu               sync.Mutex // protects all below
	free             int        // free workers; if > 0, only resting suspects wait
	queue            queue
	running          []*waiter   // suspects with a worker, the longest first
	runsWithoutMatch int         // suspects' runs since the last match
	restEnds         time.Time   // suspects get no worker until then
	timer            *time.Timer // fires when the rest or a slice ends; nil: no attempt waits for an end
	timerAt          time.Time
}

func newPool(workers, limit int, m *metrics.Metrics) *pool {
	return &pool{metrics: m, workers: workers, free: workers, queue: newQueue(limit)}
}

// acquireWorker waits for a worker; releaseWorker returns the worker. acquireWorker fails at once if the queue is full,
// and later if another attempt displaces w or no request wants w any more.
func (p *pool) acquireWorker(w *waiter) error {
	p.mu.Lock()
	if p.free > 0 && w.class != suspect {
		p.free--
		p.updateMetrics()
		p.mu.Unlock()
		return nil
	}
	w.ready = make(chan error, 1)
	if refused := p.queue.add(w); refused != nil {
		refused.ready <- errOverload
	}
	p.serveQueue()
	p.mu.Unlock()
	return <-w.ready
}

// releaseWorker gives w's worker, if w still has a worker, to the next attempt.
func (p *pool) releaseWorker(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.class == suspect && w.ran > 0 {
		p.runsWithoutMatch++
		if w.matched {
			p.runsWithoutMatch = 0
		}
		p.restEnds = time.Now().Add(min(w.ran, maxRestRun) * time.Duration(min(p.runsWithoutMatch/restAfter, maxRestFactor)))
	}
	if !removeWaiter(&p.queue.paused, w) {
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

// serveQueue gives free workers, and those of suspects whose slice is over, to waiting attempts; mu is held.
func (p *pool) serveQueue() {
	defer p.updateMetrics()
	now := time.Now()
	worst := suspect
	if now.Before(p.restEnds) {
		worst = clean
	}
	p.assignWorkers(worst, now)
	for p.queue.hasWaiting(familiar, clean) && p.pauseOldest(now) {
		p.assignWorkers(clean, now)
	}
	p.assignWorkers(worst, now) // for the case that no attempt of the better classes was wanted
	p.scheduleServe(now)
}

// assignWorkers gives free workers to waiting attempts of the classes up to worst.
func (p *pool) assignWorkers(worst class, now time.Time) {
	for p.free > 0 {
		w := p.queue.next(worst)
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

// startRun records that w has a worker.
func (p *pool) startRun(w *waiter, now time.Time) {
	p.free--
	if w.class == suspect {
		if w.pace == nil {
			w.pace = make(chan bool, 1)
		}
		w.sliceEnds = now.Add(slice)
		p.running = append(p.running, w)
	}
}

// pauseOldest takes the worker from the suspect with the longest run, if its slice is over.
func (p *pool) pauseOldest(now time.Time) bool {
	if len(p.running) == 0 || now.Before(p.running[0].sliceEnds) {
		return false
	}
	w := p.running[0]
	p.running = slices.Delete(p.running, 0, 1)
	p.queue.paused = append(p.queue.paused, w)
	w.setPace(true)
	p.free++
	return true
}

// scheduleServe schedules serveQueue for the end of the rest or of a slice, if an attempt waits for that end.
func (p *pool) scheduleServe(now time.Time) {
	var next time.Time
	if p.free > 0 && p.queue.hasWaiting(suspect, suspect) && now.Before(p.restEnds) {
		next = p.restEnds
	}
	if p.free == 0 && p.queue.hasWaiting(familiar, clean) && len(p.running) > 0 {
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

// demoteSource moves the waiting attempts of a source that failed behind the attempts of clean sources.
func (p *pool) demoteSource(from source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, refused := range p.queue.demoteSource(from) {
		refused.ready <- errOverload
	}
	p.updateMetrics()
}

func (p *pool) updateMetrics() {
	p.metrics.BcryptRunning.Set(float64(p.workers - p.free))
	p.metrics.BcryptQueued.Set(float64(p.queue.count))
}
