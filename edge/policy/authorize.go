package policy

import (
	"strings"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// authorizer decides whether a request's device has what a rule requires.
type authorizer struct {
	config *Config
	state  *edgeState
	secret []byte // of the last request's API key
}

// authorizeDevice passes a device with the rule's permissions, and puts its identity into the decision.
func (a *authorizer) authorizeDevice(d *Decision, nowMS int64, r *Request, mem Memory, answers *Answers) {
	cred := &d.Credential
	if !a.readIdentity(cred, r) {
		*cred = Credential{}
		d.setUnauthorized(r, NoCredential)
		return
	}
	if a.state.Epoch == 0 {
		d.setUnavailable(1, NoState)
		d.ReloadState = true
		return
	}
	if v := answers.Verify; v != nil {
		switch {
		case v.Outcome == wire.Away:
			d.Digest = cred.verdictDigest(&a.state.Keys)
			known, status, _ := a.state.findVerdict(cred.ID, &d.Digest, mem)
			if !a.state.isInGrace(nowMS, status, &known) {
				d.setUnavailable(v.RetryAfterS, NotVerified)
				return
			}
			a.judgeInGrace(d, nowMS, r, &known)
		case v.Outcome == wire.Unavailable, v.Outcome == wire.Throttled:
			d.setUnavailable(v.RetryAfterS, NotVerified)
		case v.Epoch != a.state.Epoch: // another sidecar fills this memory
			d.setUnavailable(1, NoState)
			d.ReloadState = true
		default:
			a.judgeVerdict(d, nowMS, r, v.Outcome, v.Permissions)
		}
		return
	}
	d.Digest = cred.verdictDigest(&a.state.Keys)
	v, status, err := a.state.findVerdict(cred.ID, &d.Digest, mem)
	if status != wire.Found && r.hasWrongChecksum(cred) {
		*cred = Credential{}
		d.setUnauthorized(r, NoCredential)
		return
	}
	d.Hint = secretHint(cred, status, v.Outcome)
	switch {
	case d.Hint != NoHint && answers.Suspect:
		a.callSidecar(d, nowMS, answers, Verify)
	case a.state.isRefuted(nowMS, cred, status):
		a.denyCredential(d, nowMS, r, refutedReason(status))
	case status == wire.Found && nowMS < v.ExpiresMS:
		a.judgeVerdict(d, nowMS, r, v.Outcome, v.Permissions)
		d.Refresh = v.RefreshAfterMS != 0 && nowMS >= v.RefreshAfterMS
	case !a.state.mayAllow(nowMS): // whatever the sidecar answers
		d.setUnavailable(1, NotInStep)
	case !answers.Unreachable:
		a.callSidecar(d, nowMS, answers, Verify)
		d.ReloadState = isOtherEpoch(err)
		d.New = status == wire.New && a.state.hasHeartbeat(nowMS)
	case a.state.isInGrace(nowMS, status, &v):
		a.judgeInGrace(d, nowMS, r, &v)
	default:
		d.setUnavailable(1, NoAnswer)
	}
}

// judgeInGrace decides by a verdict within verdict_grace.
func (a *authorizer) judgeInGrace(d *Decision, nowMS int64, r *Request, v *wire.Verdict) {
	if a.judgeVerdict(d, nowMS, r, v.Outcome, v.Permissions); d.Auth == AuthAllow {
		d.Auth = AuthGrace
	}
}

// secretHint returns the hint of shared memory about a secret: from the credential's status and, if a verdict was
// found, the verdict's outcome.
func secretHint(cred *Credential, status wire.CredentialStatus, outcome wire.Outcome) Hint {
	switch {
	case cred.Session != "":
		return NoHint
	case status == wire.Closed:
		return Wrong
	case status == wire.Found && outcome == wire.Allow:
		return Right
	}
	return NoHint
}

// callSidecar has the sidecar decide about the credential by a call, [Verify] or [Exchange].
func (a *authorizer) callSidecar(d *Decision, nowMS int64, answers *Answers, call Action) {
	switch {
	case !a.state.mayAllow(nowMS): // whatever the sidecar answers
		d.setUnavailable(1, NotInStep)
	case answers.ThrottledS > 0:
		d.setUnavailable(answers.ThrottledS, TooManyGuesses)
		d.Auth = AuthThrottled
	case answers.Unreachable:
		d.setUnavailable(1, NoAnswer)
	default:
		d.Action, d.Auth = call, CallVerify
	}
}

// refutedReason returns the reason for which a credential with this status is wrong.
func refutedReason(status wire.CredentialStatus) Reason {
	if status == wire.Closed {
		return WrongSecret
	}
	return UnknownDevice
}

// judgeVerdict decides by the verdict on the decision's credential, under the request's rule.
func (a *authorizer) judgeVerdict(d *Decision, nowMS int64, r *Request, outcome wire.Outcome,
	permissions string) {
	if outcome != wire.Allow {
		a.denyCredential(d, nowMS, r, Denied)
		return
	}
	if !a.state.mayAllow(nowMS) {
		d.setUnavailable(1, NotInStep)
		return
	}
	for _, name := range a.config.Rules[r.rule].Auth.Permissions {
		if !hasName(permissions, name) {
			d.setForbidden(MissingPermission)
			return
		}
	}
	d.Device, d.Permissions, d.Auth = d.Credential.ID, permissions, AuthAllow
}

// hasName reports whether names, joined by commas, contain name.
func hasName(names, name string) bool {
	for len(names) > len(name) {
		if names[len(name)] == ',' && names[:len(name)] == name {
			return true
		}
		comma := strings.IndexByte(names, ',')
		if comma < 0 {
			return false
		}
		names = names[comma+1:]
	}
	return names == name
}
