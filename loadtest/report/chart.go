package report

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// The size of a chart, and its margins, in px.
const (
	chartWidth  = 860
	chartHeight = 380
	left, right = 70, 210
	top, bottom = 44, 52
)

// scale maps a value to a coordinate.
type scale struct {
	log      bool
	min, max float64 // of values
	from, to float64 // px
	ticks    []tick
}

type tick struct {
	at   float64
	text string
}

func (s scale) at(v float64) float64 {
	lo, hi := s.min, s.max
	if s.log {
		v, lo, hi = math.Log(v), math.Log(lo), math.Log(hi)
	}
	if hi == lo {
		return (s.from + s.to) / 2
	}
	return s.from + (v-lo)/(hi-lo)*(s.to-s.from)
}

// logScale returns a scale from a power of ten below lo to one above hi, or from and to the next 1, 2 or 5.
func logScale(lo, hi, from, to float64, format func(float64) string) scale {
	steps := func(v float64, up bool) float64 {
		base := math.Pow(10, math.Floor(math.Log10(v)))
		best := base
		for _, f := range []float64{1, 2, 5, 10} {
			if up && base*f >= v*0.999 {
				return base * f
			}
			if !up && base*f <= v*1.001 {
				best = base * f
			}
		}
		return best
	}
	s := scale{log: true, min: steps(lo, false), max: steps(hi, true), from: from, to: to}
	factors := []float64{1, 2, 5}
	if s.max/s.min > 1e4 {
		factors = []float64{1}
	}
	for base := math.Pow(10, math.Floor(math.Log10(s.min))); base <= s.max; base *= 10 {
		for _, f := range factors {
			if v := base * f; v >= s.min*0.999 && v <= s.max*1.001 {
				s.ticks = append(s.ticks, tick{v, format(v)})
			}
		}
	}
	return s
}

// linearScale returns a scale from 0 to a round number above hi.
func linearScale(hi, from, to float64, format func(float64) string) scale {
	step := math.Pow(10, math.Floor(math.Log10(hi)))
	for _, f := range []float64{1, .5, .2} {
		if hi/(step*f) >= 4 {
			step *= f
			break
		}
	}
	s := scale{max: math.Ceil(hi/step) * step, from: from, to: to}
	for v := 0.0; v <= s.max*1.001; v += step {
		s.ticks = append(s.ticks, tick{v, format(v)})
	}
	return s
}

// series is a line in a chart.
type series struct {
	name   string
	points [][2]float64
}

// lines draws series over a grid; xTitle and yTitle label the axes.
func lines(title, xTitle, yTitle string, x, y scale, all []series) string {
	var b strings.Builder
	begin(&b, title, chartHeight)
	for _, t := range y.ticks {
		fmt.Fprintf(&b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text class="tick" x="%d" y="%.1f" text-anchor="end">%s</text>`,
			left, chartWidth-right, y.at(t.at), y.at(t.at), left-8, y.at(t.at)+4, t.text)
	}
	for _, t := range x.ticks {
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/><text class="tick" x="%.1f" y="%d" text-anchor="middle">%s</text>`,
			x.at(t.at), x.at(t.at), top, chartHeight-bottom, x.at(t.at), chartHeight-bottom+18, t.text)
	}
	fmt.Fprintf(&b, `<text class="axis" x="%d" y="%d" text-anchor="middle">%s</text>`, (left+chartWidth-right)/2, chartHeight-12, html.EscapeString(xTitle))
	fmt.Fprintf(&b, `<text class="axis" x="%d" y="%d">%s</text>`, left, top-10, html.EscapeString(yTitle))
	for i, s := range all {
		color := lineColors[i%len(lineColors)]
		var path []string
		for _, p := range s.points {
			path = append(path, fmt.Sprintf("%.1f,%.1f", x.at(p[0]), y.at(p[1])))
		}
		fmt.Fprintf(&b, `<polyline class="line c%d" points="%s"/>`, color, strings.Join(path, " "))
		for _, p := range s.points {
			fmt.Fprintf(&b, `<circle class="dot c%d" cx="%.1f" cy="%.1f" r="3"><title>%s</title></circle>`, color, x.at(p[0]), y.at(p[1]), html.EscapeString(s.name))
		}
		fmt.Fprintf(&b, `<rect class="bar c%d" x="%d" y="%d" width="14" height="4" rx="2"/><text class="key" x="%d" y="%d">%s</text>`,
			color, chartWidth-right+16, top+4+i*20, chartWidth-right+36, top+10+i*20, html.EscapeString(s.name))
	}
	b.WriteString("</svg>")
	return b.String()
}

// bar is a value with its name and its text.
type bar struct {
	name, text string
	value      float64
	color      int
}

// group is a group of bars.
type group struct {
	name string
	bars []bar
}

// bars draws groups of horizontal bars.
func bars(title, axis string, groups []group) string {
	const height, gap, label = 18, 14, 250
	total, longest := top+10, 0.0
	for _, g := range groups {
		total += len(g.bars)*height + gap + 18
		for _, v := range g.bars {
			longest = max(longest, v.value)
		}
	}
	var b strings.Builder
	begin(&b, title, total)
	fmt.Fprintf(&b, `<text class="axis" x="%d" y="%d">%s</text>`, label, top-8, html.EscapeString(axis))
	y := top + 4
	for _, g := range groups {
		fmt.Fprintf(&b, `<text class="group" x="16" y="%d">%s</text>`, y+13, html.EscapeString(g.name))
		y += 20
		for _, v := range g.bars {
			width := v.value / longest * (chartWidth - label - 140)
			fmt.Fprintf(&b, `<text class="key" x="%d" y="%d" text-anchor="end">%s</text><rect class="bar c%d" x="%d" y="%d" width="%.1f" height="%d" rx="2"/><text class="value" x="%.1f" y="%d">%s</text>`,
				label-8, y+12, html.EscapeString(v.name), v.color, label, y+2, max(width, 1), height-5, label+width+6, y+12, html.EscapeString(v.text))
			y += height
		}
		y += gap - 2
	}
	b.WriteString("</svg>")
	return b.String()
}

func begin(b *strings.Builder, title string, height int) {
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" class="chart" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="%s"><text class="title" x="16" y="20">%s</text>`,
		chartWidth, height, chartWidth, height, html.EscapeString(title), html.EscapeString(title))
}
