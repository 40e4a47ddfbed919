package edge

import (
	"strings"

	"github.com/gatehouse/gatehouse/edge/policy"
)

// tried is a request that the cache would have answered, until the upstream's response begins.
type tried struct {
	rule   int
	etag   string // of the cache
	spared bool   // it has a reason already
}

// try counts a request that the cache would have answered, once there is a response to compare.
//
//go:noinline
func (s *stream) try(d *policy.Decision, rule int) {
	v := s.vm
	if d.Key != "" {
		v.hits.hit(d.Key) // what is tried stays in memory, as if it were served
	}
	if !v.host.AwaitResponse() {
		v.count(rule, policy.WouldHitNotCompared)
		return
	}
	v.tried[s.id] = tried{rule, strings.Clone(d.WouldHit), d.WouldBeRefused()}
}

// Awaits reports whether the response to a stream is awaited, so that hosts need not read others.
func (v *VM) Awaits(id uint32) bool {
	_, ok := v.tried[id]
	return ok
}

// Response tells the entity-tag of the response to a stream, "" if it has none, as another callback of it.
func (v *VM) Response(id uint32, etag string) {
	t, ok := v.tried[id]
	if !ok {
		return
	}
	delete(v.tried, id)
	counter := policy.CompareETags(t.etag, etag)
	v.count(t.rule, counter)
	if counter == policy.WouldHitDifferent && !t.spared {
		v.host.Note(policy.NoteReason, policy.ReasonDifferent)
	}
}

// untry counts a stream that has ended without a response, if one was awaited.
func (v *VM) untry(id uint32) {
	if t, ok := v.tried[id]; ok {
		delete(v.tried, id)
		v.count(t.rule, policy.WouldHitNotCompared)
	}
}
