package e2e

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// limitBlocks returns the fenced blocks of a language in a part of docs/devices.md.
func limitBlocks(t *testing.T, language string) (blocks []string) {
	t.Helper()
	part := readSection(t, "../docs/devices.md", "## Limit each device")
	for _, found := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(part, -1) {
		blocks = append(blocks, found[1])
	}
	if len(blocks) == 0 {
		t.Fatalf("docs/devices.md limits nothing in %s", language)
	}
	return blocks
}

// TestLimitByDevice follows docs/devices.md and the comments of envoy.yaml: each device has 60 requests at once.
func TestLimitByDevice(t *testing.T) {
	leaveToOtherEdges(t)
	t.Parallel()
	opts := stack.Options{}
	if onNginx() {
		blocks := limitBlocks(t, "nginx")
		opts.ModifyNginx = func(config string) string {
			config = strings.Replace(config, "\n  upstream service {", "\n"+blocks[0]+"\n  upstream service {", 1)
			return regexp.MustCompile(`(?s)\n    location / \{.*?\n    \}\n`).ReplaceAllLiteralString(config, "\n"+blocks[1])
		}
	} else {
		shipped, err := os.ReadFile("../envoy/envoy.yaml")
		require.NoError(t, err)
		opts.ConfigPath = writeFile(t, "envoy.yaml", strings.ReplaceAll(string(shipped), "#limit ", ""))
	}
	e := start(t, opts)
	limitsEachDevice(t, e)
}

// limitsEachDevice sends more than 60 requests of a device, and requests of a second device.
func limitsEachDevice(t *testing.T, e *edge) {
	t.Helper()
	for _, id := range []string{"busy", "other"} {
		e.putDevice(id, "secret", 4, "telemetry.write", "config.read")
	}
	e.put("/v1/products/1", "hit")
	e.put("@busy/v1/me/config", "hit")
	busy, other := credential("busy", "secret"), credential("other", "secret")
	e.awaitAnswer("the object", hasBody("hit"), "GET /v1/products/1")
	for range 200 { // from one client that claims to be the device
		if a := e.send("GET /open", "x-gatehouse-device: busy"); a.status != 200 {
			t.Fatalf("without a rule: got %d, want 200", a.status)
		}
		a := e.send("POST /v1/telemetry", append(credential("busy", "wrong"), "x-gatehouse-device: busy")...)
		if a.status != 401 && a.status != 503 {
			t.Fatalf("a wrong secret: got %d, want a refusal", a.status)
		}
	}
	passed, refused := 0, 0
	for i := range 150 {
		switch a := e.send("POST /v1/telemetry", append(slices.Clone(busy), "x-gatehouse-device: other")...); a.status {
		case 200:
			if passed++; refused == 0 && i < 60 {
				continue
			}
		case 429:
			if refused++; i < 60 {
				t.Fatalf("request %d: got 429, want the first 60 to pass", i)
			}
		default:
			t.Fatalf("request %d: got %d %q", i, a.status, a.body)
		}
	}
	if refused == 0 || passed > 120 { // the service counts by the minute, which may end
		t.Errorf("%d of the device's requests passed, %d were refused; want 60 at once and some refused", passed, refused)
	}
	for range 60 {
		if a := e.send("POST /v1/telemetry", append(slices.Clone(other), "x-gatehouse-device: busy")...); a.status != 200 {
			t.Fatalf("another device: got %d, want 200", a.status)
		}
	}
	for range 100 {
		if a := e.send("GET /v1/me/config", busy...); a.body != "hit" {
			t.Fatalf("a hit of the device: got %d %q, want it", a.status, a.body)
		}
	}
}

// TestLimitOverInstances follows docs/devices.md with Envoy's rate limit service, whose Redis counts for all instances.
func TestLimitOverInstances(t *testing.T) {
	if onNginx() {
		t.Skip("Envoy's")
	}
	leaveToLongForm(t, "TestLimitByDevice")
	t.Parallel()
	blocks, address := limitBlocks(t, "yaml"), redistest.FreeAddress(t)
	add := func(c *stack.Config, block string, path ...string) error {
		var doc yaml.Node
		list, err := c.Find(path...)
		if err = errors.Join(err, yaml.Unmarshal([]byte(block), &doc)); err == nil {
			added := doc.Content[0]
			if added.Kind == yaml.SequenceNode {
				added = added.Content[0]
			}
			list.Content = slices.Insert(list.Content, len(list.Content)-1, added) // before the router
		}
		return err
	}
	e := start(t, stack.Options{ModifyConfig: func(c *stack.Config) error {
		return errors.Join(add(c, blocks[0], append(edgeManager, "http_filters")...),
			add(c, blocks[1], "static_resources", "clusters"),
			c.SetAddress(address, "static_resources", "clusters", "ratelimit", "load_assignment", "endpoints", "0",
				"lb_endpoints", "0", "endpoint"))
	}})
	startRateLimit(t, e, address, blocks[2])
	limitsEachDevice(t, e)
}

// startRateLimit runs Envoy's rate limit service with a configuration, and the stack's Redis, until the test ends.
func startRateLimit(t *testing.T, e *edge, address, config string) {
	t.Helper()
	binary, err := exec.CommandContext(t.Context(), "../scripts/install-ratelimit.sh").Output()
	if err != nil {
		t.Fatalf("install-ratelimit.sh: %v", err)
	}
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "app", "config"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(root, "app", "config", "gatehouse.yaml"), []byte(config), 0o600))
	env := []string{"RUNTIME_ROOT=" + root, "RUNTIME_SUBDIRECTORY=app", "RUNTIME_WATCH_ROOT=false", "USE_STATSD=false",
		"LOG_LEVEL=warn", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + strings.TrimPrefix(e.RedisURL(), "redis://")}
	http, debug := redistest.FreeAddress(t), redistest.FreeAddress(t)
	for prefix, at := range map[string]string{"GRPC_": address, "": http, "DEBUG_": debug} {
		host, port, err := net.SplitHostPort(at)
		require.NoError(t, err)
		env = append(env, prefix+"HOST="+host, prefix+"PORT="+port)
	}
	service, err := stack.StartChild("ratelimit", strings.TrimSpace(string(binary)), nil, env,
		filepath.Join(e.Dir(), "ratelimit.log"), func(err error) { t.Errorf("the rate limit service: %v", err) })
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := service.Stop(); err != nil {
			t.Error(err)
		}
	})
	await(t, "the rate limit service listens", patience, func() error {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}
