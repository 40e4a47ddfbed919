package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// explained is the part of an explanation that the test reads.
type explained struct {
	Rule   *struct{ Index int }
	Answer struct {
		Action, Reason, Text string
		Status               int
	}
	IfRight *struct {
		Action, Reason string
		Status         int
	} `json:"if_right"`
	Key    string
	Object *struct {
		Redis, Sidecar, Edge struct{ Version int }
		NotSent              []string `json:"not_sent"`
	}
	Device *struct {
		ID          string
		Permissions []string
		Sidecar     struct {
			Refusal string
			Refused struct{ Reason, Text, From string } `json:"last_refused"`
		}
	}
}

// decodeCtl runs gatehousectl with the edge's addresses and decodes the output into v.
func (e *edge) decodeCtl(v any, args ...string) {
	e.t.Helper()
	args = append(args, "--json", "--sidecar", strings.TrimPrefix(e.SidecarAdminURL(), "http://"))
	text := e.ctl(args...)
	if reflect.TypeOf(v).Elem().Kind() == reflect.Slice {
		text = listOf(text)
	}
	if err := json.Unmarshal([]byte(text), v); err != nil {
		e.t.Fatalf("gatehousectl %s: %v: %s", strings.Join(args, " "), err, text)
	}
}

func listOf(lines string) string {
	return "[" + strings.Join(strings.Split(strings.TrimSpace(lines), "\n"), ",") + "]"
}

const operatorRules = `
sidecar: {cluster: gatehouse-sidecar, timeout: 1s}
credentials: {id_header: x-device-id, secret_header: x-device-token}
rules:
- match: {prefix: /hit}
  cache: {}
- match: {prefix: /fetch}
  cache: {on_miss: fetch}
- match: {prefix: /admin}
  auth: {permissions: [admin]}
- match: {prefix: /me}
  auth: {}
  cache: {scope: device}
- match: {prefix: /open}
default: deny
`

// TestExplain compares each explanation with the edge's next answer.
func TestExplain(t *testing.T) {
	leaveToOtherEdges(t)
	t.Parallel()
	e := start(t, stack.Options{Rules: operatorRules})
	e.put("/hit", "body")
	e.put("@dev/me", "mine")
	e.putDevice("dev", "secret", 4, "write")
	e.putDevice("root", "secret", 4, "admin")
	e.putDevice("new", "secret", 4, "admin")
	e.putDevice("gone", "secret", 4, "admin")
	e.ctl("device", "revoke", "gone")
	e.awaitAnswer("the object is at the edge", hasBody("body"), "GET /hit")
	tag := e.send("GET /hit").header.Get("etag")
	e.awaitAnswer("the device is known", hasStatus(200), "GET /admin", credential("root", "secret")...)
	e.awaitAnswer("the device's object is at the edge", hasBody("mine"), "GET /me", credential("dev", "secret")...)
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(rules, []byte(operatorRules), 0o600))
	from := []string{"--rules", rules}
	if !onNginx() { // Envoy tells its rules
		from = nil
	}
	for _, tt := range []struct {
		name, request string
		header        []string
		device        string
		rule          int // -1: none
		action        string
		status        int
		reason, then  string // then: once the secret was verified
	}{
		{"hit", "GET /hit", nil, "", 0, "reply", 200, "gatehouse_hit", ""},
		{"not modified", "GET /hit", []string{"if-none-match: " + tag}, "", 0, "reply", 304, "gatehouse_not_modified", ""},
		{"other method", "POST /hit", nil, "", 0, "pass", 200, "", ""},
		{"miss", "GET /hit/other", nil, "", 0, "pass", 200, "", ""},
		{"fetch", "GET /fetch/none", nil, "", 1, "fetch", 200, "", ""},
		{"no credential", "GET /admin", nil, "", 2, "reply", 401, "gatehouse_denied_no_credential", ""},
		{"unknown device", "GET /admin", credential("nobody", "x"), "", 2, "reply", 401,
			"gatehouse_denied_unknown_device", ""},
		{"revoked", "GET /admin", nil, "gone", 2, "reply", 401, "gatehouse_denied_unknown_device", ""},
		{"permission", "GET /admin", nil, "dev", 2, "reply", 403, "gatehouse_forbidden_permission", ""},
		{"right device", "GET /admin", nil, "root", 2, "pass", 200, "", ""},
		{"verified", "GET /admin", credential("root", "secret"), "", 2, "verify", 200, "", "pass"},
		{"wrong", "GET /admin", credential("root", "wrong"), "", 2, "verify", 401, "", "pass"},
		{"wrong at first", "GET /admin", credential("new", "wrong"), "", 2, "verify", 401, "", "pass"},
		{"to verify", "GET /admin", credential("new", "secret"), "", 2, "verify", 200, "", "pass"},
		{"own object", "GET /me", nil, "dev", 3, "reply", 200, "gatehouse_hit", ""},
		{"open", "GET /open", nil, "", 4, "pass", 200, "", ""},
		{"default", "GET /other", nil, "", -1, "reply", 403, "gatehouse_forbidden_default", ""},
		{"ambiguous", "GET /open/..%20/admin", nil, "", -1, "reply", 403, "gatehouse_forbidden_ambiguous_path", ""},
	} {
		method, path, _ := strings.Cut(tt.request, " ")
		args := append([]string{"explain", path, "--method", method}, from...)
		for _, line := range tt.header {
			args = append(args, "--header", line)
		}
		sent := tt.header
		if tt.device != "" {
			args = append(args, "--device", tt.device)
			sent = credential(tt.device, "secret")
		}
		var got explained
		e.decodeCtl(&got, args...)
		rule := -1
		if got.Rule != nil {
			rule = got.Rule.Index
		}
		then := ""
		if got.IfRight != nil {
			then = got.IfRight.Action
		}
		if rule != tt.rule || got.Answer.Action != tt.action || got.Answer.Reason != tt.reason || then != tt.then {
			t.Errorf("%s: got rule %d, %+v, then %q; want rule %d, %s, %q, then %q", tt.name, rule, got.Answer,
				then, tt.rule, tt.action, tt.reason, tt.then)
		}
		if tt.action == "reply" && got.Answer.Status != tt.status {
			t.Errorf("%s: explained as %d, want %d", tt.name, got.Answer.Status, tt.status)
		}
		if a := e.send(tt.request, sent...); a.status != tt.status {
			t.Errorf("%s: the edge answers %d, want %d", tt.name, a.status, tt.status)
		}
	}
	var got explained
	e.decodeCtl(&got, append([]string{"explain", "/hit"}, from...)...)
	if o := got.Object; got.Key != "/hit" || o == nil || o.Redis.Version != 1 || o.Sidecar.Version != 1 ||
		o.Edge.Version != 1 {
		t.Errorf("got key %q, object %+v, want version 1 everywhere", got.Key, o)
	}
	got = explained{}
	e.decodeCtl(&got, append([]string{"explain", "/admin", "--device", "gone"}, from...)...)
	if d := got.Device; d == nil || d.Sidecar.Refusal != "revoked" {
		t.Errorf("got device %+v, want a revoked one", d)
	}
	if !strings.HasPrefix(got.Answer.Text, "The device was revoked at 20") {
		t.Errorf("got %q, want that and when the device was revoked", got.Answer.Text)
	}
	got = explained{}
	e.decodeCtl(&got, append([]string{"explain", "/admin", "--device", "new"}, from...)...)
	if d := got.Device; d == nil || d.Sidecar.Refused.Reason != "bcrypt" || d.Sidecar.Refused.From != "127.0.0.1" {
		t.Errorf("got device %+v, want a wrong secret to be its last refusal", d)
	}
}

