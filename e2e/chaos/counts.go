package chaos

import "sync/atomic"

// counts are of one run.
type counts struct {
	writes  [3]atomic.Int64 // by outcome
	answers [6]atomic.Int64 // by answer
}

// reads is the sum of all answers.
func (c *counts) reads() int64 {
	sum := int64(0)
	for i := range c.answers {
		sum += c.answers[i].Load()
	}
	return sum
}
