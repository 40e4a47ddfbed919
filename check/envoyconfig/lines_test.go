package envoyconfig

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/internal/envoyrules"
)

// TestLines: a finding has the line of its path, or of the enclosing entry, and the corrected line if known.
func TestLines(t *testing.T) {
	const route, first = "              - match: {prefix: /}\n", "- name: telemetry # in counters and access logs\n"
	inFirst := func(text string) []string {
		return []string{first, "- {name: all, " + text + "}\n" + strings.Repeat(" ", 22) + first}
	}
	for _, tt := range []struct {
		name            string
		replace         []string
		line, corrected string // parts of the line in the file, and the whole one; "": none
	}{
		{"no YAML", []string{"static_resources:", "static_resources: ["}, "static_resources: [", ""},
		{"no filter", []string{"vm_id: gatehouse", "vm_id: other", "rules:", "regeln:", "push_listener", "x"}, "", ""},
		{"unknown field", []string{"on_miss:", "on_mis:"}, "on_mis: fetch",
			"cache: {on_miss: fetch} # ask the sidecar (Redis) before going upstream"},
		{"wrong word", []string{"default: pass", "default: dney"}, "default: dney", "default: deny # or deny"},
		{"duration without a unit", []string{"max_staleness: 30s", "max_staleness: 30"}, "max_staleness: 30",
			"max_staleness: 30s"},
		{"list as text", []string{"permissions: [telemetry.write]", `permissions: "telemetry.write"`}, "telemetry.write",
			"auth: {permissions: [telemetry.write]}"},
		{"flag as text", []string{"max_staleness: 30s", "log_hits: 'Yes'"}, "'Yes'", "log_hits: true"},
		{"method in lower case", []string{"[POST]", "[post]"}, "[post]", "match: {prefix: /v1/telemetry, methods: [POST]}"},
		{"misspelt method", []string{"[POST]", "[PSOT]"}, "[PSOT]", "match: {prefix: /v1/telemetry, methods: [POST]}"},
		{"a method that nobody knows", []string{"[POST]", "[FROBNICATE]"}, "[FROBNICATE]", ""},
		{"path without a slash", []string{"prefix: /v1/products/", "prefix: 'v1//products/?a=1'"}, "?a=1",
			"match: {prefix: /v1/products/}"},
		{"wildcard", []string{"path: /v1/me/config", `path: "/v1/{id}/config"`}, "{id}", "match: {prefix: /v1/}"},
		{"name in upper case", []string{"- name: products", "- name: All Products"}, "All Products", "- name: all-products"},
		{"no credentials", []string{"credentials: {", "#"}, "value:",
			"credentials: {id_header: x-device-id, secret_header: x-device-token}"},
		{"a word far from any", []string{"{scope: device}", "{scope: everybody}"}, "everybody", ""},
		{"source", []string{"max_staleness: 30s", "source: {headr: x-real-ip}"}, "headr", "source: {header: x-real-ip}"},
		{"trial", inFirst("match: {path: /x}, auth: {enforce: false}"), "enforce: false",
			"- {name: all, match: {path: /x}, auth: {enforce: true}}"},
		{"would deny", []string{"default: pass", "default: would_deny"}, "would_deny", "default: deny # or deny"},
		{"in several lines", []string{"methods: [POST]", "methods: POST"}, "methods: POST",
			"match: {prefix: /v1/telemetry, methods: [POST]}"},
		{"domain", []string{"default: pass", "virtual_hosts: {shop: {domains: ['https://Shop.example:443']}}\n" +
			strings.Repeat(" ", 22) + "default: pass"}, "Shop.example", "virtual_hosts: {shop: {domains: [shop.example]}}"},
		{"scope", []string{"{scope: device}", "{scope: [device, hots]}"}, "hots", "cache: {scope: [device, host]} # the " +
			"authenticated device id is part of the key"},
		{"hidden rules", inFirst("match: {prefix: /}"), "name: all", ""},
		{"a broader rule above", inFirst("match: {prefix: /, methods: [GET]}"), "name: all", ""},
		{"rules with auth below", []string{first, `- {match: {path: /v1/telemetry/a}, cache: {}}
                      - {match: {path: /v1/telemetry/b}, cache: {}}
                      ` + first}, "match: {prefix: /v1/telemetry, methods: [POST]}", ""},
		{"domains of two", []string{"default: pass", `virtual_hosts:
                        a: {domains: [x, y, z]}
                        b:
                          domains: [w, x, y, z]
                      default: pass`}, "domains: [w, x, y, z]", ""},
		{"rules as text", []string{"google.protobuf.Struct\n                    value:\n                      # -",
			"google.protobuf.StringValue\n                    value: '{\"defualt\": \"deny\"}'\n" +
				"                    x:\n                      # -"}, "defualt", ""},
		{"a filter's field", []string{"&failure_policy FAIL_RELOAD", "&failure_policy FAIL_CLOSED", "*failure_policy",
			"FAIL_RELOAD"}, "failure_policy: &failure_policy FAIL_CLOSED", ""},
		{"a field that is missing", []string{"normalize_path: true", "x: true"}, "- name: edge", ""},
		{"a route", []string{route, route + "                typed_per_filter_config: {gatehouse: {disabled: true}}\n"},
			"typed_per_filter_config", ""},
		{"a cluster", []string{"max_connections: 2048", "max_connections: 8"}, "circuit_breakers:", ""},
		{"of a virtual host", []string{`domains: ["*"]` + "\n              routes:\n" + route, `domains: ["*"]` +
			"\n              request_headers_to_add: [{header: {key: x-gatehouse-device, value: a}}]\n" +
			"              routes:\n" + route},
			"request_headers_to_add", ""},
		{"of another cluster", []string{"  - name: upstream\n    type: STATIC",
			"  - typed_extension_protocol_options: {x: {http_filters: " +
				"[{name: m, typed_config: {request_headers_to_add: [{header: {key: x-gatehouse-device, value: a}}]}}]}}\n" +
				"    name: upstream\n    type: STATIC"}, "- typed_extension_protocol_options", ""},
		{"the admin address", []string{"address: 127.0.0.1, port_value: 9901", "address: 0.0.0.0, port_value: 9901"},
			"address:", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := shippedConfig(t, tt.replace...)
			report := Analyze("envoy.yaml", file)
			if len(report.Findings) == 0 {
				t.Fatal("nothing is found")
			}
			f, line := report.Findings[0], ""
			if f.Line > 0 {
				line = string(bytes.Split(file, []byte("\n"))[f.Line-1])
			}
			if len(report.Findings) != 1 || !strings.Contains(line, tt.line) || tt.line == "" && line != "" ||
				f.Corrected != tt.corrected {
				t.Errorf("got line %d %q, %q in %+v; want %q, %q", f.Line, line, f.Corrected,
					report.Findings, tt.line, tt.corrected)
			}
		})
	}
}

// TestSharedRules: a mistake in rules shared by two listeners through an alias is a single finding; in two copies of
// the rules, two findings.
func TestSharedRules(t *testing.T) {
	listener := func(name, value string) string {
		return `
  - name: ` + name + `
    filter_chains: [{filters: [{typed_config: {"@type": x/` + envoyrules.WasmType + `, config: {vm_config: {vm_id: gatehouse,
      configuration: {` + st + `, value: ` + value + `}}}}}]}]`
	}
	for second, want := range map[string]int{"*rules": 1, "{rules: [{match: {path: /a, methods: [get]}}]}": 2} {
		report := Analyze("envoy.yaml", []byte("static_resources:\n  listeners:"+listener("a", "&rules {rules: [{match: "+
			"{path: /a, methods: [get]}}]}")+listener("b", second)))
		n := 0
		for _, f := range report.Findings {
			if f.Code == badRules.Code {
				n++
			}
		}
		if n != want {
			t.Errorf("%s: got %+v, want %d of wrong rules", second, report.Findings, want)
		}
	}
}
