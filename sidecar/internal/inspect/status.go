package inspect

import (
	"fmt"
	"math"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/operatorapi"
	"github.com/gatehouse/gatehouse/internal/presence"
	"github.com/gatehouse/gatehouse/sidecar/internal/edges"
)

// late is the age of an in-step time or an acknowledgement that is a problem, s: both are renewed several times a
// second.
const late = 3

// Status returns the current status.
func (i *Inspector) Status() operatorapi.Status {
	now := time.Now()
	values, totals := i.gatherMetrics()
	age := func(unix float64) float64 {
		if unix == 0 {
			return -1
		}
		return math.Max(0, math.Round(1000*(float64(now.UnixMilli())/1000-unix))/1000)
	}
	memory, state := i.Memory.Stats(), i.Memory.View().State()
	s := operatorapi.Status{
		Version: i.Version, Started: i.Started.UTC(), Totals: totals, Resyncing: i.Resync.running.Load(),
		Redis: operatorapi.RedisStatus{
			Namespace: i.Keyspace.Namespace,
			Connected: values["gatehouse_redis_connected"] == 1, Seq: values["gatehouse_redis_seq"],
			InStepAge: age(values["gatehouse_in_step_timestamp_seconds"]),
		},
		Edge: operatorapi.EdgeStatus{
			Admin:  i.EdgeAdmin,
			Layout: wire.Layout, InStepSince: i.history.inStepSince(), InStepAge: age(float64(memory.InStepMS) / 1000),
			AcknowledgedAge: age(values["gatehouse_push_acknowledged_timestamp_seconds"]),
			Waiting:         memory.DirtyBuckets, Objects: memory.Objects, Devices: memory.Devices, Allows: memory.Allows,
			Denies: memory.Denies, HeapFull: i.history.heapFull(),
		},
		Objects: operatorapi.ObjectStatus{
			Held: values["gatehouse_object_cache_objects"], LeftOut: values["gatehouse_object_cache_left_out_objects"],
			Bytes: values["gatehouse_object_cache_bytes"], Budget: values["gatehouse_object_cache_budget_bytes"],
		},
		Devices: operatorapi.DeviceStatus{Records: values["gatehouse_credentials"], Held: len(i.Verifier.ListHolds())},
		Bcrypt: operatorapi.BcryptStatus{
			Running: values["gatehouse_bcrypt_running"], Queued: values["gatehouse_bcrypt_queued"], Queue: i.Verifier.Queue,
			Workers: i.Verifier.Workers,
		},
	}
	s.Edge.Epoch = formatEpoch(&state)
	for _, e := range i.namedEdges() {
		stats, state := e.Memory.Stats(), e.Memory.View().State()
		named := operatorapi.NamedEdge{Name: e.Name, Epoch: formatEpoch(&state), Waiting: stats.DirtyBuckets,
			InStepAge: age(float64(stats.InStepMS) / 1000)}
		if err := e.Pusher.Ready(); err != nil {
			named.Problem = err.Error()
		}
		s.Edges = append(s.Edges, named)
	}
	inStep := func(age float64) bool { return age >= 0 && age <= late }
	s.InStep = s.Redis.Connected && inStep(s.Redis.InStepAge) && (inStep(s.Edge.InStepAge) || i.Edges.Many())
	s.Problems = append(i.findProblems(&s, values, memory.DevicesOverflowed), i.recentIncidents(totals)...)
	return s
}

// namedEdges returns the edges in directories.
func (i *Inspector) namedEdges() []*edges.Edge {
	if !i.Edges.Many() {
		return nil
	}
	return i.Edges.List()
}

// formatEpoch returns a state's epoch as text, "" without a state.
func formatEpoch(s *wire.State) string {
	if s.Epoch == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", s.Epoch)
}

// Presence returns the entry of this sidecar for operators of the whole fleet.
func (i *Inspector) Presence() presence.Edge {
	s := i.Status()
	e := presence.Edge{
		Version: s.Version, Ready: len(i.Ready()) == 0, Seq: uint64(s.Redis.Seq), LagS: s.Edge.InStepAge,
		Objects: s.Edge.Objects, Devices: s.Edge.Devices,
	}
	if len(s.Problems) > 0 {
		e.Problem = s.Problems[0].Text
	}
	return e
}

// gatherMetrics returns the current gauges, and the counters, sums and counts that aren't 0, by their name with labels.
func (i *Inspector) gatherMetrics() (gauges, counters map[string]float64) {
	gauges, counters = map[string]float64{}, map[string]float64{}
	families, err := i.Registry.Gather()
	if err != nil {
		return gauges, counters // never: the collectors are ours
	}
	for _, f := range families {
		if len(f.GetName()) < len(prefix) || f.GetName()[:len(prefix)] != prefix {
			continue
		}
		for _, m := range f.GetMetric() {
			name := f.GetName() + formatLabels(m)
			switch {
			case m.GetGauge() != nil:
				gauges[name] = m.GetGauge().GetValue()
			case m.GetHistogram().GetSampleCount() != 0:
				counters[f.GetName()+"_sum"+formatLabels(m)] = m.GetHistogram().GetSampleSum()
				counters[f.GetName()+"_count"+formatLabels(m)] = float64(m.GetHistogram().GetSampleCount())
			case m.GetCounter().GetValue() != 0:
				counters[name] = m.GetCounter().GetValue()
			}
		}
	}
	return gauges, counters
}

const prefix = "gatehouse_"

func formatLabels(m *dto.Metric) string {
	text := ""
	for _, l := range m.GetLabel() {
		if text != "" {
			text += ","
		}
		text += fmt.Sprintf("%s=%q", l.GetName(), l.GetValue())
	}
	if text == "" {
		return ""
	}
	return "{" + text + "}"
}
