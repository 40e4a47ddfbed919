package stats

import (
	"math"
	"slices"
)

// Pairs has the costs of alternating slices of a subject and of a reference. Noise longer than a slice affects both
// sides of a pair, so the ratio is steadier than both costs.
type Pairs struct {
	Subject, Reference []float64 // of each slice, in one unit
}

// Add adds a pair.
func (p *Pairs) Add(subject, reference float64) {
	p.Subject, p.Reference = append(p.Subject, subject), append(p.Reference, reference)
}

// Ratio returns the spread of the pairs' ratios.
func (p *Pairs) Ratio() Spread {
	ratios := make([]float64, len(p.Subject))
	for i, s := range p.Subject {
		ratios[i] = s / p.Reference[i]
	}
	return SpreadOf(ratios)
}

// ScaleTo pairs p's subject with q's subject, although measured at different times: each cost is scaled by the
// reference of the same pair to the median cost of q's reference. p and q have equally many pairs.
func (p *Pairs) ScaleTo(q Pairs) (r Pairs) {
	usual := SpreadOf(q.Reference).Median
	for i, s := range p.Subject {
		r.Add(s/p.Reference[i]*usual, q.Subject[i]/q.Reference[i]*usual)
	}
	return r
}

// Spread is the median and the extremes of some values.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	N      int     `json:"n"`
}

// SpreadOf returns the spread of values, the zero Spread without values. The median of an even number of values is the
// mean of the middle two.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return Spread{Median: (v[(n-1)/2] + v[n/2]) / 2, Min: v[0], Max: v[n-1], N: n}
}

// MedianBounds returns bounds of the median of the distribution that the values are a sample of, without assumptions
// about the distribution. Each bound holds with 95 % confidence. The bounds are two of the values, or -Inf and +Inf for
// fewer than 5 values.
//
// The number of values below the median is binomial with p = 1/2 (Conover, Practical Nonparametric Statistics, 3.2).
func MedianBounds(values []float64) (low, high float64) {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	chance, below := math.Pow(0.5, float64(n)), 0.0 // chances of exactly, and of at most, i values below the median
	for i := range n {
		if below += chance; below >= 0.95 {
			return v[n-1-i], v[i]
		}
		chance *= float64(n-i) / float64(i+1)
	}
	return math.Inf(-1), math.Inf(1)
}
