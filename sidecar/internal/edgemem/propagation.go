package edgemem

import "time"

// maxPending bounds the writes whose acknowledgement is awaited; further writes are not measured.
const maxPending = 1 << 14

// pendingWrite is a write without the edge's acknowledgement. The edge has the write once everything before after was
// taken, and the last batch of it acknowledged.
type pendingWrite struct {
	published time.Time
	after     queueMark
}

// ApplyLive calls apply, which applies a write from an event. If apply changes the memory, ApplyLive measures the time
// from published, when Redis ran the write by its own clock, to each edge's acknowledgement.
func (m *Memory) ApplyLive(published time.Time, apply func()) {
	m.mu.Lock()
	before := m.changes
	m.mu.Unlock()
	apply()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changes == before {
		return
	}
	for _, o := range m.all {
		o.awaitAck(published)
	}
}

// awaitAck measures a write when the edge has the write.
func (o *outbox) awaitAck(published time.Time) {
	if len(o.pendingWrites) >= maxPending {
		return
	}
	o.pendingWrites = append(o.pendingWrites, pendingWrite{published, o.currentMark()})
	if o.attached && o.ackedBatch == o.batch {
		o.observeAcked() // otherwise a batch with the write may be on its way
	}
}

// observeAcked measures the writes that the edge has. No batch is on its way.
func (o *outbox) observeAcked() {
	now, n := time.Now(), 0
	for _, p := range o.pendingWrites {
		if !o.hasTaken(p.after) {
			break
		}
		o.propagation.Observe(max(now.Sub(p.published), 0).Seconds()) // below 0: Redis's clock is ahead of ours
		n++
	}
	o.pendingWrites = o.pendingWrites[:copy(o.pendingWrites, o.pendingWrites[n:])]
}

// deferPending makes all pending writes and traces wait for what is in the queues now: a new epoch pushes everything
// again.
func (o *outbox) deferPending() {
	for i := range o.pendingWrites {
		o.pendingWrites[i].after = o.currentMark()
	}
	for i := range o.pendingTraces {
		o.pendingTraces[i].after = o.currentMark()
	}
}
