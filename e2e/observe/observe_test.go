package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// deadline bounds the wait for data: Prometheus scrapes every 2 s, and a rate needs several scrapes.
const deadline = 60 * time.Second

const oneFile = "Envoy reads its rules from its own file; TestFaults has them in another one"

// empty are the queries that return nothing in a healthy system, by a part of their text and the edge; with the reason.
var empty = map[stack.EdgeKind]map[string]string{
	stack.EnvoyEdge: {
		"gatehouse_would_deny_": notEnforced,
		"gatehouse_would_hit_":  notEnforced,
		"gatehouse_edge_ready":  singleEdge,
		"_update_rejected":      oneFile,
	},
	stack.NativeEdge: {
		"gatehouse_would_deny_": notEnforced,
		"gatehouse_would_hit_":  notEnforced,
		"gatehouse_edge_ready":  singleEdge,
		"envoy_wasm_":           "a metric of Wasm modules",
		"_update_rejected":      oneFile,
	},
	stack.NginxEdge: {
		"gatehouse_would_deny_": notEnforced,
		"gatehouse_would_hit_":  notEnforced,
		"gatehouse_edge_ready":  singleEdge,
		"envoy_overload_":       "a metric of Envoy",
		"envoy_wasm_":           "a metric of Envoy",
		"_update_rejected":      "a metric of Envoy",
	},
}

// TestObserve runs `make observe`, and every query of the dashboard and every alert against its Prometheus.
func TestObserve(t *testing.T) {
	kind := stack.EdgeKind(os.Getenv("EDGE_KIND"))
	if kind == "" {
		kind = stack.EnvoyEdge
	}
	prometheus := start(t)
	queries := dashboardQueries(t)
	if len(queries) < 30 {
		t.Fatalf("found %d queries", len(queries))
	}
	for part, reason := range empty[kind] {
		if !slices.ContainsFunc(queries, func(q string) bool { return strings.Contains(q, part) }) {
			t.Errorf("no query has %q, which is expected to return nothing: %s", part, reason)
		}
	}
	missing := queries
	for end := time.Now().Add(deadline); ; {
		missing = slices.DeleteFunc(slices.Clone(missing), func(q string) bool {
			return prometheus.returnsData(t, q) || mayBeEmpty(kind, q)
		})
		if len(missing) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("these queries return no data after %v:\n%s", deadline, strings.Join(missing, "\n"))
		}
		<-time.After(time.Second)
	}
	for part := range empty[kind] {
		for _, q := range queries {
			if strings.Contains(q, part) && prometheus.returnsData(t, q) {
				t.Errorf("%s returns data: remove it from the list", q)
			}
		}
	}
	prometheus.noAlert(t)
}

// mayBeEmpty reports whether the query may return nothing.
func mayBeEmpty(kind stack.EdgeKind, query string) bool {
	for part := range empty[kind] {
		if strings.Contains(query, part) {
			return true
		}
	}
	return false
}

// server is the address of a Prometheus.
type server string

// start runs what `make observe DETACH=1` runs, on free ports, until the test ends.
func start(t *testing.T) server {
	t.Helper()
	given := map[string]string{"CONCURRENCY": "2", "REDIS_URL": "", "CONFIG": ""}
	for _, variable := range []string{"EDGE", "ENVOY_ADMIN", "SIDECAR_ADMIN", "UPSTREAM", "REDIS"} {
		given[variable] = redistest.FreeAddress(t)
	}
	return server("http://" + runScript(t, given)["PROMETHEUS"])
}

