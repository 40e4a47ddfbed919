package findings

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/edge/policy"
)

// slipped has a field per line. Fields with a value in brackets have each form of the field.
const slipped = `credentials: {id_header: x-device-id, secret_header: x-device-token, forward: true}
source: {header: x-real-ip}
session: {metadata: claims}
max_staleness: 30s
max_auth_staleness: 24h
verdict_grace: 5m
stale: serve
default: deny
log_hits: true
sidecar: {timeout: 150ms}
rules:
- name: telemetry
  match:
    prefix: /v1/telemetry/
    methods: [POST]
  auth: {permissions: [telemetry.write]}
- name: fleet
  match: {path: /v1/fleet}
  auth: {}
  cache:
    query: [lang, page]
    on_miss: fetch
    scope: device
    serve: true
- match: {prefix: /v1/products/}
  cache: {languages: [de, en-gb]}
- match: {path: /v1/session, methods: [POST]}
  session: issue
virtual_hosts:
  shop:
    domains: [shop.example.com, www.example.com]
    default: would_deny
    rules: [{match: {prefix: /}, auth: {enforce: false}}]
`

// slips are common mistakes for a field. A slip returns the mistaken fields, none if the slip doesn't apply.
var slips = map[string]func(name, value string) []string{
	"title": func(name, value string) []string {
		return []string{strings.ToUpper(name[:1]) + name[1:] + ": " + value}
	},
	"upper case": func(name, value string) []string { return []string{strings.ToUpper(name) + ": " + value} },
	"hyphen":     func(name, value string) []string { return []string{strings.ReplaceAll(name, "_", "-") + ": " + value} },
	"camel case": func(name, value string) []string { return []string{lowerCamel(name) + ": " + value} },
	"plural":     func(name, value string) []string { return []string{name + "s: " + value} },
	"singular":   func(name, value string) []string { return []string{strings.TrimSuffix(name, "s") + ": " + value} },
	"letters": func(name, value string) []string {
		return []string{name[:1] + name[2:3] + name[1:2] + name[3:] + ": " + value}
	},
	"quoted key": func(name, value string) []string { return []string{`"` + strings.ToUpper(name) + `": ` + value} },
	"other names": func(name, value string) (all []string) {
		for _, other := range otherNames[name] {
			all = append(all, other+": "+value)
		}
		return all
	},
	"a text for a list": func(name, value string) []string {
		inner, list := strings.CutPrefix(strings.TrimSuffix(value, "]"), "[")
		if !list || strings.Contains(inner, "{") {
			return nil
		}
		all := []string{name + ": \"" + inner + "\"", strings.TrimSuffix(name, "s") + ": '" + inner + "'",
			name + ": " + strings.ReplaceAll(inner, ", ", " ")}
		if name == "methods" || name == "domains" {
			all = append(all, name+": "+strings.ToLower(inner), "method: get")
		}
		return all[:3+len(all[3:])/2]
	},
	"a list for a text": func(name, value string) []string {
		if strings.ContainsAny(value, "{[") || value == "true" || value == "device" { // scope takes a list
			return nil
		}
		return []string{name + ": [" + value + "]"}
	},
	"another value for an object": func(name, value string) []string {
		if value != "{}" {
			return nil
		}
		return []string{name + ": true", name + ":", name + ": yes", name + ": required", name + ": []",
			name + ": ''", name + ": ~"}
	},
	"what is in an object": func(name, value string) []string {
		inner, object := strings.CutPrefix(strings.TrimSuffix(value, "}"), "{")
		if !object || strings.Contains(inner, ", ") || inner == "" {
			return nil
		}
		field, only, _ := strings.Cut(inner, ": ")
		if field == "timeout" || field == "languages" { // ambiguous: a time is no cluster; languages are no query
			return []string{inner}
		}
		return []string{inner, name + ": " + only}
	},
	"a flag": func(name, value string) []string {
		if value != "true" {
			return nil
		}
		return []string{name + ": yes", name + ": 'true'", name + ": 1", name + ": on", name + ": True "}
	},
	"a duration": func(name, value string) []string {
		return map[string][]string{
			"30s": {name + ": 30", name + ": '30'", name + ": 30 s", name + ": 30sec", name + ": 30 seconds", name + ": 30.0"},
			"5m":  {name + ": 300", name + ": 5 minutes", name + ": 5min", name + ": 300 secs"},
			"24h": {name + ": 1d", name + ": 1 day", name + ": 24 hours", name + ": 86400"},
		}[value]
	},
	"a word": func(name, value string) (all []string) {
		if otherWords[value] == nil || strings.ContainsAny(value, "{[") {
			return nil
		}
		all = []string{name + ": " + strings.ToUpper(value), name + ": " + strings.ToUpper(value[:1]) + value[1:],
			name + ": " + strings.ReplaceAll(value, "_", "-")}
		for _, other := range otherWords[value] {
			if value != "device" || other != "host" {
				all = append(all, name+": "+other)
			}
		}
		return all
	},
	"a path": func(name, value string) []string {
		if name != "prefix" && name != "path" {
			return nil
		}
		return []string{name + ": " + value[1:], name + ": " + value + "?a=b", name + ": /" + value}
	},
}

