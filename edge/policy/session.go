package policy

import (
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// Claims are the claims of the token that the proxy's own JWT filter has validated for a request. They never come from
// a header, which a client could send.
type Claims interface {
	// Claim returns a claim as text, "" if there is no such claim, or no token.
	Claim(metadata, name string) string
}

// The claims that identify a device, as the sidecar puts them into a token.
const (
	SubjectClaim = "sub" // the device id
	RecordClaim  = "ver" // the version of its record, and the time of its write
)

// readIdentity sets c to the request's credential or, without any part of one, to the session of its token. It returns false
// if neither can be valid.
func (e *Engine) readIdentity(c *Credential, r *Request) bool {
	if e.config.SessionMetadata == "" || e.hasCredential(r) {
		return e.readCredential(c, r)
	}
	c.ID = r.Token.Claim(e.config.SessionMetadata, SubjectClaim)
	c.Session = r.Token.Claim(e.config.SessionMetadata, RecordClaim)
	return limits.ValidDeviceID(c.ID) && c.Session != "" && len(c.Session) <= limits.MaxSession
}

// hasCredential reports whether a request has a credential, or a part of one.
func (e *Engine) hasCredential(r *Request) bool {
	if r.has(headerID) || r.has(headerSecret) || r.has(headerAPIKey) {
		return true
	}
	if !r.has(headerAuthorization) || e.governor.Credentials.Basic {
		return r.has(headerAuthorization)
	}
	_, shown := r.apiKey(&e.governor.Credentials)
	return shown > 0
}

// verdictDigest returns the digest that finds the verdict on the credential.
func (c *Credential) verdictDigest(k *wire.Keys) wire.Digest {
	if c.Session != "" {
		return k.SessionDigest(c.ID, c.Session)
	}
	return k.Digest(c.ID, c.Secret)
}

// issueToken sets d to an answer with a token for the request's credential. It ignores tokens, which can't be exchanged for
// tokens.
func (e *Engine) issueToken(d *Decision, nowMS int64, r *Request, mem Memory, answers *Answers) {
	cred := &d.Credential
	if !e.readCredential(cred, r) {
		*cred = Credential{}
		e.setUnauthorized(d, NoCredential)
		return
	}
	if e.state.Epoch == 0 {
		d.setUnavailable(1, NoState)
		d.ReloadState = true
		return
	}
	issued := answers.Session
	switch {
	case answers.Unreachable:
		d.setUnavailable(1, NoAnswer)
	case !e.mayAllow(nowMS):
		d.setUnavailable(1, NotInStep)
	case issued == nil:
		d.Digest = cred.verdictDigest(&e.state.Keys)
		v, status, _ := e.findVerdict(cred.ID, &d.Digest, mem)
		if status != wire.Found && e.hasWrongChecksum(cred, r) {
			*cred = Credential{}
			e.setUnauthorized(d, NoCredential)
			return
		}
		d.Hint = secretHint(cred, status, v.Outcome)
		if e.isRefuted(nowMS, cred, status) && !(d.Hint == Wrong && answers.Suspect) {
			e.denyCredential(d, nowMS, refutedReason(status))
			return
		}
		if status == wire.Found && v.Outcome == wire.Deny && nowMS < v.ExpiresMS {
			e.denyCredential(d, nowMS, Denied)
			return
		}
		e.callSidecar(d, nowMS, answers, Exchange)
		d.New = status == wire.New && e.hasHeartbeat(nowMS)
	case issued.Outcome == wire.Deny:
		e.denyCredential(d, nowMS, Denied)
	case issued.Outcome != wire.Allow:
		d.setUnavailable(issued.RetryAfterS, NotVerified)
	default:
		d.Action, d.Status, d.Body, d.Auth, d.Reason = Reply, 200, issued.Body, SessionIssued, TokenIssued
		d.Headers = headermap.Append(nil, [][2]string{{"content-type", "application/json"}, {"cache-control", "no-store"}})
	}
}
