package stats

import (
	"math"
	"reflect"
	"testing"
)

func TestRatioIsOfPairsNotOfMedians(t *testing.T) {
	var p Pairs
	// Both sides of the second pair took ten times as long: the machine was busy.
	p.Add(15, 10)
	p.Add(150, 100)
	p.Add(16, 10)
	if got, want := p.Ratio(), (Spread{1.5, 1.5, 1.6, 3}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestAgainst: the machine was half as fast for the second pair of the first subject.
func TestAgainst(t *testing.T) {
	p := Pairs{Subject: []float64{12, 24}, Reference: []float64{10, 20}}
	got := p.ScaleTo(Pairs{Subject: []float64{16, 32}, Reference: []float64{20, 40}})
	want := Pairs{Subject: []float64{36, 36}, Reference: []float64{24, 24}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestSpread(t *testing.T) {
	for _, test := range []struct {
		name   string
		values []float64
		want   Spread
	}{
		{"none", nil, Spread{}},
		{"one", []float64{3}, Spread{3, 3, 3, 1}},
		{"odd", []float64{9, 1, 3}, Spread{3, 1, 9, 3}},
		{"even", []float64{4, 1, 2, 9}, Spread{3, 1, 9, 4}},
	} {
		if got := SpreadOf(test.values); got != test.want {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

// TestBounds compares with a table of the binomial distribution: P(B ≥ 7) = 0.035 and P(B ≥ 6) = 0.145 for n = 8,
// P(B ≥ 12) = 0.038 and P(B ≥ 11) = 0.105 for n = 16.
func TestBounds(t *testing.T) {
	for n, want := range map[int][2]float64{
		0: {math.Inf(-1), math.Inf(1)}, 4: {math.Inf(-1), math.Inf(1)}, 5: {1, 5}, 8: {2, 7}, 16: {5, 12},
	} {
		var values []float64
		for i := range n {
			values = append(values, float64(n-i))
		}
		if low, high := MedianBounds(values); low != want[0] || high != want[1] {
			t.Errorf("%d values: got %v and %v, want %v", n, low, high, want)
		}
	}
}