// TestSlips makes each slip in each line of rules. The analysis has one finding, at the line; the correction restores
// the meaning.
func TestSlips(t *testing.T) {
	want := mustParseRules(t, slipped)
	lines := strings.Split(strings.TrimSpace(slipped), "\n")
	count := 0
	for _, kind := range slices.Sorted(maps.Keys(slips)) {
		for at, line := range lines {
			field := strings.TrimLeft(line, " -")
			name, value, found := strings.Cut(field, ": ")
			if !found || value == "" || len(name) < 4 {
				continue
			}
			for _, slip := range slips[kind](name, value) {
				if slip == field {
					continue
				}
				count++
				all := slices.Clone(lines)
				all[at] = strings.TrimSuffix(line, field) + slip
				text := strings.Join(all, "\n")
				if c, err := parseRules(text); err == nil && reflect.DeepEqual(c, want) {
					continue
				}
				var report Report
				report.analyze(text)
				if len(report.Findings) == 0 {
					t.Errorf("%s: %s: nothing is found", kind, all[at])
					continue
				}
				i := slices.IndexFunc(report.Findings, func(f Finding) bool { return f.Line == at+1 && f.Corrected != "" })
				if i < 0 {
					t.Errorf("%s: %q: %+v", kind, all[at], report.Findings)
					continue
				}
				all[at] = line[:len(line)-len(strings.TrimLeft(line, " "))] + report.Findings[i].Corrected
				if got, err := parseRules(strings.Join(all, "\n")); err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("%s: %q is corrected to %q: %v", kind, slip, all[at], err)
				}
			}
		}
	}
	t.Logf("%d slips", count)
}

// analyze adds the findings of rules.
func (r *Report) analyze(text string) {
	source, err := ParseSource([]byte(text))
	kind := ErrorKind("GH0000", "correct it")
	if err != nil {
		r.AddSyntax(&kind, Place{}, err)
		return
	}
	tree, err := source.Root().Tree()
	if err == nil {
		_, err = policy.Parse(tree)
	}
	if err == nil {
		return
	}
	rules := Rules{source, source.Root(), tree}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		field, message, _ := strings.Cut(line, ": ")
		r.AddInRules(&kind, Place{}, &rules, field, "%s", message)
	}
}

func parseRules(text string) (*policy.Config, error) {
	source, err := ParseSource([]byte(text))
	if err != nil {
		return nil, err
	}
	tree, err := source.Root().Tree()
	if err != nil {
		return nil, err
	}
	return policy.Parse(tree)
}

func mustParseRules(t *testing.T, text string) *policy.Config {
	t.Helper()
	c, err := parseRules(text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestAdvice: without a known correction, the fix says what to do.
func TestAdvice(t *testing.T) {
	const rule = "rules:\n- match: {prefix: /}\n  cache: {}\n  "
	for text, want := range map[string]string{
		rule + "ttl: 60":                                       "gatehousectl put --ttl",
		rule + "max_age: 60s":                                  "gatehousectl put --ttl",
		rule + "regex: ^/a":                                    "rules have no expressions",
		rule + "host: shop.example.com":                        "virtual_hosts: {NAME: {domains: [shop.example.com],",
		rule + "allow: [GET]":                                  "any other rule lets them pass",
		rule + "deny: all":                                     "any other rule lets them pass",
		rule + "jwt: {issuer: a}":                              "verify JWTs by the proxy",
		rule + "api_key: x-api-key":                            "credentials: {api_key_header: x-api-key}, and auth: {}",
		rule + "rate_limit: 5":                                 "docs/devices.md",
		rule + "users: [a]":                                    "gatehousectl device put",
		rule + "proxy_pass: http://a":                          "configuration of the proxy",
		rule + "methods: [GET]":                                "move it into match: match: {methods: …}",
		rule + "auth: false":                                   "remove the field",
		rule + "query_params: [a]":                             "move it into cache: cache: {query: …}",
		"rules: []\nhost: shop.example.com":                    "virtual_hosts: {NAME",
		"rules:\n- match: {path_regex: ^/a}":                   "rules have no expressions",
		"rules:\n- match: {prefix: /}\n  cache: {ttl: 60}":     "gatehousectl put --ttl",
		"rules:\n- match: {prefix: /}\n  cache: {nonsense: 1}": "correct it",
	} {
		var report Report
		report.analyze(text)
		if !slices.ContainsFunc(report.Findings, func(f Finding) bool {
			return strings.Contains(f.Fix, want) && f.Corrected == ""
		}) {
			t.Errorf("%s: got %+v, want %q", text, report.Findings, want)
		}
	}
}

// TestOtherNames: the tables name existing fields and words.
func TestOtherNames(t *testing.T) {
	names, words := map[string]bool{}, map[string]bool{}
	var visit func(f *policy.Field)
	visit = func(f *policy.Field) {
		for ; f != nil; f = f.Or {
			names[f.Name] = true
			for _, word := range f.Words {
				words[word] = true
			}
			for i := range f.Fields {
				visit(&f.Fields[i])
			}
			visit(f.Item)
		}
	}
	for _, f := range policy.Fields() {
		visit(&f)
	}
	for name := range otherNames {
		if !names[name] {
			t.Error(fmt.Sprint("no field ", name))
		}
	}
	for word := range otherWords {
		if !words[word] {
			t.Error(fmt.Sprint("no word ", word))
		}
	}
}

// TestCorrectJSON: the corrected line of JSON is JSON.
func TestCorrectJSON(t *testing.T) {
	for wrong, want := range map[string]string{
		`"method": "get"`: `"methods": ["GET"]`, `"methods": "GET, POST"`: `"methods": ["GET","POST"]`,
		`"METHODS": ["GET"]`: `"methods": ["GET"]`,
	} {
		var report Report
		report.analyze("{\"rules\": [{\"match\": {\"prefix\": \"/\",\n" + wrong + "\n}, \"cache\": {}}]}")
		if len(report.Findings) != 1 || report.Findings[0].Corrected != want {
			t.Errorf("%s: got %+v, want %s", wrong, report.Findings, want)
		}
	}
}
