package report

import (
	_ "embed"
	"fmt"
	"html"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Classes of the style: c0 is Gatehouse's, c1 that of its reference.
const own, other = 0, 1

// lineColors distinguishes lines.
var lineColors = []int{0, 2, 3, 4, 5, 6, 7}

//go:embed chart.css
var chartCSS string

// charts returns the charts for which the report has rows or pairs.
func (r *Report) charts() []string {
	var found []string
	for _, chart := range []string{r.perRequest(), r.latency(), r.throughput()} {
		if chart != "" {
			found = append(found, chart)
		}
	}
	for _, s := range r.Sections {
		for _, c := range s.Curves {
			if chart := c.chart(); chart != "" {
				found = append(found, chart)
			}
		}
	}
	return found
}

// chart returns the curve as SVG, "" if it has no point that can be shown.
func (c Curve) chart() string {
	var all []series
	loX, hiX, loY, hiY := math.Inf(1), 0.0, math.Inf(1), 0.0
	for _, line := range c.Lines {
		s := series{name: line.Name}
		for _, p := range line.Points {
			if p[0] > 0 && p[1] > 0 {
				s.points = append(s.points, p)
				loX, hiX, loY, hiY = min(loX, p[0]), max(hiX, p[0]), min(loY, p[1]), max(hiY, p[1])
			}
		}
		if len(s.points) > 0 {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return ""
	}
	x := logScale(loX, hiX, left, chartWidth-right, amount)
	y := linearScale(hiY, chartHeight-bottom, top, amount)
	if c.LogY {
		y = logScale(loY, hiY, chartHeight-bottom, top, amount)
	}
	return lines(c.Title, c.X, c.Y, x, y, all)
}

// amount returns v with as few digits as a scale needs.
func amount(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 3, 64) + " M"
	case v >= 1e4:
		return strconv.FormatFloat(v/1e3, 'g', 3, 64) + " k"
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// latency shows percentiles of the open loop's rows, by the rarity of a response: each nine has the same width. Growth
// has its own curves.
func (r *Report) latency() string {
	var all []series
	lo, hi := math.Inf(1), 0.0
	for _, s := range r.Sections {
		for _, row := range s.Rows {
			if row.Loop != Open || s.Scenario == "growth" || len(all) == len(lineColors) {
				continue
			}
			line := series{name: fmt.Sprintf("%s, %.0f/s", row.Workload, row.Asked)}
			for _, p := range row.Latency {
				if p.Percent < 100 && p.Micros > 0 {
					line.points = append(line.points, [2]float64{1 / (1 - p.Percent/100), p.Micros})
					lo, hi = min(lo, p.Micros), max(hi, p.Micros)
				}
			}
			if len(line.points) > 0 {
				all = append(all, line)
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	x := scale{log: true, min: 2, max: 1e4, from: left, to: chartWidth - right}
	for _, p := range []float64{50, 90, 99, 99.9, 99.99} {
		x.ticks = append(x.ticks, tick{1 / (1 - p/100), strconv.FormatFloat(p, 'f', -1, 64) + " %"})
	}
	y := logScale(lo, hi, chartHeight-bottom, top, micros)
	return lines("Latency at a constant rate", "share of requests that took at most", "from when a request was due", x, y, all)
}

// throughput shows the closed loop's throughput by number of connections.
func (r *Report) throughput() string {
	var all []series
	most, hi := 1.0, 0.0
	for _, s := range r.Sections {
		if s.Scenario != "ramp" {
			continue
		}
		for _, row := range s.Rows {
			i := slices.IndexFunc(all, func(s series) bool { return s.name == row.Workload })
			if i < 0 {
				i, all = len(all), append(all, series{name: row.Workload})
			}
			all[i].points = append(all[i].points, [2]float64{float64(row.Connections), row.Achieved})
			most, hi = max(most, float64(row.Connections)), max(hi, row.Achieved)
		}
	}
	if hi == 0 {
		return ""
	}
	x := scale{log: true, min: 1, max: most, from: left, to: chartWidth - right}
	for c := 1.0; c <= most; c *= 2 {
		x.ticks = append(x.ticks, tick{c, fmt.Sprint(c)})
	}
	y := linearScale(hi, chartHeight-bottom, top, func(v float64) string { return fmt.Sprintf("%.0f", v) })
	return lines("Throughput by connections", "connections", "requests/s", x, y, all)
}

// perRequest shows the CPU of all processes per request, by workload and peer.
func (r *Report) perRequest() string {
	var groups []group
	for _, s := range r.Sections {
		for _, p := range s.Pairs {
			if p.Reference != "gatehouse" || s.Scenario == "beforeafter" {
				continue
			}
			i := slices.IndexFunc(groups, func(g group) bool { return g.name == p.Workload })
			if i < 0 {
				own := bar{"Gatehouse", fmt.Sprintf("%.0f µs", p.ReferenceMicros), p.ReferenceMicros, own}
				i, groups = len(groups), append(groups, group{p.Workload, []bar{own}})
			}
			// Ratios of pairs hold between any two runs, so the ratio determines the bar's length.
			value := p.Ratio.Median * groups[i].bars[0].value
			groups[i].bars = append(groups[i].bars, bar{p.Subject, fmt.Sprintf("%.0f µs (× %.2g)", value, p.Ratio.Median), value, other})
		}
	}
	if len(groups) == 0 {
		return ""
	}
	return bars("CPU per request", "µs of all processes on the way of a request", groups)
}

var heightPattern = regexp.MustCompile(`height="(\d+)"`)

// Picture returns all charts as one SVG, light or dark as the viewer prefers.
func (r *Report) Picture() string {
	var b strings.Builder
	y := 0
	for _, chart := range r.charts() {
		height, _ := strconv.Atoi(heightPattern.FindStringSubmatch(chart)[1])
		b.WriteString(strings.Replace(chart, "<svg ", fmt.Sprintf(`<svg y="%d" `, y), 1))
		y += height + 16
	}
	facts := fmt.Sprintf("%s, %d × %s, Envoy %s", r.Machine.Commit, r.Machine.Cores, r.Machine.CPU, r.Machine.Versions["envoy"])
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d"><style>%s</style><rect class="back" width="100%%" height="100%%"/>%s<text class="tick" x="16" y="%d">%s</text></svg>`+"\n",
		chartWidth, y+24, chartWidth, y+24, chartCSS, b.String(), y+10, html.EscapeString(facts))
}
