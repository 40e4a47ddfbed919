package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/clients/go/testbed/freeport"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestPathTricks spells the path of a protected resource in many ways. Each spelling is refused, or is under the rule,
// or reaches the upstream as a path that names another resource.
func TestPathTricks(t *testing.T) {
	t.Parallel()
	e := reuse(t, stack.Options{})
	const (
		covered   = "401 by the rule"
		refused   = "400 by Envoy"
		ambiguous = "403 by the filter"
		other     = "another resource"
	)
	tests := []struct{ path, want string }{
		{"/v1/telemetry", covered},
		{"//v1/telemetry", covered},
		{"/v1//telemetry", covered},
		{"/v1/./telemetry", covered},
		{"/./v1/telemetry", covered},
		{"/v1/x/../telemetry", covered},
		{"/v1/telemetry/../telemetry", covered},
		{"/v1/%74elemetry", covered},
		{"/%76%31/%74%65%6c%65%6d%65%74%72%79", covered},
		{"/v1/%2e/telemetry", covered},
		{"/v1/x/%2e%2e/telemetry", covered},
		{"/v1/x/.%2E/telemetry", covered},
		{`/v1\telemetry`, covered},
		{"/v1/telemetry/", covered},
		{"/v1/telemetry//", covered},
		{"/v1/telemetry;a=b", covered},
		{"/v1;a=b/telemetry", covered},
		{"/v1/x/..;a/telemetry", covered},
		{"/v1/telemetry/..;/x", other},       // Envoy resolves it
		{"/v1/telemetry/..%3B/x", ambiguous}, // not this, which some upstreams treat as a name below the rule
		{"/v1/telemetry/x/..%3ba/..%3Bb/x", ambiguous},
		{"/v1/telemetry%3Ba=b", covered},
		{"/v1/telemetry?x=1", covered},
		{"/v1/telemetry?", covered},
		{"/v1/telemetry/x", covered},
		{"/v1/telemetryx", covered}, // a prefix is plain
		{"/v1%2Ftelemetry", refused},
		{"/v1%2ftelemetry", refused},
		{"/v1%5Ctelemetry", refused},
		{"/v1/telemetry%00", refused},
		{"/v1/telemetry#x", refused},
		{"/V1/telemetry", other}, // paths are case-sensitive
		{"/v1/Telemetry", other},
		{"/v1/%54elemetry", other},
		{"/v1/%2574elemetry", covered}, // decoded twice, as by two routers in a row
		{"/v1/%2554elemetry", other},
		{"/v1/telemetry%0A", covered},
		{"/v1/tele%0D%0Ametry", covered},
		{"/v1/telemetr%79%20", covered},
		{"/v1./telemetry", covered},
		{"/v1%3F/telemetry", covered},
		{"/v1%C0%AFtelemetry", covered},
		{"/x/%c0%ae%c0%ae/y", ambiguous},
		{"/x/a%20b%C3%A9.txt", other},
		{"/x/v1/telemetry", other},
		{"/v1/telemetr", other},
		{"/v1/ſtelemetry", refused}, // not ASCII
	}
	for _, tt := range tests {
		switch {
		// Envoy resolves them.
		case onNginx() && strings.Contains(strings.NewReplacer("%2e", ".", "%2E", ".").Replace(tt.path), ".."):
			tt.want = ambiguous
		case onNginx() && tt.want == refused && tt.path != "/v1/telemetry%00":
			tt.want = covered
			if tt.path == "/v1/ſtelemetry" {
				tt.want = other
			}
		case !onNginx() && strings.Contains(tt.path, "..;") && envoyMinor(t) < 39: // it doesn't resolve them
			tt.want = ambiguous
		}
		a, err := e.try(newClient(), "POST "+tt.path)
		if err != nil {
			t.Errorf("%s: %v", tt.path, err)
			continue
		}
		switch a.status {
		case 401:
			if tt.want != covered {
				t.Errorf("%s: got 401, want %s", tt.path, tt.want)
			}
		case 403:
			if tt.want != ambiguous {
				t.Errorf("%s: got 403, want %s", tt.path, tt.want)
			}
		case 400:
			if tt.want != refused {
				t.Errorf("%s: got 400, want %s", tt.path, tt.want)
			}
		default:
			seen := a.seenByUpstream(t).Path
			if tt.want != other {
				t.Errorf("%s: the upstream saw %s, want %s", tt.path, seen, tt.want)
			}
			if strings.HasPrefix(seen, "/v1/telemetry") {
				t.Errorf("%s: reached the upstream as %s", tt.path, seen)
			}
		}
	}
	// An exact path covers its spellings, too; a second prefix must not bypass the rule.
	for _, path := range []string{"/v1/fleet/config", "/v1/fleet/config/", "/v1/fleet/config;x", "/v1/fleet/%63onfig",
		"/v1/products/../fleet/config",
		"/v1/fleet/config%0A", "/v1/fleet/config%0d%0a", "/v1/fleet/config%09", "/v1/fleet/config%20",
		"/v1/fleet/config%3Fx", "/v1/fleet/config%23", "/v1/fleet/config.", "/v1/fleet/config%c0%af"} {
		want := 401
		if onNginx() && strings.Contains(path, "..") {
			want = 403
		}
		if a, err := e.try(newClient(), "GET "+path); err != nil || a.status != want {
			t.Errorf("%s: got %d, %v; want %d", path, a.status, err, want)
		}
	}
	if a := e.send("GET /open", "x_gatehouse_device: forged"); a.status != byEdge(400, 200) ||
		strings.Contains(a.body, "forged") {
		t.Errorf("a header with underscores: got %d %s, want 400, or it removed", a.status, a.body)
	}
}

