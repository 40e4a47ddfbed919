package envoyconfig

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/internal/envoyrules"
)

// bootstrap is a file with a listener "edge" whose Wasm filter has the vm_config vm.
func bootstrap(vm string) string {
	return fmt.Sprintf(`
static_resources:
  listeners:
  - name: edge
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          http_filters:
          - name: any
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
              config: {vm_config: %s}
  clusters: [{name: gatehouse-sidecar}, {name: upstream}]
`, vm)
}

// inPluginField is bootstrap with rules in the plugin's own configuration.
func inPluginField(vm string) string {
	return strings.Replace(bootstrap(vm), "config: {", "config: {configuration: {"+st+", value: {"+rules+"}}, ", 1)
}

const (
	vm    = `vm_id: gatehouse`
	st    = `"@type": type.googleapis.com/google.protobuf.Struct`
	rules = `rules: [{match: {prefix: /a/}, cache: {query: [lang]}}, {match: {path: /b}, cache: {}}]`
)

// ruleProblems returns the findings about the file, the rules and the sidecar's cluster.
func ruleProblems(r findings.Report) (rules int, problems []string) {
	for _, f := range r.Findings {
		if f.Severity == findings.Error && (strings.HasPrefix(f.Code, "GH01") || f.Code == noCluster.Code) {
			problems = append(problems, f.Place.Text()+": "+f.Message)
		}
	}
	return r.Rules, problems
}

