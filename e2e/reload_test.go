package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// reloading is an edge that runs as docs/systemd starts Envoy: with the parts of the configuration.
type reloading struct {
	*edge
	dir   string // of the parts
	admin string
}

// startReloading starts an edge. Instead of Envoy the stack runs the command that renders the parts first, like
// ExecStartPre.
func startReloading(t *testing.T, opts stack.Options) *reloading {
	t.Helper()
	envoy, err := stack.FindEnvoy()
	require.NoError(t, err)
	ctl, err := filepath.Abs("../build/gatehousectl")
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "parts")
	script := fmt.Sprintf("#!/bin/sh -e\n[ \"$1\" = --config-path ]\n%s envoy render \"$2\" --dir %s\nshift 2\n"+
		"exec %s --config-path %s/envoy.yaml \"$@\"\n", ctl, dir, envoy, dir)
	path := filepath.Join(t.TempDir(), "envoy")
	require.NoError(t, os.WriteFile(path, []byte(script), 0o700))
	opts.EnvoyPath = path
	e := start(t, opts)
	return &reloading{e, dir, strings.TrimPrefix(e.EnvoyAdminURL(), "http://")}
}

// editFirst replaces the first occurrence of a text in the configuration, as an operator's editor does.
func (r *reloading) editFirst(before, after string) {
	r.t.Helper()
	r.editAt(strings.Index, before, after)
}

// editAt replaces a text at the position that index returns.
func (r *reloading) editAt(index func(text, part string) int, before, after string) {
	r.t.Helper()
	text, err := os.ReadFile(r.ConfigPath())
	require.NoError(r.t, err)
	at := index(string(text), before)
	if at < 0 {
		r.t.Fatalf("%s has no %q", r.ConfigPath(), before)
	}
	changed := string(text[:at]) + after + string(text[at+len(before):])
	require.NoError(r.t, os.WriteFile(r.ConfigPath(), []byte(changed), 0o600))
}

// addRule adds a first rule to each listener.
func (r *reloading) addRule(rule string) {
	r.t.Helper()
	text, err := os.ReadFile(r.ConfigPath())
	require.NoError(r.t, err)
	first := regexp.MustCompile(`(?m)^( *)- name: telemetry`)
	if !first.Match(text) {
		r.t.Fatalf("%s has no rule telemetry", r.ConfigPath())
	}
	require.NoError(r.t, os.WriteFile(r.ConfigPath(), first.ReplaceAll(text, []byte("$1- "+rule+"\n$0")), 0o600))
}

func (r *reloading) reload() (string, error) {
	r.t.Helper()
	return gatehousectl(r.t, "envoy", "reload", r.ConfigPath(), "--dir", r.dir, "--admin", r.admin)
}

// mustReload returns how long Envoy took.
func (r *reloading) mustReload() (ms int) {
	r.t.Helper()
	out, err := r.reload()
	found := regexp.MustCompile(`(?m)^gatehouse: applied in (\d+) ms$`).FindStringSubmatch(out)
	if err != nil || found == nil {
		r.t.Fatalf("reload: got %v %s", err, out)
	}
	ms, err = strconv.Atoi(found[1])
	require.NoError(r.t, err)
	return ms
}

// traffic is requests on connections that stay open while rules change.
type traffic struct {
	requests atomic.Int64
	failures sync.Map // text: true
	done     chan struct{}
	group    sync.WaitGroup
}

// repeatRequests repeats the requests on its own connection, each with the allowed statuses.
func (tr *traffic) repeatRequests(e *edge, ask func(n int) (first string, lines []string, want int)) {
	client := newClient()
	client.Transport.(*http.Transport).MaxConnsPerHost = 1
	tr.group.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-tr.done:
				return
			default:
			}
			first, lines, want := ask(n)
			a, err := e.try(client, first, lines...)
			if err != nil || a.status != want || a.header.Get("Connection") == "close" {
				tr.failures.Store(fmt.Sprintf("%s: got %v, %d %v, want %d", first, err, a.status, a.header, want), true)
			}
			tr.requests.Add(1)
		}
	})
}

