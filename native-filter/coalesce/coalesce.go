// Package coalesce coalesces the native edge's calls to the sidecar over all workers of the process: equal calls share
// one answer. It is independent of the proxy: the proxy's main thread makes the calls, and brings the answers.
package coalesce

import (
	"sync"
	"time"

	"github.com/gatehouse/gatehouse/edge"
)

// Group has one configuration's unanswered calls. All methods are safe for concurrent use; callbacks run without a
// lock.
type Group struct {
	requestDispatch func() // makes the main thread call Dispatch soon

	mu      sync.Mutex // protects the following
	byKey   map[string]*flight
	byID    map[uint64]*flight
	waiting []*flight // to be dispatched
	closed  bool
	flights int           // calls without an answer
	none    chan struct{} // for Drain: closed at the last answer
}

// flight is a call without an answer.
type flight struct {
	key  string // "": nobody joins it
	call edge.Call
	done []func(body []byte)
}

// NewGroup returns a group without calls. ask makes the proxy's main thread call Dispatch soon.
func NewGroup(ask func()) *Group {
	return &Group{requestDispatch: ask, byKey: map[string]*flight{}, byID: map[uint64]*flight{}}
}

// JoinCall makes a call, and keeps call, or waits for the answer to an equal call, if both are shared. done gets the
// answer's body, nil for a failed call, on any thread. JoinCall returns the newest stream at the time of the call;
// false after Close.
func (g *Group) JoinCall(call edge.Call, done func(body []byte)) (newest uint32, ok bool) {
	key := ""
	if call.Shared {
		key = call.Path + string(call.Body)
	}
	g.mu.Lock()
	if f := g.byKey[key]; f != nil && key != "" {
		f.done, newest = append(f.done, done), f.call.Newest
		g.mu.Unlock()
		return newest, true
	}
	if g.closed {
		g.mu.Unlock()
		return 0, false
	}
	f := &flight{key: key, call: call, done: []func([]byte){done}}
	if key != "" {
		g.byKey[key] = f
	}
	g.waiting = append(g.waiting, f)
	g.flights++
	g.mu.Unlock()
	g.requestDispatch()
	return call.Newest, true
}

// DispatchCalls makes all waiting calls, on the main thread. dispatch returns the proxy's number of the call, or false
// after an immediate failure.
func (g *Group) DispatchCalls(dispatch func(*edge.Call) (id uint64, ok bool)) {
	g.mu.Lock()
	waiting := g.waiting
	g.waiting = nil
	g.mu.Unlock()
	defer func() { // calls remain only after a panic
		for _, f := range waiting {
			g.finishCall(f, nil)
		}
	}()
	for len(waiting) > 0 {
		f := waiting[0]
		id, ok := dispatch(&f.call)
		waiting = waiting[1:]
		g.mu.Lock()
		f.call = edge.Call{Newest: f.call.Newest} // the proxy has copied the rest
		if ok {
			g.byID[id] = f
		}
		g.mu.Unlock()
		if !ok {
			g.finishCall(f, nil)
		}
	}
}

// DeliverAnswer passes an answer, nil for a failed call, to all waiting requests.
func (g *Group) DeliverAnswer(id uint64, body []byte) {
	g.mu.Lock()
	f := g.byID[id]
	delete(g.byID, id)
	g.mu.Unlock()
	if f != nil {
		g.finishCall(f, body)
	}
}

// Drain refuses new calls, fails calls that were not made yet, and waits for the answers to the rest, at most for most.
// It must not be called on the main thread, which brings the answers.
func (g *Group) Drain(most time.Duration) {
	g.mu.Lock()
	waiting := g.waiting
	g.closed, g.waiting, g.none = true, nil, make(chan struct{})
	none := g.none
	if g.flights == 0 {
		close(none)
	}
	g.mu.Unlock()
	for _, f := range waiting {
		g.finishCall(f, nil)
	}
	select {
	case <-none:
	case <-time.After(most):
	}
}

// Close fails all calls: with the configuration, the proxy drops its calls.
func (g *Group) Close() {
	g.mu.Lock()
	flights := g.waiting
	for _, f := range g.byID {
		flights = append(flights, f)
	}
	g.closed, g.waiting = true, nil
	clear(g.byID)
	g.mu.Unlock()
	for _, f := range flights {
		g.finishCall(f, nil)
	}
}

func (g *Group) finishCall(f *flight, body []byte) {
	g.mu.Lock()
	if g.byKey[f.key] == f {
		delete(g.byKey, f.key) // nobody joins it any more
	}
	done := f.done
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.flights--; g.flights == 0 && g.none != nil {
			close(g.none)
		}
	}()
	for _, d := range done {
		d(body)
	}
}
