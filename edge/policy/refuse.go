package policy

import (
	"strconv"

	"github.com/gatehouse/gatehouse/edge/headermap"
)

// denyCredential refuses the request's credential. While the sidecar isn't in step with Redis, the credential may have
// become right in Redis, so the device gets a 503 instead, to try again.
func (a *authorizer) denyCredential(d *Decision, nowMS int64, r *Request, why Reason) {
	if !a.state.isInStep(nowMS, a.config.MaxStaleness) {
		d.setUnavailable(1, NotInStep)
		return
	}
	d.setUnauthorized(r, why)
}

// setForbidden sets d to a 403; the answer doesn't tell the reason.
func (d *Decision) setForbidden(why Reason) { d.setProblem(403, AuthForbidden, why) }

// setUnauthorized sets d to a 401; the answer doesn't tell the reason.
func (d *Decision) setUnauthorized(r *Request, why Reason) {
	challenge := `Device realm="gatehouse"`
	if r.governor.Credentials.Basic {
		challenge = `Basic realm="gatehouse", charset="UTF-8"`
	} else if r.governor.Credentials.Bearer {
		challenge = `Bearer realm="gatehouse"`
	}
	d.setProblem(401, AuthDeny, why, [2]string{"www-authenticate", challenge})
}

// setUnavailable sets d to a 503: the credential can't be judged now.
func (d *Decision) setUnavailable(retryAfterS uint16, why Reason) {
	d.setProblem(503, AuthUnavailable, why, [2]string{"retry-after", strconv.Itoa(int(max(retryAfterS, 1)))})
}

// RefuseUnreadable returns the decision on a request with unreadable headers.
func RefuseUnreadable() (d Decision) {
	d.setUnavailable(1, Unreadable)
	return d
}

// RefuseToken returns the decision on a request with a bad token, where the host validates tokens; or on any token, if
// the sidecar's keys haven't arrived yet.
func RefuseToken(hasKeys bool) (d Decision) {
	if !hasKeys {
		d.setUnavailable(1, NoAnswer)
		return d
	}
	d.setProblem(401, AuthDeny, BadToken, [2]string{"www-authenticate", `Bearer realm="gatehouse", error="invalid_token"`})
	return d
}

func (d *Decision) setProblem(status int, counter Counter, why Reason, more ...[2]string) {
	text := "try again\n"
	switch status {
	case 401:
		text = "unauthorized\n"
	case 403:
		text = "forbidden\n"
	}
	d.Action, d.Status, d.Body, d.Auth, d.Reason = Reply, status, []byte(text), counter, why
	d.Headers = headermap.Append(make([]byte, 0, 160),
		append([][2]string{{"content-type", "text/plain"}, {"cache-control", "no-store"}}, more...))
}
