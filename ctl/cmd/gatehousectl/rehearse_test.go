package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/check/rehearse"
)

const (
	shippedEnvoy = "../../../envoy/envoy.yaml"
	shippedRules = "../../../nginx/rules.yaml"
)

// edited writes a copy of a file with one text replaced.
func (s *shell) edited(name, old, replacement string) string {
	s.t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		s.t.Fatal(err)
	}
	if !strings.Contains(string(text), old) {
		s.t.Fatalf("%s has no %q", name, old)
	}
	return s.file(filepath.Base(name), strings.Replace(string(text), old, replacement, 1))
}

func TestRehearse(t *testing.T) {
	s := newShell(t)
	const telemetry = "{prefix: /v1/telemetry, methods: [POST]}"
	open := s.edited(shippedEnvoy, telemetry, "{prefix: /v1/telemetry/, methods: [PSOT]}")
	log := s.file("access.log", `{"method":"POST","path":"/v1/telemetry/a","host":"a.example"}
noise
[2026-11-27T10:08:06.123Z] "POST /v1/telemetry HTTP/1.1" 200 - 0 26 3 2 "-" "-" "-" "b.example" "127.0.0.1:8081"
::1 - - [27/Nov/2026:10:08:06 +0000] "GET /v1/me/config HTTP/1.1" 200 6 "-" "-"
`)
	const stdin = `{"method":"POST","path":"/v1/telemetry/b"}`
	want := result{exitWeakened, `CHANGE        OLD RULE   NEW RULE  PATH           REQUESTS  EXAMPLE
becomes open  telemetry  none      /v1/telemetry  3         POST a.example/v1/telemetry/a
3 of 4 requests would be judged differently
1 lines are unreadable, the first is ` + log + ":2\n",
		fmt.Sprintf("gatehousectl: %s lets in who is kept out by %s\n", open, shippedRules)}
	if got := s.run(stdin, "rehearse", "--from", shippedRules, "--to", open, log, "-"); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	r := s.run("", "rehearse", "--json", "--from", shippedRules, "--to", open, log)
	var report struct {
		Lines, Unreadable int
		Changes           []map[string]any
	}
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || r.code != exitWeakened || report.Lines != 4 ||
		report.Unreadable != 1 || len(report.Changes) != 1 || report.Changes[0]["class"] != "becomes open" ||
		report.Changes[0]["count"] != 2.0 {
		t.Errorf("got %+v, %v", r, err)
	}
	renamed := s.edited(shippedEnvoy, "name: telemetry", "name: metrics")
	if got := s.ok("", "rehearse", "--from", shippedEnvoy, "--to", renamed, log); !strings.HasPrefix(got,
		"0 of 3 requests would be judged differently\n") {
		t.Errorf("got %q", got)
	}
	tighter := s.edited(shippedRules, "default: pass", "default: deny")
	if got := s.ok(`{"method":"GET","path":"/x"}`, "rehearse", "--from", shippedEnvoy, "--to", tighter, "-"); !strings.Contains(
		got, "becomes refused") {
		t.Errorf("got %q", got)
	}
	hosts := s.file("rules.yaml", "virtual_hosts: {a: {domains: [a.example], default: deny}}")
	if got := s.ok(stdin, "rehearse", "--host", "a.example:80", "--from", shippedEnvoy, "--to", hosts,
		"-"); !strings.Contains(
		got, "becomes refused  telemetry  a/gatehouse_forbidden_default  /v1/telemetry  1         POST a.example:80/v1/") {
		t.Errorf("got %q", got)
	}

	s.fails(2, "missing flags: --to=FILE", "", "rehearse", "--from", shippedEnvoy, log)
	s.fails(2, "only one file can be standard input", "", "rehearse", "--from", "-", "--to", shippedEnvoy, "-")
	s.fails(1, "no such file", "", "rehearse", "--from", shippedEnvoy, "--to", shippedEnvoy, "none.log")
	s.fails(1, "no such file", "", "rehearse", "--from", "none.yaml", "--to", shippedEnvoy, log)
	s.fails(2, "-:1: no line has a request", "noise\n", "rehearse", "--from", shippedEnvoy, "--to", shippedEnvoy, "-")
	s.fails(2, "has no Gatehouse filter and no rules", "static_resources: {}", "rehearse", "--from", "-", "--to",
		shippedEnvoy, log)
	bad := s.edited(shippedRules, "auth: {permissions: [config.read]}", "auht: {}")
	s.fails(2, bad+": rules[2]", "", "rehearse", "--from", shippedEnvoy, "--to", bad, log)
}

