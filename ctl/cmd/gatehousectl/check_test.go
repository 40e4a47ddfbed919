package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

func TestCheckNginx(t *testing.T) {
	s := newShell(t)
	const shipped, rules = "../../../nginx/nginx.conf", "../../../nginx/rules.yaml"
	if got := s.ok("", "check", "--rules", rules, shipped); got != shipped+": ok, 4 rules\n" {
		t.Errorf("got %q", got)
	}
	content, err := os.ReadFile(shipped)
	require.NoError(t, err)
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
			"a method: methods are case-sensitive, such as GET\n  fix: correct the field; docs/rules.md lists all fields" +
			"\n       match: {path: /a, methods: [GET]}\n",
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

// TestCheckRules: rules alone are judged as in a configuration, by check and nginx render, which then writes nothing.
func TestCheckRules(t *testing.T) {
	s := newShell(t)
	for _, args := range [][]string{{"../../../nginx/rules.yaml"}, {"--rules", "../../../nginx/rules.yaml"}} {
		if got := s.ok("", append([]string{"check"}, args...)...); got != "../../../nginx/rules.yaml: ok, 4 rules\n" {
			t.Errorf("%v: got %q", args, got)
		}
	}
	ofEnvoy := s.file("envoy.yaml", "default: pass\nsource: {filter_state: a}\n")
	if got := s.ok("", "check", ofEnvoy); !strings.Contains(got, "ok, 0 rules") {
		t.Errorf("a feature of Envoy's: got %q", got)
	}
	const one = "rules: [{match: {prefix: /a}, cache: {}}]"
	if got := s.ok(one, "check", "-"); got != "-: ok, 1 rule\n" {
		t.Errorf("one rule: got %q", got)
	}
	s.fails(2, "name a configuration, or rules", "", "check")
	const never = "everything that it matches\n  fix: put this rule above rules[0], or remove it\n"
	for text, want := range map[string]string{
		"rules:\n- {name: a, match: {path: /a/*}, cache: {}}\n": ":2: rule a: rules[0].match.path: \"/a/*\": rules know no " +
			"wildcards, so this one covers only requests that spell it so\n  fix: make it prefix: /a/\n       " +
			"- {name: a, match: {prefix: /a/}, cache: {}}\n",
		"rules:\n- {match: {prefix: '/{a}/*'}, cache: {}}\n": "make it prefix: /\n       - {match: {prefix: /}, cache: {}}\n",
		"credentials: {basic: true}\nroles: []\n":            ":2: roles: unknown field; known are",
		"rules: [{match: {prefix: /a}}, {match: {path: /a/b}}]": ":1: rules[1].match: is never reached: rules[0] matches " +
			never,
		"rules: [{match: {prefix: /a}}, {match: {path: /a/b}}, {match: {path: /a/c}}]": "are never reached: rules[1], " +
			"rules[2]\n  fix: put this rule below them, or remove them\n",
		"rules: [{match: {prefix: /a}, cache: {scope: device}}]": "without it there is no device id\n  fix: add auth: " +
			"{} to the rule, or remove scope: device\n",
		"virtual_hosts: {a: {domains: [a.example], rules: [{match: {prefix: /b, methods: [GTE]}}]}}": ":1: virtual_hosts." +
			"a.rules[0].match.methods[0]: GTE: is no registered method",
		"rules:\n- match: {prefix: /a}\n  auth:\ncredentials: {basic: true}\n": ":3: rules[0].auth: has no value, want an " +
			"object with the fields permissions, enforce\n  fix: correct the field; docs/rules.md lists all fields" +
			"\n       auth: {}\n",
		"rules: [{match: {prefix: /a}, auth: {permissions: x}}]\ncredentials: {basic: true}\n": "want a list: [x]\n",
	} {
		wrong, out := s.file("rules.yaml", text), filepath.Join(t.TempDir(), "rules.json")
		for _, command := range []string{"check", "check --against " + wrong, "nginx render --output " + out} {
			r := s.run("", append(strings.Fields(command), wrong)...)
			if !strings.Contains(r.stderr, want) || !strings.Contains(r.stderr, ": errors found: 1\n") || r.code != 2 {
				t.Errorf("%s of %s: got %+v, want %s", command, text, r, want)
			}
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%s: nginx render writes a file", text)
		}
	}
}

// TestCheckValues: instead of the chart's values, check wants what the chart renders, and says how. chart-check.sh runs
// the command.
func TestCheckValues(t *testing.T) {
	s := newShell(t)
	const command = "helm template edge CHART -f FILE -s templates/gateway/edge-config.yaml | sed "
	files, err := filepath.Glob("../../../charts/gatehouse/ci/*.yaml")
	if err != nil || len(files) < 12 {
		t.Errorf("%d files, %v", len(files), err)
	}
	for _, file := range append(files, "../../../charts/gatehouse/values.yaml", s.file("v.yaml", "mode: istio\nrules: []"),
		s.file("v.yaml", "redis: {url: redis://a}\ncredentials: {}\n")) {
		s.fails(2, file+" has values of the chart: ", "", "check", file)
		s.fails(2, strings.Replace(command, "FILE", file, 1), "", "check", file)
	}
}

// TestRecipes: check has no finding in the recipes of docs/rules.md.
func TestRecipes(t *testing.T) {
	page, err := os.ReadFile("../../../docs/rules.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "\n## Recipes\n")
	section, _, _ = strings.Cut(section, "\n## ")
	recipes := regexp.MustCompile(`(?m)(^    .*\n)+`).FindAllString(section, -1)
	if len(recipes) != 6 {
		t.Errorf("%d recipes, want 6", len(recipes))
	}
	s := newShell(t)
	for _, recipe := range recipes {
		if r := s.run(recipe, "check", "-"); r.code != 0 || r.stderr != "" {
			t.Errorf("%s: got %+v", recipe, r)
		}
	}
}
