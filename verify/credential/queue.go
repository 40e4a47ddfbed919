package credential

import (
	"slices"
	"time"
)

// class is the priority of an attempt for workers, best first.
type class uint8

const (
	familiar class = iota // the device authenticated from this source before
	clean                 // the source has not failed lately
	suspect               // the source has failed lately
	classes
)

// turns is how many attempts of a class are served before a waiting attempt of a worse class: familiar devices go
// first, and no class starves.
var turns = [classes]int{8, 3, 0}

// Bounds of waiting attempts in a class. They prevent a flood for a single id from filling the queue.
const (
	maxPerPair   = 2 // of the same device and source
	maxPerDevice = 8
)

// waiter is an attempt that waits for a worker.
type waiter struct {
	edge   *edgeQueue // of the first request
	device string
	source source
	class  class
	// wanted reports whether a request still waits for the attempt; if not, the attempt gets no worker.
	wanted func() bool
	// ready receives nil when the attempt has a worker, or the reason for a refusal. Capacity 1.
	ready chan error

	rank int // number of earlier attempts of the same source in the line

	// For a suspect with a worker: pace, capacity 1, pauses the run (true) or continues it. The suspect keeps the
	// worker until sliceEnds, even while other attempts wait.
	pace      chan bool
	sliceEnds time.Time

	// Set before releaseWorker: how long bcrypt ran, 0 without a run, and whether the secret matched.
	ran     time.Duration
	matched bool
}

// setPace sends pause to the run, and replaces an unread value. Senders have the pool's lock, so they are never
// concurrent.
func (w *waiter) setPace(pause bool) {
	select {
	case <-w.pace:
	default:
	}
	w.pace <- pause
}

// queue has the waiting attempts in the order of service: classes according to turns, within a class round robin over
// devices, within a device round robin over sources, within a source first in, first out. It is not safe for concurrent
// use.
type queue struct {
	limit  int
	count  int
	served [classes]int // in a row, while a worse class waits
	lines  [classes]lines
	paused []*waiter // suspects' paused runs, which continue before new runs; not counted
}

// lines has the waiting devices of a class.
type lines struct {
	ring    []*line // in the order of service
	devices map[string]*line
	lengths [maxPerDevice + 1]int // number of lines by length
}

// line has the waiting attempts of a device.
type line struct {
	device  string
	waiters []*waiter
}

func newQueue(limit int) queue {
	q := queue{limit: limit}
	for c := range q.lines {
		q.lines[c].devices = make(map[string]*line)
	}
	return q
}

// add enqueues w. It returns the refused attempt, nil for none: w itself or, if the queue is full, the newest of the
// longest line of the worst class.
func (q *queue) add(w *waiter) (refused *waiter) {
	s := &q.lines[w.class]
	length := 0
	if l := s.devices[w.device]; l != nil {
		length = len(l.waiters)
		w.rank = l.countFrom(w.source)
	}
	if length >= maxPerDevice || w.rank >= maxPerPair {
		return w
	}
	if q.count >= q.limit {
		if refused = q.displace(w.class, length+1); refused == nil {
			return w
		}
	}
	s.insert(w)
	q.count++
	return refused
}

// displace removes and returns an attempt to make room for a newcomer of class c whose line would have the given
// length. It returns nil if the newcomer has the lowest rank.
func (q *queue) displace(c class, length int) *waiter {
	for worst := classes - 1; ; worst-- {
		s := &q.lines[worst]
		longest := s.longest()
		switch {
		case worst == c && longest <= length:
			return nil
		case longest > 0:
			i := slices.IndexFunc(s.ring, func(l *line) bool { return len(l.waiters) == longest })
			l := s.ring[i]
			q.count--
			return s.remove(l, len(l.waiters)-1)
		case worst == c:
			return nil
		}
	}
}

// next removes and returns the next attempt of the classes up to worst, nil if none waits.
func (q *queue) next(worst class) *waiter {
	for c := range worst + 1 {
		s := &q.lines[c]
		if !q.hasWaiting(c, c) {
			continue
		}
		if !q.hasWaiting(c+1, worst) {
			q.served[c] = 0
		} else if q.served[c]++; q.served[c] > turns[c] {
			q.served[c] = 0
			continue
		}
		if c == suspect && len(q.paused) > 0 {
			w := q.paused[0]
			q.paused = slices.Delete(q.paused, 0, 1)
			return w
		}
		q.count--
		return s.next()
	}
	return nil
}

func (q *queue) hasWaiting(from, to class) bool {
	for c := from; c <= to; c++ {
		if len(q.lines[c].ring) > 0 {
			return true
		}
	}
	return from <= suspect && suspect <= to && len(q.paused) > 0
}

// demoteSource moves the waiting attempts of a clean source to the class suspect. It returns the attempts that are
// refused for lack of room.
func (q *queue) demoteSource(from source) (refused []*waiter) {
	s := &q.lines[clean]
	for _, l := range slices.Clone(s.ring) {
		for i := len(l.waiters) - 1; i >= 0; i-- {
			if l.waiters[i].source != from {
				continue
			}
			w := s.remove(l, i)
			q.count--
			w.class, w.rank = suspect, 0
			if r := q.add(w); r != nil {
				refused = append(refused, r)
			}
		}
	}
	return refused
}

// insert puts w behind all attempts of its line with the same or a lower rank.
func (s *lines) insert(w *waiter) {
	l := s.devices[w.device]
	if l == nil {
		l = &line{device: w.device}
		s.devices[w.device] = l
		s.ring = append(s.ring, l)
		s.lengths[0]++
	}
	at := slices.IndexFunc(l.waiters, func(other *waiter) bool { return other.rank > w.rank })
	if at < 0 {
		at = len(l.waiters)
	}
	s.lengths[len(l.waiters)]--
	l.waiters = slices.Insert(l.waiters, at, w)
	s.lengths[len(l.waiters)]++
}

// next removes and returns the first attempt of the first line, and moves the line to the end.
func (s *lines) next() *waiter {
	l := s.ring[0]
	w := s.remove(l, 0)
	if len(l.waiters) > 0 {
		s.ring[0] = nil // the array outlives the line
		s.ring = append(s.ring[1:], l)
	}
	return w
}

// remove removes and returns the i-th attempt of a line.
func (s *lines) remove(l *line, i int) *waiter {
	w := l.waiters[i]
	s.lengths[len(l.waiters)]--
	l.waiters = slices.Delete(l.waiters, i, i+1)
	for _, other := range l.waiters[i:] {
		if other.source == w.source {
			other.rank--
		}
	}
	if len(l.waiters) > 0 {
		s.lengths[len(l.waiters)]++
		return w
	}
	delete(s.devices, l.device)
	if s.ring[0] == l {
		s.ring[0] = nil
		s.ring = s.ring[1:]
	} else {
		s.ring = slices.DeleteFunc(s.ring, func(other *line) bool { return other == l })
	}
	return w
}

// longest returns the length of the longest line.
func (s *lines) longest() int {
	for n := maxPerDevice; n > 0; n-- {
		if s.lengths[n] > 0 {
			return n
		}
	}
	return 0
}

// countFrom returns the number of waiting attempts from a source in the line.
func (l *line) countFrom(from source) int {
	n := 0
	for _, w := range l.waiters {
		if w.source == from {
			n++
		}
	}
	return n
}
