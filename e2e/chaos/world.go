package chaos

import (
	"sync/atomic"
	"time"
)

// world is the run's clock, and the state of the faults by which answers are judged.
type world struct {
	began time.Time
	// edges is odd while Envoy is down or starting, and changes twice at each restart.
	edges atomic.Int64
	// refills is odd while the edge's memory may be empty or incomplete, and changes twice, too.
	refills atomic.Int64
	// traps is odd while a worker may have no VM, and changes twice, too.
	traps atomic.Int64
	// eras is odd while a server without the last writes takes Redis's place, and changes twice, too.
	eras atomic.Int64
	// tight: the sidecar of tightEdge has too little memory, so a miss at that edge has no meaning.
	tight bool
}

// tightEdge is the index of the edge with a sidecar of its own, and without faults.
const tightEdge = 1

func newWorld() *world { return &world{began: time.Now()} }

// now returns the time since the run began.
func (w *world) now() time.Duration { return time.Since(w.began) }

// moment is the state at one time.
type moment struct {
	at                          time.Duration
	edges, refills, traps, eras int64
}

func (w *world) moment() moment {
	return moment{edges: w.edges.Load(), refills: w.refills.Load(), traps: w.traps.Load(),
		eras: w.eras.Load(), at: w.now()}
}

// stampRead sets the fields of a read that depend on the state from before, when the read began, until now.
func (w *world) stampRead(r *Read, before moment) {
	r.Start, r.End = before.at, w.now()
	eras := w.eras.Load()
	r.Era, r.BetweenEras = int(eras/2), eras != before.eras || eras%2 == 1
	if r.EdgeIndex == tightEdge { // without faults
		r.Process, r.Refilling = 1, w.tight
		return
	}
	edges, refills := w.edges.Load(), w.refills.Load()
	r.Refilling = refills != before.refills || refills%2 == 1
	if r.EdgeIndex > tightEdge { // of the first edge's sidecar; only the sidecar has faults
		r.Process = 1
		return
	}
	if edges == before.edges && edges%2 == 0 {
		r.Process = int(edges/2) + 1
	}
	traps := w.traps.Load()
	r.Trapped = traps != before.traps || traps%2 == 1
}

// setOdd makes a counter odd or even.
func setOdd(counter *atomic.Int64, odd bool) {
	if counter.Load()%2 == 1 != odd {
		counter.Add(1)
	}
}