// runScript runs scripts/observe.sh with these variables until the test ends, and returns the addresses of the programs
// beside the stack, which are free ports. program runs instead of the stack.
func runScript(t *testing.T, variables map[string]string, program ...string) map[string]string {
	t.Helper()
	root, err := stack.Root()
	require.NoError(t, err)
	name := fmt.Sprintf("observe-%d-%s", os.Getpid(), t.Name())
	env := append(os.Environ(), "STACK="+name, "TRACE_ENDPOINT=")
	addresses := map[string]string{}
	for _, variable := range []string{"PROMETHEUS", "ALERTMANAGER", "JAEGER_API", "JAEGER_OTLP"} {
		addresses[variable] = redistest.FreeAddress(t)
		env = append(env, variable+"="+addresses[variable])
	}
	for variable, value := range variables {
		env = append(env, variable+"="+value)
	}
	demo := func(ctx context.Context, args ...string) error {
		command := exec.CommandContext(ctx, filepath.Join(root, "scripts", "demo.sh"), args...)
		command.Env, command.Dir = env, root
		output, err := command.CombinedOutput()
		if err != nil {
			return fmt.Errorf("demo.sh %s: %w\n%s", strings.Join(args, " "), err, output)
		}
		return nil
	}
	t.Cleanup(func() {
		if err := demo(context.WithoutCancel(t.Context()), "stop"); err != nil {
			t.Error(err)
		}
		logs, _ := filepath.Glob(filepath.Join(root, ".run", name, "*.log"))
		for _, path := range logs {
			if text, err := os.ReadFile(path); err == nil && t.Failed() {
				t.Logf("the end of %s:\n%s", path, text[max(0, len(text)-4000):])
			}
		}
		if !t.Failed() {
			_ = os.RemoveAll(filepath.Join(root, ".run", name))
		}
	})
	require.NoError(t, demo(t.Context(), append([]string{"start", "scripts/observe.sh"}, program...)...))
	return addresses
}

// labelValues is the function of Grafana in the queries of variables.
var labelValues = regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)

// dashboardQueries returns the queries of all panels and variables as Grafana would send them with all values selected.
func dashboardQueries(t *testing.T) []string {
	t.Helper()
	d, err := ReadDashboard(dashboardFile)
	require.NoError(t, err)
	var queries []string
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		var query struct{ Query string }
		require.NoError(t, json.Unmarshal(v.Query, &query))
		match := labelValues.FindStringSubmatch(query.Query)
		if match == nil {
			t.Fatalf("variable %s: %q is no label_values", v.Name, query.Query)
		}
		queries = append(queries, fmt.Sprintf("group by (%s) (%s)", match[2], match[1]))
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			queries = append(queries, target.Expr)
		}
	}
	for i := range queries {
		queries[i] = strings.NewReplacer("$namespace", ".*", "$pod", ".*", "$rule", ".*", "$__rate_interval",
			"10s").Replace(queries[i])
	}
	return queries
}

// get decodes the data of an answer of Prometheus's API. It returns false while Prometheus does not answer.
func (s server) get(t *testing.T, path string, data any) bool {
	t.Helper()
	response, err := http.Get(string(s) + path)
	if err != nil {
		return false
	}
	defer func() { _ = response.Body.Close() }()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if response.StatusCode == http.StatusServiceUnavailable {
		return false // it still starts
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: %d %s, %v", path, response.StatusCode, answer.Error, err)
	}
	return true
}

// returnsData reports whether the query returns a number now.
func (s server) returnsData(t *testing.T, query string) bool {
	t.Helper()
	var data struct {
		Result []struct {
			Value [2]any
		}
	}
	if !s.get(t, "/api/v1/query?query="+url.QueryEscape(query), &data) {
		return false
	}
	for _, series := range data.Result {
		if series.Value[1] != "NaN" {
			return true
		}
	}
	return false
}

func chartAlerts(t *testing.T) (names []string) {
	t.Helper()
	source, err := os.ReadFile("../../charts/gatehouse/templates/monitoring/prometheusrule.yaml")
	require.NoError(t, err)
	for _, alert := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(source), -1) {
		names = append(names, alert[1])
	}
	return names
}

// noAlert waits until Prometheus has evaluated every alert of the chart, and fails unless all are inactive.
func (s server) noAlert(t *testing.T) {
	t.Helper()
	want := chartAlerts(t)
	for end := time.Now().Add(deadline); ; <-time.After(time.Second) {
		var data struct {
			Groups []struct {
				Rules []struct{ Name, State, Health, LastError, Query string }
			}
		}
		s.get(t, "/api/v1/rules", &data)
		var got, wrong []string
		for _, group := range data.Groups {
			for _, rule := range group.Rules {
				got = append(got, rule.Name)
				if rule.State != "inactive" || rule.Health != "ok" {
					wrong = append(wrong, fmt.Sprintf("%s is %s, health %s %s: %s", rule.Name, rule.State, rule.Health,
						rule.LastError, rule.Query))
				}
			}
		}
		if slices.Equal(got, want) && len(wrong) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("alerts %q, want %q; not silent:\n%s", got, want, strings.Join(wrong, "\n"))
		}
	}
}
