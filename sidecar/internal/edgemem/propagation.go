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
// from published, when Redis ran the write by its own clock, to the edge's acknowledgement.
func (m *Memory) ApplyLive(published time.Time, apply func()) {
	m.mu.Lock()
	before := m.changes
	m.mu.Unlock()
	apply()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changes == before || len(m.pendingWrites) >= maxPending {
		return
	}
	m.pendingWrites = append(m.pendingWrites, pendingWrite{published, m.currentMark()})
	if m.ackedBatch == m.batch {
		m.observeAcked() // otherwise a batch with the write may be on its way
	}
}

// observeAcked measures the writes that the edge has. No batch is on its way, and mu is held.
func (m *Memory) observeAcked() {
	now, n := time.Now(), 0
	for _, p := range m.pendingWrites {
		if !m.hasTaken(p.after) {
			break
		}
		m.propagation.Observe(max(now.Sub(p.published), 0).Seconds()) // below 0: Redis's clock is ahead of ours
		n++
	}
	m.pendingWrites = m.pendingWrites[:copy(m.pendingWrites, m.pendingWrites[n:])]
}

// deferPending makes all pending writes wait for what is in the queues now: a new epoch pushes everything again.
func (m *Memory) deferPending() {
	for i := range m.pendingWrites {
		m.pendingWrites[i].after = m.currentMark()
	}
}
