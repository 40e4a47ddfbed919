package edgemem

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// Taken describes a batch.
type Taken struct {
	// Ops is the number of operations.
	Ops int
	// Takeover is true for the first batch of an epoch.
	Takeover bool
	// Drained means that the edge has the whole memory once it has applied the batch.
	Drained bool
	// More means that another batch should be sent at once.
	More bool
	// Traces are the spans of events whose changes the batch has, see [Memory.Trace].
	Traces []trace.SpanContext
	// Renew means that the memory waits for a new epoch: call [Memory.Reset].
	Renew bool
}

// sentState is the part of a state record whose change requires another state record.
type sentState struct {
	epoch       uint64
	permissions int    // number of names
	slots       int    // number of slots that may be filled
	superseded  bool   // objects and verdicts of an earlier epoch may still be found
	devices     bool   // every device is listed
	purge       uint64 // number of purges that have begun
}

// inStepTimes are times at which the memory was in step with Redis. The edge may be told a time once everything that
// waited then was taken. Under steady load that is earlier than when nothing waits.
type inStepTimes struct {
	tellableMS int64 // the edge may be told this time
	waitingMS  int64 // the edge may not be told this time yet; 0: none
	after      mark
}

type indexRange struct {
	region    wire.Region
	next, end uint32
}

func (r *indexRange) empty() bool { return r.next >= r.end }

// SetInStep records that the memory had everything that Redis had at t, a time before the call.
func (m *Memory) SetInStep(t time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inStepMS = t.UnixMilli()
	if m.inStep.waitingMS == 0 {
		m.awaitLatest()
	}
}

// awaitLatest makes the latest time wait until everything in the queues now was taken.
func (m *Memory) awaitLatest() {
	m.inStep.waitingMS, m.inStep.after = m.inStepMS, m.mark()
}

// advanceInStep updates the time that the edge may be told in the batch that is being built.
func (m *Memory) advanceInStep(drained bool) {
	c := &m.inStep
	switch {
	case drained:
		c.tellableMS, c.waitingMS = m.inStepMS, 0
	case c.waitingMS != 0 && len(m.superseded) == 0 && m.passed(c.after):
		c.tellableMS, c.waitingMS = c.waitingMS, 0
		if m.inStepMS != c.tellableMS {
			m.awaitLatest()
		}
	}
}

// # What a batch holds
//
// Take builds a batch in these steps:
//
//  1. the state, if the edge must know it first: the new epoch, permission names, slots for bodies, a purge, which no
//     object delays: the next batch has them;
//  2. tombstones for what an earlier epoch left, verdicts first. Until all are sent, nothing else is;
//  3. verdicts whose buckets changed, before objects, so that a revocation never waits for bodies;
//  4. objects: tombstones for the bodies of an earlier epoch, and for free slots if they have many bytes; then for each
//     bucket that changed the bodies that it will name, and the bucket;
//  5. the time at which the edge was in step, if all that had changed by then is in this or an earlier batch;
//  6. with nothing left, tombstones for free slots, and buckets that were never written;
//  7. the state again, with all of this. The edge applies a batch in its order.
//
// For example, object /a gets a second version and device d is revoked while Redis was last in step at 12:00:00.
// The next batch is: the bucket of d, without its verdict; the new body of /a in a free slot 7; the bucket of
// /a, which names slot 7; the state, in step as of 12:00:00. Slot 3, where the first version lies, can be used again
// once the batch is acknowledged. Had the body not fit, the batch would end before it, and the state would
// keep the time before.

// Take writes the next batch to dst, the caller's buffer. It counts as sent: the caller must deliver it and call
// [Memory.Acked], or call [Memory.Reset].
func (m *Memory) Take(dst []byte) ([]byte, Taken) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.batch++
	b := batch{bytes: wire.BeginBatch(dst[:0], m.epoch, m.replaces)}
	t := Taken{Takeover: m.replaces != m.epoch}
	announces := m.taken.purge != m.purged
	// The edge must know slots before they are filled, and permission names before verdicts with their bits.
	if t.Takeover || m.taken != m.stateToSend() {
		m.takeState(&b, now)
	}
	m.replaces = m.epoch
	if m.takeSuperseded(&b) {
		m.takeDirty(&b, announces)
	}
	t.Traces = m.takeTraces()
	t.Drained = len(m.superseded) == 0 && m.dirty.len() == 0 && m.verdicts.dirty.len() == 0
	m.advanceInStep(t.Drained)
	m.updateComplete()
	if t.Drained {
		m.takeBlanks(&b, now)
	}
	m.takeState(&b, now)
	_, due := m.slots.nextBlank(now)
	t.Renew = m.permissions.due(now)
	t.Ops, t.More = b.ops, !t.Drained || due || len(m.blanks) > 0
	return b.bytes, t
}

