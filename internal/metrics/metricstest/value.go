// Package metricstest reads metrics in tests.
package metricstest

import (
	"testing"

	"github.com/gatehouse/gatehouse/internal/metrics"
)

// Value returns the sum of a counter or gauge over all series that have the labels, pairs of name and value.
func Value(t testing.TB, m *metrics.Metrics, name string, labels ...string) float64 {
	t.Helper()
	families, err := m.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		sum := 0.0
	series:
		for _, series := range family.GetMetric() {
			has := map[string]string{}
			for _, pair := range series.GetLabel() {
				has[pair.GetName()] = pair.GetValue()
			}
			for i := 0; i < len(labels); i += 2 {
				if has[labels[i]] != labels[i+1] {
					continue series
				}
			}
			sum += series.GetCounter().GetValue() + series.GetGauge().GetValue() +
				float64(series.GetHistogram().GetSampleCount())
		}
		return sum
	}
	t.Fatalf("no metric %s", name)
	return 0
}
