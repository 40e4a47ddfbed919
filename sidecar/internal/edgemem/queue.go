package edgemem

import "math/bits"

// queue is a first-in-first-out queue of bucket indexes without duplicates: a bucket that changes again while waiting
// keeps its position.
type queue struct {
	waiting []indexes // beginning at head
	head    int
	queued  bitset // by index
	pushed  uint64 // number ever pushed
	popped  uint64 // number ever popped; pushed - popped are waiting
}

// indexes are the indexes from next to end - 1.
type indexes struct{ next, end uint32 }

func (q *queue) push(i uint32) {
	if q.queued.has(i) {
		return
	}
	q.queued.set(i)
	q.pushed++
	if n := len(q.waiting); n > q.head && q.waiting[n-1].end == i {
		q.waiting[n-1].end++
	} else {
		q.waiting = append(q.waiting, indexes{i, i + 1})
	}
}

// popWhile removes indexes from the front as long as take returns true for the front.
func (q *queue) popWhile(take func(index uint32) bool) {
	for q.len() > 0 && take(q.waiting[q.head].next) {
		q.pop()
	}
}

// pop removes the index at the front.
func (q *queue) pop() {
	front := &q.waiting[q.head]
	q.queued.clear(front.next)
	q.popped++
	if front.next++; front.next < front.end {
		return
	}
	q.head++
	if q.head == len(q.waiting) {
		q.waiting, q.head = nil, 0
	} else if q.head > 1024 && q.head > len(q.waiting)/2 {
		q.waiting = q.waiting[:copy(q.waiting, q.waiting[q.head:])]
		q.head = 0
	}
}

func (q *queue) len() int { return int(q.pushed - q.popped) }

// clear empties the queue, frees its memory, and counts the elements as popped.
func (q *queue) clear() { *q = queue{pushed: q.pushed, popped: q.pushed} }

// bitset is a set of small numbers, which grows as needed.
type bitset []uint64

func (b bitset) has(i uint32) bool { return int(i/64) < len(b) && b[i/64]>>(i%64)&1 != 0 }

func (b *bitset) set(i uint32) {
	if n := int(i/64) + 1; n > len(*b) {
		*b = append(*b, make([]uint64, n-len(*b))...)
	}
	(*b)[i/64] |= 1 << (i % 64)
}

func (b bitset) clear(i uint32) {
	if int(i/64) < len(b) {
		b[i/64] &^= 1 << (i % 64)
	}
}

func (b bitset) count() (n int) {
	for _, word := range b {
		n += bits.OnesCount64(word)
	}
	return n
}
