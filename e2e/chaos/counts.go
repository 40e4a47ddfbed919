package chaos

import "sync/atomic"

// counts are the counts of one run.
type counts struct {
	writes    [3]atomic.Int64 // by outcome
	overtaken atomic.Int64    // writes refused because another writer's newer one came first
	batches   atomic.Int64    // of several writes
	counters  atomic.Int64    // acknowledged increments of the counter
	conflicts atomic.Int64    // increments that were refused because the other one came first
	devices   [3]atomic.Int64 // the same, of devices
	answers   [answers]atomic.Int64
	logins    [answers]atomic.Int64 // the same, of devices
}

// sumAnswers returns the sum over all answers.
func sumAnswers(counts *[answers]atomic.Int64) int64 {
	sum := int64(0)
	for i := range counts {
		sum += counts[i].Load()
	}
	return sum
}
