package ruleschema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6" // used by Helm
	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// bases are configurations that together have all forms of all fields.
var bases = []string{`{
	"sidecar": {"cluster": "side", "timeout": "500ms"},
	"credentials": {"id_header": "X-Id", "secret_header": "x-token", "forward": true},
	"source": {"header": "x-real-ip"}, "session": {"metadata": "m"},
	"max_staleness": "1m", "max_auth_staleness": "1h30m", "verdict_grace": "90s", "stale": "serve",
	"strip_override_headers": false, "log_hits": true, "default": "deny",
	"rules": [
		{"name": "telemetry", "match": {"prefix": "/v1/telemetry", "methods": ["POST"]}, "auth": {"permissions": ["telemetry.write"]}},
		{"match": {"path": "/v1/me"}, "auth": {"enforce": false}, "cache": {"query": ["lang"], "on_miss": "fetch", "scope": ["host", "device"], "languages": ["de", "en-GB"]}},
		{"match": {"path": "/v1/session", "methods": ["POST"]}, "session": "issue"}],
	"virtual_hosts": {"shop": {"domains": ["shop.example", "*.shop.example", "[::1]"], "default": "would_deny",
		"credentials": {"basic": true}, "source": {"filter_state": "s"},
		"rules": [{"match": {"prefix": "/"}, "cache": {"scope": "host", "serve": false, "origin_headers": true}}]}}
}`, `{"source": "envoy", "credentials": {"basic": true, "forward": false},
	"rules": [{"match": {"prefix": "/a"}, "auth": {}, "cache": {"scope": "device"}}],
	"virtual_hosts": {"a": {"domains": ["*.b"], "source": {"header": "h"},
		"credentials": {"id_header": "a", "secret_header": "b", "api_key_header": "c", "bearer": true}},
		"k": {"domains": ["k"], "credentials": {"bearer": true}}}
}`, `{"push_listener": true}`, `{"push_listener": false, "source": {"filter_state": "s"}}`}

// leftToDecoder matches the problems that only the decoder finds: conditions on several values, and conditions beyond
// patterns.
var leftToDecoder = regexp.MustCompile(`want \S+ to \d\S+$|or 0s for no bound|want at most max_auth_staleness|` +
	`a push listener has no rules|is a header that Gatehouse sends|belongs to the message|is also (the|of) |has a NUL|` +
	`matches nothing: rules see|want no spaces or control characters|` +
	`device needs auth|needs GET or HEAD|excludes auth and cache|needs methods: \[POST\]|` +
	`is missing, for |is also the name of|is never reached|which are never reached|are never reached: |` +
	`is also a domain of|makes \d+ rules`)

func mustCompile(t *testing.T, text []byte) *jsonschema.Schema {
	t.Helper()
	tree, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("schema.json", tree))
	s, err := c.Compile("schema.json")
	require.NoError(t, err)
	return s
}

// compareVerdicts fails if the schema and the decoder disagree about a document.
func compareVerdicts(t *testing.T, s *jsonschema.Schema, text string) (accepted bool) {
	t.Helper()
	var tree any
	require.NoError(t, json.Unmarshal([]byte(text), &tree))
	wrong := s.Validate(tree)
	_, problems := policy.Parse(tree)
	if wrong == nil && problems != nil {
		for line := range strings.Lines(problems.Error()) {
			if !leftToDecoder.MatchString(strings.TrimSpace(line)) {
				t.Errorf("the schema accepts %s\nand the decoder doesn't: %s", text, line)
			}
		}
	}
	// The schema is stricter about null and about methods.
	if wrong != nil && problems == nil && s.Validate(usual(tree)) != nil {
		t.Errorf("the decoder accepts %s\nand the schema doesn't: %v", text, wrong)
	}
	return wrong == nil && problems == nil
}

// usual returns a document without null, and with GET for unregistered methods.
func usual(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			if value == nil {
				delete(v, name)
			} else {
				v[name] = usual(value)
			}
		}
		if methods, ok := v["methods"].([]any); ok {
			for i, method := range methods {
				if name, _ := method.(string); !slices.Contains(policy.Methods(), name) {
					methods[i] = "GET"
				}
			}
		}
	case []any:
		for i := range v {
			v[i] = usual(v[i])
		}
	}
	return v
}

