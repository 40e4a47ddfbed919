package nginx_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/nginx"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// edgeConfig is a whole edge, with the plugin's own files; the upstream and the sidecar are the test's.
const edgeConfig = configHead + initBlock + `
  underscores_in_headers on;
  server {
    listen unix:%[1]s/edge.sock;
    include %[2]s/server.conf;
    location / { proxy_pass http://unix:%[1]s/upstream.sock; proxy_set_header X-Rule $gatehouse_rule; }
    location = /fails { error_page 404 = /v1/me; root %[1]s; }
    location = /refused { error_page 400 /open; proxy_pass http://unix:%[1]s/upstream.sock; }
    location = /exits { error_page 400 /open; rewrite_by_lua_block { ngx.exit(400) } }
    location = /exits/200 { error_page 400 =200 /open; rewrite_by_lua_block { ngx.exit(400) } }
    location = /exits/named { error_page 400 =200 @named; rewrite_by_lua_block { ngx.exit(400) } }
    location = /v1/exits { error_page 400 =200 @named; rewrite_by_lua_block { ngx.exit(400) } }
    location @named { proxy_pass http://unix:%[1]s/upstream.sock; }
    location = /status { rewrite_by_lua_block { ngx.status = 400 } proxy_pass http://unix:%[1]s/upstream.sock; }
    location = /v1/status { rewrite_by_lua_block { ngx.status = 400 } proxy_pass http://unix:%[1]s/upstream.sock; }
  }
  server { listen unix:%[1]s/push.sock; include %[2]s/push.conf; }
  server {
    listen unix:%[1]s/admin.sock;
    location = /metrics { content_by_lua_block { require("gatehouse.counters").print() } }
    location = /ready { content_by_lua_block { require("gatehouse.edge").ready() } }
    location = /healthcheck/fail { content_by_lua_block { require("gatehouse.edge").drain(true) } }
    location = /healthcheck/ok { content_by_lua_block { require("gatehouse.edge").drain(false) } }
  }
}
`

const edgeRules = `
credentials: {id_header: x-device-id, secret_header: x-device-token}
session: {metadata: gatehouse}
source: {header: x-client}
max_staleness: 60s
rules:
- {match: {path: /v1/session, methods: [POST]}, session: issue}
- {name: products, match: {prefix: /v1/products/}, cache: {}}
- {match: {prefix: /v1/fetched/}, cache: {on_miss: fetch}}
- {match: {path: /v1/admin}, auth: {permissions: [admin]}}
- {match: {prefix: /v1/}, auth: {}}
- {match: {path: /}, auth: {}}
- {match: {path: /refused, methods: [POST]}, auth: {}}
`

// testEdge is an nginx with an upstream and a sidecar.
type testEdge struct {
	dir     string
	sidecar *testSidecar
	servers map[string]*http.Server // by socket
	changes *strings.Replacer       // of nginx.conf
	running *exec.Cmd
	ended   chan error
}

// startEdge starts an edge whose memory has no state yet, with changes of nginx.conf.
func startEdge(t *testing.T, changes ...string) *testEdge {
	t.Helper()
	e := &testEdge{dir: t.TempDir(), sidecar: newTestSidecar(t), servers: map[string]*http.Server{}}
	e.changes = strings.NewReplacer(changes...)
	rules, _, err := nginx.Render([]byte(edgeRules))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(e.dir, "rules.json"), rules, 0o600))
	e.serve(t, "upstream.sock", http.HandlerFunc(echo))
	e.serve(t, "api.sock", e.sidecar)
	// nginx must start after a killed nginx.
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: e.socket("push.sock"), Net: "unix"})
	require.NoError(t, err)
	stale.SetUnlinkOnClose(false)
	require.NoError(t, stale.Close())

	e.start(t)
	t.Cleanup(func() {
		e.stop(os.Interrupt)
		if log, err := os.ReadFile(filepath.Join(e.dir, "error.log")); err == nil && t.Failed() {
			t.Logf("%s", log)
		}
	})
	return e
}

