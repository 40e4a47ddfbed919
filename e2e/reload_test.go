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
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// reloading is an edge that runs as docs/systemd starts Envoy: with the parts of its configuration.
type reloading struct {
	*edge
	dir   string // of the parts
	admin string
}

// startReloading starts one. Instead of Envoy the stack runs what renders the parts first, like ExecStartPre.
func startReloading(t *testing.T, opts stack.Options) *reloading {
	t.Helper()
	envoy, err := stack.FindEnvoy()
	if err != nil {
		t.Fatal(err)
	}
	ctl, err := filepath.Abs("../build/gatehousectl")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "parts")
	script := fmt.Sprintf("#!/bin/sh -e\n[ \"$1\" = --config-path ]\n%s envoy render \"$2\" --dir %s\nshift 2\n"+
		"exec %s --config-path %s/envoy.yaml \"$@\"\n", ctl, dir, envoy, dir)
	path := filepath.Join(t.TempDir(), "envoy")
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	opts.EnvoyPath = path
	e := start(t, opts)
	return &reloading{e, dir, strings.TrimPrefix(e.EnvoyAdminURL(), "http://")}
}

// edit replaces a text of the configuration, as an operator's editor does, where it is first.
func (r *reloading) edit(before, after string) {
	r.t.Helper()
	r.editAt(strings.Index, before, after)
}

// editAt replaces a text where index finds it.
func (r *reloading) editAt(index func(text, part string) int, before, after string) {
	r.t.Helper()
	text, err := os.ReadFile(r.ConfigPath())
	if err != nil {
		r.t.Fatal(err)
	}
	at := index(string(text), before)
	if at < 0 {
		r.t.Fatalf("%s has no %q", r.ConfigPath(), before)
	}
	changed := string(text[:at]) + after + string(text[at+len(before):])
	if err := os.WriteFile(r.ConfigPath(), []byte(changed), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// addRule adds a rule before the others of each listener.
func (r *reloading) addRule(rule string) {
	r.t.Helper()
	text, err := os.ReadFile(r.ConfigPath())
	if err != nil {
		r.t.Fatal(err)
	}
	first := regexp.MustCompile(`(?m)^( *)- name: telemetry`)
	if !first.Match(text) {
		r.t.Fatalf("%s has no rule telemetry", r.ConfigPath())
	}
	if err := os.WriteFile(r.ConfigPath(), first.ReplaceAll(text, []byte("$1- "+rule+"\n$0")), 0o600); err != nil {
		r.t.Fatal(err)
	}
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
	if err != nil {
		r.t.Fatal(err)
	}
	return ms
}

// traffic is requests on connections that stay open while rules change.
type traffic struct {
	requests atomic.Int64
	failures sync.Map // text: true
	done     chan struct{}
	group    sync.WaitGroup
}

// run repeats the requests on a connection of its own, each with the statuses that it may get.
func (tr *traffic) run(e *edge, ask func(n int) (first string, lines []string, want int)) {
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
// that wait for the sidecar, that are known and that are wrong, and what no rule matches. None may fail, and no
// connection may be closed.
func TestEnvoyReload(t *testing.T) {
	t.Parallel()
	skipOnThisEdge(t)
	// No verification is given up on a slow machine; one that a reload loses ends the test.
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
	changes := sized(20, 6)
	r.put("/v1/products/1", `{"id":1}`)
	r.device("d", "s", 4, "telemetry.write")
	const fresh = 50
	for i := range fresh {
		r.device(fmt.Sprint("fresh-", i), "s", 8, "telemetry.write")
	}
	r.until("the object", func(a answer) bool {
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
		tr.run(r.edge, same(200, "GET /v1/products/1"))
		tr.run(r.edge, same(304, "GET /v1/products/1", "if-none-match: "+etag))
		tr.run(r.edge, same(200, "POST /v1/telemetry", credential("d", "s")...))
		tr.run(r.edge, same(401, "POST /v1/telemetry"))
		tr.run(r.edge, func(n int) (string, []string, int) { // the first one of each waits for a verdict
			return "POST /v1/telemetry", credential(fmt.Sprint("fresh-", n%fresh), "s"), 200
		})
		tr.run(r.edge, same(200, "GET /unruled"))
	}
	client := newClient()
	var longest time.Duration
	var slowest int
	for i := range changes {
		path := fmt.Sprintf("/n/%d", i)
		if a, err := r.try(client, "POST "+path); err != nil || a.status != 200 {
			t.Fatalf("before the change: got %d, %v", a.status, err)
		}
		r.addRule(fmt.Sprintf("{match: {path: %s}, auth: {}}", path))
		slowest = max(slowest, r.mustReload())
		took := await(t, "the new rule", patience, func() error {
			if a, err := r.try(client, "POST "+path); err != nil || a.status != 401 {
				return fmt.Errorf("got %d, %w", a.status, err)
			}
			return nil
		})
		longest = max(longest, took)
	}
	close(tr.done)
	tr.group.Wait()
	tr.failures.Range(func(failure, _ any) bool { t.Error(failure); return true })
	t.Logf("%d requests on 12 connections during %d changes, which took %d ms at most, and %v until they were seen",
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
	r.refuses(t)
}

// refuses has Envoy go on with its rules where others can't be applied.
func (r *reloading) refuses(t *testing.T) {
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
	r.edit("path: /n/0}", "pathh: /n/0}")
	fails("an unknown field", "unknown field")
	r.edit("pathh: /n/0}", "path: /n/0}")

	r.edit("stat_prefix: edge", "stat_prefix: other")
	r.edit("path: /n/0}", "path: /gone}")
	fails("a change beside the rules", `first "stat_prefix: other"; restart Envoy`)
	r.edit("stat_prefix: other", "stat_prefix: edge")
	r.edit("path: /gone}", "path: /n/0}")

	// What check can't see: a module or a runtime that this Envoy doesn't have.
	file := filepath.Join(r.dir, "gatehouse.yaml")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
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
		r.edit("path: /n/0}", "path: /gone}")
		fails("a module that Envoy can't run", tt.filter+": Envoy refuses it and goes on as before")
		if text, err := os.ReadFile(file); err != nil || string(text) != string(whole) {
			t.Errorf("%s is refused: the file of gatehouse is not as before: %v", tt.filter, err)
		}
		r.editAt(tt.index, hasNot, has)
		r.edit("path: /gone}", "path: /n/0}")
	}

	// A file that another program replaced, as kubelet does.
	replace := func(text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(file+".new", []byte(text), 0o600), os.Rename(file+".new", file)); err != nil {
			t.Fatal(err)
		}
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
	r.edit("path: /n/0}", "path: /n/new}")
	r.mustReload()
	if a := r.send("POST /n/new"); a.status != 401 {
		t.Errorf("after a file that Envoy rejected: got %d", a.status)
	}
	if out, err := r.reload(); err != nil || !strings.Contains(out, "gatehouse: unchanged") {
		t.Errorf("nothing changed: got %v %s", err, out)
	}
}