// values are the mutations' replacement values.
var values = []string{`null`, `true`, `false`, `1`, `30`, `""`, `"x"`, `"POST"`, `"GET"`, `"PSOT"`, `"get"`, `"/a"`, `"a"`, `"/a b"`,
	`"/A/../b"`, `"30s"`, `"1.5h"`, `"-1s"`, `"30"`, `"soon"`, `"none"`, `"Shop"`, `"shop.example"`, `"*.x"`, `"*x"`, `"x.*"`, `"x."`,
	`"[::1]"`, `"*.[::1]"`, `"x:80"`, `"a,b"`, `"a=b"`, `"a:b"`, `"ä"`, `"x-gatehouse-device"`, `"` + strings.Repeat("n", 64) + `"`,
	`"` + strings.Repeat("n", 65) + `"`, `"/` + strings.Repeat("p", 1024) + `"`, `"` + strings.Repeat("h", 254) + `"`,
	`"pass"`, `"deny"`, `"would_deny"`, `"bypass"`, `"serve"`, `"fetch"`, `"shared"`, `"device"`, `"host"`, `"issue"`, `"envoy"`,
	`[]`, `["a"]`, `["host", "host"]`, `["host"]`, `["a", "a"]`, `[1]`, `[null]`, `[{}]`, `["GET", "POST"]`,
	`{}`, `{"x": 1}`, `{"path": "/a"}`, `{"header": "a"}`, `{"basic": true}`, `{"basic": false}`,
	`{"basic": true, "id_header": "a"}`, `{"path": "/a", "prefix": "/b"}`, `{"header": "a", "filter_state": "b"}`,
	`{"id_header": "a"}`,
	`{"bearer": false}`, `{"bearer": true, "basic": true}`, `{"api_key_header": "a", "bearer": false}`,
	`{"api_key_header": "a", "id_header": "b"}`, `{"id_header": "a", "secret_header": "b", "basic": false}`, `{"domains": ["a"]}`}

// location is a value in a document, or a missing field.
type location struct {
	in   any // an object or a list
	name string
	i    int
}

func locations(v any) (all []location) {
	switch v := v.(type) {
	case map[string]any:
		all = append(all, location{in: v, name: "unknown"})
		for _, name := range slices.Sorted(maps.Keys(v)) {
			all = append(append(all, location{in: v, name: name}), locations(v[name])...)
		}
	case []any:
		for i := range v {
			all = append(append(all, location{in: v, i: i}), locations(v[i])...)
		}
	}
	return all
}

// set sets the value, or removes it.
func (p location) set(text string) {
	var value any
	_ = json.Unmarshal([]byte(text), &value)
	switch in := p.in.(type) {
	case map[string]any:
		if text == "" {
			delete(in, p.name)
		} else {
			in[p.name] = value
		}
	case []any:
		in[p.i] = value
	}
}

// mutate returns a document with new values at some locations, given by index.
func mutate(t *testing.T, base string, at []int, texts []string) string {
	t.Helper()
	var tree any
	require.NoError(t, json.Unmarshal([]byte(base), &tree))
	for i := range at {
		if all := locations(tree); at[i] < len(all) {
			all[at[i]].set(texts[i])
		}
	}
	text, err := json.Marshal(tree)
	require.NoError(t, err)
	return string(text)
}

