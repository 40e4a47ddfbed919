package edges

import "github.com/prometheus/client_golang/prometheus"

// Collector returns the metrics of each edge, none for an only edge, whose metrics have no label.
func (g *Group) Collector() prometheus.Collector { return collector{g} }

type collector struct{ *Group }

func newDescription(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("gatehouse_edge_"+name, help, []string{"edge"}, nil)
}

var (
	readyDescription  = newDescription("ready", "1 if the edge has acknowledged everything of its epoch once.")
	inStepDescription = newDescription("in_step_timestamp_seconds",
		"The in-step time that was pushed to the edge, unix time.")
	waitingDescription = newDescription("waiting_buckets", "Changed buckets that were not pushed to the edge yet.")
)

// Describe implements [prometheus.Collector].
func (collector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- readyDescription
	descriptions <- inStepDescription
	descriptions <- waitingDescription
}

// Collect implements [prometheus.Collector].
func (c collector) Collect(metrics chan<- prometheus.Metric) {
	if !c.Many() {
		return
	}
	for _, e := range c.List() {
		s := e.Memory.Stats()
		gauge := func(d *prometheus.Desc, value float64) {
			metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, e.Name)
		}
		ready := 0.0
		if e.Pusher.Ready() == nil {
			ready = 1
		}
		gauge(readyDescription, ready)
		gauge(inStepDescription, float64(s.InStepMS)/1000)
		gauge(waitingDescription, float64(s.DirtyBuckets))
	}
}
