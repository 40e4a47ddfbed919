package policy

import (
	"strconv"

	"github.com/gatehouse/gatehouse/wasm-filter/headermap"
)

// deny refuses the request's credential. While the sidecar isn't in step with Redis, the credential may have become
// right in Redis, so the device is told to try again instead.
func (e *Engine) deny(d *Decision, nowMS int64) {
	if !e.inStep(nowMS, e.config.MaxStaleness) { //mutant:TestDecideWithoutACall false
		d.unavailable(1)
		return
	}
	e.refuse(d, 401, AuthDeny)
}

// refuse sets d to a 401 or 403 without the reason.
func (e *Engine) refuse(d *Decision, status int, counter Counter) {
	if status != 401 {
		d.problem(status, counter)
		return
	}
	challenge := `Device realm="gatehouse"`
	if e.config.Credentials.Basic {
		challenge = `Basic realm="gatehouse", charset="UTF-8"`
	}
	d.problem(status, counter, [2]string{"www-authenticate", challenge})
}

// unavailable sets d to a 503, for a credential that can't be judged now.
func (d *Decision) unavailable(retryAfterS uint16) {
	d.problem(503, AuthUnavailable, [2]string{"retry-after", strconv.Itoa(int(max(retryAfterS, 1)))})
}

// Unreadable returns the decision on a request whose headers can't be read.
func Unreadable() (d Decision) {
	d.unavailable(1)
	return d
}

func (d *Decision) problem(status int, counter Counter, more ...[2]string) {
	text := "try again\n"
	switch status {
	case 401:
		text = "unauthorized\n"
	case 403:
		text = "forbidden\n"
	}
	d.Action, d.Status, d.Body, d.Auth = Reply, status, []byte(text), counter
	d.Headers = headermap.Append(make([]byte, 0, 160), append([][2]string{{"content-type", "text/plain"}, {"cache-control", "no-store"}}, more...))
}
