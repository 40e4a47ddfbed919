package image

// queue is a first-in-first-out queue of bucket indexes, each in it at most once: a
// bucket that changes again while it waits keeps its turn.
type queue struct {
	waiting []uint32 // from head
	head    int
	queued  []bool // by index
	pushed  uint64 // how many were ever pushed
	popped  uint64 // how many of those were popped: pushed - popped wait
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

// front is the index that has waited longest.
func (q *queue) front() (uint32, bool) {
	if q.head == len(q.waiting) {
		return 0, false
	}
	return q.waiting[q.head], true
}

// pop removes the front.
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

// clear forgets what waits; the counts go on as if it had been popped.
func (q *queue) clear() {
	for q.len() > 0 {
		q.pop()
	}
}
