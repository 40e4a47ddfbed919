package policy

// spare changes d, a refusal, to pass the request: what refuses it isn't enforced. Counter and reason tell what would
// have been.
//
//go:noinline
func (d *Decision) spare() {
	d.Action, d.Status, d.Headers, d.Body, d.New = Pass, 0, nil, nil, false
	d.Auth += WouldDeny - AuthDeny
}

// refused is [Engine.authorize] for a request whose credential was judged, and spared, before it waited for an object.
//
//go:noinline
func (e *Engine) refused(d *Decision, r *Request, answers *Answers) {
	if !e.shown(&d.Credential, r) {
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