// TestEnvoyReload changes rules while requests of each kind come on connections that stay open: hits, 304s, credentials
// that wait for the sidecar, known credentials, wrong credentials, and requests without a rule. None may fail, and no
// connection may be closed. Each new rule asks for a permission that no rule asked for before: a device that has had it
// all the time is never refused, and a device without it is from the first request under the rule on.
func TestEnvoyReload(t *testing.T) {
	t.Parallel()
	skipOnThisEdge(t)
	// No verification is given up on a slow machine; a verification that a reload loses ends the test.
	r := startReloading(t, stack.Options{SidecarArgs: []string{"--bcrypt.wait", "15s"},
		ModifyConfig: func(c *stack.Config) error {
			listeners, second := filterPath[:2:2], slices.Clone(filterPath)
			second[2] = "second"
			return errors.Join(
				c.Set("18s", append(filterPath, "vm_config", "configuration", "value", "sidecar", "timeout")...),
				c.Copy("edge", "second", listeners...), c.SetAddress(redistest.FreeAddress(t), append(listeners, "second")...),
				c.Set([]any{}, append(second, "vm_config", "configuration", "value", "rules")...),
				c.Set("second", append(second[:len(second)-2:len(second)-2], "name")...))
		}})
	changes := pickSize(20, 6)
	r.put("/v1/products/1", `{"id":1}`)
	asked := []string{"telemetry.write"}
	for i := range changes {
		asked = append(asked, fmt.Sprint("asked.", i))
	}
	r.putDevice("d", "s", 4, asked...)
	r.putDevice("other", "s", 4, "telemetry.write")
	const fresh = 50
	for i := range fresh {
		r.putDevice(fmt.Sprint("fresh-", i), "s", 8, "telemetry.write")
	}
	r.awaitAnswer("the object", func(a answer) bool {
		return a.status == 200 && a.header.Get("Cache-Status") != "" &&
			strings.Contains(a.header.Get("Cache-Status"), "hit")
	}, "GET /v1/products/1")
	etag := r.send("GET /v1/products/1").header.Get("Etag")
	tr := &traffic{done: make(chan struct{})}
	same := func(want int, first string, lines ...string) func(int) (string, []string, int) {
		return func(int) (string, []string, int) { return first, lines, want }
	}
	before := r.UpstreamRequests()
	for range 2 { // each worker
		tr.repeatRequests(r.edge, same(200, "GET /v1/products/1"))
		tr.repeatRequests(r.edge, same(304, "GET /v1/products/1", "if-none-match: "+etag))
		tr.repeatRequests(r.edge, same(200, "POST /v1/telemetry", credential("d", "s")...))
		tr.repeatRequests(r.edge, func(n int) (string, []string, int) {
			return fmt.Sprint("POST /n/", n%changes), credential("d", "s"), 200
		})
		tr.repeatRequests(r.edge, same(401, "POST /v1/telemetry"))
		tr.repeatRequests(r.edge, func(n int) (string, []string, int) { // the first one of each waits for a verdict
			return "POST /v1/telemetry", credential(fmt.Sprint("fresh-", n%fresh), "s"), 200
		})
		tr.repeatRequests(r.edge, same(200, "GET /unruled"))
	}
	client := newClient()
	var longest time.Duration
	var slowest int
	for i := range changes {
		path := fmt.Sprintf("/n/%d", i)
		if a, err := r.try(client, "POST "+path); err != nil || a.status != 200 {
			t.Fatalf("before the change: got %d, %v", a.status, err)
		}
		r.addRule(fmt.Sprintf("{match: {path: %s}, auth: {permissions: [asked.%d]}}", path, i))
		slowest = max(slowest, r.mustReload())
		took := await(t, "the new rule", patience, func() error {
			if a, err := r.try(client, "POST "+path); err != nil || a.status != 401 {
				return fmt.Errorf("got %d, %w", a.status, err)
			}
			return nil
		})
		longest = max(longest, took)
		for id, want := range map[string]int{"d": 200, "other": 403} {
			if a, err := r.try(client, "POST "+path, credential(id, "s")...); err != nil || a.status != want {
				t.Errorf("%s: %s under the new rule: got %d, %v, want %d", path, id, a.status, err, want)
			}
		}
	}
	close(tr.done)
	tr.group.Wait()
	tr.failures.Range(func(failure, _ any) bool { t.Error(failure); return true })
	t.Logf("%d requests on 14 connections during %d changes, which took %d ms at most, and %v until they were seen",
		tr.requests.Load(), changes, slowest, longest)
	for _, closed := range []string{"destroy_local", "drain_close"} { // by Envoy
		if n := r.stat("http.edge.downstream_cx_" + closed); n != 0 {
			t.Errorf("got %d connections with %s, want none", n, closed)
		}
	}
	if n := tr.requests.Load(); n < int64(100*changes) {
		t.Errorf("got %d requests, want %d", n, 100*changes)
	}
	if longest > time.Second {
		t.Errorf("rules took effect %v after reload had ended", longest)
	}
	if r.UpstreamRequests() == before {
		t.Error("the upstream saw nothing")
	}
	r.checkRefusedRules(t)
}

