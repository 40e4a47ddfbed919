//go:build linux

package scenario

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/loadtest/report"
	"github.com/gatehouse/gatehouse/loadtest/stats"
)

func TestSizes(t *testing.T) {
	for most, want := range map[int][]int{100_000: {1000, 10_000, 100_000},
		1_000_000: {10_000, 100_000, 1_000_000}, 50: {1, 5, 50}} {
		if got := sizes(most); !slices.Equal(got, want) {
			t.Errorf("%d: got %v, want %v", most, got, want)
		}
	}
}

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
		if got, found := doubles(x, test.y); found != test.found || math.Abs(got-test.want) > 1e-6*test.want {
			t.Errorf("%s: got %v, %v; want %v, %v", test.name, got, found, test.want, test.found)
		}
	}
}

func TestGrowthIsShown(t *testing.T) {
	var out bytes.Buffer
	g := &growing{Options: &Options{}, Recorder: &Recorder{out: &out}}
	g.points = []growthPoint{{
		load: "304", n: 1000, hit: .5, closed: report.Row{Achieved: 25_000, MicrosPerRequest: 40},
		open:    report.Row{Latency: []report.Point{{Percent: 99, Micros: 1234}}},
		pair:    report.Pair{Ratio: stats.Spread{Median: 1.75}},
		envoy:   memory{before: 100 << 20, filled: 110 << 20, read: 120 << 20},
		sidecar: memory{before: 20 << 20, filled: 40 << 20},
	}}
	g.table()
	text := strings.Join(strings.Fields(out.String()), " ")
	if want := "304 1000 25000 1.23 ms 40.0 1.75 50.00 % 110 10486 120 40 20972"; !strings.Contains(text, want) {
		t.Errorf("got %q, want it to have %q", text, want)
	}
}
