package edgemem

import (
	"maps"
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
}

// outbox builds batches of what one edge lacks, and knows what the edge has acknowledged. taken and acked are the
// contents of the last taken and the last acknowledged state record. An outbox that isn't attached gets no changes, and
// holds nothing: the next reset queues everything.
type outbox struct {
	*parts
	epoch    uint64
	attached bool
	wake     chan struct{} // capacity 1: there is something to take
	acks     chan struct{} // closed and replaced at each acknowledgement

	dirtyObjects    queue // of buckets of objects
	dirtyVerdicts   queue
	slots           edgeSlots
	writtenObjects  bitset              // buckets of which a record of this epoch was taken
	writtenVerdicts bitset              //
	filledBuckets   bitset              // buckets of objects whose last taken record has entries
	sent            map[uint32]struct{} // buckets of objects in batches without an acknowledgement
	dropped         map[uint32]bool     // buckets with a dropped verdict that the edge may have; true: in such a batch
	droppedBefore   map[uint32]bool     // those of earlier epochs
	purgeEnds       map[*shardPurge]uint64
	devices         listProgress

	replaces      uint64 // epoch at the edge before the next batch; differs from epoch before the first batch
	inStep        inStepTimes
	taken         sentState
	acked         sentState
	takenState    wire.State     // of the last taken batch
	ackedState    wire.State     // of the last acknowledged batch
	batch         uint64         // number of the last taken batch; never restarts
	ackedBatch    uint64         // number of the last acknowledged batch
	superseded    []indexRange   // an earlier epoch's buckets, to blank before any bucket of this epoch is written
	blanks        []indexRange   // buckets to blank unless this epoch writes them
	crowdedOut    bool           // the last batch had no objects, though some wait
	pendingWrites []pendingWrite // oldest first
	pendingTraces []pendingTrace // in the order of their arrival
}

// attached are the outboxes that get changes.
type attached []*outbox

