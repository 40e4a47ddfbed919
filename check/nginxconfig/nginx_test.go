package nginxconfig

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/nginx"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// edge is a real nginx with the plugin, and a server with its own socket for each case.
type edge struct {
	t   *testing.T
	dir string
	out bytes.Buffer
	cmd *exec.Cmd

	mu  sync.Mutex
	log []string // requests to upstream and sidecar
}

const edgeRules = `
credentials: {id_header: x-device-id, secret_header: x-device-token}
max_staleness: 60s
rules:
- match: {path: /v1/secret}
  auth: {}
- match: {prefix: /v1/devices/}
  auth: {}
- match: {prefix: /v1/products/}
  cache: {}
`

// edgeConfig is the nginx.conf around the servers; setups may change the text.
const edgeConfig = `
daemon off;
master_process off;
error_log DIR/error.log warn;
pid DIR/nginx.pid;
load_module MODULES/ndk_http_module.so;
load_module MODULES/ngx_http_lua_module.so;
events { worker_connections 512; }
http {
  access_log off;
  client_body_temp_path DIR/body;
  proxy_temp_path DIR/proxy;
  fastcgi_temp_path DIR/fastcgi;
  uwsgi_temp_path DIR/uwsgi;
  scgi_temp_path DIR/scgi;
  proxy_cache_path DIR/cache keys_zone=answers:1m;
  lua_package_path "PLUGIN/lua/?.lua;;";
  init_by_lua_block { require("gatehouse.edge").init{ rules = "DIR/rules.json", socket = "unix:DIR/api.sock", push = "unix:DIR/push.sock", memory = "DIR/memory", memory_mib = 256, library = "LIBRARY" } }
  include PLUGIN/http.conf;
  map $http_x_to $client_host { default $http_x_to; }
  map $uri $tenant { "~^/tn/(?<tn>[^/]+)" $tn; default ""; }
  map $uri $inner { "~^/pub(?<rest_of>/.*)$" $rest_of; default $uri; }
  map $http_upgrade $any_protocol { default $http_upgrade; }
  map $host $constant { default service; }
  geo $near { default service; }
  split_clients $request_id $part { 50% service; * service; }
  upstream service { server UPSTREAM; }
  server { listen unix:DIR/push.sock; include PLUGIN/push.conf; }
SERVERS
}
`

// built is the directory of the library.
var built string

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(built)
	os.Exit(code)
}

var buildLibrary = sync.OnceValues(func() (path string, err error) {
	if built, err = os.MkdirTemp("", "gatehouse-nginx-"); err != nil {
		return "", err
	}
	path = filepath.Join(built, "libgatehouse-nginx.so")
	out, err := exec.Command("../../scripts/build-library.sh", "nginx", path).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build the library: %w: %s", err, out)
	}
	return path, err
})

// library returns the path of the edge's library.
func library(t *testing.T) string {
	t.Helper()
	path, err := buildLibrary()
	require.NoError(t, err)
	return path
}

// newEdge writes the configuration and starts upstream and sidecar, but not nginx.
func newEdge(t *testing.T, config string, servers []string) *edge {
	t.Helper()
	plugin, err := filepath.Abs("../../nginx")
	require.NoError(t, err)
	e := &edge{t: t, dir: t.TempDir()}
	rules, _, err := nginx.Render([]byte(edgeRules))
	require.NoError(t, err)
	e.write("rules.json", string(rules))
	e.write("page.html", "a page")
	e.write("plugin.lua", `require("gatehouse.edge").access()`)
	e.write("own.lua", "-- lets all requests pass")
	upstream := httptest.NewServer(http.HandlerFunc(e.upstream))
	t.Cleanup(upstream.Close)
	socket, err := net.Listen("unix", filepath.Join(e.dir, "api.sock"))
	require.NoError(t, err)
	sidecar := &http.Server{Handler: http.HandlerFunc(e.verify)}
	go func() { _ = sidecar.Serve(socket) }()
	t.Cleanup(func() { _ = sidecar.Close() })

	all := ""
	for i, server := range servers {
		all += fmt.Sprintf("  server {\n    listen unix:DIR/%d.sock;\n%s\n  }\n", i, server)
	}
	e.write("nginx.conf", strings.NewReplacer("DIR", e.dir, "MODULES", stack.NginxModules, "PLUGIN", plugin,
		"LIBRARY", library(t), "UPSTREAM", strings.TrimPrefix(upstream.URL, "http://")).
		Replace(strings.NewReplacer("SERVERS", all).Replace(config)))
	return e
}

// analyze analyses the edge's configuration.
func (e *edge) analyze() findings.Report {
	e.t.Helper()
	file := filepath.Join(e.dir, "nginx.conf")
	text, err := os.ReadFile(file)
	require.NoError(e.t, err)
	return Analyze(file, text, "", nil)
}

func (e *edge) write(name, text string) {
	e.t.Helper()
	require.NoError(e.t, os.WriteFile(filepath.Join(e.dir, name), []byte(text), 0o600))
}