// TestRulesFiles has rules in each kind of file.
func TestRulesFiles(t *testing.T) {
	s := newShell(t)
	rendered := s.file("rules.json", s.run("", "nginx", "render", shippedRules).stdout)
	conf := s.edited("../../../nginx/nginx.conf", `rules = "/etc/gatehouse/rules.json"`, `rules = "`+rendered+`"`)
	for _, file := range []string{rendered, conf, shippedEnvoy} {
		if got := s.ok("", "check", "--against", shippedRules, file); !strings.HasSuffix(got, file+": ok, 4 rules\n") ||
			strings.Contains(got, "CHANGE") {
			t.Errorf("%s: got %q", file, got)
		}
	}
	s.fails(2, "its init_by_lua names no rules", "", "check", "--against",
		s.edited("../../../nginx/nginx.conf", `rules = "/etc/gatehouse/rules.json",`, ""), shippedRules)

	listener := func(name, rules string) string {
		return `{name: ` + name + `, filter_chains: [{filters: [{typed_config: {"@type": type.googleapis.com/` +
			`envoy.extensions.filters.http.wasm.v3.Wasm, config: {vm_config: {vm_id: gatehouse, configuration: {` +
			`"@type": type.googleapis.com/google.protobuf.Struct, value: ` + rules + `}}}}}]}]}`
	}
	const deny, pass = "{default: deny, rules: []}", "{default: pass, rules: []}"
	two := s.file("two.yaml", "listeners: ["+listener("a", deny)+", "+listener("b", pass)+"]")
	alike := s.file("alike.yaml", "listeners: ["+listener("a", deny)+", "+listener("b", deny)+"]")
	log := s.file("access.log", `{"method":"GET","path":"/x"}`)
	s.fails(2, two+" has the rules of several listeners: choose one by --listener: a, b", "",
		"rehearse", "--from", two, "--to", alike, log)
	s.ok("", "rehearse", "--from", two, "--to", alike, "--listener", "b", log)
	s.ok("", "rehearse", "--from", alike, "--to", alike, log)
	s.fails(2, `has no listener "c" with rules, but a, b`, "", "rehearse", "--from", alike, "--to", two, "--listener", "c",
		log)
}

func TestCheckAgainst(t *testing.T) {
	s := newShell(t)
	open := s.edited(shippedRules, "path: /v1/me/config", "path: /v1/me/confg")
	want := result{exitWeakened, `CHANGE             OLD RULE       NEW RULE       PATH           EXAMPLE
becomes open       device-config  none           /v1/me/config  GET /v1/me/config
becomes protected  none           device-config  /v1/me/confg   GET /v1/me/confg
`, fmt.Sprintf("gatehousectl: %s lets in who is kept out by %s\n", open, shippedRules)}
	if got := s.run("", "check", "--against", shippedRules, open); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	r := s.run("", "check", "--json", "--against", shippedEnvoy, "--rules", open, "../../../nginx/nginx.conf")
	var report struct {
		Findings []any
		Changes  []struct{ Example rehearse.Request }
	}
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || r.code != exitWeakened ||
		len(report.Changes) != 2 || report.Findings == nil ||
		report.Changes[0].Example != (rehearse.Request{Method: "GET", Path: "/v1/me/config"}) {
		t.Errorf("got %+v, %v", r, err)
	}
	// Findings come first: exit code 2.
	misspelt := s.edited(shippedEnvoy,
		"{prefix: /v1/telemetry, methods: [POST]}", "{prefix: /v1/telemetry, methods: [PSOT]}")
	if r := s.run("", "check", "--against", shippedRules, misspelt); r.code != 2 ||
		!strings.Contains(r.stderr, "GH0109") ||
		!strings.Contains(r.stdout, "POST /v1/telemetry\n") {
		t.Errorf("got %+v", r)
	}
	bad := s.edited(shippedEnvoy, "default: pass", "default: maybe")
	s.fails(2, "GH0104", "", "check", "--against", shippedRules, bad)
	s.fails(2, "default: is", "", "check", "--against", bad, shippedRules)
	s.fails(2, "standard input is also another file", "rules: []", "check", "--against", "-", "-")
	if r := s.run("", "check", "--json", shippedEnvoy); r.code != 0 || strings.Contains(r.stdout, "changes") {
		t.Errorf("without --against: %+v", r)
	}
}
