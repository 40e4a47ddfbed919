package e2e

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// logged is a line of the access log.
type logged struct {
	Method, Path, Status, Reason, Rule, Device, Source, Trial string
}

// accessLog returns the lines so far, by path.
func (e *edge) accessLog() map[string]logged {
	e.t.Helper()
	lines := map[string]logged{}
	for line := range strings.Lines(e.edgeLog()) {
		var l struct {
			logged
			Status json.Number // Envoy writes a number, nginx text
		}
		if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &l) == nil {
			l.logged.Status, l.Device, l.Rule = l.Status.String(), strings.TrimPrefix(l.Device, "-"),
				strings.TrimPrefix(l.Rule, "-")
			lines[l.Path] = l.logged
		}
	}
	return lines
}

// TestAccessLog: the access log has the reason, the rule and the device of each refusal, and no hit.
func TestAccessLog(t *testing.T) {
	t.Parallel()
	e := start(t, stack.Options{EnvoyArgs: []string{"--file-flush-interval-msec", "10"}, Rules: `
sidecar: {cluster: gatehouse-sidecar, timeout: 1s}
credentials: {id_header: x-device-id, secret_header: x-device-token}
rules:
- match: {prefix: /hit}
  cache: {}
- name: forbidden
  match: {prefix: /forbidden}
  auth: {permissions: [other]}
- name: auth
  match: {prefix: /auth}
  auth: {permissions: [telemetry.write]}
- match: {prefix: /open}
default: deny
`})
	e.put("/hit", "body")
	e.putDevice("dev", "secret", 4, "telemetry.write")
	e.awaitAnswer("the object is at the edge", hasBody("body"), "GET /hit")
	e.awaitAnswer("the device is known", hasStatus(200), "GET /auth/first", credential("dev", "secret")...)
	forged := "x-gatehouse-device: forged"
	for _, tt := range []struct {
		path   string
		header []string // %d is another number in each request: the answer to a verification is remembered
		want   logged
	}{
		{"/auth/none?secret=1", []string{forged},
			logged{Status: "401", Reason: "gatehouse_denied_no_credential", Rule: "auth"}},
		{"/auth/unknown", append(credential("nobody", "secret%d"), forged),
			logged{Status: "401", Reason: "gatehouse_denied_unknown_device", Rule: "auth", Device: "nobody"}},
		{"/auth/wrong", append(credential("dev", "another%d"), forged),
			logged{Status: "401", Reason: "gatehouse_denied_wrong_secret", Rule: "auth", Device: "dev"}},
		{"/forbidden", credential("dev", "secret"), logged{Status: "403", Reason: "gatehouse_forbidden_permission",
			Rule: "forbidden", Device: "dev"}},
		// By the upstream.
		{"/auth/%zz", credential("dev", "secret"),
			logged{Status: "400", Reason: "via_upstream", Rule: "auth", Device: "dev"}},
		{"/default", nil, logged{Status: "403", Reason: "gatehouse_forbidden_default", Rule: "none"}},
		{"/open/..%20/auth", nil, logged{Status: "403", Reason: "gatehouse_forbidden_ambiguous_path", Rule: "none"}},
	} {
		if onNginx() && tt.want.Reason == "via_upstream" {
			continue // nginx refuses the path itself
		}
		tt.want.Method, tt.want.Source = "GET", "127.0.0.1"
		tt.want.Path, _, _ = strings.Cut(tt.path, "?")
		n := 0
		await(t, tt.path, patience, func() error {
			n++
			e.send("GET "+tt.path, numberLines(tt.header, n)...)
			if got := e.accessLog()[tt.want.Path]; got != tt.want {
				return fmt.Errorf("got %+v, want %+v in %v", got, tt.want, e.accessLog())
			}
			return nil
		})
	}
	if l, found := e.accessLog()["/hit"]; found {
		t.Errorf("a hit is logged: %+v", l)
	}
}