// envoyMinor returns the second number of the version of the tests' Envoy.
func envoyMinor(t *testing.T) int {
	t.Helper()
	path, err := stack.FindEnvoy()
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), path, "--version").Output()
	require.NoError(t, err)
	found := regexp.MustCompile(`/1\.([0-9]+)\.[0-9]+/`).FindSubmatch(out)
	if found == nil {
		t.Fatalf("%s --version: want COMMIT/1.MINOR.PATCH/ in %q", path, out)
	}
	minor, err := strconv.Atoi(string(found[1]))
	require.NoError(t, err)
	return minor
}

// TestBadRules gives Envoy and gatehousectl the same mistakes, and expects the same error messages.
func TestBadRules(t *testing.T) {
	t.Parallel()
	skipOnThisEdge(t)
	tests := []struct{ name, rules, want string }{
		{"unknown field", "rules: [{match: {prefix: /v1/}, cache: {on_mis: fetch}}]",
			"rules[0].cache.on_mis: unknown field; known are query, on_miss, serve, scope, languages"},
		{"bad duration", "max_staleness: soon", `max_staleness: is "soon", want a duration such as "30s"`},
		{"hidden rule", "rules: [{match: {prefix: /v1/}}, {match: {path: /v1/a}}]",
			"rules[1].match: is never reached: rules[0] matches everything that it matches"},
	}
	for _, tt := range tests[:pickSize(len(tests), 1)] {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := stack.Start(t.Context(), stack.Options{Dir: dir, Rules: tt.rules})
			if err == nil {
				t.Fatal(errors.Join(errors.New("Envoy took the rules"), s.Stop()))
			}
			log, readErr := os.ReadFile(dir + "/envoy.log")
			if readErr != nil {
				t.Fatal(readErr)
			}
			if !strings.Contains(string(log), tt.want) {
				t.Errorf("Envoy's log has no %q:\n%s", tt.want, log)
			}
			out, err := gatehousectl(t, "check", dir+"/envoy.yaml")
			if err == nil || !strings.Contains(out, tt.want) {
				t.Errorf("gatehousectl check: got %v %q, want %q", err, out, tt.want)
			}
		})
	}
}

