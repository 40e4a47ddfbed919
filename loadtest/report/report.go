// Package report stores the results of a load test and shows them: as a table, as JSON, as one HTML file, and as a
// picture.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gatehouse/gatehouse/loadtest/stats"
)

// Report is a whole run.
type Report struct {
	Machine  Machine   `json:"machine"`
	Sections []Section `json:"sections"`
}

// Section is the results of one scenario.
type Section struct {
	Scenario string `json:"scenario"`
	Rows     []Row  `json:"rows,omitempty"`
	Pairs    []Pair `json:"pairs,omitempty"`
	// Notes are lines of text in the order of output.
	Notes []string `json:"notes,omitempty"`
	// NotRun are requested peers that did not run, with the reason.
	NotRun []string `json:"not_run,omitempty"`
	Curves []Curve  `json:"curves,omitempty"`
}

// Curve is a chart of some quantities by another one.
type Curve struct {
	Title string `json:"title"`
	// The X axis is logarithmic. The Y axis is linear and begins at 0, or logarithmic if LogY is set.
	X     string `json:"x"`
	Y     string `json:"y"`
	LogY  bool   `json:"log_y,omitempty"`
	Lines []Line `json:"lines"` // at most 7, otherwise colors repeat
}

// Line is a line of a curve: points of x and y in ascending order of x.
type Line struct {
	Name   string       `json:"name"`
	Points [][2]float64 `json:"points"`
}

// Add adds a point to the line of a name. It makes the line if there is none.
func (c *Curve) Add(line string, x, y float64) {
	i := slices.IndexFunc(c.Lines, func(l Line) bool { return l.Name == line })
	if i < 0 {
		i, c.Lines = len(c.Lines), append(c.Lines, Line{Name: line})
	}
	c.Lines[i].Points = append(c.Lines[i].Points, [2]float64{x, y})
}

// Loops.
const (
	Closed = "closed" // sends as fast as responses arrive
	Open   = "open"   // sends at a constant rate
)

// Row is one measurement of one server under one workload.
type Row struct {
	Workload string `json:"workload"`
	// Server is the measured server: gatehouse or a peer.
	Server string `json:"server"`
	// Loop is Closed or Open.
	Loop string `json:"loop"`
	// Bytes of a response's body, -1 if they vary.
	Bytes       int     `json:"bytes"`
	Connections int     `json:"connections"`
	Seconds     float64 `json:"seconds"`
	// Asked is the requested rate, requests a second; 0 in a closed loop. Achieved is the rate of responses.
	Asked    float64 `json:"asked,omitempty"`
	Achieved float64 `json:"achieved"`
	// Latency has the percentiles in ascending order; the last is the maximum.
	Latency []Point `json:"latency"`
	// Errors counts by status code or by kind of error.
	Errors map[string]int64 `json:"errors,omitempty"`
	// HitRatio is the share of cacheable requests that Gatehouse answered, -1 if there were none.
	HitRatio float64 `json:"hit_ratio"`
	// Cores is how many cores each server and the client used.
	Cores  map[string]float64 `json:"cores"`
	Client float64            `json:"client_cores"`
	// Others is how many cores were used by programs that are not part of the measurement.
	Others float64 `json:"others_cores"`
	// ClientLate is the longest delay by the client of an open loop itself, µs: the longest latency may contain that
	// much of it.
	ClientLate float64 `json:"client_late_us,omitempty"`
	// MicrosPerRequest is the CPU of all servers per request, µs.
	MicrosPerRequest float64 `json:"us_per_request"`
	Bottleneck       string  `json:"bottleneck"`
	// ClientBound is set if the client was the bottleneck: the server's maximum is higher.
	ClientBound bool `json:"client_bound"`
}

// Point is a percentile, 0 to 100, and its latency in microseconds.
type Point struct {
	Percent float64 `json:"percent"`
	Micros  float64 `json:"us"`
}

// percents are the percentiles that a row takes from a histogram.
var percents = []float64{50, 75, 90, 95, 99, 99.5, 99.9, 99.99, 100}

// Points returns the percentiles of a histogram.
func Points(h *stats.Histogram) []Point {
	points := make([]Point, len(percents))
	for i, p := range percents {
		points[i] = Point{p, float64(h.At(p/100)) / float64(time.Microsecond)}
	}
	return points
}

// At returns the latency at a percentile, -1 if the row doesn't have it.
func (r Row) At(percent float64) float64 {
	for _, p := range r.Latency {
		if p.Percent == percent {
			return p.Micros
		}
	}
	return -1
}

// Pair compares the CPU of all processes per request for the same work, in alternating slices.
type Pair struct {
	Workload  string `json:"workload"`
	Subject   string `json:"subject"`
	Reference string `json:"reference"`
	// Ratio is subject divided by reference.
	Ratio stats.Spread `json:"ratio"`
	// Medians of all slices, µs.
	SubjectMicros   float64 `json:"subject_us"`
	ReferenceMicros float64 `json:"reference_us"`
	// Limit is the upper bound of Ratio.Median, 0 if there is none.
	Limit float64 `json:"limit,omitempty"`
}

// Save writes report.json, report.txt, report.html and loadtest.svg into dir.
func (r *Report) Save(dir string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	html, err := r.HTML()
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	for name, content := range map[string][]byte{
		"report.json": append(text, '\n'), "report.txt": []byte(r.Text()), "report.html": html, "loadtest.svg": []byte(r.Picture()),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
