// Package stats has the statistics of a load test: a histogram of latencies, and paired ratios.
package stats

import (
	"math/bits"
	"time"
)

// Percents are the percentiles that a load test reports; the last is the maximum.
var Percents = []float64{50, 90, 99, 99.9, 100}

// subBits is the number of bits that a bucket keeps below a value's highest bit: a bucket is at most 1/128 (0.8 %)
// wide.
const subBits = 7

// Histogram counts durations from 1 ns to centuries, in buckets that become wider with the value. The zero value is
// empty. A Histogram is not safe for concurrent use.
type Histogram struct {
	counts []uint64
	total  uint64
	max    time.Duration
}

// bucketOf returns the index for d: each value below 2^(subBits+1) has its own bucket, and each power of two above has
// 2^subBits buckets of equal width.
func bucketOf(d time.Duration) int {
	v := uint64(max(d, 0))
	shift := max(bits.Len64(v)-subBits-1, 0)
	return shift<<subBits + int(v>>shift)
}

// upperBound returns the largest duration in bucket i.
func upperBound(i int) time.Duration {
	shift := max(i>>subBits-1, 0)
	return time.Duration((uint64(i-shift<<subBits)+1)<<shift - 1)
}

// Add counts d.
func (h *Histogram) Add(d time.Duration) {
	i := bucketOf(d)
	if i >= len(h.counts) {
		h.counts = append(h.counts, make([]uint64, i+1-len(h.counts))...)
	}
	h.counts[i]++
	h.total++
	h.max = max(h.max, d)
}

// Total returns the number of durations.
func (h *Histogram) Total() uint64 { return h.total }

// Quantile returns the quantile q (0 to 1): the duration that a share q does not exceed, at most 0.8 % too long; 0 for
// an empty histogram.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.total == 0 {
		return 0
	}
	rank := uint64(q * float64(h.total))
	if float64(rank) < q*float64(h.total) {
		rank++ // the smallest value that at least a share q does not exceed
	}
	rank = max(rank, 1)
	var seen uint64
	for i, n := range h.counts {
		if seen += n; seen >= rank {
			return min(upperBound(i), h.max)
		}
	}
	return h.max
}
