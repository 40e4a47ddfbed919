package e2e

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestCounters sends requests of each kind, and compares the counters by rule as Prometheus reads them from the edge.
// Counters that are 0 exist, too.
func TestCounters(t *testing.T) {
	t.Parallel()
	e := start(t, stack.Options{Rules: `
sidecar: {cluster: gatehouse-sidecar, timeout: 1s}
credentials: {id_header: x-device-id, secret_header: x-device-token}
rules:
- {name: setup, match: {prefix: /setup}, auth: {}, cache: {}}
- {name: products, match: {prefix: /products/}, cache: {}}
- {name: fleet-config, match: {path: /config}, auth: {permissions: [other]}, cache: {on_miss: fetch}}
- {match: {prefix: /telemetry}, auth: {permissions: [telemetry.write]}}
- {name: open, match: {prefix: /open}}
default: deny
`})
	good := credential("dev", "secret")
	e.putDevice("dev", "secret", 4, "telemetry.write")
	e.put("/products/1", "body")
	e.put("/setup", "ready") // after that, so the edge has both
	e.awaitAnswer("the object is at the edge", hasBody("ready"), "GET /setup", good...)
	for _, tt := range []struct {
		request string
		header  []string
		want    int
	}{
		{"GET /products/1", nil, 200},
		{"HEAD /products/1", nil, 200},
		{"GET /products/1", []string{"if-none-match: *"}, 304},
		{"GET /products/2", nil, 200},
		{"POST /products/1", nil, 200},
		{"GET /telemetry", good, 200},
		{"GET /telemetry", nil, 401},
		{"GET /config", good, 403},
		{"GET /open", nil, 200},
		{"GET /elsewhere", nil, 403},
		{"GET /products/..%20/x", nil, 403},
	} {
		if got := e.send(tt.request, tt.header...); got.status != tt.want {
			t.Errorf("%s: got %d, want %d", tt.request, got.status, tt.want)
		}
	}
	// The verdict was mostly in memory by the time of /telemetry, so the calls are not compared.
	want := []string{
		`auth_requests_total outcome="allow" rule="3" 1`, `auth_requests_total outcome="allow" rule="fleet-config" 0`,
		`auth_requests_total outcome="deny" rule="3" 1`, `auth_requests_total outcome="deny" rule="fleet-config" 0`,
		`auth_requests_total outcome="forbidden" rule="3" 0`, `auth_requests_total outcome="forbidden" rule="fleet-config" 1`,
		`auth_requests_total outcome="forbidden" rule="none" 2`,
		`auth_requests_total outcome="throttled" rule="3" 0`, `auth_requests_total outcome="throttled" rule="fleet-config" 0`,
		`auth_requests_total outcome="unavailable" rule="3" 0`,
		`auth_requests_total outcome="unavailable" rule="fleet-config" 0`,
		`cache_requests_total outcome="bypass" rule="fleet-config" 0`,
		`cache_requests_total outcome="bypass" rule="products" 1`,
		`cache_requests_total outcome="hit" rule="fleet-config" 0`, `cache_requests_total outcome="hit" rule="products" 2`,
		`cache_requests_total outcome="miss" rule="fleet-config" 0`, `cache_requests_total outcome="miss" rule="products" 1`,
		`cache_requests_total outcome="not_modified" rule="fleet-config" 0`,
		`cache_requests_total outcome="not_modified" rule="products" 1`,
		`cache_requests_total outcome="stale" rule="fleet-config" 0`,
		`cache_requests_total outcome="stale" rule="products" 0`, `calls_failed_total 0`,
		`calls_total call="fetch" rule="fleet-config" 0`,
		`calls_total call="refresh" rule="3" 0`, `calls_total call="refresh" rule="fleet-config" 0`,
	}
	if onNative() { // which must define all of them before the first request
		want = append(want, `auth_requests_total outcome="unavailable" rule="none" 0`, `panics_total 0`)
		slices.Sort(want)
	}
	await(t, "counters", patience, func() error {
		if got := e.counterSeries(); !slices.Equal(got, want) {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	})
	await(t, "applied batches are counted", patience, func() error {
		if e.edgeMetric("gatehouse_batches_total", `result="applied"`) == 0 {
			return errors.New("none")
		}
		return nil
	})
}

var labels = regexp.MustCompile(`[a-z]+="[^"]*"`)

// counterSeries returns the counters of the edge, with sorted labels, except the counters of the rule setup, of
// verifications and of batches, because the sidecar's first batch may be refused.
func (e *edge) counterSeries() (all []string) {
	e.t.Helper()
	text, err := e.EdgeMetrics(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		line, found := strings.CutPrefix(strings.TrimSpace(line), "gatehouse_")
		if !found || strings.HasPrefix(line, "guard") || strings.Contains(line, `rule="setup"`) ||
			strings.Contains(line, `call="verify"`) || strings.HasPrefix(line, "batches_total") {
			continue
		}
		name, rest, _ := strings.Cut(line, "{")
		if rest == "" { // nginx prints no braces where there are no labels
			name, rest, _ = strings.Cut(line, " ")
			rest = " " + rest
		}
		sorted := labels.FindAllString(rest, -1)
		slices.Sort(sorted)
		all = append(all,
			strings.Join(append(append([]string{name}, sorted...), rest[strings.LastIndexByte(rest, ' ')+1:]), " "))
	}
	slices.Sort(all)
	return all
}
