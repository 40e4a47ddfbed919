// Package envoyconfig analyses an Envoy configuration offline: the rules as Envoy decodes them when it loads
// them, and the settings around the filter on which its guarantees rest.
package envoyconfig

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/sidecar/internal/findings"
	"github.com/gatehouse/gatehouse/wasm-filter/policy"
)

const (
	vmID        = "gatehouse"
	wasmType    = "envoy.extensions.filters.http.wasm.v3.Wasm"
	managerType = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
	typedStruct = "xds.type.v3.TypedStruct"
	structType  = "google.protobuf.Struct"
	stringType  = "google.protobuf.StringValue"
)

// plugin is one of Gatehouse's, where it stands in the file.
type plugin struct {
	listener object // zero outside of a listener
	manager  object // likewise, of a connection manager
	filters  []object
	index    int // among filters
	config   object
	vm       object
	rules    *policy.Config // nil if they can't be read
	auth     bool           // some rule wants a credential
	raw      object         // the rules as they stand
}

func (p *plugin) name() string { return p.listener.text("name") }

// analysis is one under way.
type analysis struct {
	resources
	report  findings.Report
	plugins []*plugin
}

// Analyze reads an Envoy configuration, YAML or JSON: a bootstrap file, a resource with listeners, or what an
// Envoy's /config_dump says.
func Analyze(file []byte) findings.Report {
	a := &analysis{}
	tree, err := parse(file)
	if err != nil {
		a.add(&unreadable, "", "", "%s", err)
		return a.report
	}
	a.collect(tree)
	a.walk(tree, plugin{})
	if len(a.plugins) == 0 {
		a.add(&noFilter, "", "", "has no Gatehouse filter: want an http_filter of type %s with vm_id %q, or with rules in vm_config.configuration", wasmType, vmID)
	}
	for _, p := range a.plugins {
		a.plugin(p)
		if p.rules == nil {
			continue
		}
		if p.rules.PushListener {
			a.push(p)
		} else {
			a.edge(p)
		}
	}
	a.together()
	a.report.Sort()
	return a.report
}

// walk finds Gatehouse's plugins below v; at says where v is.
func (a *analysis) walk(v any, at plugin) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			a.walk(item, at)
		}
	case map[string]any:
		o := object(v)
		if o.has("static_resources") {
			a.bootstrap(o)
		}
		if o.has("filter_chains") || o.has("default_filter_chain") {
			at.listener = o
		}
		kind, inner := o.typed()
		switch {
		case isType(kind, wasmType):
			at.config = inner.object("config")
			a.found(at)
			return
		case isType(kind, managerType):
			at.manager = inner
			at.filters = inner.list("http_filters")
			for i, filter := range at.filters {
				at.index = i
				a.walk(map[string]any(a.discovered(filter)), at)
			}
			return
		}
		for _, key := range o.keys() { // findings in the same order each time
			if !skipped(o, key) {
				a.walk(o[key], at)
			}
		}
	}
}

// bootstrap checks what only a bootstrap has.
func (a *analysis) bootstrap(o object) {
	if !slices.ContainsFunc(o.object("stats_config").list("stats_tags"), func(tag object) bool { return tag.text("tag_name") == "rule" }) {
		a.add(&noLabels, "", "stats_config.stats_tags", "has no tag rule: Prometheus shows the counters of each rule as metrics of their own, without labels")
	}
}

// found takes a Wasm plugin if it is Gatehouse's.
func (a *analysis) found(p plugin) {
	p.vm = p.config.object("vm_config")
	configuration, problem := vmConfiguration(p.vm)
	m, _ := configuration.(map[string]any)
	p.raw = m
	if p.vm.text("vm_id") != vmID && !p.raw.has("rules") && !p.raw.has("push_listener") {
		return // another plugin's
	}
	a.plugins = append(a.plugins, &p)
	if own := p.config.object("configuration"); own != nil && own.field("value") != "" { // Envoy Gateway always sets one, at least ""
		problem = "configuration: the filter reads its rules from vm_config.configuration, and nothing from here"
	}
	if problem != "" {
		path, message, _ := strings.Cut(problem, ": ")
		a.add(&misplaced, p.name(), path, "%s", message)
		return
	}
	config, err := policy.Parse(configuration)
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			path, message, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			if m == nil { // there is no field to name
				path, message = "vm_config.configuration", strings.TrimSuffix(line, "\n")
			}
			a.add(&badRules, p.name(), path, "%s", message)
		}
		return
	}
	p.rules = config
	a.report.Rules += len(config.Rules)
}

// vmConfiguration is the tree that the filter will see, of a Struct, or of the JSON in a StringValue. A
// problem begins with the path of its field.
func vmConfiguration(vm object) (tree any, problem string) {
	configuration := vm.object("configuration")
	switch kind := configuration.text("@type"); {
	case configuration == nil:
		return nil, ""
	case isType(kind, structType):
		return configuration["value"], ""
	case isType(kind, stringType):
		if err := json.Unmarshal([]byte(configuration.text("value")), &tree); err != nil {
			return nil, fmt.Sprintf("vm_config.configuration.value: is no JSON: %s", err)
		}
		return tree, ""
	case kind == "":
		return nil, "vm_config.configuration: has no @type: want type.googleapis.com/" + structType + " and the rules under value"
	default:
		return nil, fmt.Sprintf("vm_config.configuration.@type: %q, want type.googleapis.com/%s", kind, structType)
	}
}
