package main

import (
	"fmt"
	"strings"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// formatBanner returns the text for a ready stack: examples to try, and how to stop.
func (o *options) formatBanner(s *stack.Stack) string {
	edge := s.EdgeURL()
	post := func(id, secret string) string {
		return fmt.Sprintf("curl -i -H 'x-device-id: %s' -H 'x-device-token: %s' -d '{\"t\":21.5}' %s/v1/telemetry",
			id, secret, edge)
	}
	end := "make stop"
	if o.Stack != "demo" {
		end += " STACK=" + o.Stack
	}
	rules := " --sidecar " + trimScheme(s.SidecarAdminURL())
	if s.EdgeKind() == stack.NginxEdge { // nginx doesn't report rules
		rules += " --rules nginx/rules.yaml"
	} else {
		rules += " --admin " + trimScheme(s.EnvoyAdminURL())
	}
	lines := []string{
		"gatehouse ready",
		"",
		"  # answered by the edge itself: 200, compressed, 304",
		"  curl -i " + edge + "/v1/products/42",
		"  curl -i --compressed " + edge + "/v1/products/42",
		"  curl -i -H 'If-None-Match: *' " + edge + "/v1/products/42",
		"  # a device: let through, refused, without the permission",
		"  " + post(demoDevice, demoSecret),
		"  " + post(demoDevice, "wrong"),
		"  " + post(readOnlyDevice, readOnlySecret),
		"  # how many requests the upstream has seen",
		"  curl " + s.UpstreamURL() + "/debug/requests",
		"  # why a request gets its answer; --device ID: a device with its right secret",
		"  build/gatehousectl explain" + rules + " /v1/products/42",
		"  build/gatehousectl explain" + rules + " --method POST --device " + readOnlyDevice + " /v1/telemetry",
		"  # publish and revoke",
		"  export GATEHOUSE_REDIS=" + s.RedisURL(),
		"  build/gatehousectl put /v1/products/42 --file README.md --content-type text/markdown",
		"  build/gatehousectl device revoke " + demoDevice,
		"",
		"The admin address of Envoy, or with EDGE_KIND=nginx of its counters (/metrics), is " + s.EnvoyAdminURL() +
			"; the operator's page " + s.SidecarAdminURL() + "/, and metrics /metrics; " + end + " ends it.",
		"",
	}
	return strings.Join(lines, "\n")
}

// trimScheme returns the host and port of a URL.
func trimScheme(url string) string { return strings.TrimPrefix(url, "http://") }
