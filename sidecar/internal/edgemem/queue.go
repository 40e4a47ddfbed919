package edgemem

// queue is a first-in-first-out queue of bucket indexes without duplicates: a bucket that changes again while waiting
// keeps its position.
type queue struct {
	waiting []uint32 // beginning at head
	head    int
	queued  []bool // by index
	pushed  uint64 // number ever pushed
	popped  uint64 // number ever popped; pushed - popped are waiting
}

func newQueue(indexes int) queue { return queue{queued: make([]bool, indexes)} }

func (q *queue) push(i uint32) {
	if q.queued[i] {
		return
	}
	q.queued[i] = true
	q.waiting = append(q.waiting, i)
	q.pushed++
}

// front returns the index that has waited longest.
func (q *queue) front() (uint32, bool) {
	if q.head == len(q.waiting) {
		return 0, false
	}
	return q.waiting[q.head], true
}

// pop removes the index at the front.
func (q *queue) pop() {
	q.queued[q.waiting[q.head]] = false
	q.head++
	q.popped++
	if q.head == len(q.waiting) {
		q.waiting, q.head = q.waiting[:0], 0
	} else if q.head > 1024 && q.head > len(q.waiting)/2 {
		q.waiting = q.waiting[:copy(q.waiting, q.waiting[q.head:])]
		q.head = 0
	}
}

func (q *queue) len() int { return len(q.waiting) - q.head }

// clear empties the queue and counts the elements as popped.
func (q *queue) clear() {
	for q.len() > 0 {
		q.pop()
	}
}

// queueMark is a point in both queues, by the number of elements pushed before.
type queueMark struct{ objects, verdicts uint64 }

// currentMark returns the point after everything that is in the queues now.
func (m *Memory) currentMark() queueMark { return queueMark{m.dirty.pushed, m.verdicts.dirty.pushed} }

// hasTaken reports whether everything before a point was taken.
func (m *Memory) hasTaken(at queueMark) bool {
	return m.dirty.popped >= at.objects && m.verdicts.dirty.popped >= at.verdicts
}