// TestOperator asks for status, held and top, releases a network, and reads the page.
func TestOperator(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	e := start(t, stack.Options{SidecarArgs: []string{"--admin.actions", "--limit.device", "1"}})
	e.putDevice("dev", "secret", 4, "telemetry.write")
	var state struct {
		Problems []struct{ Severity, Text string }
		Redis    struct{ Connected bool }
		Devices  struct{ Records, Held int }
	}
	await(t, "the status", patience, func() error {
		e.decodeCtl(&state, "status")
		if len(state.Problems) > 0 || !state.Redis.Connected || state.Devices.Records != 1 {
			return fmt.Errorf("got %+v", state)
		}
		return nil
	})
	await(t, "the list of sidecars", patience, func() error {
		var edges []struct {
			Ready, Gone bool
		}
		require.NoError(t, json.Unmarshal([]byte(listOf(e.ctl("edges", "--json"))), &edges))
		if len(edges) != 1 || !edges[0].Ready || edges[0].Gone {
			return fmt.Errorf("got %+v, want one that is ready", edges)
		}
		return nil
	})
	page := func() string {
		r, err := http.Get(e.SidecarAdminURL() + "/?" + url.Values{"device": {"dev"}, "url": {"/v1/products/1<b>"}}.Encode())
		require.NoError(t, err)
		defer func() { _ = r.Body.Close() }()
		text, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK ||
			!strings.Contains(r.Header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Fatalf("got %d %v: %v", r.StatusCode, r.Header, err)
		}
		return string(text)
	}
	if !strings.Contains(page(), "All is well") {
		t.Error("the page doesn't say that all is well")
	}
	for n := range 3 { // the first costs bcrypt, and then the limit holds the device back
		e.send("POST /v1/telemetry", credential("dev", fmt.Sprint("wrong", n))...)
	}
	held := func(want int) {
		t.Helper()
		await(t, "what is held", patience, func() error {
			var list []struct {
				Network, Device string
			}
			e.decodeCtl(&list, "held")
			if len(list) != want {
				return fmt.Errorf("got %+v, want %d", list, want)
			}
			return nil
		})
	}
	held(2) // the device at the address, and the address
	var top struct {
		Refused []struct{ Name string }
		Rates   map[string]float64
	}
	await(t, "the edge's counters", patience, func() error {
		e.decodeCtl(&top, "top", "--once")
		if len(top.Rates) == 0 {
			return errors.New("none")
		}
		return nil
	})
	if len(top.Refused) != 1 || top.Refused[0].Name != "127.0.0.1/32" {
		t.Errorf("got top %+v, want the loopback address refused", top)
	}
	text := page()
	for _, want := range []string{"because of limited", "127.0.0.1/32", "Release", "telemetry.write",
		"/v1/products/1&lt;b&gt;"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if strings.Contains(text, "<b>/v1") || strings.Contains(text, "=\"secret\"") || strings.Contains(text, " style=") {
		t.Error("the page has an unescaped name, a secret or an inline style")
	}
	alone, err := http.Get(e.SidecarAdminURL() + "/?device=dev&url=")
	require.NoError(t, err)
	body, err := io.ReadAll(alone.Body)
	if _ = alone.Body.Close(); err != nil || !strings.Contains(string(body), "May authenticate") ||
		strings.Contains(string(body), "malformed") {
		t.Errorf("the page does not show a device alone: %v", err)
	}
	form := url.Values{"network": {"127.0.0.1/32"}, "device": {""}}
	r, err := http.PostForm(e.SidecarAdminURL()+"/release", form)
	require.NoError(t, err)
	_ = r.Body.Close()
	held(0)
	if !strings.Contains(e.readLog("sidecar"), "an operator released") {
		t.Error("the release is not logged")
	}
	var level struct{ Level string }
	if e.decodeCtl(&level, "log-level", "debug"); level.Level != "DEBUG" {
		t.Errorf("got level %q, want DEBUG", level.Level)
	}
	e.awaitAnswer("the device authenticates", hasStatus(200), "POST /v1/telemetry", credential("dev", "secret")...)
	if !strings.Contains(e.readLog("sidecar"), "level=DEBUG msg=\"call answered\"") {
		t.Error("the answer is not logged at level debug")
	}
	for _, strange := range []struct {
		path, host, origin string
	}{{"/", "gatehouse.example:9090", ""}, {"/v1/status", "gatehouse.example", ""},
		{"/debug/pprof/symbol", "gatehouse.example", ""}, {"/release", "", "http://other.example"},
		{"/v1/release", "", "null"}} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, e.SidecarAdminURL()+strange.path, nil)
		require.NoError(t, err)
		if strange.host != "" {
			request.Host = strange.host
		}
		if strange.origin != "" {
			request.Method = http.MethodPost
			request.Header.Set("Origin", strange.origin)
		}
		r, err := shared.Do(request)
		require.NoError(t, err)
		_ = r.Body.Close()
		if r.StatusCode != http.StatusForbidden {
			t.Errorf("%+v: got %d, want 403", strange, r.StatusCode)
		}
	}
	require.NoError(t, e.KillRedis())
	await(t, "the status without Redis", patience, func() error {
		e.decodeCtl(&state, "status")
		if len(state.Problems) == 0 || state.Problems[0].Severity != "critical" ||
			!strings.HasPrefix(state.Problems[0].Text, "Redis is not followed") {
			return fmt.Errorf("got %+v", state.Problems)
		}
		return nil
	})
	if text := page(); !strings.Contains(text, "Redis is not followed") {
		t.Error("the page does not show that Redis is away")
	}
}

