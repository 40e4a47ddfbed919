//go:build linux

package scenario

import (
	"math"
	"testing"
)

func TestDoubles(t *testing.T) {
	x := []float64{0, 100, 1000, 10_000}
	for _, test := range []struct {
		name  string
		y     []float64
		want  float64
		found bool
	}{
		{"between two", []float64{100, 100, 100, 400}, math.Sqrt(1000 * 10_000), true},
		{"at one", []float64{100, 110, 200, 900}, 1000, true},
		{"at the first one", []float64{100, 300, 400, 900}, 100, true},
		{"never", []float64{100, 110, 120, 199}, 0, false},
		{"at first, but not for good", []float64{100, 250, 150, 400},
			1000 * math.Pow(10, math.Log(200./150)/math.Log(400./150)), true},
		{"not at the end", []float64{100, 110, 220, 100}, 0, false},
	} {
		if got, found := findDoubling(x, test.y); found != test.found || math.Abs(got-test.want) > 1e-6*test.want {
			t.Errorf("%s: got %v, %v; want %v, %v", test.name, got, found, test.want, test.found)
		}
	}
}