// start starts nginx, and stops nginx after the test.
func (e *edge) start() {
	e.t.Helper()
	path, err := stack.FindNginx()
	require.NoError(e.t, err)
	e.cmd = exec.Command(path, "-p", e.dir, "-c", filepath.Join(e.dir, "nginx.conf"),
		"-e", filepath.Join(e.dir, "error.log"))
	e.cmd.Stdout, e.cmd.Stderr = &e.out, &e.out
	require.NoError(e.t, e.cmd.Start())
	done := make(chan struct{})
	go func() { _ = e.cmd.Wait(); close(done) }()
	e.t.Cleanup(func() {
		_ = e.cmd.Process.Kill()
		<-done
		if log, err := os.ReadFile(filepath.Join(e.dir, "error.log")); err == nil && e.t.Failed() {
			e.t.Logf("nginx: %s%s", &e.out, log)
		}
	})
}

// ready waits until nginx serves and authenticates devices.
func (e *edge) ready() {
	e.t.Helper()
	e.start()
	e.pushState()
	await.Until(e.t, "nginx authenticates a device", func() bool {
		return strings.Contains(e.ask(0, "GET", "/v1/secret", device("d0")...), "device=d0")
	})
}

// pushState gives nginx the state that a sidecar pushes.
func (e *edge) pushState() {
	e.t.Helper()
	now := time.Now().UnixMilli()
	batch := wire.AppendOp(wire.BeginBatch(nil, 7, 0), wire.RegionState, 0, func(dst []byte) []byte {
		return wire.AppendState(dst, &wire.State{Epoch: 7, InStepMS: now, HeartbeatMS: now, ObjectBuckets: 16,
			VerdictBuckets: 16})
	})
	await.Until(e.t, "the push listener takes a batch", func() bool { return e.push(batch) == http.StatusOK })
}

// push posts a body to the push listener, and returns the status, 0 without an answer.
func (e *edge) push(body []byte) int {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(e.dir, "push.sock"))
		}}}
	res, err := client.Post("http://push/v1/apply", "", bytes.NewReader(body))
	if err != nil {
		return 0
	}
	_ = res.Body.Close()
	return res.StatusCode
}

func device(id string) []string { return []string{"X-Device-Id: " + id, "X-Device-Token: good"} }

// upstream answers each request with the request's own text.
func (e *edge) upstream(w http.ResponseWriter, r *http.Request) {
	got := fmt.Sprintf("upstream: %s %s device=%s", r.Method, r.RequestURI, r.Header.Get("X-Gatehouse-Device"))
	for name := range r.Header {
		if strings.ContainsAny(name, "_.") {
			got += " and " + name
		}
	}
	e.note(got)
	_, _ = io.WriteString(w, got+"\n")
}

// verify answers the sidecar's call: devices with the good secret are allowed.
func (e *edge) verify(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	response := wire.VerifyResponse{Outcome: wire.Deny, Epoch: 7}
	if request, err := wire.ParseVerifyRequest(body); err == nil {
		e.note("sidecar: " + request.DeviceID + " from " + request.Source)
		if request.Secret == "good" {
			response.Outcome = wire.Allow
		}
	}
	_, _ = w.Write(wire.AppendVerifyResponse(nil, &response))
}

func (e *edge) note(line string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.log = append(e.log, line)
}

// ask sends a request to a server of nginx. The result is the answer, and the requests to upstream and sidecar during
// the call.
func (e *edge) ask(server int, method, target string, headers ...string) string {
	e.mu.Lock()
	e.log = nil
	e.mu.Unlock()
	conn, err := net.Dial("unix", fmt.Sprintf("%s/%d.sock", e.dir, server))
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	require.NoError(e.t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	lines := append([]string{method + " " + target + " HTTP/1.1", "Connection: close"}, headers...)
	if !slices.ContainsFunc(headers, func(line string) bool { return strings.HasPrefix(line, "Host:") }) {
		lines = append(lines, "Host: x")
	}
	_, err = io.WriteString(conn, strings.Join(lines, "\r\n")+"\r\n\r\n")
	require.NoError(e.t, err)
	answer, err := io.ReadAll(conn)
	require.NoError(e.t, err)
	e.mu.Lock()
	defer e.mu.Unlock()
	return string(answer) + strings.Join(e.log, "\n")
}

func replaceOnce(t testing.TB, text, old, replacement string) string {
	t.Helper()
	if !strings.Contains(text, old) {
		t.Fatalf("there is no %q: bring the test up to date", old)
	}
	return strings.Replace(text, old, replacement, 1)
}

// wantCodes compares the codes of a report's findings.
func wantCodes(t testing.TB, report findings.Report, want []string) {
	t.Helper()
	var got []string
	for _, f := range report.Findings {
		got = append(got, f.Code)
	}
	if !slices.Equal(got, want) {
		t.Errorf("analysis: got %+v, want %q", report.Findings, want)
	}
}