// sentState is the part of a state record whose change requires a new state record.
type sentState struct {
	epoch       uint64
	slots       uint32 // number of slots that may be filled
	superseded  bool   // objects of an earlier epoch may still be found
	oldVerdicts bool   // and verdicts
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

// setInStep makes the edge learn the memory's in-step time in due course.
func (o *outbox) setInStep() {
	if o.inStep.pendingMS == 0 {
		o.awaitLatest()
	}
}

// awaitLatest makes the latest time wait until everything in the queues now was taken.
func (o *outbox) awaitLatest() {
	o.inStep.pendingMS, o.inStep.after = o.inStepMS, o.currentMark()
}

// advanceInStep updates the time that the edge learns from the batch under construction.
func (o *outbox) advanceInStep(drained bool) {
	c := &o.inStep
	switch {
	case drained:
		c.readyMS, c.pendingMS = o.inStepMS, 0
	case c.pendingMS != 0 && len(o.superseded) == 0 && o.hasTaken(c.after):
		c.readyMS, c.pendingMS = c.pendingMS, 0
		if o.inStepMS != c.readyMS {
			o.awaitLatest()
		}
	}
}

// # What a batch holds
//
// takeBatch builds a batch in seven steps:
//
//  1. the state, if the edge must know it first: a new epoch, slots for bodies, a purge. A batch that
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

// takeBatch is [Edge.TakeBatch].
func (o *outbox) takeBatch(dst []byte) ([]byte, BatchInfo) {
	now := time.Now()
	o.batch++
	b := batch{bytes: wire.BeginBatch(dst[:0], o.epoch, o.replaces), maxBytes: maxBatchBytes(len(o.edges))}
	t := BatchInfo{Takeover: o.replaces != o.epoch}
	announces := o.taken.purge != o.purges.begun
	// The edge must know slots before they are filled.
	if t.Takeover || o.taken != o.stateToSend() {
		o.takeState(&b, now)
	}
	o.replaces = o.epoch
	if o.takeEmpty(&b, &o.superseded) {
		o.takeDirty(&b, announces)
	}
	t.Traces = o.takeTraces()
	t.Drained = len(o.superseded) == 0 && o.dirtyObjects.len() == 0 && o.dirtyVerdicts.len() == 0
	o.advanceInStep(t.Drained)
	o.updateComplete()
	if t.Drained {
		o.takeFreeSlots(&b, now) // returns memory to the proxy
		o.takeEmpty(&b, &o.blanks)
	}
	o.takeState(&b, now)
	_, due := o.slots.nextToBlank(now)
	t.Ops, t.More = b.ops, !t.Drained || due || len(o.blanks) > 0
	return b.bytes, t
}

// takeDirty adds changed buckets, verdicts first, and no objects if the batch announces a purge. After a batch without
// objects, the next one starts with objects: otherwise a body over the bound would never fit while verdicts keep
// changing, and no object would be sent while purges begin.
func (o *outbox) takeDirty(b *batch, announces bool) {
	if o.crowdedOut {
		o.takeObjects(b)
	}
	o.takeVerdicts(b)
	if o.crowdedOut {
		o.crowdedOut = false
		return
	}
	before := b.records
	if !announces {
		o.takeObjects(b)
	}
	o.crowdedOut = o.dirtyObjects.len() > 0 && b.records == before
}

// takeState adds the current state record.
func (o *outbox) takeState(b *batch, now time.Time) {
	o.endPurges(o.dirtyObjects.popped)
	s := wire.State{
		Epoch:          o.epoch,
		InStepMS:       o.inStep.readyMS,
		HeartbeatMS:    now.UnixMilli(),
		ObjectBuckets:  uint32(len(o.objects.buckets)),
		VerdictBuckets: uint32(len(o.verdicts.buckets)),
		BodySlots:      o.countSlots(),
		Keys:           o.keys,

		DevicesComplete: o.listsDevices(),
		Purges:          o.listPurges(),
	}
	b.addRecord(wire.RegionState, 0, func(dst []byte) []byte { return wire.AppendState(dst, &s) })
	o.taken, o.takenState = o.stateToSend(), s
}

// countSlots returns the number of slots that may be filled at the edge.
func (o *outbox) countSlots() uint32 {
	return max(uint32(len(o.objects.slots.sizes)), o.slots.filledBefore)
}

// listsDevices reports whether the edge lists every device.
func (o *outbox) listsDevices() bool { return o.devices.complete && !o.verdicts.devices.overflowed }

// takeEmpty adds tombstones for the buckets in ranges that were not written in this epoch, and reports whether all are
// done.
func (o *outbox) takeEmpty(b *batch, ranges *[]indexRange) bool {
	for ; len(*ranges) > 0; *ranges = (*ranges)[1:] {
		for r := &(*ranges)[0]; r.next < r.end; r.next++ {
			if !b.hasRoom(wire.MinRecord) {
				return false
			}
			if !o.markWritten(r.region, r.next) {
				b.addRecord(r.region, r.next, func(dst []byte) []byte { return emptyBucket(dst, r.region, o.epoch) })
			}
		}
	}
	return true
}

// markWritten marks a bucket as written in this epoch, and reports whether the bucket was marked before.
func (o *outbox) markWritten(region wire.Region, index uint32) bool {
	written := &o.writtenObjects
	if region == wire.RegionVerdicts {
		written = &o.writtenVerdicts
	}
	before := written.has(index)
	written.set(index)
	return before
}

// markAcked is [Edge.MarkAcked].
func (o *outbox) markAcked() {
	o.slots.releaseDropped(o.dirtyObjects.popped, &o.objects.slots)
	clear(o.sent)
	maps.DeleteFunc(o.dropped, func(_ uint32, taken bool) bool { return taken })
	o.acked, o.ackedBatch, o.ackedState = o.taken, o.batch, o.takenState
	if o.acked.epoch == o.epoch && !o.acked.oldVerdicts {
		o.droppedBefore = nil
	}
	o.observeAcked()
	close(o.acks)
	o.acks = make(chan struct{})
}

// detach makes the edge get no changes any more, and releases what waits for the edge.
func (o *outbox) detach() {
	if !o.attached {
		return
	}
	o.attached = false
	o.edges = slices.DeleteFunc(o.edges, func(other *outbox) bool { return other == o })
	o.dirtyObjects.clear()
	o.dirtyVerdicts.clear()
	o.endPurges(o.dirtyObjects.popped)
	o.slots.restart(0, &o.objects.slots)
	o.writtenObjects, o.writtenVerdicts, o.filledBuckets = nil, nil, nil
}

// reset is [Edge.Reset].
func (o *outbox) reset(before *wire.State) {
	o.detach()
	clear(o.sent)
	o.epoch = drawEpoch()
	o.taken, o.crowdedOut = sentState{}, false
	if maps.Copy(o.dropped, o.droppedBefore); len(o.dropped) > 0 {
		o.droppedBefore, o.dropped = o.dropped, make(map[uint32]bool)
	}
	// What is written from now on is at least as new as the edge's memory is now.
	o.inStep = inStepTimes{readyMS: o.inStepMS}
	var earlier wire.State
	if before != nil {
		earlier = *before
	}
	o.replaces = earlier.Epoch
	// Empty buckets are written as well: the proxy spends the memory for all buckets at once, and no later traffic with
	// other keys can increase it.
	objects := min(earlier.ObjectBuckets, maxTable)
	verdicts := min(earlier.VerdictBuckets, maxTable)
	o.superseded = []indexRange{
		indexRange{wire.RegionVerdicts, 0, verdicts},
		indexRange{wire.RegionObjects, 0, objects},
	}
	o.blanks = []indexRange{
		{wire.RegionObjects, objects, max(objects, uint32(len(o.objects.buckets)))},
		{wire.RegionVerdicts, verdicts, max(verdicts, uint32(len(o.verdicts.buckets)))},
	}
	o.slots.restart(min(earlier.BodySlots, maxTable), &o.objects.slots)
	o.attached = true
	o.edges = append(o.edges, o)
	for i := range o.objects.buckets { // empty ones, too: a single run takes the least memory
		o.dirtyObjects.push(uint32(i))
	}
	for i := range o.verdicts.buckets {
		if k := &o.verdicts.buckets[i]; len(k.verdicts) > 0 || len(k.devices) > 0 {
			o.dirtyVerdicts.push(uint32(i))
		}
	}
	o.deferComplete()
	o.deferPending()
}

func (o *outbox) stateToSend() sentState {
	return sentState{o.epoch, o.countSlots(), len(o.superseded) > 0,
		len(o.superseded) > 0 && o.superseded[0].region == wire.RegionVerdicts, o.listsDevices(), o.purges.begun}
}

// isCurrent reports whether no worker can find an older version of the object at key. A bucket that is not yet in the
// edge's memory has no version.
func (o *outbox) isCurrent(key string) bool {
	if o.taken.epoch != o.epoch {
		return true // nothing of this epoch was sent, so all workers use the old one
	}
	if !o.isTakenOver() {
		return false
	}
	bucket := o.objects.findBucket(key)
	_, isSent := o.sent[bucket]
	return !isSent && !(o.filledBuckets.has(bucket) && o.dirtyObjects.queued.has(bucket))
}

// lacksNewest reports whether the edge lacks the newest version of the object at key, or the object's removal.
func (o *outbox) lacksNewest(key string) bool {
	bucket := o.objects.findBucket(key)
	_, isSent := o.sent[bucket]
	return !o.attached || o.acked.epoch != o.epoch || isSent || o.dirtyObjects.queued.has(bucket)
}

// markDropped records that verdicts of a bucket were dropped; found: that the memory had one. The edge may also have
// one that was evicted just before.
func (o *outbox) markDropped(bucket uint32, found bool) {
	switch {
	case found || o.dirtyVerdicts.queued.has(bucket):
		o.dropped[bucket] = false
	case o.batch != o.ackedBatch:
		o.dropped[bucket] = true
	}
}

// hasDropped reports whether the edge may have a verdict on the device, or on another one of its bucket, that was
// dropped.
func (o *outbox) hasDropped(device string) bool {
	bucket := o.verdicts.findBucket(device)
	_, found := o.dropped[bucket]
	_, foundBefore := o.droppedBefore[bucket]
	return found || foundBefore
}

// isTakenOver reports whether no worker uses an earlier epoch's buckets any more, or all still do.
func (o *outbox) isTakenOver() bool {
	return o.taken.epoch != o.epoch || o.acked.epoch == o.epoch && !o.acked.superseded
}

// queueMark is a point in both queues, by the number of elements pushed before.
type queueMark struct{ objects, verdicts uint64 }

// currentMark returns the point after everything that is in the queues now.
func (o *outbox) currentMark() queueMark {
	return queueMark{o.dirtyObjects.pushed, o.dirtyVerdicts.pushed}
}

// hasTaken reports whether everything before a point was taken.
func (o *outbox) hasTaken(at queueMark) bool {
	return o.dirtyObjects.popped >= at.objects && o.dirtyVerdicts.popped >= at.verdicts
}