// TestCheckOfConfigDump has gatehousectl check the configuration dump of a running Envoy, and the same dump with a
// route without the filter.
func TestCheckOfConfigDump(t *testing.T) {
	t.Parallel()
	e := reuse(t, stack.Options{})
	dump := e.fetch(e.EnvoyAdminURL() + "/config_dump")
	const off = `"routes": [{"typed_per_filter_config": {"gatehouse": {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": true}},`
	unprotected := regexp.MustCompile(`"routes": \[\s*\{`).ReplaceAllString(dump, off)
	for text, want := range map[string]string{dump: "ok, 4 rules",
		unprotected: "[GH0601] -: listener edge: virtual host upstream: routes[0]"} {
		cmd := exec.CommandContext(t.Context(), "../build/gatehousectl", "check", "-")
		cmd.Stdin = strings.NewReader(text)
		out, _ := cmd.CombinedOutput()
		if !strings.Contains(string(out), want) {
			t.Errorf("got %s, want %q", out, want)
		}
	}
}

// listeners are two listeners of an edge, in a file that Envoy reloads when the file is replaced, as a mesh's control
// plane would change listeners. Their plugins differ only in their names. Rules are JSON: Envoy serializes two equal
// Structs in different orders, which would give two VMs.
type listeners struct {
	t      *testing.T
	file   string
	first  []string // of each listener
	static struct {
		Listeners []map[string]any `yaml:"listeners"`
	}
	second string // its address
}

func (l *listeners) addListeners(c *stack.Config) error {
	static, err := c.Find("static_resources")
	if err != nil {
		return err
	}
	if err := static.Decode(&l.static); err != nil {
		return err
	}
	l.replaceRules(l.first...)
	return errors.Join(
		c.Set(l.static.Listeners[1:], "static_resources", "listeners"),
		c.Set(map[string]any{"id": "edge", "cluster": "edge"}, "node"),
		c.Set(map[string]any{"lds_config": map[string]any{"path_config_source": map[string]any{"path": l.file}}},
			"dynamic_resources"))
}

// filterPath is the path of the settings of the edge's plugin.
var filterPath = []string{"static_resources", "listeners", "edge", "filter_chains", "0", "filters", "0", "typed_config",
	"http_filters", "gatehouse", "typed_config", "config"}

// replaceRules gives each listener new rules, and removes listeners without rules.
func (l *listeners) replaceRules(rules ...string) {
	l.t.Helper()
	var resources []any
	for i, text := range rules {
		raw, err := yaml.Marshal(map[string]any{"static_resources": map[string]any{"listeners": l.static.Listeners[:1]}})
		require.NoError(l.t, err)
		c, err := stack.LoadConfig(writeFile(l.t, "edge.yaml", string(raw)))
		require.NoError(l.t, err)
		configuration := map[string]any{"@type": "type.googleapis.com/google.protobuf.StringValue", "value": text}
		require.NoError(l.t, c.Set(configuration, append(filterPath, "vm_config", "configuration")...))
		if os.Getenv("BINDING") == "plugins" {
			c.MoveRules()
		}
		if i == 1 {
			err = errors.Join(c.SetAddress(l.second, "static_resources", "listeners", "edge"),
				c.Set("second", append(filterPath, "name")...), c.Set("second", "static_resources", "listeners", "edge", "name"))
		}
		if onNative() {
			library, findErr := stack.Library()
			err = errors.Join(err, findErr, c.MakeNative(library))
		}
		var listener map[string]any
		node, findErr := c.Find("static_resources", "listeners", "0")
		if err = errors.Join(err, findErr); err == nil {
			err = node.Decode(&listener)
		}
		require.NoError(l.t, err)
		listener["@type"] = "type.googleapis.com/envoy.config.listener.v3.Listener"
		resources = append(resources, listener)
	}
	text, err := yaml.Marshal(map[string]any{"resources": resources})
	require.NoError(l.t, err)
	if err := os.Rename(writeFile(l.t, "next.yaml", string(text)), l.file); err != nil { // Envoy watches for this
		l.t.Fatal(err)
	}
}

