package credential

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Bounds of what an edge beside others does at once in what the edges share, so that one edge leaves room: half of what
// [Authority] and [Fleet] admit.
const (
	maxEdgeCalls = 16 // of the authority, about familiar devices and about others
	maxEdgeFinds = 4
	// findWait is how long a verification waits for its turn to look up a shared verdict.
	findWait = 200 * time.Millisecond
)

// edgeState is what a Verifier has for its edge alone.
type edgeState struct {
	*Throttle
	flights *flights // verifications by hash, which wait in the edge's queue
	calls   *calls
	slots   *slots // nil: no bound, because the edge is the only one
}

// edges are all edges of the sidecar.
type edges struct {
	sharing bool // of verdicts, with other sidecars

	mu  sync.Mutex
	all []*Throttle // +checklocks:mu
}

// newEdgeState returns the state of a further edge.
func (v *Verifier) newEdgeState() edgeState {
	t := newThrottle(v.Limits, v.Devices.sources, v.pool, v.edges.sharing, v.metrics)
	v.edges.mu.Lock()
	defer v.edges.mu.Unlock()
	v.edges.all = append(v.edges.all, t)
	return edgeState{t, newFlights(), &calls{throttle: t, own: make(map[uint64]int)}, nil}
}

// AddEdge returns a Verifier for an edge beside others. The edges share devices, verdicts and workers; each has its own
// queue, limits and rests, so that requests from an edge, which may be invented, delay no other edge's. Call
// [Verifier.RemoveEdge] when the edge has gone.
func (v *Verifier) AddEdge() *Verifier {
	e := *v
	e.edgeState = v.newEdgeState()
	e.slots = newSlots()
	return &e
}

// RemoveEdge releases what the Verifier of AddEdge has for its edge.
func (v *Verifier) RemoveEdge() {
	v.edges.mu.Lock()
	v.edges.all = slices.DeleteFunc(v.edges.all, func(t *Throttle) bool { return t == v.Throttle })
	v.edges.mu.Unlock()
	v.pool.removeEdge(v.queue)
}

func (e *edges) list() []*Throttle {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.all)
}

// ListHolds returns the current holds at all edges among the last 1,024 networks and devices that failed at each; the
// longest wait first.
func (v *Verifier) ListHolds() []Hold {
	held := []Hold{}
	for _, t := range v.edges.list() {
		held = t.addHolds(held)
	}
	slices.SortFunc(held, func(a, b Hold) int {
		if a.WaitS != b.WaitS {
			return map[bool]int{true: -1, false: 1}[a.WaitS > b.WaitS]
		}
		return b.Last.Compare(a.Last)
	})
	return held
}

// ReleaseHold forgets the failures of a network, and of its devices in [Verifier.ListHolds], at all edges; with a
// device, only the device's failures at the network. It returns the number of forgotten holds. The edges may refuse the
// network for some seconds more.
func (v *Verifier) ReleaseHold(network netip.Prefix, device string) (released int) {
	for _, t := range v.edges.list() {
		released += t.releaseHold(network, device)
	}
	return released
}

// slots bound what an edge does at once.
type slots struct {
	finds    chan struct{}
	familiar chan struct{} // calls of the authority
	others   chan struct{}
}

func newSlots() *slots {
	return &slots{make(chan struct{}, maxEdgeFinds), make(chan struct{}, maxEdgeCalls), make(chan struct{}, maxEdgeCalls)}
}

// acquire waits for a slot for a call of the authority.
func (s *slots) acquire(ctx context.Context, familiar bool) (leave func(), ok bool) {
	switch {
	case s == nil:
		return func() {}, true
	case familiar:
		return acquireSlot(ctx, s.familiar)
	}
	return acquireSlot(ctx, s.others)
}

func acquireSlot(ctx context.Context, of chan struct{}) (leave func(), ok bool) {
	select {
	case of <- struct{}{}:
		return func() { <-of }, true
	case <-ctx.Done():
		return nil, false
	}
}

// findInFleet returns the match that a sidecar has shared for c, nil for none.
func (v *Verifier) findInFleet(ctx context.Context, c *Question) *Match {
	if v.slots != nil && v.edges.sharing {
		waits, cancel := context.WithTimeout(ctx, findWait)
		defer cancel()
		leave, ok := acquireSlot(waits, v.slots.finds)
		if !ok {
			return nil
		}
		defer leave()
	}
	return v.Fleet.Find(ctx, c)
}