// TestExplainTokens compares each explanation of a token with the edge's next answer.
func TestExplainTokens(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	e := withSessions(t)
	k := e.awaitToken("dev", "secret", "telemetry.write")
	old := e.awaitToken("gone", "secret", "telemetry.write")
	e.ctl("device", "revoke", "gone")
	e.awaitAnswer("the token's device is revoked", hasStatus(401), "POST /v1/telemetry", old.headerLine())
	for _, tt := range []struct {
		name, line, action string
		status             int
		device             string
	}{
		{"good", k.headerLine(), "pass", 200, "dev"},
		{"of a revoked device", old.headerLine(), "reply", 401, "gone"},
		{"forged", k.headerLine() + "x", "reply", 401, ""},
	} {
		args := []string{"explain", "/v1/telemetry", "--method", "POST", "--header", tt.line}
		if onNginx() {
			config, err := sessionConfig()
			require.NoError(t, err)
			args = append(args, "--rules", config)
		}
		var got explained
		e.decodeCtl(&got, args...)
		device := ""
		if got.Device != nil {
			device = got.Device.ID
		}
		if got.Answer.Action != tt.action || tt.action == "reply" && got.Answer.Status != tt.status || device != tt.device {
			t.Errorf("%s: got %+v of device %q, want %s %d of %q", tt.name, got.Answer, device, tt.action, tt.status, tt.device)
		}
		if a := e.send("POST /v1/telemetry", tt.line); a.status != tt.status {
			t.Errorf("%s: the edge answers %d, want %d", tt.name, a.status, tt.status)
		}
	}
}
