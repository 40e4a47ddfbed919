package policy

import "github.com/gatehouse/gatehouse/wire"

// Claims are those of the token that the proxy's own JWT filter has validated for a
// request. They never come from a header: a client could write that.
type Claims interface {
	// Claim is a claim as text, "" if there is no such claim, or no token.
	Claim(metadata, name string) string
}

// The claims that a device is known by, as the sidecar puts them into a token.
const (
	subjectClaim = "sub" // the device id
	recordClaim  = "ver" // the version of its record, and when that was written
)

// shown is what a request shows: a credential or, without any part of one, the session of
// its token. It is false if it shows nothing that can be good.
func (e *Edge) shown(r *Request) (Credential, bool) {
	if e.config.SessionMetadata == "" || r.id.lines+r.secret.lines+r.authorization.lines > 0 {
		return r.credential(&e.config.Credentials)
	}
	c := Credential{
		ID:      r.Token.Claim(e.config.SessionMetadata, subjectClaim),
		Session: r.Token.Claim(e.config.SessionMetadata, recordClaim),
	}
	return c, wire.ValidDeviceID(c.ID) && c.Session != "" && len(c.Session) <= wire.MaxSession
}

// digest is by which the verdict on the credential is found.
func (c *Credential) digest(k *wire.Keys) wire.Digest {
	if c.Session != "" {
		return k.SessionDigest(c.ID, c.Session)
	}
	return k.Digest(c.ID, c.Secret)
}

// issue answers with a token for the credential that the request shows. A token is not
// looked at: nobody gets one for another.
func (e *Edge) issue(nowMS int64, r *Request, mem Memory, answers *Answers) Decision {
	cred, ok := r.credential(&e.config.Credentials)
	if !ok {
		return e.refuse(401, AuthDeny)
	}
	if e.state.Epoch == 0 {
		d := unavailable(1)
		d.Outdated = true
		return d
	}
	issued := answers.Session
	switch {
	case answers.Unreachable:
		return unavailable(1)
	case issued == nil:
		digest := cred.digest(&e.state.Keys)
		if _, standing, _ := e.find(cred.ID, &digest, mem); e.refutes(nowMS, &cred, standing) {
			return e.refuse(401, AuthDeny)
		}
		return Decision{Action: Exchange, Credential: cred, Digest: digest, Auth: AuthVerify}
	case issued.Outcome == wire.Deny:
		return e.refuse(401, AuthDeny)
	case issued.Outcome != wire.Allow:
		return unavailable(issued.RetryAfterS)
	}
	return Decision{Action: Reply, Status: 200, Body: issued.Body, Auth: SessionIssued,
		Headers: [][2]string{{"content-type", "application/json"}, {"cache-control", "no-store"}}}
}
