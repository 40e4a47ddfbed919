package inspect

import (
	"fmt"
	"math"
)

// plot is a line of the last 15 minutes, for a picture of plotWidth × plotHeight.
type plot struct {
	Name, Last string
	Points     []string // of a polyline each: a gap ends one
	High       string   // the value at the upper edge
}

const (
	plotWidth  = 180
	plotHeight = 40
)

func makePlots(samples []sample) []plot {
	percent := func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }
	return []plot{
		makePlot(samples, "Answered by the edge", percent, func(s *sample) float64 { return s.hits }),
		makePlot(samples, "Last comparison", func(v float64) string {
			return fmt.Sprintf("%.2f s", v)
		}, func(s *sample) float64 { return s.lagS }),
		makePlot(samples, "bcrypt, mean time", func(v float64) string {
			return fmt.Sprintf("%.0f ms", v)
		}, func(s *sample) float64 { return s.bcryptMS }),
		makePlot(samples, "Verifications", func(v float64) string {
			return fmt.Sprintf("%.1f/s", v)
		}, func(s *sample) float64 { return s.verifies }),
		makePlot(samples, "Waiting for bcrypt", func(v float64) string {
			return fmt.Sprintf("%.0f", v)
		}, func(s *sample) float64 { return s.queue }),
		makePlot(samples, "Object budget used", percent, func(s *sample) float64 { return s.budget }),
	}
}

// makePlot scales a line to the highest value, at least 1.
func makePlot(samples []sample, name string, text func(float64) string,
	value func(*sample) float64) plot {
	high := 1.0
	for n := range samples {
		if v := value(&samples[n]); v > high {
			high = v
		}
	}
	p := plot{Name: name, Last: "–", High: text(high)}
	line := ""
	for n := range samples {
		v := value(&samples[n])
		if math.IsNaN(v) || math.IsInf(v, 0) {
			if line != "" {
				p.Points = append(p.Points, line)
			}
			line = ""
			continue
		}
		x := float64(plotWidth) * float64(maxSamples-len(samples)+n+1) / maxSamples
		line += fmt.Sprintf("%.0f,%.1f ", x, plotHeight-v/high*plotHeight)
		if n == len(samples)-1 {
			p.Last = text(v)
		}
	}
	if line != "" {
		p.Points = append(p.Points, line)
	}
	return p
}
