package inspect

import (
	"fmt"
	"math"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/sidecar/internal/presence"
)

// Status is the condition of a sidecar and its edge. Ages are in seconds, -1 for never.
type Status struct {
	Version  string    `json:"version"`
	Started  time.Time `json:"started"`
	Problems []Problem `json:"problems"` // the worst first; empty: all is well

	Redis   RedisStatus  `json:"redis"`
	Edge    EdgeStatus   `json:"edge"`
	Objects ObjectStatus `json:"objects"`
	Devices DeviceStatus `json:"devices"`
	Bcrypt  BcryptStatus `json:"bcrypt"`
	// InStep: Redis is followed, and the edge has what it had a moment ago.
	InStep bool `json:"in_step"`
	// Resyncing is true while everything is read and pushed again because an operator asked for it.
	Resyncing bool               `json:"resyncing"`
	Totals    map[string]float64 `json:"totals"` // counters since the start, by name and label
}

// Problem is a deviation that an operator should know.
type Problem struct {
	// Severity is "critical": answers are wrong, old or missing; or "warning".
	Severity string `json:"severity"`
	Text     string `json:"text"`
}

// RedisStatus is the connection to Redis.
type RedisStatus struct {
	Namespace string  `json:"namespace,omitempty"` // absent: the default one
	Connected bool    `json:"connected"`
	Seq       float64 `json:"seq"`           // of the last applied write; with several shards, the sum
	InStepAge float64 `json:"in_step_age_s"` // since everything in Redis was applied
}

// EdgeStatus is the shared memory of the edge.
type EdgeStatus struct {
	Admin     string  `json:"admin"` // --edge.admin
	Epoch     string  `json:"epoch"` // of the acknowledged state; "": none yet
	Layout    int     `json:"layout"`
	InStepAge float64 `json:"in_step_age_s"` // of what was pushed
	// InStepSince is since when that was less than 3 s, to 5 s; absent: it isn't, or not yet for 5 s.
	InStepSince     time.Time `json:"in_step_since,omitzero"`
	AcknowledgedAge float64   `json:"acknowledged_age_s"`
	Waiting         int       `json:"waiting_buckets"` // changed, not pushed yet
	Objects         int       `json:"objects"`
	Devices         int       `json:"devices"`
	Allows          int       `json:"allow_verdicts"`
	Denies          int       `json:"deny_verdicts"`
	Permissions     int       `json:"permissions"`
	HeapFull        float64   `json:"heap_full_percent,omitzero"` // of Envoy, to 5 s
}

// ObjectStatus is the budget.
type ObjectStatus struct {
	Held    float64 `json:"held"`
	LeftOut float64 `json:"left_out"` // for which the budget has no room
	Bytes   float64 `json:"bytes"`
	Budget  float64 `json:"budget_bytes"`
}

// DeviceStatus is the device records.
type DeviceStatus struct {
	Records float64 `json:"records"`
	Held    int     `json:"held"` // networks and devices that the limits hold back
}

// BcryptStatus is the verification of credentials.
type BcryptStatus struct {
	Running float64 `json:"running"`
	Queued  float64 `json:"queued"`
	Queue   int     `json:"queue"`
	Workers int     `json:"workers"`
}

// late is the age of an in-step time or an acknowledgement that is a problem, s: both are renewed several times a
// second.
const late = 3

// Status returns the current status.
func (i *Inspector) Status() Status {
	now := time.Now()
	values, totals := i.values()
	age := func(unix float64) float64 {
		if unix == 0 {
			return -1
		}
		return math.Max(0, math.Round(1000*(float64(now.UnixMilli())/1000-unix))/1000)
	}
	memory, state := i.Memory.Stats(), i.Memory.View().State()
	s := Status{
		Version: i.Version, Started: i.Started.UTC(), Totals: totals, Resyncing: i.Resync.running.Load(),
		Redis: RedisStatus{
			Namespace: i.Keyspace.Namespace,
			Connected: values["gatehouse_redis_connected"] == 1, Seq: values["gatehouse_redis_seq"],
			InStepAge: age(values["gatehouse_in_step_timestamp_seconds"]),
		},
		Edge: EdgeStatus{
			Admin:  i.EdgeAdmin,
			Layout: wire.Layout, InStepSince: i.history.inStepSince(), InStepAge: age(float64(memory.InStepMS) / 1000),
			AcknowledgedAge: age(values["gatehouse_push_acknowledged_timestamp_seconds"]),
			Waiting:         memory.DirtyBuckets, Objects: memory.Objects, Devices: memory.Devices, Allows: memory.Allows,
			Denies: memory.Denies, Permissions: memory.Permissions, HeapFull: i.history.heapFull(),
		},
		Objects: ObjectStatus{
			Held: values["gatehouse_object_cache_objects"], LeftOut: values["gatehouse_object_cache_left_out_objects"],
			Bytes: values["gatehouse_object_cache_bytes"], Budget: values["gatehouse_object_cache_budget_bytes"],
		},
		Devices: DeviceStatus{Records: values["gatehouse_credentials"], Held: len(i.Verifier.Held())},
		Bcrypt: BcryptStatus{
			Running: values["gatehouse_bcrypt_running"], Queued: values["gatehouse_bcrypt_queued"], Queue: i.Verifier.Queue,
			Workers: i.Verifier.Workers,
		},
	}
	if state.Epoch != 0 {
		s.Edge.Epoch = fmt.Sprintf("%016x", state.Epoch)
	}
	inStep := func(age float64) bool { return age >= 0 && age <= late }
	s.InStep = s.Redis.Connected && inStep(s.Redis.InStepAge) && inStep(s.Edge.InStepAge)
	s.Problems = append(i.problems(&s, values, memory.Crowded), i.recent(totals)...)
	return s
}

// Presence returns what other operators see of this sidecar.
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

// values returns the current gauges, and the counters, sums and counts that aren't 0, by their name with labels.
func (i *Inspector) values() (gauges, counters map[string]float64) {
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
			name := f.GetName() + labels(m)
			switch {
			case m.GetGauge() != nil:
				gauges[name] = m.GetGauge().GetValue()
			case m.GetHistogram().GetSampleCount() != 0:
				counters[f.GetName()+"_sum"+labels(m)] = m.GetHistogram().GetSampleSum()
				counters[f.GetName()+"_count"+labels(m)] = float64(m.GetHistogram().GetSampleCount())
			case m.GetCounter().GetValue() != 0:
				counters[name] = m.GetCounter().GetValue()
			}
		}
	}
	return gauges, counters
}

const prefix = "gatehouse_"

func labels(m *dto.Metric) string {
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
