package report

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/loadtest/stats"
)

// exampleReport has a row and a pair of every kind.
func exampleReport() *Report {
	var h stats.Histogram
	for i := range 10_000 {
		h.Add(time.Duration(i) * time.Microsecond)
	}
	open := Row{Workload: "304", Server: "gatehouse", Loop: Open, Connections: 32, Seconds: 5, Asked: 1000,
		Achieved: 999.6, Latency: LatencyPoints(&h), HitRatio: .995,
		Cores: map[string]float64{"envoy": .5, "sidecar": .01, "redis": 0}, Client: .2, MicrosPerRequest: 51.26,
		Bottleneck: "none: rate held"}
	bound := open
	bound.Loop, bound.Asked, bound.Achieved, bound.Bottleneck, bound.ClientBound = Closed, 0, 48_000, "client", true
	peer := Row{Workload: "304", Server: "Go alone", Loop: Closed, Bytes: -1, Connections: 4, Achieved: 10, HitRatio: -1,
		Cores: map[string]float64{"origin": .4, "auth": .3}, Errors: map[string]int64{"timeout": 2, "503": 11},
		Bottleneck: "origin core"}
	return &Report{
		Machine: Machine{Commit: "abc1234", Cores: 2, CPU: "Test", Versions: map[string]string{"envoy": "1.40.0"}},
		Sections: []Section{
			{Scenario: "304", Rows: []Row{open, bound, peer}, Notes: []string{"a note"},
				NotRun: []string{"nginx is not installed"}, Pairs: []Pair{
					{Workload: "304", Subject: "Go alone", Reference: "gatehouse", Ratio: stats.Spread{Median: .5,
						Min: .4, Max: .6, N: 4}, SubjectMicros: 20, ReferenceMicros: 40},
				}},
			{Scenario: "check", Pairs: []Pair{
				{Workload: "304", Subject: "gatehouse", Reference: "direct", Ratio: stats.Spread{Median: 1.7,
					Min: 1, Max: 2, N: 5}, Limit: 1.76},
				{Workload: "pass", Subject: "gatehouse", Reference: "direct", Ratio: stats.Spread{Median: 1.7,
					Min: 1, Max: 2, N: 5}, Limit: 1.43},
			}},
		},
	}
}

func TestCells(t *testing.T) {
	rows := exampleReport().Sections[0].Rows
	inNginx := Row{Cores: map[string]float64{"nginx": .9, "origin": .2}}
	for _, test := range []struct {
		row  Row
		want map[string]string
	}{
		{rows[0], map[string]string{"asked/s": "1000", "achieved/s": "999.6", "bytes": "0", "p50": "5.01 ms",
			"max": "10 ms", "errors": "0", "hit": "99.5 %", "edge": "0.50", "peer": "–", "µs/req": "51.3",
			"bottleneck": "none: rate held"}},
		{rows[1], map[string]string{"asked/s": "–", "achieved/s": "≥ 48000", "bottleneck": "client-bound: ≥ 48000"}},
		{rows[2], map[string]string{"bytes": "–", "p99": "–", "achieved/s": "10.0", "errors": "503×11 timeout×2",
			"hit": "–", "edge": "–", "sidecar": "–", "peer": "0.70", "bottleneck": "origin core"}},
		{inNginx, map[string]string{"edge": "0.90", "peer": "0.20"}},
	} {
		cells := test.row.tableCells()
		if len(cells) != len(Columns) {
			t.Fatalf("got %d cells, want %d", len(cells), len(Columns))
		}
		for column, want := range test.want {
			if got := cells[slices.Index(Columns, column)]; got != want {
				t.Errorf("%s, %s of %s: got %q, want %q", test.row.Server, column, test.row.Workload, got, want)
			}
		}
	}
}

func TestTextSaysEverything(t *testing.T) {
	text := exampleReport().Text()
	for _, want := range []string{"commit: abc1234", "== 304", "a note", "not run: nginx is not installed",
		"client-bound: ≥ 48000", "0.40 – 0.60", "1.76 ok", "1.43 EXCEEDED"} {
		if !strings.Contains(text, want) {
			t.Errorf("got no %q in:\n%s", want, text)
		}
	}
}
