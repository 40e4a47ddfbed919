// Package report keeps what a load test has seen and shows it: as a table, as JSON, as one
// HTML file, and as a picture.
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

// Section is what one scenario has seen.
type Section struct {
	Scenario string `json:"scenario"`
	Rows     []Row  `json:"rows,omitempty"`
	Pairs    []Pair `json:"pairs,omitempty"`
	// Notes are lines of text, in the order in which they were printed.
	Notes []string `json:"notes,omitempty"`
	// NotRun are peers that were asked for, and why they weren't run.
	NotRun   []string  `json:"not_run,omitempty"`
	Profiles []Profile `json:"profiles,omitempty"`
	Curves   []Curve   `json:"curves,omitempty"`
}

// Curve is a chart: what became of something while something else grew.
type Curve struct {
	Title string `json:"title"`
	// X grows by factors, from above 0. Y begins at 0, or grows by factors, too, if LogY is set.
	X     string `json:"x"`
	Y     string `json:"y"`
	LogY  bool   `json:"log_y,omitempty"`
	Lines []Line `json:"lines"` // at most 7, or colors come twice
}

// Line is one of a curve, points of x and y in ascending order of x.
type Line struct {
	Name   string       `json:"name"`
	Points [][2]float64 `json:"points"`
}

// Add adds a point to the line of a name, which is made if it isn't there.
func (c *Curve) Add(line string, x, y float64) {
	i := slices.IndexFunc(c.Lines, func(l Line) bool { return l.Name == line })
	if i < 0 {
		i, c.Lines = len(c.Lines), append(c.Lines, Line{Name: line})
	}
	c.Lines[i].Points = append(c.Lines[i].Points, [2]float64{x, y})
}

// Loops.
const (
	Closed = "closed" // as fast as answers come
	Open   = "open"   // at a constant rate
)

// Row is one measurement of one server under one workload.
type Row struct {
	Workload string `json:"workload"`
	// Server is what was measured: gatehouse or a peer.
	Server string `json:"server"`
	// Loop is Closed or Open.
	Loop string `json:"loop"`
	// Bytes of an answer's body, -1 if they vary.
	Bytes       int     `json:"bytes"`
	Connections int     `json:"connections"`
	Seconds     float64 `json:"seconds"`
	// Asked is the rate asked for, requests a second; 0 in a closed loop. Achieved is the rate of answers.
	Asked    float64 `json:"asked,omitempty"`
	Achieved float64 `json:"achieved"`
	// Latency has the percentiles, in ascending order; the last is the longest.
	Latency []Point `json:"latency"`
	// Errors counts by status code or by what went wrong.
	Errors map[string]int64 `json:"errors,omitempty"`
	// HitRatio is the share of cacheable requests that Gatehouse answered, -1 if there were none.
	HitRatio float64 `json:"hit_ratio"`
	// Cores is how many cores each server and the client used.
	Cores  map[string]float64 `json:"cores"`
	Client float64            `json:"client_cores"`
	// Others is how many cores programs used that are no part of the measurement.
	Others float64 `json:"others_cores"`
	// ClientLate is how late the client of an open loop was itself at most, µs: that much of
	// the longest latency may be its own.
	ClientLate float64 `json:"client_late_us,omitempty"`
	// MicrosPerRequest is the CPU of all servers for each request, µs.
	MicrosPerRequest float64 `json:"us_per_request"`
	Bottleneck       string  `json:"bottleneck"`
	// ClientBound is set if the client was the limit: the server can do more.
	ClientBound bool `json:"client_bound"`
}

// Point is a percentile, 0 to 100, and its latency in microseconds.
type Point struct {
	Percent float64 `json:"percent"`
	Micros  float64 `json:"us"`
}

// percents are the percentiles of a row that is made from a histogram.
var percents = []float64{50, 75, 90, 95, 99, 99.5, 99.9, 99.99, 100}

// Points are the percentiles of a histogram.
func Points(h *stats.Histogram) []Point {
	points := make([]Point, len(percents))
	for i, p := range percents {
		points[i] = Point{p, float64(h.At(p/100)) / float64(time.Microsecond)}
	}
	return points
}

// At is the latency at a percentile, -1 if the row doesn't have it.
func (r Row) At(percent float64) float64 {
	for _, p := range r.Latency {
		if p.Percent == percent {
			return p.Micros
		}
	}
	return -1
}

// Pair compares the CPU of all processes for each request on the same work, slices in turn.
type Pair struct {
	Workload  string `json:"workload"`
	Subject   string `json:"subject"`
	Reference string `json:"reference"`
	// Ratio is subject to reference.
	Ratio stats.Spread `json:"ratio"`
	// Medians of all slices, µs.
	SubjectMicros   float64 `json:"subject_us"`
	ReferenceMicros float64 `json:"reference_us"`
	// Limit is what Ratio.Median may be at most, 0 if nothing is asked of it.
	Limit float64 `json:"limit,omitempty"`
}

// Profile is a profile of a program under load.
type Profile struct {
	Name string `json:"name"` // of the program and the kind
	File string `json:"file"` // beside the report
	Top  string `json:"top"`  // what `go tool pprof -top` says of it
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
