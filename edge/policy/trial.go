package policy

import (
	"strings"

	"github.com/gatehouse/gatehouse/edge/headermap"
)

// passUnenforced changes d, a refusal, to pass the request: the rule or default isn't enforced. Counter and reason
// become those on trial.
//
//go:noinline
func (d *Decision) passUnenforced() {
	d.Action, d.Status, d.Headers, d.Body, d.New = Pass, 0, nil, nil, false
	d.Auth += WouldDeny - AuthDeny
}

// recallRefusal is authorizeDevice for a request whose refusal was recorded, on trial, before the request
// waited for an object.
//
//go:noinline
func (a *authorizer) recallRefusal(d *Decision, r *Request, answers *Answers) {
	if !a.readIdentity(&d.Credential, r) {
		d.Credential = Credential{}
	}
	d.Auth, d.Reason = answers.Refused.Auth, answers.Refused.Reason
}

// WouldBeRefused reports whether the request would be refused, with d.Reason, if all rules and defaults were enforced.
func (d *Decision) WouldBeRefused() bool { return WouldDeny <= d.Auth && d.Auth <= WouldThrottle }

// CountedUnder returns the rule under which d.Auth counts, for a request that rule governs. A refusal for ambiguous
// readings, on trial, counts under no rule, as with enforcement.
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

// Refusal returns the refusal for [Answers], when the request has waited for an object.
func (d *Decision) Refusal() (r Refusal) {
	if d.WouldBeRefused() {
		r = Refusal{d.Auth, d.Reason}
	}
	return r
}

// isServed reports whether the rule answers requests from the cache.
func (r *Rule) isServed() bool { return r.Cache != nil && !r.Cache.Trial }

// tryCache is answerFromCache for a cache on trial. The request passes as if the rule had no cache; nothing is fetched.
//
//go:noinline
func (p *responder) tryCache(d *Decision, nowMS int64, rule *Rule, r *Request, mem Memory) {
	would := Decision{Device: d.Device}
	p.answerFromCache(&would, nowMS, rule, r, mem, &Answers{Unreachable: true})
	d.ReloadState = d.ReloadState || would.ReloadState
	if would.Action != Reply {
		d.Cache = would.Cache
		return
	}
	d.Key = would.Key
	fields, _ := headermap.ParseFields(would.Headers)
	for fields.HasMore() {
		if name, value := fields.Next(); name == "etag" {
			d.WouldHit = value
		}
	}
}

// CompareETags returns the counter for a request on trial: held is the cache's entity-tag, upstream the upstream's, ""
// for none. The comparison is weak (RFC 9110, section 8.8.3.2): encodings don't matter.
func CompareETags(held, upstream string) Counter {
	switch {
	case upstream == "":
		return WouldHitNoETag
	case strings.TrimPrefix(held, "W/") == strings.TrimPrefix(upstream, "W/"):
		return WouldHitSame
	}
	return WouldHitDifferent
}

// ReasonDifferent is a request's reason in access logs when the upstream's entity-tag differs from the cache's.
const ReasonDifferent = "gatehouse_would_hit_different"