// checkRefusedRules has Envoy go on with its rules where new ones can't be applied.
func (r *reloading) checkRefusedRules(t *testing.T) {
	t.Helper()
	still := func(what string) {
		t.Helper()
		if a := r.send("POST /n/0"); a.status != 401 {
			t.Errorf("%s: a rule is gone: got %d", what, a.status)
		}
		if a := r.send("GET /v1/products/1"); a.status != 200 || !strings.Contains(a.header.Get("Cache-Status"), "hit") {
			t.Errorf("%s: the memory is gone: got %d %s", what, a.status, a.header.Get("Cache-Status"))
		}
	}
	fails := func(what, want string) {
		t.Helper()
		out, err := r.reload()
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: got %v %s, want %q", what, err, out, want)
		}
		still(what)
	}
	r.editFirst("path: /n/0}", "pathh: /n/0}")
	fails("an unknown field", "unknown field")
	r.editFirst("pathh: /n/0}", "path: /n/0}")

	r.editFirst("stat_prefix: edge", "stat_prefix: other")
	r.editFirst("path: /n/0}", "path: /gone}")
	fails("a change beside the rules", `first "stat_prefix: other"; restart Envoy`)
	r.editFirst("stat_prefix: other", "stat_prefix: edge")
	r.editFirst("path: /gone}", "path: /n/0}")

	// An error that check can't see: a module or a runtime that this Envoy doesn't have.
	file := filepath.Join(r.dir, "gatehouse.yaml")
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	has, hasNot := "envoy.wasm.runtime.v8", "envoy.wasm.runtime.wamr"
	if onNative() {
		has, hasNot = "libgatehouse.so", "none/libgatehouse.so"
	}
	for _, tt := range []struct {
		filter string
		index  func(text, part string) int // of the filter's module
	}{
		{"gatehouse", strings.Index},
		{"second", strings.LastIndex}, // gatehouse has been applied before
	} {
		r.editAt(tt.index, has, hasNot)
		r.editFirst("path: /n/0}", "path: /gone}")
		fails("a module that Envoy can't run", tt.filter+": Envoy refuses it and goes on as before")
		if text, err := os.ReadFile(file); err != nil || string(text) != string(whole) {
			t.Errorf("%s is refused: the file of gatehouse is not as before: %v", tt.filter, err)
		}
		r.editAt(tt.index, hasNot, has)
		r.editFirst("path: /gone}", "path: /n/0}")
	}

	// A file that another program replaced, as kubelet does.
	replace := func(text string) {
		t.Helper()
		require.NoError(t, errors.Join(os.WriteFile(file+".new", []byte(text), 0o600), os.Rename(file+".new", file)))
	}
	const rejected = "extension_config_discovery.http_filter.gatehouse.update_rejected"
	count := r.stat(rejected)
	replace(strings.Replace(string(whole), "path: /n/0}", "pathh: /n/0}", 1))
	await(t, rejected, patience, func() error {
		if n := r.stat(rejected); n != count+1 {
			return fmt.Errorf("got %d", n)
		}
		return nil
	})
	still("a file that Envoy rejects")
	sidecar := strings.TrimPrefix(r.SidecarAdminURL(), "http://")
	await(t, "the status", patience, func() error {
		out, err := gatehousectl(t, "status", "--sidecar", sidecar)
		if !strings.Contains(out, "Envoy refused 3 changes of the rules") {
			return fmt.Errorf("got %s, %w", out, err)
		}
		return nil
	})
	if out, err := gatehousectl(t, "explain", "/n/0", "--sidecar", sidecar); err == nil ||
		!strings.Contains(out, "Envoy refused those that it read last") {
		t.Errorf("explain: got %v %s", err, out)
	}
	r.editFirst("path: /n/0}", "path: /n/new}")
	r.mustReload()
	if a := r.send("POST /n/new"); a.status != 401 {
		t.Errorf("after a file that Envoy rejected: got %d", a.status)
	}
	if out, err := r.reload(); err != nil || !strings.Contains(out, "gatehouse: unchanged") {
		t.Errorf("nothing changed: got %v %s", err, out)
	}
}
