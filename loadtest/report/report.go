// Package report stores the results of a load test, and shows them as tables and as JSON.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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
	// NotRun has the requested peers that did not run, with reasons.
	NotRun []string `json:"not_run,omitempty"`
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
	// Bytes is the length of a response's body, -1 if lengths vary.
	Bytes       int     `json:"bytes"`
	Connections int     `json:"connections"`
	Seconds     float64 `json:"seconds"`
	// Asked is the requested rate, requests a second; 0 in a closed loop. Achieved is the rate of responses.
	Asked    float64 `json:"asked,omitempty"`
	Achieved float64 `json:"achieved"`
	// Latency has the percentiles of [stats.Percents].
	Latency []Point `json:"latency"`
	// Errors counts by status code or by kind of error.
	Errors map[string]int64 `json:"errors,omitempty"`
	// HitRatio is the share of cacheable requests that Gatehouse answered, -1 if there were none.
	HitRatio float64 `json:"hit_ratio"`
	// Cores is how many cores each server and the client used.
	Cores  map[string]float64 `json:"cores"`
	Client float64            `json:"client_cores"`
	// Others is the number of cores used by programs outside the measurement.
	Others float64 `json:"others_cores"`
	// ClientLate is the longest delay caused by the client of an open loop, µs. The longest latency may include
	// ClientLate.
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

// LatencyPoints returns the percentiles of a histogram.
func LatencyPoints(h *stats.Histogram) []Point {
	points := make([]Point, len(stats.Percents))
	for i, p := range stats.Percents {
		points[i] = Point{p, float64(h.Quantile(p/100)) / float64(time.Microsecond)}
	}
	return points
}

// LatencyAt returns the latency at a percentile, -1 if missing.
func (r Row) LatencyAt(percent float64) float64 {
	for _, p := range r.Latency {
		if p.Percent == percent {
			return p.Micros
		}
	}
	return -1
}

// proxies are the names of proxies in Row.Cores.
var proxies = []string{"envoy", "nginx"}

// EdgeCores returns how many cores the proxy used.
func (r Row) EdgeCores() (used float64) {
	for _, name := range proxies {
		used += r.Cores[name]
	}
	return used
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

// Save writes report.json and report.txt into dir.
func (r *Report) Save(dir string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	for name, content := range map[string][]byte{"report.json": append(text, '\n'), "report.txt": []byte(r.Text())} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
