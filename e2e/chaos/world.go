package chaos

import (
	"sync/atomic"
	"time"
)

// world is what readers must know of the faults to judge an answer, and the run's clock.
type world struct {
	began time.Time
	// edges is odd while Envoy is down or starting, and changes twice at each restart.
	edges atomic.Int64
	// refills is odd while the edge's memory may be empty or half full, likewise.
	refills atomic.Int64
	// eras is odd while another server takes the place of the one that has the data, likewise.
	eras atomic.Int64
}

func newWorld() *world { return &world{began: time.Now()} }

// now is the time since the run began.
func (w *world) now() time.Duration { return time.Since(w.began) }

// moment is what is true at one time.
type moment struct {
	at                   time.Duration
	edges, refills, eras int64
}

func (w *world) moment() moment {
	return moment{edges: w.edges.Load(), refills: w.refills.Load(), eras: w.eras.Load(), at: w.now()}
}

// stamp completes a read with what was true from before, when it began, until now.
func (w *world) stamp(r *Read, before moment) {
	r.Start, r.End = before.at, w.now()
	eras := w.eras.Load()
	r.Era, r.BetweenEras = int(eras/2), eras != before.eras || eras%2 == 1
	if r.Place > 0 { // nothing happens to the other edges
		r.Edge = 1
		return
	}
	edges, refills := w.edges.Load(), w.refills.Load()
	if edges == before.edges && edges%2 == 0 {
		r.Edge = int(edges/2) + 1
	}
	r.Refilling = refills != before.refills || refills%2 == 1
}

// set makes a counter odd or even.
func set(counter *atomic.Int64, odd bool) {
	if counter.Load()%2 == 1 != odd {
		counter.Add(1)
	}
}
