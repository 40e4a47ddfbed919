package edgemem

import (
	"context"
	"slices"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// Edge is one edge's part of a [Memory]: which records the edge lacks, and its epoch. The methods are safe for
// concurrent use, except [Edge.TakeBatch], [Edge.MarkAcked], [Edge.Reset] and [Edge.Detach], which belong to one
// goroutine, the edge's pusher.
type Edge struct {
	m      *Memory
	wake   chan struct{} // of outbox
	outbox *outbox       // +checklocks:m.mu
}

// AddEdge adds an edge, of whose memory nothing is known: call [Edge.Reset] before [Edge.TakeBatch].
func (m *Memory) AddEdge() *Edge {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.newOutbox()
	m.all = append(m.all, o)
	return &Edge{m: m, wake: o.wake, outbox: o}
}

// newOutbox returns an outbox that isn't attached.
func (p *parts) newOutbox() *outbox {
	return &outbox{parts: p, epoch: drawEpoch(), sent: make(map[uint32]struct{}), dropped: make(map[uint32]bool),
		purgeEnds: make(map[*shardPurge]uint64), wake: make(chan struct{}, 1), acks: make(chan struct{})}
}

// Remove removes the edge from its memory. No other method may be called afterwards.
func (e *Edge) Remove() {
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	o := e.outbox
	o.detach()
	e.m.all = slices.DeleteFunc(e.m.all, func(other *outbox) bool { return other == o })
}

// Wake returns a channel that receives a value when there may be something to take.
func (e *Edge) Wake() <-chan struct{} { return e.wake }

// Epoch returns the edge's current epoch, never 0.
func (e *Edge) Epoch() uint64 {
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	return e.outbox.epoch
}

// TakeBatch writes the next batch to dst, the caller's buffer. The batch counts as sent: the caller must deliver it and
// call [Edge.MarkAcked], or call [Edge.Detach].
func (e *Edge) TakeBatch(dst []byte) ([]byte, BatchInfo) {
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	return e.outbox.takeBatch(dst)
}

// MarkAcked records that the edge has applied all batches taken so far.
func (e *Edge) MarkAcked() {
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	e.outbox.markAcked()
}

// Detach records that a batch may be lost. Nothing waits for the edge until the next [Edge.Reset], and the edge costs
// no memory.
func (e *Edge) Detach() {
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	e.outbox.detach()
}

// Reset begins a new epoch of the edge, of which the edge has nothing, and queues everything. before is the state in
// the edge's memory, nil if there is none; records of its epoch that the new epoch does not overwrite are blanked.
func (e *Edge) Reset(before *wire.State) {
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	e.outbox.reset(before)
}

// AwaitObject waits while the edge may still find an older version of the object at key than the memory has; it returns
// ctx's error if ctx ends first. An API handler calls AwaitObject before returning the memory's version; otherwise the
// next request could get the older version.
func (e *Edge) AwaitObject(ctx context.Context, key string) error {
	return e.awaitCondition(ctx, func(o *outbox) bool { return o.isCurrent(key) })
}

// AwaitVerdicts waits while a worker of the edge may still use records of an earlier epoch although the new epoch has
// begun at the edge, or a verdict on the device that was dropped; it returns ctx's error if ctx ends first. An API
// handler calls AwaitVerdicts before it refuses the device; otherwise the next request could be let in by the old
// verdict.
func (e *Edge) AwaitVerdicts(ctx context.Context, device string) error {
	return e.awaitCondition(ctx, func(o *outbox) bool { return o.isTakenOver() && !o.hasDropped(device) })
}

// AwaitEpoch waits until the edge has a state of the current epoch, no verdict of an earlier epoch, and no dropped
// verdict on the device. It returns the epoch, or ctx's error and the current epoch. An API handler calls AwaitEpoch
// before it lets the device in, for the same reason.
func (e *Edge) AwaitEpoch(ctx context.Context, device string) (epoch uint64, err error) {
	err = e.awaitCondition(ctx, func(o *outbox) bool {
		epoch = o.epoch
		return o.acked.epoch == epoch && !o.acked.oldVerdicts && !o.hasDropped(device)
	})
	return epoch, err
}

// awaitCondition waits until done returns true, and calls done after each acknowledgement, with the lock.
func (e *Edge) awaitCondition(ctx context.Context, done func(*outbox) bool) error {
	for {
		e.m.mu.Lock()
		over, more := done(e.outbox), e.outbox.acks
		e.m.mu.Unlock()
		if over {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
