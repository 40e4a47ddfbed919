package edge

import (
	"strings"

	"github.com/gatehouse/gatehouse/edge/policy"
)

// pendingTrial is a would-be hit of a cache on trial, until the upstream's response begins.
type pendingTrial struct {
	rule   int
	etag   string // of the cache
	spared bool   // the request has a reason already
}

// tryHit counts a would-be hit, now or with the response to compare.
//
//go:noinline
func (s *stream) tryHit(d *policy.Decision, rule int) {
	v := s.vm
	if d.Key != "" {
		v.hits.sampleHit(d.Key) // objects on trial stay in memory like served objects
	}
	if !v.host.AwaitResponse() {
		v.count(rule, policy.WouldHitNotCompared)
		return
	}
	v.trials[s.id] = pendingTrial{rule, strings.Clone(d.WouldHit), d.WouldBeRefused()}
}

// CompareResponse compares the response to a stream, by entity-tag, "" for none, in another callback of the stream.
func (v *VM) CompareResponse(id uint32, etag string) {
	t, ok := v.trials[id]
	if !ok {
		return
	}
	delete(v.trials, id)
	counter := policy.CompareETags(t.etag, etag)
	v.count(t.rule, counter)
	if counter == policy.WouldHitDifferent && !t.spared {
		v.host.SetNote(policy.NoteReason, policy.ReasonDifferent)
	}
}

// countNotCompared counts an awaited stream that ended without a response.
func (v *VM) countNotCompared(id uint32) {
	if t, ok := v.trials[id]; ok {
		delete(v.trials, id)
		v.count(t.rule, policy.WouldHitNotCompared)
	}
}
