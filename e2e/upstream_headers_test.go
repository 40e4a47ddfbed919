package e2e

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/e2e/stack"
)

const upstreamRules = `
credentials: {id_header: x-device-id, secret_header: x-device-token}
rules:
- match: {prefix: /v1/telemetry}
  auth: {permissions: [telemetry.write]}
- match: {prefix: /v1/fleet/}
  auth: {}
  cache: {on_miss: fetch}
- match: {prefix: /v1/products/}
  cache: {}
`

// awaitDevice registers a device and waits until it is let in, by what lines show.
func (e *edge) awaitDevice(id, secret string, lines ...string) {
	e.t.Helper()
	e.device(id, secret, 4, "telemetry.write")
	await(e.t, "device", patience, func() error {
		return e.everyone([]*http.Client{shared}, func(a answer) bool { return a.status == 200 }, "POST /v1/telemetry", lines...)
	})
}

// TestSecretStaysAtTheEdge looks at what upstreams see of a credential: nothing that could be shown again, where an auth rule has
// judged it.
func TestSecretStaysAtTheEdge(t *testing.T) {
	t.Parallel()
	for _, forward := range []bool{false, true} {
		rules := upstreamRules
		if forward {
			rules = strings.Replace(rules, "secret_header: x-device-token", "secret_header: x-device-token, forward: true", 1)
		}
		// Envoy lets names with '_' pass here, as some listeners do.
		e := start(t, stack.Options{Rules: rules, ModifyConfig: func(c *stack.Config) error {
			return c.Set("ALLOW", append(edgeManager, "common_http_protocol_options", "headers_with_underscores_action")...)
		}})
		lines := append(credential("dev", "s3cret"), "x_device_token: s3cret")
		e.awaitDevice("dev", "s3cret", lines...)
		for _, tt := range []struct {
			first string
			kept  bool
		}{
			{"POST /v1/telemetry", forward},
			{"POST /v1/./x/../telemetry", forward},
			{"POST //v1/%74elemetry", forward},
			{"GET /v1/fleet/config?miss", forward},
			{"GET /v1/products/1", true},
			{"GET /open", true},
		} {
			seen := e.send(tt.first, lines...).seen(t).Headers
			_, kept := seen["x-device-token"]
			_, spelled := seen["x_device_token"]
			if kept != tt.kept || spelled != tt.kept || seen["x-device-id"][0] != "dev" {
				t.Errorf("forward: %v, %s: the upstream saw %q, want the secret in it: %v", forward, tt.first, seen, tt.kept)
			}
		}
	}
}

// TestBasicStaysAtTheEdge is TestSecretStaysAtTheEdge for HTTP Basic.
func TestBasicStaysAtTheEdge(t *testing.T) {
	t.Parallel()
	e := start(t, stack.Options{Rules: strings.Replace(upstreamRules, "{id_header: x-device-id, secret_header: x-device-token}", "{basic: true}", 1)})
	basic := "authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("dev:s3cret"))
	e.awaitDevice("dev", "s3cret", basic)
	for first, want := range map[string]bool{"POST /v1/telemetry": false, "GET /open": true} {
		if _, kept := e.send(first, basic).seen(t).Headers["authorization"]; kept != want {
			t.Errorf("%s: the upstream saw Authorization: %v, want %v", first, kept, want)
		}
	}
}

// edgeManager is where the edge's connection manager is in envoy.yaml.
var edgeManager = []string{"static_resources", "listeners", "edge", "filter_chains", "0", "filters", "0", "typed_config"}

// TestOverridesStayAtTheEdge sends what some frameworks take for another method or path than the request's.
func TestOverridesStayAtTheEdge(t *testing.T) {
	t.Parallel()
	overrides := []string{"X-HTTP-Method-Override: DELETE", "X-HTTP-Method: DELETE", "X-Method-Override: DELETE", "X-Original-URL: /v1/telemetry",
		"X-Rewrite-URL: /v1/telemetry", "X-Original-URI: /v1/telemetry", "X-Original-Method: POST"}
	for _, strip := range []bool{true, false} {
		e := start(t, stack.Options{Rules: fmt.Sprintf("strip_override_headers: %v\n%s", strip, upstreamRules), ModifyConfig: func(c *stack.Config) error {
			return c.Set("ALLOW", append(edgeManager, "common_http_protocol_options", "headers_with_underscores_action")...)
		}})
		e.awaitDevice("dev", "s3cret", credential("dev", "s3cret")...)
		for _, first := range []string{"GET /open", "POST /v1/telemetry", "GET /v1/products/1"} {
			for _, line := range overrides {
				name, value, _ := strings.Cut(line, ": ")
				for _, name := range []string{name, strings.ReplaceAll(name, "-", "_")} {
					seen := e.send(first, append(credential("dev", "s3cret"), name+": "+value)...).seen(t).Headers
					if _, got := seen[strings.ToLower(name)]; got == strip {
						t.Errorf("strip: %v, %s: the upstream saw %s: %v, want %v", strip, first, name, got, !strip)
					}
				}
			}
		}
	}
}
