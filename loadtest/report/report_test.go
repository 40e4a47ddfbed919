package report

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/loadtest/stats"
)

// example has a row and a pair of every kind.
func example() *Report {
	var h stats.Histogram
	for i := range 10_000 {
		h.Add(time.Duration(i) * time.Microsecond)
	}
	open := Row{Workload: "304", Server: "gatehouse", Loop: Open, Connections: 32, Seconds: 5, Asked: 1000, Achieved: 999.6, Latency: Points(&h), HitRatio: .995,
		Cores: map[string]float64{"envoy": .5, "sidecar": .01, "redis": 0}, Client: .2, MicrosPerRequest: 51.26, Bottleneck: "none: rate held"}
	bound := open
	bound.Loop, bound.Asked, bound.Achieved, bound.Bottleneck, bound.ClientBound = Closed, 0, 48_000, "client", true
	peer := Row{Workload: "<b>&", Server: "Go alone", Loop: Closed, Bytes: -1, Connections: 4, Achieved: 10, HitRatio: -1,
		Cores: map[string]float64{"origin": .4, "auth": .3}, Errors: map[string]int64{"timeout": 2, "503": 11}, Bottleneck: "origin core"}
	one, many := open, open
	one.Loop, one.Connections, many.Loop, many.Connections, many.Achieved = Closed, 1, Closed, 256, 5000
	return &Report{
		Machine: Machine{Commit: "abc1234", Cores: 2, CPU: "Test & Co", Versions: map[string]string{"envoy": "1.40.0"}},
		Sections: []Section{
			{Scenario: "304", Rows: []Row{open, bound, peer}, Notes: []string{"a note"}, NotRun: []string{"nginx is not installed"}, Pairs: []Pair{
				{Workload: "304", Subject: "Go alone", Reference: "gatehouse", Ratio: stats.Spread{Median: .5, Min: .4, Max: .6, N: 4}, SubjectMicros: 20, ReferenceMicros: 40},
			}},
			{Scenario: "ramp", Rows: []Row{one, many}},
			{Scenario: "check", Pairs: []Pair{
				{Workload: "304", Subject: "gatehouse", Reference: "direct", Ratio: stats.Spread{Median: 1.7, Min: 1, Max: 2, N: 5}, Limit: 1.76},
				{Workload: "pass", Subject: "gatehouse", Reference: "direct", Ratio: stats.Spread{Median: 1.7, Min: 1, Max: 2, N: 5}, Limit: 1.43},
			}},
			{Scenario: "growth", Rows: []Row{open}, Curves: []Curve{
				{Title: "CPU & objects", X: "objects", Y: "µs", Lines: []Line{{"304", [][2]float64{{1000, 30}, {100_000, 40}}}, {"<200>", [][2]float64{{1000, 0}, {1_000_000, 50}}}}},
				{Title: "Latency by updates", X: "updates/s", Y: "µs", LogY: true, Lines: []Line{{"p99", [][2]float64{{100, 130}, {3000, 4100}}}}},
				{Title: "Nothing", Lines: []Line{{"none", [][2]float64{{0, 0}}}}},
			}},
		},
	}
}

