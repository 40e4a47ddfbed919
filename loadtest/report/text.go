package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// Columns are the heads of the table of rows, in order.
var Columns = []string{
	"workload", "server", "loop", "bytes", "conns", "asked/s", "achieved/s", "p50", "p90", "p99", "p99.9", "max",
	"errors", "hit", "edge", "sidecar", "redis", "peer", "client", "others", "µs/req", "bottleneck",
}

// tableCells returns the cells of a row, in the order of Columns.
func (r Row) tableCells() []string {
	peer := 0.0
	for name, cores := range r.Cores {
		if !slices.Contains(proxies, name) && name != "sidecar" && name != "redis" {
			peer += cores
		}
	}
	achieved := formatNumber(r.Achieved)
	if r.ClientBound {
		achieved = "≥ " + achieved
	}
	bottleneck := r.Bottleneck
	if r.ClientBound {
		bottleneck = fmt.Sprintf("client-bound: ≥ %.0f", r.Achieved)
	}
	return []string{
		r.Workload, r.Server, r.Loop, orDash(r.Bytes >= 0, "%d", r.Bytes), fmt.Sprint(r.Connections),
		orDash(r.Asked > 0, "%.0f", r.Asked), achieved,
		formatMicros(r.LatencyAt(50)), formatMicros(r.LatencyAt(90)), formatMicros(r.LatencyAt(99)),
		formatMicros(r.LatencyAt(99.9)), formatMicros(r.LatencyAt(100)), r.formatErrors(),
		orDash(r.HitRatio >= 0, "%.1f %%", 100*r.HitRatio), orDash(r.EdgeCores() > 0, "%.2f", r.EdgeCores()),
		formatCores(r.Cores, "sidecar"),
		formatCores(r.Cores, "redis"),
		orDash(peer > 0, "%.2f", peer), fmt.Sprintf("%.2f", r.Client), fmt.Sprintf("%.2f", r.Others),
		formatNumber(r.MicrosPerRequest), bottleneck,
	}
}

// formatErrors lists the errors, for example "503×12 timeout×1".
func (r Row) formatErrors() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(r.Errors)) {
		parts = append(parts, fmt.Sprintf("%s×%d", name, r.Errors[name]))
	}
	if len(parts) == 0 {
		return "0"
	}
	return strings.Join(parts, " ")
}

// formatNumber returns v with a decimal if it is significant.
func formatNumber(v float64) string {
	if v < 1000 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func orDash(have bool, format string, value any) string {
	if !have {
		return "–"
	}
	return fmt.Sprintf(format, value)
}

func formatCores(all map[string]float64, name string) string {
	value, ok := all[name]
	return orDash(ok, "%.2f", value)
}

// formatMicros formats microseconds in a suitable unit.
func formatMicros(us float64) string {
	switch {
	case us < 0:
		return "–"
	case us < 1000:
		return fmt.Sprintf("%.0f µs", us)
	case us < 1e6:
		return fmt.Sprintf("%.3g ms", us/1e3)
	}
	return fmt.Sprintf("%.3g s", us/1e6)
}

// pairColumns are the heads of the table of pairs.
var pairColumns = []string{"workload", "subject", "µs/req", "reference", "µs/req", "ratio",
	"min – max", "pairs", "limit"}

func (p Pair) tableCells() []string {
	limit := "–"
	if p.Limit > 0 {
		limit = fmt.Sprintf("%.2f ok", p.Limit)
		if p.Ratio.Median > p.Limit {
			limit = fmt.Sprintf("%.2f EXCEEDED", p.Limit)
		}
	}
	return []string{
		p.Workload, p.Subject, formatNumber(p.SubjectMicros), p.Reference, formatNumber(p.ReferenceMicros),
		fmt.Sprintf("%.2f", p.Ratio.Median), fmt.Sprintf("%.2f – %.2f", p.Ratio.Min, p.Ratio.Max),
		fmt.Sprint(p.Ratio.N), limit,
	}
}

func formatTable(head []string, n int, cells func(i int) []string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(head, "\t"))
	for i := range n {
		fmt.Fprintln(w, strings.Join(cells(i), "\t"))
	}
	_ = w.Flush() // a strings.Builder never fails
	return b.String()
}

// Text returns the section as it is printed.
func (s Section) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "== %s\n", s.Scenario)
	for _, note := range s.Notes {
		fmt.Fprintln(&b, note)
	}
	if len(s.Rows) > 0 {
		b.WriteString(formatTable(Columns, len(s.Rows), func(i int) []string { return s.Rows[i].tableCells() }))
	}
	if len(s.Pairs) > 0 {
		b.WriteString(formatTable(pairColumns, len(s.Pairs), func(i int) []string { return s.Pairs[i].tableCells() }))
	}
	for _, reason := range s.NotRun {
		fmt.Fprintf(&b, "not run: %s\n", reason)
	}
	return b.String()
}

// Text returns the whole report as text.
func (r *Report) Text() string {
	var b strings.Builder
	for _, f := range r.Machine.NamedFacts() {
		fmt.Fprintf(&b, "%s: %s\n", f[0], f[1])
	}
	for _, s := range r.Sections {
		b.WriteString("\n" + s.Text())
	}
	return b.String()
}