// start starts nginx.
func (e *testEdge) start(t *testing.T) {
	t.Helper()
	e.running, e.ended = e.command(t), make(chan error, 1)
	require.NoError(t, e.running.Start())
	go func(cmd *exec.Cmd, ended chan<- error) { ended <- cmd.Wait() }(e.running, e.ended)
	await.Until(t, "nginx listens", func() bool {
		conn, err := net.Dial("unix", e.socket("admin.sock"))
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
}

// stop ends nginx by a signal, and waits for its end.
func (e *testEdge) stop(signal os.Signal) {
	_ = e.running.Process.Signal(signal)
	err := <-e.ended
	e.ended <- err // for the next time
}

// command returns the command that starts the edge.
func (e *testEdge) command(t *testing.T) *exec.Cmd {
	t.Helper()
	path, err := stack.FindNginx()
	require.NoError(t, err)
	config := filepath.Join(e.dir, "nginx.conf")
	require.NoError(t, os.WriteFile(config, []byte(e.changes.Replace(configOf(t, edgeConfig, e.dir))), 0o600))
	return exec.Command(path, "-p", e.dir, "-c", config, "-e", filepath.Join(e.dir, "error.log"))
}

func (e *testEdge) socket(name string) string { return filepath.Join(e.dir, name) }

func (e *testEdge) serve(t *testing.T, socket string, handler http.Handler) {
	t.Helper()
	listener, err := net.Listen("unix", e.socket(socket))
	require.NoError(t, err)
	server := &http.Server{Handler: handler}
	e.servers[socket] = server
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}

// echo is the upstream: it answers with the received request.
func echo(w http.ResponseWriter, r *http.Request) {
	var lines []string
	for name, values := range r.Header {
		lines = append(lines, name+": "+strings.Join(values, "|"))
	}
	slices.Sort(lines)
	fmt.Fprintf(w, "%s %s\n%s\n", r.Method, r.RequestURI, strings.Join(lines, "\n"))
}

// send sends a request to a server of the edge, as it is, and returns the answer.
func (e *testEdge) send(t *testing.T, socket, request string) (res *http.Response, body string) {
	t.Helper()
	conn := e.write(t, socket, request)
	defer conn.Close()
	method, _, _ := strings.Cut(request, " ")
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res, string(text)
}

// exchange sends requests verbatim to a server of the edge, and returns all answers until the connection ends.
func (e *testEdge) exchange(t *testing.T, socket, requests string) string {
	t.Helper()
	conn := e.write(t, socket, requests)
	defer conn.Close()
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Errorf("%q: %v", requests, err)
	}
	return string(got)
}

// write connects to a server of the edge for 10 s at most, and writes requests.
func (e *testEdge) write(t *testing.T, socket, requests string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", e.socket(socket))
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = io.WriteString(conn, requests)
	require.NoError(t, err)
	return conn
}

// ask sends a request with headers, one a line, to the edge.
func (e *testEdge) ask(t *testing.T, method, target string, headers ...string) (res *http.Response, body string) {
	t.Helper()
	lines := strings.Join(append([]string{method + " " + target + " HTTP/1.1", "Host: edge"}, headers...), "\r\n")
	return e.send(t, "edge.sock", lines+"\r\n\r\n")
}

// device returns the headers of a device.
func device(id, secret string) []string {
	return []string{"X-Device-Id: " + id, "X-Device-Token: \t" + secret + " \t"}
}

func bodyOp(b []byte, epoch uint64, slot uint32, body []byte) []byte {
	return wire.AppendOp(b, wire.RegionBodies, slot, func(dst []byte) []byte {
		return wire.AppendBody(dst, epoch, 1, body)
	})
}

// push sends a batch with a state, an object under key with the body "hello", and a bucket of verdicts.
func (e *testEdge) push(t *testing.T, epoch, replaces uint64, key string, devicesComplete bool) {
	t.Helper()
	now := time.Now().UnixMilli()
	s := wire.State{Epoch: epoch, InStepMS: now, HeartbeatMS: now, ObjectBuckets: 1, VerdictBuckets: 1,
		DevicesComplete: devicesComplete}
	_, tag := s.Keys.Place(key, s.ObjectBuckets)
	o := wire.Object{Key: key, Version: 1, PublishedMS: now - 5000, ETag: `"v1"`, ContentType: "text/plain"}
	o.AddVariant(wire.Variant{Length: 5, Stamp: 1})
	// One device is new: the sidecar may throttle the device's source. The verdict of a second device is due for a
	// refresh.
	_, newTag := s.Keys.Device("new", s.VerdictBuckets)
	verdict := wire.Verdict{Outcome: wire.Allow, Digest: s.Keys.Digest("old", "good"), ExpiresMS: now + 60_000,
		RefreshAfterMS: now - 1}
	batch := wire.AppendOp(wire.BeginBatch(nil, epoch, replaces), wire.RegionState, 0, func(dst []byte) []byte {
		return wire.AppendState(dst, &s)
	})
	batch = bodyOp(batch, epoch, 0, []byte("hello"))
	batch = wire.AppendOp(batch, wire.RegionVerdicts, 0, func(dst []byte) []byte {
		return wire.AppendVerdicts(dst, epoch, []wire.Verdict{verdict}, []wire.Device{{Tag: newTag, New: true}})
	})
	batch = wire.AppendOp(batch, wire.RegionObjects, 0, func(dst []byte) []byte {
		start := len(dst)
		return wire.FinishRecord(wire.AppendObject(wire.AppendObjectsHeader(dst, epoch, 1), tag, &o), start)
	})
	c := e.client("push.sock")
	res, err := c.Post("http://push/v1/apply", "", bytes.NewReader(batch))
	require.NoError(t, err)
	answer, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	if res.StatusCode != http.StatusOK {
		t.Fatalf("push: %s %q", res.Status, answer)
	}
}

// client returns a client of one of the edge's servers, whatever the host in a URL.
func (e *testEdge) client(socket string) *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", e.socket(socket))
	}
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
}

