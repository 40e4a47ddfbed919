package policy

import (
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// Claims are the claims of a request's token, validated by the proxy's own JWT filter. They never come from a header: a
// client could send the header.
type Claims interface {
	// Claim returns a claim as text, "" without the claim or without a token.
	Claim(metadata, name string) string
}

// The claims by which the sidecar's tokens identify a device.
const (
	SubjectClaim = "sub" // the device id
	RecordClaim  = "ver" // the version of the device's record, and the time of the write
)

// readIdentity sets c to the request's credential or, without any part of a credential, to the session of the request's
// token. It returns false for an invalid credential or session.
func (a *authorizer) readIdentity(c *Credential, r *Request) bool {
	if a.config.SessionMetadata == "" || r.hasCredential() {
		return a.readCredential(c, r)
	}
	c.ID = r.Token.Claim(a.config.SessionMetadata, SubjectClaim)
	c.Session = r.Token.Claim(a.config.SessionMetadata, RecordClaim)
	return limits.ValidDeviceID(c.ID) && c.Session != "" && len(c.Session) <= limits.MaxSession
}

// hasCredential reports whether the request has a credential, or a part of a credential.
func (r *Request) hasCredential() bool {
	if r.has(headerID) || r.has(headerSecret) || r.has(headerAPIKey) {
		return true
	}
	if !r.has(headerAuthorization) || r.governor.Credentials.Basic {
		return r.has(headerAuthorization)
	}
	_, shown := r.apiKey(&r.governor.Credentials)
	return shown > 0
}

// verdictDigest returns the digest of the credential's verdict.
func (c *Credential) verdictDigest(k *wire.Keys) wire.Digest {
	if c.Session != "" {
		return k.SessionDigest(c.ID, c.Session)
	}
	return k.Digest(c.ID, c.Secret)
}

// issueToken sets d to an answer with a token for the request's credential. It ignores tokens: a token can't be
// exchanged for a token.
func (a *authorizer) issueToken(d *Decision, nowMS int64, r *Request, mem Memory, answers *Answers) {
	cred := &d.Credential
	if !a.readCredential(cred, r) {
		*cred = Credential{}
		d.setUnauthorized(r, NoCredential)
		return
	}
	if a.state.Epoch == 0 {
		d.setUnavailable(1, NoState)
		d.ReloadState = true
		return
	}
	issued := answers.Session
	switch {
	case answers.Unreachable:
		d.setUnavailable(1, NoAnswer)
	case !a.state.mayAllow(nowMS):
		d.setUnavailable(1, NotInStep)
	case issued == nil:
		d.Digest = cred.verdictDigest(&a.state.Keys)
		v, status, _ := a.state.findVerdict(cred.ID, &d.Digest, mem)
		if status != wire.Found && r.hasWrongChecksum(cred) {
			*cred = Credential{}
			d.setUnauthorized(r, NoCredential)
			return
		}
		d.Hint = secretHint(cred, status, v.Outcome)
		if a.state.isRefuted(nowMS, cred, status) && !(d.Hint == Wrong && answers.Suspect) {
			a.denyCredential(d, nowMS, r, refutedReason(status))
			return
		}
		if status == wire.Found && v.Outcome == wire.Deny && nowMS < v.ExpiresMS {
			a.denyCredential(d, nowMS, r, Denied)
			return
		}
		a.callSidecar(d, nowMS, answers, Exchange)
		d.New = status == wire.New && a.state.hasHeartbeat(nowMS)
	case issued.Outcome == wire.Deny:
		a.denyCredential(d, nowMS, r, Denied)
	case issued.Outcome != wire.Allow:
		d.setUnavailable(issued.RetryAfterS, NotVerified)
	default:
		d.Action, d.Status, d.Body, d.Auth, d.Reason = Reply, 200, issued.Body, SessionIssued, TokenIssued
		d.Headers = headermap.Append(nil, [][2]string{{"content-type", "application/json"}, {"cache-control", "no-store"}})
	}
}
