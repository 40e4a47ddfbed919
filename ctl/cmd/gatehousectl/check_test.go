package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/check/findings"
)

func TestCheckNginx(t *testing.T) {
	s := newShell(t)
	const shipped, rules = "../../../nginx/nginx.conf", "../../../nginx/rules.yaml"
	if got := s.ok("", "check", "--rules", rules, shipped); got != shipped+": ok, 4 rules\n" {
		t.Errorf("got %q", got)
	}
	content, err := os.ReadFile(shipped)
	if err != nil {
		t.Fatal(err)
	}
	judged := strings.NewReplacer("location / {\n      proxy_pass",
		"location / {\n      access_by_lua_block {}\n      proxy_pass")
	bad := s.file("nginx.conf", judged.Replace(string(content)))
	s.fails(2, "error [GH1201] "+bad+":54: server 127.0.0.1:8080: location /: access_by_lua_block: takes",
		"", "check", "--rules", rules, bad)
	s.fails(2, "-: errors found: 1", judged.Replace(string(content)), "check", "--rules", rules, "-")
	r := s.run("", "check", "--json", "--rules", rules, bad)
	var report findings.Report
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || r.code != 2 || report.Rules != 4 ||
		len(report.Findings) != 1 ||
		report.Findings[0].Server != "127.0.0.1:8080" ||
		report.Findings[0].Path != "location /: access_by_lua_block" || report.Findings[0].Line != 54 {
		t.Errorf("as JSON, got %+v, %v", r, err)
	}
	// Findings in the rules have their file.
	for text, want := range map[string]string{
		"rules:\n- name: a\n  match: {path: /a, methods: [get]}\n": ":3: rule a: rules[0].match.methods[0]: \"get\" is not " +
			"a method: methods are case-sensitive, such as GET\n  fix: correct the rules, and write the file again with " +
			"gatehousectl nginx render\n       match: {path: /a, methods: [GET]}\n",
		"rules:\n- {name: a, match: {path: /a, methods: [GTE]}}\n": ":2: rule a: rules[0].match.methods[0]: GTE: is no " +
			"registered method, so what clients send isn't covered\n  fix: correct the method: methods: [POST]\n       " +
			"- {name: a, match: {path: /a, methods: [GET]}}\n",
		"rules:\n  x: [\n":                                        ":2: is not YAML: did not find",
		"source: {filter_state: a}\n":                             ":1: source.filter_state: is Envoy's; use {header: NAME}",
		`{"format": 3, "rules": {` + "\n" + `"defualt": "deny"}}`: ":2: defualt: unknown field; known are",
	} {
		wrong := s.file("rules.yaml", text)
		s.fails(2, "] "+wrong+want, "", "check", "--rules", wrong, shipped)
	}
	s.fails(2, "--rules: ../../../envoy/envoy.yaml is Envoy's, which has the rules in it", "", "check", "--rules", rules,
		"../../../envoy/envoy.yaml")
	s.fails(1, "no such file", "", "check", "--rules", "none.yaml", shipped)
}