func TestCells(t *testing.T) {
	rows := example().Sections[0].Rows
	for _, test := range []struct {
		row  Row
		want map[string]string
	}{
		{rows[0], map[string]string{"asked/s": "1000", "achieved/s": "999.6", "bytes": "0", "p50": "5.01 ms", "max": "10 ms", "errors": "0", "hit": "99.5 %", "envoy": "0.50", "peer": "–", "µs/req": "51.3", "bottleneck": "none: rate held"}},
		{rows[1], map[string]string{"asked/s": "–", "achieved/s": "≥ 48000", "bottleneck": "client-bound: ≥ 48000"}},
		{rows[2], map[string]string{"bytes": "–", "p99": "–", "achieved/s": "10.0", "errors": "503×11 timeout×2", "hit": "–", "envoy": "–", "sidecar": "–", "peer": "0.70", "bottleneck": "origin core"}},
	} {
		cells := test.row.Cells()
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

func TestCurvesKeepTheirLinesApart(t *testing.T) {
	var c Curve
	c.Add("a", 1, 2)
	c.Add("b", 1, 3)
	c.Add("a", 2, 4)
	if len(c.Lines) != 2 || len(c.Lines[0].Points) != 2 || c.Lines[0].Points[1] != [2]float64{2, 4} || c.Lines[1].Name != "b" {
		t.Errorf("got %+v, want two points of a and one of b", c.Lines)
	}
}

func TestMicros(t *testing.T) {
	for _, test := range []struct {
		us   float64
		want string
	}{{-1, "–"}, {0, "0 µs"}, {999, "999 µs"}, {1000, "1 ms"}, {12_345, "12.3 ms"}, {2.5e6, "2.5 s"}} {
		if got := micros(test.us); got != test.want {
			t.Errorf("%v: got %q, want %q", test.us, got, test.want)
		}
	}
}

func TestTextSaysEverything(t *testing.T) {
	text := example().Text()
	for _, want := range []string{"commit: abc1234", "== 304", "a note", "not run: nginx is not installed", "client-bound: ≥ 48000", "0.40 – 0.60", "1.76 ok", "1.43 EXCEEDED"} {
		if !strings.Contains(text, want) {
			t.Errorf("got no %q in:\n%s", want, text)
		}
	}
}

// TestHTMLNeedsNothingElse searches for everything that a browser would fetch.
func TestHTMLNeedsNothingElse(t *testing.T) {
	page, err := example().HTML()
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	for _, never := range []string{"<script", " src=", "<link", "@import", "url(", "<b>&"} {
		if strings.Contains(text, never) {
			t.Errorf("got %q in the page", never)
		}
	}
	for _, want := range []string{"CPU per request", "Latency at a constant rate", "Throughput by connections", "CPU &amp; objects", "&lt;200&gt;", "10 k", "1 M", "Latency by updates", "prefers-color-scheme: dark", "&lt;b&gt;&amp;", "not run: nginx", "1.43 EXCEEDED"} {
		if !strings.Contains(text, want) {
			t.Errorf("got no %q in the page", want)
		}
	}
}

func TestPictureIsXML(t *testing.T) {
	for name, r := range map[string]*Report{"full": example(), "empty": {}} {
		decoder := xml.NewDecoder(strings.NewReader(r.Picture()))
		for {
			_, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	if picture := example().Picture(); strings.Contains(picture, "NaN") || strings.Contains(picture, "Inf") || strings.Count(picture, "<polyline") != 5 || strings.Contains(picture, "Nothing") {
		t.Errorf("got %d lines, want one of latency, one of throughput and three of curves, and only numbers", strings.Count(picture, "<polyline"))
	}
}

func TestScales(t *testing.T) {
	plain := func(float64) string { return "" }
	for _, test := range []struct {
		name           string
		s              scale
		min, max, from float64
		ticks          int
	}{
		{"log", logScale(130, 4100, 0, 100, plain), 100, 5000, 100, 6},
		{"log, round ends", logScale(100, 1000, 0, 100, plain), 100, 1000, 100, 4},
		{"linear", linearScale(34_000, 0, 100, plain), 0, 35_000, 0, 8},
	} {
		if test.s.min != test.min || test.s.max != test.max || len(test.s.ticks) != test.ticks {
			t.Errorf("%s: got %v to %v with %d ticks, want %v to %v with %d", test.name, test.s.min, test.s.max, len(test.s.ticks), test.min, test.max, test.ticks)
		}
		if test.s.at(test.s.min) != 0 || test.s.at(test.s.max) != 100 {
			t.Errorf("%s: the ends are at %v and %v, want 0 and 100", test.name, test.s.at(test.s.min), test.s.at(test.s.max))
		}
	}
}

func TestSaveWritesWhatCanBeReadAgain(t *testing.T) {
	dir := t.TempDir()
	if err := example().Save(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"report.html", "report.txt", "loadtest.svg"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var again Report
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	if got, want := again.Text(), example().Text(); got != want {
		t.Errorf("read again:\n%s\nwant:\n%s", got, want)
	}
}