func startTwo(t *testing.T, opts stack.Options, first, second string) (*edge, *listeners) {
	t.Helper()
	address, err := freeport.FindAddress()
	require.NoError(t, err)
	l := &listeners{t: t, file: filepath.Join(t.TempDir(), "listeners.yaml"), second: address,
		first: []string{first, second}}
	opts.ModifyConfig = l.addListeners
	e := start(t, opts)
	await(t, "the second listener", patience, func() error {
		response, err := newClient().Get("http://" + address + "/open")
		if err == nil {
			err = response.Body.Close()
		}
		return err
	})
	return e, l
}

// TestRulesOfListeners has two listeners with different rules, and changes them during requests: the rules of a
// request's own listener decide each, before or after.
func TestRulesOfListeners(t *testing.T) {
	t.Parallel()
	e, l := startTwo(t, stack.Options{}, `{"default": "pass"}`, `{"default": "deny"}`)
	status := func(url string) int {
		response, err := newClient().Get(url + "/open")
		if err != nil {
			return 0
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	want := func(what string, first, other int) {
		t.Helper()
		await(t, what, patience, func() error {
			if a, b := status(e.EdgeURL()), status("http://"+l.second); a != first || b != other {
				return fmt.Errorf("got %d and %d, want %d and %d", a, b, first, other)
			}
			return nil
		})
	}
	want("both listeners", 200, 403)

	var slowest time.Duration
	seen := map[int]int{}
	client := newClient()
	client.Transport.(*http.Transport).DisableKeepAlives = true // a connection keeps the rules with which it began
	stop := keepCalling(t, func() error {
		begin := time.Now()
		a, err := e.try(client, "GET /open")
		slowest = max(slowest, time.Since(begin))
		if err == nil {
			seen[a.status]++
		}
		return err
	})
	l.replaceRules(`{"default": "deny"}`, `{"default": "pass"}`)
	want("the new rules", 403, 200)
	for range 50 {
		if a, b := status(e.EdgeURL()), status("http://"+l.second); a != 403 || b != 200 {
			t.Fatalf("after the change: got %d and %d", a, b)
		}
	}
	l.replaceRules(`{"default": "deny"}`, `{"default": "maybe"}`)
	await(t, "Envoy refuses wrong rules", patience, func() error {
		if !strings.Contains(e.readLog("envoy"), `default: is "maybe"`) {
			return errors.New("its log doesn't say so")
		}
		return nil
	})
	want("the rules before", 403, 200)
	if err := stop(); err != nil {
		t.Errorf("while rules change: %v", err)
	}
	if len(seen) != 2 || seen[200] == 0 || seen[403] == 0 {
		t.Errorf("got answers %v while rules changed, want 200, then 403, and no other", seen)
	}
	t.Logf("answers %v while rules changed, the slowest after %v", seen, slowest)
}

func TestCheckShippedConfig(t *testing.T) {
	t.Parallel()
	const path = "../envoy/envoy.yaml"
	if out, err := gatehousectl(t, "check", path); err != nil || !strings.Contains(out, "ok") {
		t.Errorf("got %v %q, want ok", err, out)
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	broken := regexp.MustCompile(`\{cluster: gatehouse-sidecar,`).ReplaceAll(text, []byte("{cluster: gatehouse-sidekick,"))
	out, err := gatehousectl(t, "check", writeFile(t, "envoy.yaml", string(broken)))
	if err == nil || !strings.Contains(out, `sidecar.cluster`) || !strings.Contains(out, "gatehouse-sidekick") {
		t.Errorf("got %v %q, want that the cluster doesn't exist", err, out)
	}
}
