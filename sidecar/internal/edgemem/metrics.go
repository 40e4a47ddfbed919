package edgemem

import "github.com/prometheus/client_golang/prometheus"

// Collector returns the metrics of m; it calls Stats once per scrape.
func (m *Memory) Collector() prometheus.Collector { return collector(m.Stats) }

type collector func() Stats

type metric struct {
	description *prometheus.Desc
	kind        prometheus.ValueType
	value       func(s *Stats) float64
}

var collected = []metric{
	newGauge("objects", "Objects in the edge's memory.", func(s *Stats) int { return s.Objects }),
	newGauge("dirty_buckets", "Changed buckets that were not pushed yet.", func(s *Stats) int { return s.DirtyBuckets }),
	newGauge("body_slots", "Body slots ever created in this shared memory.", func(s *Stats) int { return s.Slots }),
	newGauge("free_body_slots", "Body slots that can be reused.", func(s *Stats) int { return s.FreeSlots }),
	newGauge("places", "Keys of shared memory that were written; constant soon after start, except for body slots.",
		func(s *Stats) int { return s.Places }),
	newGauge("devices", "Registered devices that the edge knows; fewer than the enabled ones if memory.verdicts is too "+
		"small.", func(s *Stats) int { return s.Devices }),
	newGauge("allow_verdicts", "Allow verdicts at the edge.", func(s *Stats) int { return s.Allows }),
	newGauge("deny_verdicts", "Deny verdicts at the edge.", func(s *Stats) int { return s.Denies }),
	{
		prometheus.NewDesc("gatehouse_edge_memory_in_step_timestamp_seconds",
			"The in-step time that was pushed to the edge, unix time.", nil, nil),
		prometheus.GaugeValue, func(s *Stats) float64 { return float64(s.InStepMS) / 1000 },
	},
	{
		prometheus.NewDesc("gatehouse_edge_memory_verdicts_evicted_total",
			"Verdicts dropped before they expired, because the memory was full.", nil, nil),
		prometheus.CounterValue, func(s *Stats) float64 { return float64(s.EvictedVerdicts) },
	},
}

func newGauge(name, help string, value func(s *Stats) int) metric {
	return metric{
		prometheus.NewDesc("gatehouse_edge_memory_"+name, help, nil, nil),
		prometheus.GaugeValue, func(s *Stats) float64 { return float64(value(s)) },
	}
}

// Describe implements [prometheus.Collector].
func (collector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, m := range collected {
		descriptions <- m.description
	}
}

// Collect implements [prometheus.Collector].
func (c collector) Collect(metrics chan<- prometheus.Metric) {
	s := c()
	for _, m := range collected {
		metrics <- prometheus.MustNewConstMetric(m.description, m.kind, m.value(&s))
	}
}