// origin is a call's information about the request.
type origin struct{ requestID, traceparent string }

// testSidecar answers calls: the secret of a verification says what, and keys of objects have the key as their body.
type testSidecar struct {
	jwks string
	slow atomic.Bool // it doesn't answer verifications

	mu      sync.Mutex
	calls   map[string]int    // by path, of verifications with the device's id
	origins map[string]origin // of the last such call
	hits    []string
}

func (s *testSidecar) count(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[call]
}

func (s *testSidecar) origin(call string) origin {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.origins[call]
}

func (s *testSidecar) reported(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.hits, key)
}

func (s *testSidecar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	request, _ := wire.ParseVerifyRequest(body)
	s.mu.Lock()
	s.calls[r.URL.Path+" "+request.DeviceID]++
	s.origins[r.URL.Path+" "+request.DeviceID] = origin{r.Header.Get("X-Request-Id"), r.Header.Get("Traceparent")}
	if r.URL.Path == "/v1/hits" {
		keys, _ := wire.ParseHits(body)
		s.hits = append(s.hits, keys...)
	}
	s.mu.Unlock()
	for r.URL.Path == "/v1/verify" && s.slow.Load() {
		<-time.After(10 * time.Millisecond)
	}
	var outcome wire.Outcome
	switch request.Secret {
	case "", "good", "admin": // a session has no secret
		outcome = wire.Allow
	case "busy":
		outcome = wire.Unavailable
	default:
		outcome = wire.Deny
	}
	switch r.URL.Path {
	case "/v1/verify":
		v := wire.VerifyResponse{Outcome: outcome, Epoch: testEpoch}
		if outcome == wire.Unavailable {
			v.RetryAfterS, v.ThrottleMS = 3, 60_000
		}
		if request.Secret == "admin" {
			v.Permissions = "admin"
		}
		_, _ = w.Write(wire.AppendVerifyResponse(nil, &v))
	case "/v1/session":
		v := wire.SessionResponse{Outcome: outcome}
		if outcome == wire.Allow {
			v.Body = []byte(`{"token":"t"}`)
		}
		_, _ = w.Write(wire.AppendSessionResponse(nil, &v))
	case "/v1/fetch":
		s.fetch(w, string(body))
	case "/v1/session/jwks":
		_, _ = io.WriteString(w, s.jwks)
	}
}

func (s *testSidecar) fetch(w http.ResponseWriter, key string) {
	switch key {
	case "/v1/fetched/broken":
		http.Error(w, "broken", http.StatusInternalServerError)
	case "/v1/fetched/none":
		_, _ = w.Write(wire.AppendFetchResponse(nil, testEpoch, nil, nil))
	default:
		o := wire.Object{Key: key, Version: 1, PublishedMS: time.Now().UnixMilli() - 5000,
			ETag: `"f1"`, ContentType: "text/plain"}
		o.AddVariant(wire.Variant{Length: uint32(len(key)), Stamp: 1})
		_, _ = w.Write(wire.AppendFetchResponse(nil, testEpoch, &o, [][]byte{[]byte(key)}))
	}
}
