package policy

import (
	"strings"

	"github.com/gatehouse/gatehouse/edge/headermap"
)

// passUnenforced changes d, a refusal, to pass the request: what refuses it isn't enforced. Counter and reason tell what would
// have been.
//
//go:noinline
func (d *Decision) passUnenforced() {
	d.Action, d.Status, d.Headers, d.Body, d.New = Pass, 0, nil, nil, false
	d.Auth += WouldDeny - AuthDeny
}

// recallRefusal is [Engine.authorize] for a request whose credential was judged, and spared, before it waited for an object.
//
//go:noinline
func (e *Engine) recallRefusal(d *Decision, r *Request, answers *Answers) {
	if !e.readIdentity(&d.Credential, r) {
		d.Credential = Credential{}
	}
	d.Auth, d.Reason = answers.Refused.Auth, answers.Refused.Reason
}

// WouldBeRefused reports whether the request would be refused, with d.Reason, if all rules and defaults were enforced.
func (d *Decision) WouldBeRefused() bool { return WouldDeny <= d.Auth && d.Auth <= WouldThrottle }

// CountedUnder returns the rule for which d.Auth counts, of a request that rule governs: no rule where it would be
// refused for its readings, as if that were enforced.
func (d *Decision) CountedUnder(rule int) int {
	if d.Reason == AmbiguousPath && d.WouldBeRefused() {
		return NoRule
	}
	return rule
}

// Enforced returns status and reason of the refusal, if WouldBeRefused.
func (d *Decision) Enforced() (status int, reason string) {
	switch status = 503; d.Auth {
	case WouldDeny:
		status = 401
	case WouldForbid:
		status = 403
	}
	return status, d.Reason.String()
}

// Refusal returns what [Answers] needs to know when the request has waited for an object.
func (d *Decision) Refusal() (r Refusal) {
	if d.WouldBeRefused() {
		r = Refusal{d.Auth, d.Reason}
	}
	return r
}

// isServed reports whether the rule answers requests from the cache.
func (r *Rule) isServed() bool { return r.Cache != nil && !r.Cache.Trial }

// tryCache is answer for a rule that isn't served. The request passes as if it had no cache; nothing is fetched for it.
//
//go:noinline
func (e *Engine) tryCache(d *Decision, nowMS int64, rule *Rule, r *Request, mem Memory) {
	would := Decision{Device: d.Device}
	e.answerFromCache(&would, nowMS, rule, r, mem, &Answers{Unreachable: true})
	d.ReloadState = d.ReloadState || would.ReloadState
	if would.Action != Reply {
		d.Cache = would.Cache
		return
	}
	d.Key = would.Key
	fields, _ := headermap.ParseFields(would.Headers)
	for fields.More() {
		if name, value := fields.Next(); name == "etag" {
			d.WouldHit = value
		}
	}
}

// CompareETags returns what counts a request that would have been answered with the entity-tag held, and that the upstream
// has answered with another one, "" for none. It compares weakly (RFC 9110, section 8.8.3.2): encodings don't matter.
func CompareETags(held, upstream string) Counter {
	switch {
	case upstream == "":
		return WouldHitNoETag
	case strings.TrimPrefix(held, "W/") == strings.TrimPrefix(upstream, "W/"):
		return WouldHitSame
	}
	return WouldHitDifferent
}

// ReasonDifferent is the reason of a request, in access logs, that the upstream has answered with another entity-tag
// than the cache would have.
const ReasonDifferent = "gatehouse_would_hit_different"
