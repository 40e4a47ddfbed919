package edgemem

import "testing"

// TestEmptyQueueReleasesMemory: a queue that was long keeps no memory once it is empty.
func TestEmptyQueueReleasesMemory(t *testing.T) {
	var q queue
	for i := range uint32(10_000) {
		q.push(2 * i) // single indexes, not runs
	}
	for want := range uint32(10_000) {
		q.popWhile(func(index uint32) bool { return index == 2*want })
	}
	if q.len() != 0 || cap(q.waiting) > 0 {
		t.Errorf("%d wait, and the queue keeps room for %d", q.len(), cap(q.waiting))
	}
}