// TestSchemaIsTheDecoder changes each value of configurations with all fields to each of many values, and random pairs
// of values. The schema refuses the documents that the decoder refuses, except for leftToDecoder. The short form tries
// a quarter.
func TestSchemaIsTheDecoder(t *testing.T) {
	s := mustCompile(t, Rules())
	whole := append([]string{""}, values...) // "": the value goes
	good, all := 0, 0
	count := func(accepted bool) {
		all++
		if accepted {
			good++
		}
	}
	for _, base := range bases {
		if !compareVerdicts(t, s, base) {
			t.Fatalf("%s isn't accepted", base)
		}
		var tree any
		_ = json.Unmarshal([]byte(base), &tree)
		n := len(locations(tree))
		for i := range n {
			for j, text := range whole {
				if testing.Short() && (i+j)%4 != 0 {
					continue
				}
				count(compareVerdicts(t, s, mutate(t, base, []int{i}, []string{text})))
			}
		}
		random := rand.New(rand.NewPCG(1, uint64(n)))
		for range map[bool]int{true: 100, false: 1500}[testing.Short()] {
			count(compareVerdicts(t, s, mutate(t, base, []int{random.IntN(n), random.IntN(n)},
				[]string{whole[random.IntN(len(whole))], whole[random.IntN(len(whole))]})))
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	t.Logf("%d of %d documents accepted", good, all)
	if good < all/100 || good > all/2 {
		t.Errorf("%d of %d documents accepted, want some of both", good, all)
	}
}

// TestBounds: lists and maps of the greatest length, and longer ones.
func TestBounds(t *testing.T) {
	s := mustCompile(t, Rules())
	for name, text := range map[string]func(n int) string{
		"rules": func(n int) string {
			return `{"rules": [` + list(n, `{"match": {"path": "/%d"}}`) + `]}`
		},
		"domains":       func(n int) string { return `{"virtual_hosts": {"a": {"domains": [` + list(n, `"h%d"`) + `]}}}` },
		"virtual hosts": func(n int) string { return `{"virtual_hosts": {` + list(n, `"h%[1]d": {"domains": ["h%[1]d"]}`) + `}}` },
	} {
		most := map[string]int{"rules": 1000, "domains": 64, "virtual hosts": 256}[name]
		if !compareVerdicts(t, s, text(most)) || compareVerdicts(t, s, text(most+1)) {
			t.Errorf("%s: want %d and no more", name, most)
		}
	}
}

func fromYAML(t *testing.T, text string) (tree any) {
	t.Helper()
	require.NoError(t, yaml.Unmarshal([]byte(text), &tree))
	return tree
}

func list(n int, item string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(item, i)
	}
	return strings.Join(all, ", ")
}

// TestDescriptions: each field has a description, and each description has a field. The bases have each field.
func TestDescriptions(t *testing.T) {
	known := map[string]bool{}
	var walk func(path string, fields []policy.Field)
	walk = func(path string, fields []policy.Field) {
		for _, f := range fields {
			at := path + f.Name
			if sharedFields[f.Name] {
				at = f.Name
			}
			known[at] = true
			if Descriptions[at] == "" {
				t.Errorf("%s has no description", at)
			}
			if !slices.ContainsFunc(bases, func(base string) bool { return strings.Contains(base, `"`+f.Name+`":`) }) {
				t.Errorf("no base has %s", at)
			}
			for _, more := range []*policy.Field{&f, f.Or, f.Item} {
				if more != nil {
					walk(at+".", more.Fields)
				}
			}
		}
	}
	walk("", policy.Fields())
	for at := range Descriptions {
		if !known[at] {
			t.Errorf("%s is no field", at)
		}
	}
}

// TestEnvoy: the schema of Envoy's configuration judges the rules in both kinds of filters, and nothing else.
func TestEnvoy(t *testing.T) {
	s := mustCompile(t, Envoy())
	for _, file := range []string{"envoy.yaml", "envoy-native.yaml"} {
		text, err := os.ReadFile("../../envoy/" + file)
		require.NoError(t, err)
		for _, tt := range []struct {
			old, new string
			accepted bool
		}{
			{"on_miss:", "on_miss:", true}, {"on_miss:", "on_mis:", false}, {"push_listener: true", "push_listener: 1", false},
			{"stat_prefix: edge", "stat_prefix: 7", true}, {"protobuf.Struct", "protobuf.StringValue", true},
			{"default: pass", "default: passes", false},
		} {
			changed := strings.ReplaceAll(string(text), tt.old, tt.new)
			if tt.old != tt.new && changed == string(text) {
				t.Fatalf("%s has no %q", file, tt.old)
			}
			if err := s.Validate(fromYAML(t, changed)); (err == nil) != tt.accepted {
				t.Errorf("%s with %q: got %v, want accepted: %v", file, tt.new, err, tt.accepted)
			}
		}
	}
}

// TestFiles: the files are up to date.
func TestFiles(t *testing.T) {
	for file, want := range map[string][]byte{"nginx/rules.schema.json": Rules(), "envoy/envoy.schema.json": Envoy()} {
		if got, err := os.ReadFile("../../" + file); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s (%v) is old; run: make chart-readme", file, err)
		}
	}
	var chart, rules struct {
		Defs map[string]any `json:"$defs"`
	}
	text, err := os.ReadFile("../../charts/gatehouse/values.schema.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &chart))
	require.NoError(t, json.Unmarshal(Rules(), &rules))
	// Virtual hosts of the chart also have an upstream.
	hosts, _ := chart.Defs["virtual_hosts"].(map[string]any)
	host, _ := hosts["additionalProperties"].(map[string]any)
	fields, _ := host["properties"].(map[string]any)
	delete(fields, "upstream")
	for name, want := range rules.Defs {
		if got := chart.Defs[name]; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("$defs.%s of the chart's values.schema.json is old; run: make chart-readme", name)
		}
	}
}
