package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/testbed/stack"
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
- match: {prefix: /v1/site/}
  cache: {origin_headers: true}
`

// edgeManager is the path of the edge's connection manager in envoy.yaml.
var edgeManager = []string{"static_resources", "listeners", "edge", "filter_chains", "0", "filters",
	"0", "typed_config"}

// TestHeadersStayAtTheEdge checks the headers that upstreams receive, by default and with the two settings that keep
// everything.
func TestHeadersStayAtTheEdge(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{false, true} {
		rules := upstreamRules
		if keep {
			rules = "strip_override_headers: false\n" + strings.Replace(rules, "secret_header: x-device-token",
				"secret_header: x-device-token, forward: true", 1)
		}
		// Envoy allows names with '_' here, as some listeners do.
		e := start(t, stack.Options{Rules: rules, ModifyConfig: func(c *stack.Config) error {
			return c.Set("ALLOW", append(edgeManager, "common_http_protocol_options", "headers_with_underscores_action")...)
		}, ModifyNginx: func(config string) string {
			return strings.Replace(config, "http {", "http {\n  underscores_in_headers on;", 1)
		}})
		e.putDevice("dev", "s3cret", 4, "telemetry.write")
		e.awaitAnswer("device", let, "POST /v1/telemetry", credential("dev", "s3cret")...)
		t.Run(fmt.Sprint("secret, kept: ", keep), func(t *testing.T) { secretStays(t, e, keep) })
		t.Run(fmt.Sprint("overrides, kept: ", keep), func(t *testing.T) { overridesStay(t, e, keep) })
		e.putOriginHeaders("/v1/site/sw.js") // TestOriginHeaders has another rule
		a := e.send("GET /v1/site/sw.js")
		for _, name := range actOnOrigin {
			if got := a.header.Get(name); got != "all" {
				t.Errorf("%s: got %q, want what was published, as the rule allows it", name, got)
			}
		}
		if !onNginx() {
			e.wantNotSent("/v1/site/sw.js", nil)
		}
	}
}

// secretStays sends a credential: where an auth rule has checked the credential, the upstream receives nothing that
// could be replayed.
func secretStays(t *testing.T, e *edge, forward bool) {
	for _, tt := range []struct {
		first string
		kept  bool
	}{
		{"POST /v1/telemetry", forward},
		{"POST /v1/./" + byEdge("x/../", "") + "telemetry", forward},
		{"POST //v1/%74elemetry", forward},
		{"GET /v1/fleet/config?miss", forward},
		{"GET /v1/products/1", true},
		{"GET /open", true},
	} {
		seen := e.send(tt.first, append(credential("dev", "s3cret"), "x_device_token: s3cret")...).seenByUpstream(t).Headers
		_, kept := seen["x-device-token"]
		_, spelled := seen["x_device_token"]
		if kept != tt.kept || spelled != tt.kept || seen["x-device-id"][0] != "dev" {
			t.Errorf("%s: the upstream saw %q, want the secret in it: %v", tt.first, seen, tt.kept)
		}
	}
}

// overridesStay sends headers that some frameworks take for the request's method or path.
func overridesStay(t *testing.T, e *edge, kept bool) {
	overrides := []string{"X-HTTP-Method-Override: DELETE", "X-HTTP-Method: DELETE", "X-Method-Override: DELETE",
		"X-Original-URL: /v1/telemetry",
		"X-Rewrite-URL: /v1/telemetry", "X-Original-URI: /v1/telemetry", "X-Original-Method: POST"}
	for _, first := range []string{"GET /open", "POST /v1/telemetry", "GET /v1/products/1"} {
		for _, line := range overrides {
			name, value, _ := strings.Cut(line, ": ")
			for _, name := range []string{name, strings.ReplaceAll(name, "-", "_")} {
				seen := e.send(first, append(credential("dev", "s3cret"), name+": "+value)...).seenByUpstream(t).Headers
				if _, got := seen[strings.ToLower(name)]; got != kept {
					t.Errorf("%s: the upstream saw %s: %v, want %v", first, name, got, kept)
				}
			}
		}
	}
}

// TestRoutesByIdentity routes by the header that names the device: by the filter's value, not by a client's forged one.
func TestRoutesByIdentity(t *testing.T) {
	t.Parallel()
	const device = 222
	e := start(t, stack.Options{Rules: upstreamRules, ModifyConfig: func(c *stack.Config) error {
		node, err := c.Find(append(edgeManager, "route_config", "virtual_hosts", "upstream", "routes")...)
		if err != nil {
			return err
		}
		var routes []any
		if err := node.Decode(&routes); err != nil {
			return err
		}
		match := map[string]any{"prefix": "/",
			"headers": []any{map[string]any{"name": "x-gatehouse-device", "present_match": true}}}
		routes = append([]any{map[string]any{"match": match, "direct_response": map[string]any{"status": device}}}, routes...)
		return c.Set(routes, append(edgeManager, "route_config", "virtual_hosts", "upstream", "routes")...)
	}})
	e.putDevice("dev", "s3cret", 4, "telemetry.write")
	e.awaitAnswer("a device has its route", hasStatus(device), "POST /v1/telemetry", credential("dev", "s3cret")...)
	// Now from memory; before, after a call of the sidecar.
	for _, tt := range []struct {
		request string
		header  []string
		want    int
	}{
		{"POST /v1/telemetry", credential("dev", "s3cret"), device},
		{"GET /open", nil, 200},
		{"GET /open", []string{"x-gatehouse-device: dev"}, 200},
	} {
		if got := e.send(tt.request, tt.header...); got.status != tt.want {
			t.Errorf("%s %q: got %d, want %d", tt.request, tt.header, got.status, tt.want)
		}
	}
}