// takeDirty adds changed buckets, verdicts first, and no objects if the batch announces a purge. After a batch without
// objects it starts with them: otherwise a body over the bound would never fit while verdicts keep changing, and none
// would go while purges begin.
func (m *Memory) takeDirty(b *batch, announces bool) {
	if m.crowdedOut {
		m.takeDirtyObjects(b)
	}
	for b.ops < maxVerdictOps {
		index, found := m.verdicts.dirty.front()
		if !found || !m.takeVerdicts(b, index) {
			break
		}
		m.verdicts.dirty.pop()
	}
	if m.crowdedOut {
		m.crowdedOut = false
		return
	}
	before := b.records
	if !announces {
		m.takeDirtyObjects(b)
	}
	m.crowdedOut = m.dirty.len() > 0 && b.records == before
}

func (m *Memory) takeDirtyObjects(b *batch) {
	if m.dirty.len() == 0 || !m.takeRoom(b) {
		return
	}
	for {
		index, found := m.dirty.front()
		if !found || !m.takeBucket(b, index) {
			break
		}
		m.dirty.pop()
	}
}

// Acked records that the edge has applied all batches taken so far.
func (m *Memory) Acked() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, slot := range m.freed {
		m.slots.releaseWritten(slot)
	}
	m.freed = m.freed[:0]
	m.acked, m.ackedBatch, m.ackedState = m.taken, m.batch, m.takenState
	m.observeAcked()
	close(m.ackedMore)
	m.ackedMore = make(chan struct{})
}

// Reset begins a new epoch, of which the edge has nothing, and queues everything. before is the state in the edge's
// memory, nil if there is none; places of its epoch that this one does not use are blanked. Reset drops all verdicts,
// because their digests depend on the old epoch's key.
func (m *Memory) Reset(before *wire.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begin()
	m.ackedState.Permissions = slices.Clone(m.ackedState.Permissions) // renew changes the names in place
	m.permissions.renew(time.Now())
	m.taken, m.freed, m.crowdedOut = sentState{}, nil, false
	// What is written from now on is at least as new as the edge's memory is now.
	m.inStep = inStepTimes{tellableMS: m.inStepMS}
	var earlier wire.State
	if before != nil {
		earlier = *before
	}
	m.replaces = earlier.Epoch
	filled := min(earlier.BodySlots, maxTable)
	// Empty buckets are written as well: the proxy spends the memory for all buckets at once, and no traffic can make
	// it grow by other keys later.
	objects := min(earlier.ObjectBuckets, maxTable)
	verdicts := min(earlier.VerdictBuckets, maxTable)
	m.superseded = []indexRange{
		indexRange{wire.RegionVerdicts, 0, verdicts},
		indexRange{wire.RegionObjects, 0, objects},
	}
	m.blanks = []indexRange{
		{wire.RegionObjects, objects, max(objects, uint32(len(m.buckets)))},
		{wire.RegionVerdicts, verdicts, max(verdicts, uint32(len(m.verdicts.buckets)))},
	}
	m.slots.restart(filled)
	m.dirty.clear()
	clear(m.buckets)
	m.resetVerdicts()
	for _, e := range m.objects {
		for i := range e.bodies {
			e.bodies[i].slot, e.bodies[i].written = m.slots.take(), false
		}
		m.place(e)
	}
	m.deferPending()
	m.deferTraces()
	m.notify()
}

func (m *Memory) stateToSend() sentState {
	return sentState{m.epoch, len(m.permissions.names), m.slots.count(), len(m.superseded) > 0,
		m.verdicts.devices.complete, m.purged}
}

// AwaitObject waits while the edge may still find an older version of the object at key than the memory has; it returns
// ctx's error if that ends first. An API handler calls it before it returns the memory's version; otherwise the next
// request could get the older one.
func (m *Memory) AwaitObject(ctx context.Context, key string) error {
	return m.await(ctx, func() bool { return m.current(key) })
}

// AwaitTakeover waits while a worker of the edge may still use records of an earlier epoch although this one has begun
// there; it returns ctx's error if that ends first.
func (m *Memory) AwaitTakeover(ctx context.Context) error { return m.await(ctx, m.takenOver) }

// await waits until done returns true, and checks it after each acknowledgement, with mu held.
func (m *Memory) await(ctx context.Context, done func() bool) error {
	for {
		m.mu.Lock()
		over, more := done(), m.ackedMore
		m.mu.Unlock()
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

// current reports whether no worker can find an older version of the object at key. A bucket that is not yet in the
// edge's memory has no version.
func (m *Memory) current(key string) bool {
	if m.taken.epoch != m.epoch {
		return true // nothing of this epoch was sent, so all workers use the old one
	}
	if !m.takenOver() {
		return false
	}
	index, _ := m.keys.Place(key, uint32(len(m.buckets)))
	b := &m.buckets[index]
	return b.batch <= m.ackedBatch && !(b.listing && m.dirty.queued[index])
}

// takenOver reports whether no worker uses an earlier epoch's buckets any more, or all still do.
func (m *Memory) takenOver() bool {
	return m.taken.epoch != m.epoch || m.acked.epoch == m.epoch && !m.acked.superseded
}

// Await waits until the edge has a state of the current epoch with the names of all permissions in bits, and returns
// that epoch; or the current epoch and ctx's error.
func (m *Memory) Await(ctx context.Context, bits uint64) (epoch uint64, err error) {
	err = m.await(ctx, func() bool {
		epoch = m.epoch
		return m.acked.epoch == epoch && bits>>m.acked.permissions == 0
	})
	return epoch, err
}