// TestLogHits: with log_hits, the access log has the same fields for hits as for all answers.
func TestLogHits(t *testing.T) {
	leaveToOtherEdges(t)
	t.Parallel()
	e := start(t, stack.Options{EnvoyArgs: []string{"--file-flush-interval-msec", "10"},
		ModifyConfig: func(c *stack.Config) error {
			return c.Set(map[string]any{"not_health_check_filter": map[string]any{}}, "static_resources",
				"listeners", "edge", "filter_chains", "0",
				"filters", "0", "typed_config", "access_log", "envoy.access_loggers.stdout", "filter")
		},
		ModifyNginx: func(config string) string { return strings.ReplaceAll(config, " if=$gatehouse_log_errors", "") },
		Rules: `
sidecar: {cluster: gatehouse-sidecar, timeout: 1s}
credentials: {id_header: x-device-id, secret_header: x-device-token}
stale: serve
rules:
- name: shown
  match: {prefix: /hit}
  cache: {}
- name: own
  match: {prefix: /me}
  auth: {}
  cache: {scope: device}
log_hits: true
`})
	e.put("/hit", "body")
	e.put("@dev/me", "mine")
	e.putDevice("dev", "secret", 4, "telemetry.write")
	e.awaitAnswer("the object is at the edge", hasBody("body"), "GET /hit")
	tag := e.send("GET /hit").header.Get("etag")
	e.awaitAnswer("the device's object is at the edge", hasBody("mine"), "GET /me", credential("dev", "secret")...)
	for _, tt := range []struct {
		path   string
		header []string
		want   logged
	}{
		{"/hit", nil, logged{Status: "200", Reason: "gatehouse_hit", Rule: "shown"}},
		{"/hit", []string{"if-none-match: " + tag}, logged{Status: "304", Reason: "gatehouse_not_modified", Rule: "shown"}},
		{"/me", credential("dev", "secret"), logged{Status: "200", Reason: "gatehouse_hit", Rule: "own", Device: "dev"}},
	} {
		tt.want.Method, tt.want.Source, tt.want.Path = "GET", "127.0.0.1", tt.path
		e.send("GET "+tt.path, tt.header...)
		await(t, tt.want.Reason, patience, func() error {
			if got := e.accessLog()[tt.path]; got != tt.want {
				return fmt.Errorf("got %+v, want %+v", got, tt.want)
			}
			return nil
		})
	}
}

// numberLines returns header lines with a number in place of %d.
func numberLines(lines []string, n int) (out []string) {
	for _, line := range lines {
		out = append(out, strings.ReplaceAll(line, "%d", strconv.Itoa(n)))
	}
	return out
}

// TestQuietLog uses everything once: the edge has nothing to warn of. A line for each push or request looks harmless,
// and may hide that something works only slowly.
func TestQuietLog(t *testing.T) {
	t.Parallel()
	e := start(t, stack.Options{})
	e.putDevice("dev", "secret", 4, "telemetry.write", "config.read")
	e.put("/v1/products/42", "body")
	e.put("@dev/v1/me/config", "own")
	e.awaitAnswer("an object", hasBody("body"), "GET /v1/products/42")
	e.awaitAnswer("a device's object", hasBody("own"), "GET /v1/me/config", credential("dev", "secret")...)
	e.awaitAnswer("a device", hasStatus(200), "POST /v1/telemetry", credential("dev", "secret")...)
	e.awaitAnswer("a wrong secret", hasStatus(401), "POST /v1/telemetry", credential("dev", "wrong")...)
	e.awaitAnswer("a miss", hasStatus(200), "GET /v1/products/none")
	e.put("/v1/products/42", "new")
	e.awaitAnswer("an update", hasBody("new"), "GET /v1/products/42")
	for line := range strings.Lines(e.edgeLog()) {
		if strings.Contains(line, "gatehouse:") {
			t.Errorf("the edge warns: %s", line)
		}
	}
}
