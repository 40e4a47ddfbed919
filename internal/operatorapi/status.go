// Package operatorapi has the types, in JSON, of the sidecar's API for operators, which the sidecar and gatehousectl
// share.
package operatorapi

import "time"

// Status is the condition of a sidecar and its edge. Ages are in seconds, -1 for never.
type Status struct {
	Version  string    `json:"version"`
	Started  time.Time `json:"started"`
	Problems []Problem `json:"problems"` // the worst first; empty: all is well

	Redis RedisStatus `json:"redis"`
	Edge  EdgeStatus  `json:"edge"` // with several edges, the worst of those that are ready
	// Edges are the edges in directories; absent: there is one, at --push.socket.
	Edges   []NamedEdge  `json:"edges,omitempty"`
	Objects ObjectStatus `json:"objects"`
	Devices DeviceStatus `json:"devices"`
	Bcrypt  BcryptStatus `json:"bcrypt"`
	// InStep: Redis is followed, and the edge has Redis' content of a moment ago.
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
	// InStepSince is the time since which InStepAge was less than 3 s, to 5 s; absent: InStepAge is more, or was less
	// for under 5 s.
	InStepSince     time.Time `json:"in_step_since,omitzero"`
	AcknowledgedAge float64   `json:"acknowledged_age_s"`
	Waiting         int       `json:"waiting_buckets"` // changed, not pushed yet
	Objects         int       `json:"objects"`
	Devices         int       `json:"devices"`
	Allows          int       `json:"allow_verdicts"`
	Denies          int       `json:"deny_verdicts"`
	HeapFull        float64   `json:"heap_full_percent,omitzero"` // of Envoy, to 5 s
}

// NamedEdge is an edge in a directory.
type NamedEdge struct {
	Name string `json:"name"`
	// Problem is why the edge isn't ready; absent: it is.
	Problem   string  `json:"problem,omitempty"`
	Epoch     string  `json:"epoch,omitempty"` // of the acknowledged state; absent: none yet
	InStepAge float64 `json:"in_step_age_s"`   // of what was pushed
	Waiting   int     `json:"waiting_buckets"` // changed, not pushed yet
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

// Top lists the most used and most refused names of the last minutes.
type Top struct {
	Objects []Count `json:"objects"` // keys, by hits that the edge reported: a sample
	Refused []Count `json:"refused"` // networks, by refused verifications; the edge refuses more without a call
	// Edges are the edges in directories, by verifications and sampled hits.
	Edges []Count `json:"edges,omitempty"`
	// Rates has the requests per second of each counter of the edge since the last sample, by name with labels; nil if
	// the edge's counters can't be read.
	Rates map[string]float64 `json:"rates"`
}

// Count is a name and its frequency.
type Count struct {
	Name  string  `json:"name"`
	Count float64 `json:"count"`
}
