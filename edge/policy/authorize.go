package policy

import (
	"math/bits"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// authorizeDevice passes a device with the rule's permissions, and puts its identity into the decision.
func (e *Engine) authorizeDevice(d *Decision, nowMS int64, r *Request, mem Memory, answers *Answers) {
	cred := &d.Credential
	if !e.readIdentity(cred, r) {
		*cred = Credential{}
		e.setUnauthorized(d, NoCredential)
		return
	}
	if e.state.Epoch == 0 {
		d.setUnavailable(1, NoState)
		d.ReloadState = true
		return
	}
	if v := answers.Verify; v != nil {
		switch {
		case v.Outcome == wire.Away:
			d.Digest = cred.verdictDigest(&e.state.Keys)
			known, status, _ := e.findVerdict(cred.ID, &d.Digest, mem)
			if !e.isInGrace(nowMS, status, &known) {
				d.setUnavailable(v.RetryAfterS, NotVerified)
				return
			}
			e.judgeInGrace(d, nowMS, r.rule, &known)
		case v.Outcome == wire.Unavailable, v.Outcome == wire.Throttled:
			d.setUnavailable(v.RetryAfterS, NotVerified)
		case v.Epoch != e.state.Epoch: // its bits have other names in this state
			d.setUnavailable(1, NoState)
			d.ReloadState = true
		default:
			e.judgeVerdict(d, nowMS, r.rule, v.Outcome, v.Permissions)
		}
		return
	}
	d.Digest = cred.verdictDigest(&e.state.Keys)
	v, status, err := e.findVerdict(cred.ID, &d.Digest, mem)
	if status != wire.Found && e.hasWrongChecksum(cred, r) {
		*cred = Credential{}
		e.setUnauthorized(d, NoCredential)
		return
	}
	d.Hint = secretHint(cred, status, v.Outcome)
	switch {
	case d.Hint != NoHint && answers.Suspect:
		e.callSidecar(d, nowMS, answers, Verify)
	case e.isRefuted(nowMS, cred, status):
		e.denyCredential(d, nowMS, refutedReason(status))
	case status == wire.Found && nowMS < v.ExpiresMS:
		e.judgeVerdict(d, nowMS, r.rule, v.Outcome, v.Permissions)
		d.Refresh = v.RefreshAfterMS != 0 && nowMS >= v.RefreshAfterMS
	case !e.mayAllow(nowMS): // whatever the sidecar answers
		d.setUnavailable(1, NotInStep)
	case !answers.Unreachable:
		e.callSidecar(d, nowMS, answers, Verify)
		d.ReloadState = isOtherEpoch(err)
		d.New = status == wire.New && e.hasHeartbeat(nowMS)
	case e.isInGrace(nowMS, status, &v):
		e.judgeInGrace(d, nowMS, r.rule, &v)
	default:
		d.setUnavailable(1, NoAnswer)
	}
}

// isInGrace reports whether a verdict found with a status counts within verdict_grace.
func (e *Engine) isInGrace(nowMS int64, status wire.CredentialStatus, v *wire.Verdict) bool {
	return status == wire.Found && v.Outcome == wire.Allow && nowMS < v.ExpiresMS+e.config.VerdictGrace.Milliseconds() &&
		(v.NotAfterMS == 0 || nowMS < v.NotAfterMS)
}

// judgeInGrace decides by a verdict within verdict_grace.
func (e *Engine) judgeInGrace(d *Decision, nowMS int64, rule int, v *wire.Verdict) {
	if e.judgeVerdict(d, nowMS, rule, v.Outcome, v.Permissions); d.Auth == AuthAllow {
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
func (e *Engine) callSidecar(d *Decision, nowMS int64, answers *Answers, call Action) {
	switch {
	case !e.mayAllow(nowMS): // whatever the sidecar answers
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

// findVerdict looks up a credential in its device's bucket.
func (e *Engine) findVerdict(id string, digest *wire.Digest, mem Memory) (wire.Verdict, wire.CredentialStatus, error) {
	bucket, tag := e.state.Keys.Device(id, e.state.VerdictBuckets)
	return wire.FindVerdict(mem.Record(wire.RegionVerdicts, bucket), e.state.Epoch, digest, tag)
}

// isRefuted reports whether shared memory shows, by this status, a wrong credential; for a token, another right secret
// of the device doesn't matter. Without heartbeats of the sidecar, isRefuted returns false: otherwise the edge would
// refuse new devices and secrets for ever.
func (e *Engine) isRefuted(nowMS int64, cred *Credential, status wire.CredentialStatus) bool {
	return e.hasHeartbeat(nowMS) && (status == wire.Closed && cred.Session == "" || status == wire.Unregistered &&
		e.state.DevicesComplete)
}

// hasHeartbeat reports whether the last heartbeat of the sidecar was within max_staleness.
func (e *Engine) hasHeartbeat(nowMS int64) bool {
	return e.state.HeartbeatMS != e.distrusted.heartbeatMS && e.isWithin(nowMS, e.state.HeartbeatMS, e.config.MaxStaleness)
}

// isInStep reports whether the edge was in step with Redis at most limit ago.
func (e *Engine) isInStep(nowMS int64, limit time.Duration) bool {
	return e.state.InStepMS != e.distrusted.inStepMS && e.isWithin(nowMS, e.state.InStepMS, limit)
}

// mayAllow reports whether any device may be authenticated. With max_auth_staleness, the edge must have been in step
// with Redis lately: without Redis, the edge misses revocations.
func (e *Engine) mayAllow(nowMS int64) bool {
	return e.config.MaxAuthStaleness == 0 || e.isInStep(nowMS, e.config.MaxAuthStaleness)
}

// sameClockMS bounds how far the sidecar's time may be ahead of the proxy's; both use the same clock.
const sameClockMS = 1000

// isWithin reports whether t, a time of the state, is at most limit ago; times are unix ms. A time in the future is
// from before the clock was set back, and so are both times if the state was read later than now: they may have any
// age.
func (e *Engine) isWithin(nowMS, t int64, limit time.Duration) bool {
	age := nowMS - t
	return nowMS >= e.readMS && -sameClockMS <= age && age <= limit.Milliseconds()
}

// judgeVerdict decides by the verdict on the decision's credential, under a rule.
func (e *Engine) judgeVerdict(d *Decision, nowMS int64, rule int, outcome wire.Outcome, permissions uint64) {
	if outcome != wire.Allow {
		e.denyCredential(d, nowMS, Denied)
		return
	}
	if !e.mayAllow(nowMS) {
		d.setUnavailable(1, NotInStep)
		return
	}
	if bits.Len64(permissions) > len(e.state.Permissions) { // a name is on its way: upstream would miss it
		d.setUnavailable(1, NoState)
		d.ReloadState = true
		return
	}
	if e.requiresUnknown[rule] || permissions&e.requiredBits[rule] != e.requiredBits[rule] {
		d.setForbidden(MissingPermission)
		return
	}
	d.Device, d.Permissions, d.Auth = d.Credential.ID, permissions, AuthAllow
}

// PermissionNames returns the names of a set of permissions, in the state's order, separated by commas.
func (e *Engine) PermissionNames(permissions uint64) string {
	if names, ok := e.permissionNames[permissions]; ok {
		return names
	}
	var b strings.Builder
	for i, name := range e.state.Permissions {
		if permissions&(1<<i) != 0 {
			if b.Len() > 0 {
				b.WriteByte(',')
			}
			b.WriteString(name)
		}
	}
	if len(e.permissionNames) == maxSets {
		clear(e.permissionNames)
	}
	e.permissionNames[permissions] = b.String()
	return b.String()
}

func indexOf(names []string, name string) int {
	for i := range names {
		if names[i] == name {
			return i
		}
	}
	return -1
}
