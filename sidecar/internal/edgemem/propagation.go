package edgemem

import "time"

// maxPending bounds the writes whose acknowledgement is awaited. More are not measured.
const maxPending = 1 << 14

// pending is a write that the edge has not acknowledged yet. It has it once everything before after was taken, and the
// batch with that was acknowledged.
type pending struct {
	published time.Time
	after     mark
}

// ApplyLive calls apply, which applies a write that an event has announced. If that changes the memory, ApplyLive
// measures the time from published, when Redis ran the write by its own clock, to the edge's acknowledgement.
func (m *Memory) ApplyLive(published time.Time, apply func()) {
	m.mu.Lock()
	before := m.changes
	m.mu.Unlock()
	apply()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changes == before || len(m.pending) >= maxPending {
		return
	}
	m.pending = append(m.pending, pending{published, m.mark()})
	if m.ackedBatch == m.batch {
		m.observeAcked() // otherwise a batch that has the write may be on its way
	}
}

// observeAcked measures the writes that the edge has; no batch is on its way, and mu is held.
func (m *Memory) observeAcked() {
	now, n := time.Now(), 0
	for _, p := range m.pending {
		if !m.passed(p.after) {
			break
		}
		m.propagation.Observe(max(now.Sub(p.published), 0).Seconds()) // below 0: Redis's clock is ahead of ours
		n++
	}
	m.pending = m.pending[:copy(m.pending, m.pending[n:])]
}

// deferPending makes all pending writes wait for what is in the queues now: a new epoch pushes everything again.
func (m *Memory) deferPending() {
	for i := range m.pending {
		m.pending[i].after = m.mark()
	}
}
