package edgemem

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// BatchInfo describes a batch.
type BatchInfo struct {
	// Ops is the number of operations.
	Ops int
	// Takeover is true for the first batch of an epoch.
	Takeover bool
	// Drained means that the edge has the whole memory once the batch is applied.
	Drained bool
	// More means that another batch should be sent at once.
	More bool
	// Traces are the spans of events whose changes the batch completes, see [Memory.TraceChanges].
	Traces []trace.SpanContext
	// Renew means that the memory waits for a new epoch: call [Memory.Reset].
	Renew bool
}

// sentState is the part of a state record whose change requires a new state record.
type sentState struct {
	epoch       uint64
	permissions int    // number of names
	slots       int    // number of slots that may be filled
	superseded  bool   // objects and verdicts of an earlier epoch may still be found
	devices     bool   // every device is listed
	purge       uint64 // number of begun purges
}

// inStepTimes are times at which the memory was in step with Redis. The edge may learn a time once everything that
// waited then was taken. Under steady load such a time is earlier than the last time with empty queues.
type inStepTimes struct {
	readyMS   int64 // the edge may learn this time
	pendingMS int64 // the edge may not learn this time yet; 0: none
	after     queueMark
}

type indexRange struct {
	region    wire.Region
	next, end uint32
}

func (r *indexRange) isEmpty() bool { return r.next >= r.end }

// SetInStep records that at t, a time before the call, the memory had everything of Redis.
func (m *Memory) SetInStep(t time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inStepMS = t.UnixMilli()
	if m.inStep.pendingMS == 0 {
		m.awaitLatest()
	}
}

// awaitLatest makes the latest time wait until everything in the queues now was taken.
func (m *Memory) awaitLatest() {
	m.inStep.pendingMS, m.inStep.after = m.inStepMS, m.currentMark()
}

// advanceInStep updates the time that the edge learns from the batch under construction.
func (m *Memory) advanceInStep(drained bool) {
	c := &m.inStep
	switch {
	case drained:
		c.readyMS, c.pendingMS = m.inStepMS, 0
	case c.pendingMS != 0 && len(m.superseded) == 0 && m.hasTaken(c.after):
		c.readyMS, c.pendingMS = c.pendingMS, 0
		if m.inStepMS != c.readyMS {
			m.awaitLatest()
		}
	}
}

// # What a batch holds
//
// TakeBatch builds a batch in seven steps:
//
//  1. the state, if the edge must know it first: a new epoch, permission names, slots for bodies, a purge. A batch that
//     announces a purge has no objects, so that no object delays the purge;
//  2. tombstones for the records of an earlier epoch, verdicts first. Until all are sent, the batch has nothing else;
//  3. changed buckets of verdicts, before objects, so that a revocation never waits for bodies;
//  4. objects: tombstones for the bodies of an earlier epoch, and for free slots if they have many bytes; then for each
//     changed bucket the new bodies, and the bucket;
//  5. the in-step time, if all earlier changes are in this or an earlier batch;
//  6. with nothing left, tombstones for free slots, and buckets that were never written;
//  7. the state again, with all of the above. The edge applies a batch in its order.
//
// For example, object /a gets a second version and device d is revoked while Redis was last in step at 12:00:00.
// The next batch is: the bucket of d, without the verdict; the new body of /a in a free slot 7; the bucket of /a, which
// names slot 7; the state, in step as of 12:00:00. Slot 3, where the first version lies, can be used again once the
// batch is acknowledged. If the body does not fit, the batch ends before the body, and the state keeps the earlier
// time.

// TakeBatch writes the next batch to dst, the caller's buffer. The batch counts as sent: the caller must deliver it and
// call [Memory.MarkAcked], or call [Memory.Reset].
func (m *Memory) TakeBatch(dst []byte) ([]byte, BatchInfo) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.batch++
	b := batch{bytes: wire.BeginBatch(dst[:0], m.epoch, m.replaces)}
	t := BatchInfo{Takeover: m.replaces != m.epoch}
	announces := m.taken.purge != m.purgesBegun
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
	_, due := m.slots.nextToBlank(now)
	t.Renew = m.permissions.isRenewalDue(now)
	t.Ops, t.More = b.ops, !t.Drained || due || len(m.blanks) > 0
	return b.bytes, t
}