func TestRules(t *testing.T) {
	tests := []struct {
		name, file string
		rules      int
		problems   []string // parts of the lines
	}{
		{"good", bootstrap(`{` + vm + `, configuration: {` + st + `, value: {` + rules + `}}}`), 2, nil},
		{"JSON", `{"static_resources": {"listeners": [{"name": "edge", "filterChains": [{"typedConfig":
			{"@type": "x/envoy.extensions.filters.http.wasm.v3.Wasm", "config": {"vmConfig": {"vmId": "gatehouse",
			"configuration": {"@type": "x/google.protobuf.Struct", "value": {"rules": [{"match": {"path": "/b"}}]}}}}}}]}],
			"clusters": [{"name": "gatehouse-sidecar"}]}}`, 1, nil},
		{"known by its rules", bootstrap(`{vm_id: mesh, configuration: {` + st + `, value: {` + rules +
			`, colour: red}}}`), 0,
			[]string{"listener edge: colour: unknown field"}},
		{"another plugin beside ours", strings.Replace(
			bootstrap(`{`+vm+`, configuration: {`+st+`, value: {`+rules+`}}}`), "          - name: any",
			`          - typed_config: {"@type": x/`+envoyrules.WasmType+`, config: {vm_config: {vm_id: other, configuration: {`+
				st+`, value: {colour: red}}}}}
          - name: any`, 1), 2, nil},
		{"push listener", bootstrap(`{` + vm + `, configuration: {` + st + `, value: {push_listener: true}}}`), 0, nil},
		{"several problems",
			bootstrap(`{` + vm + `, configuration: {` + st +
				`, value: {max_staleness: 3, rules: [{match: {path: /a}, cache: {on_mis: fetch}}]}}}`), 0,
			[]string{"listener edge: max_staleness: is 3", "listener edge: rules[0].cache.on_mis: unknown field"}},
		{"cluster", bootstrap(`{` + vm + `, configuration: {` + st + `, value: {sidecar: {cluster: x}, ` + rules + `}}}`), 2,
			[]string{`listener edge: sidecar.cluster: "x" is not a cluster of this file (has: gatehouse-sidecar, upstream)`}},
		{"cluster from elsewhere", bootstrap(`{`+vm+`, configuration: {`+st+`, value: {sidecar: {cluster: x}, `+rules+`}}}`) +
			"dynamic_resources: {cds_config: {ads: {}}}", 2, nil},
		{"cluster of a listener resource", `{name: l, filter_chains: [{"@type": x/` + envoyrules.WasmType +
			`, config: {vm_config: {configuration: {` + st + `, value: {sidecar: {cluster: x}, ` + rules + `}}}}}]}`, 2, nil},
		{"string value",
			bootstrap(`{` + vm +
				`, configuration: {"@type": x/google.protobuf.StringValue, value: '{"rules": [{"match": {"path": "/b"}}]}'}}`),
			1, nil},
		{"string value that is no JSON",
			bootstrap(`{` + vm + `, configuration: {"@type": x/google.protobuf.StringValue, value: 'rules: []'}}`), 0,
			[]string{"listener edge: vm_config.configuration.value: is no JSON"}},
		{"typed struct", `{name: l, filter_chains: [{"@type": x/xds.type.v3.TypedStruct, type_url: x/` +
			envoyrules.WasmType + `, value: {config: {vm_config: {` + vm + `, configuration: {` + st + `, value: {colour: red}}}}}}]}`, 0,
			[]string{"listener l: colour: unknown field"}},
		{"no configuration", bootstrap(`{` + vm + `}`), 0, []string{"listener edge: vm_config.configuration: is missing"}},
		{"in the plugin's place", inPluginField(`{` + vm + `}`), 2, nil},
		{"in both places", inPluginField(`{` + vm + `, configuration: {` + st + `, value: {` + rules + `}}}`), 0,
			[]string{"listener edge: configuration: is set, like vm_config.configuration"}},
		{"in the plugin's place, of the other build",
			inPluginField(`{` + vm + `, code: {local: {filename: /etc/gatehouse/gatehouse.wasm}}}`), 0,
			[]string{"listener edge: configuration: gatehouse.wasm reads its rules from vm_config.configuration"}},
		{"as Envoy Gateway makes it",
			strings.Replace(bootstrap(`{`+vm+`, configuration: {`+st+`, value: {`+rules+`}}}`), "config: {",
				`config: {configuration: {"@type": x/google.protobuf.StringValue, value: ""}, `, 1), 2, nil},
		{"in the plugin's place, of another VM", inPluginField(`{vm_id: mesh}`), 0, []string{"has no Gatehouse filter"}},
		{"in the plugin's place, of the VM of a push listener",
			strings.Replace(inPluginField(`{vm_id: mesh}`), "          - name: any",
				`          - typed_config: {"@type": x/`+envoyrules.WasmType+`, config: {vm_config: {vm_id: mesh, configuration: {`+
					st+`, value: {push_listener: true}}}}}
          - name: any`, 1), 2, nil},
		{"no type", bootstrap(`{` + vm + `, configuration: {` + rules + `}}`), 0,
			[]string{"listener edge: vm_config.configuration: has no @type"}},
		{"other type", bootstrap(`{` + vm + `, configuration: {"@type": x/google.protobuf.Duration, value: 3s}}`),
			0, []string{`vm_config.configuration.@type: "x/google.protobuf.Duration"`}},
		{"YAML date and number",
			bootstrap(`{` + vm + `, configuration: {` + st + `, value: {max_staleness: 2020-01-01, default: 0x10, 1: x}}}`), 0,
			[]string{"1: unknown field", `max_staleness: is "2020-01-01T00:00:00Z"`, "default: is 16"}},
		{"no filter", bootstrap(`{vm_id: other}`), 0, []string{"has no Gatehouse filter"}},
		{"no YAML", "a: [", 0, []string{"is not YAML: "}},
		{"field twice", "a: 1\na: 2", 0, []string{`"a" already defined`}},
		{"empty", "# nothing", 0, []string{"is empty"}},
		{"two documents", "a: 1\n---\nb: 2", 0, []string{"more than one YAML document"}},
		{"scalar", "hello", 0, []string{"has no Gatehouse filter"}},
		{"alias that grows", "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c " +
			"[*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n" +
			"e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]",
			0, []string{"excessive aliasing"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			rules, problems := ruleProblems(Analyze("envoy.yaml", []byte(test.file)))
			if rules != test.rules || len(problems) != len(test.problems) {
				t.Fatalf("got %d rules, problems %q; want %d, %q", rules, problems, test.rules, test.problems)
			}
			for i, want := range test.problems {
				if !strings.Contains(problems[i], want) {
					t.Errorf("problem %q, want %q", problems[i], want)
				}
			}
		})
	}
}

func TestField(t *testing.T) {
	m := object{"a_b": 1, "vmId": 2, "x": nil}
	for name, want := range map[string]any{"a_b": 1, "vm_id": 2, "x": nil, "none": nil, "_": nil} {
		if got := m.Field(name); !reflect.DeepEqual(got, want) {
			t.Errorf("field %q is %v, want %v", name, got, want)
		}
	}
}

func TestParse(t *testing.T) {
	got, _, err := envoyrules.Parse(
		[]byte("{1: [2, -3, 1.5, 18446744073709551615, 2020-01-01], a: {true: null, b: yes, c: &x {d: 0x10}, e: *x}}"))
	want := map[string]any{
		"1": []any{2.0, -3.0, 1.5, 18446744073709551615.0, "2020-01-01T00:00:00Z"},
		"a": map[string]any{"true": nil, "b": "yes", "c": map[string]any{"d": 16.0}, "e": map[string]any{"d": 16.0}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v, %v; want %#v", got, err, want)
	}
}
