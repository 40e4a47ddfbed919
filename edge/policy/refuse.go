package policy

import (
	"strconv"

	"github.com/gatehouse/gatehouse/edge/headermap"
)

// deny refuses the request's credential. While the sidecar isn't in step with Redis, the credential may have become
// right in Redis, so the device is told to try again instead.
func (e *Engine) deny(d *Decision, nowMS int64, why Reason) {
	if !e.inStep(nowMS, e.config.MaxStaleness) {
		d.unavailable(1, NotInStep)
		return
	}
	e.unauthorized(d, why)
}

// forbidden sets d to a 403, which doesn't tell the reason.
func (d *Decision) forbidden(why Reason) { d.problem(403, AuthForbidden, why) }

// unauthorized sets d to a 401, which doesn't tell the reason.
func (e *Engine) unauthorized(d *Decision, why Reason) {
	challenge := `Device realm="gatehouse"`
	if e.by.Credentials.Basic {
		challenge = `Basic realm="gatehouse", charset="UTF-8"`
	} else if e.by.Credentials.Bearer {
		challenge = `Bearer realm="gatehouse"`
	}
	d.problem(401, AuthDeny, why, [2]string{"www-authenticate", challenge})
}

// unavailable sets d to a 503, for a credential that can't be judged now.
func (d *Decision) unavailable(retryAfterS uint16, why Reason) {
	d.problem(503, AuthUnavailable, why, [2]string{"retry-after", strconv.Itoa(int(max(retryAfterS, 1)))})
}

// RefuseUnreadable returns the decision on a request whose headers can't be read.
func RefuseUnreadable() (d Decision) {
	d.unavailable(1, Unreadable)
	return d
}

// RefuseToken returns the decision on a request with a bad token, where the host validates tokens; or on any token, if
// the sidecar hasn't told the keys yet.
func (e *Engine) RefuseToken(hasKeys bool) (d Decision) {
	if !hasKeys {
		d.unavailable(1, NoAnswer)
		return d
	}
	d.problem(401, AuthDeny, BadToken, [2]string{"www-authenticate", `Bearer realm="gatehouse", error="invalid_token"`})
	return d
}

func (d *Decision) problem(status int, counter Counter, why Reason, more ...[2]string) {
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