// takeDirty adds changed buckets, verdicts first, and no objects if the batch announces a purge. After a batch without
// objects, the next one starts with objects: otherwise a body over the bound would never fit while verdicts keep
// changing, and no object would be sent while purges begin.
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
	if m.dirty.len() == 0 || !m.makeBodyRoom(b) {
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

// MarkAcked records that the edge has applied all batches taken so far.
func (m *Memory) MarkAcked() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, slot := range m.freedSlots {
		m.slots.releaseWritten(slot)
	}
	m.freedSlots = m.freedSlots[:0]
	m.acked, m.ackedBatch, m.ackedState = m.taken, m.batch, m.takenState
	m.observeAcked()
	close(m.ackReceived)
	m.ackReceived = make(chan struct{})
}

// Reset begins a new epoch, of which the edge has nothing, and queues everything. before is the state in the edge's
// memory, nil if there is none; records of its epoch that the new epoch does not overwrite are blanked. Reset drops all
// verdicts, because their digests depend on the old epoch's key.
func (m *Memory) Reset(before *wire.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drawEpoch()
	m.ackedState.Permissions = slices.Clone(m.ackedState.Permissions) // reassignBits changes the names in place
	m.permissions.reassignBits(time.Now())
	m.taken, m.freedSlots, m.crowdedOut = sentState{}, nil, false
	// What is written from now on is at least as new as the edge's memory is now.
	m.inStep = inStepTimes{readyMS: m.inStepMS}
	var earlier wire.State
	if before != nil {
		earlier = *before
	}
	m.replaces = earlier.Epoch
	filled := min(earlier.BodySlots, maxTable)
	// Empty buckets are written as well: the proxy spends the memory for all buckets at once, and no later traffic with
	// other keys can increase it.
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
			e.bodies[i].slot, e.bodies[i].written = m.slots.acquireSlot(), false
		}
		m.addToBucket(e)
	}
	m.deferPending()
	m.deferTraces()
	m.wakePusher()
}

func (m *Memory) stateToSend() sentState {
	return sentState{m.epoch, len(m.permissions.names), m.slots.count(), len(m.superseded) > 0,
		m.verdicts.devices.complete, m.purgesBegun}
}

// AwaitObject waits while the edge may still find an older version of the object at key than the memory has; it returns
// ctx's error if ctx ends first. An API handler calls AwaitObject before returning the memory's version; otherwise the
// next request could get the older version.
func (m *Memory) AwaitObject(ctx context.Context, key string) error {
	return m.awaitCondition(ctx, func() bool { return m.isCurrent(key) })
}

// AwaitTakeover waits while a worker of the edge may still use records of an earlier epoch although the new epoch has
// begun at the edge; it returns ctx's error if ctx ends first.
func (m *Memory) AwaitTakeover(ctx context.Context) error {
	return m.awaitCondition(ctx, m.isTakenOver)
}

// awaitCondition waits until done returns true, and checks it after each acknowledgement, with mu held.
func (m *Memory) awaitCondition(ctx context.Context, done func() bool) error {
	for {
		m.mu.Lock()
		over, more := done(), m.ackReceived
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

// isCurrent reports whether no worker can find an older version of the object at key. A bucket that is not yet in the
// edge's memory has no version.
func (m *Memory) isCurrent(key string) bool {
	if m.taken.epoch != m.epoch {
		return true // nothing of this epoch was sent, so all workers use the old one
	}
	if !m.isTakenOver() {
		return false
	}
	index, _ := m.keys.Place(key, uint32(len(m.buckets)))
	b := &m.buckets[index]
	return b.lastBatch <= m.ackedBatch && !(b.hasEntries && m.dirty.queued[index])
}

// isTakenOver reports whether no worker uses an earlier epoch's buckets any more, or all still do.
func (m *Memory) isTakenOver() bool {
	return m.taken.epoch != m.epoch || m.acked.epoch == m.epoch && !m.acked.superseded
}

// AwaitPermissions waits until the edge has a state of the current epoch with the names of all permissions in bits, and
// returns that epoch; or the current epoch and ctx's error.
func (m *Memory) AwaitPermissions(ctx context.Context, bits uint64) (epoch uint64, err error) {
	err = m.awaitCondition(ctx, func() bool {
		epoch = m.epoch
		return m.acked.epoch == epoch && bits>>m.acked.permissions == 0
	})
	return epoch, err
}
