// Package envoyconfig analyses an Envoy configuration offline: the rules, decoded as Envoy decodes them at load time,
// and the settings around the filter on which the filter's guarantees rest.
package envoyconfig

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/edge/policy"
)

const (
	vmID        = "gatehouse"
	wasmType    = "envoy.extensions.filters.http.wasm.v3.Wasm"
	nativeType  = "envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter"
	managerType = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
	typedStruct = "xds.type.v3.TypedStruct"
	structType  = "google.protobuf.Struct"
	stringType  = "google.protobuf.StringValue"
)

// plugin is a Gatehouse filter and its position in the file.
type plugin struct {
	listener object // nil outside of a listener
	manager  object // nil outside of a connection manager
	filters  []object
	index    int // position in filters
	config   object
	native   bool           // a dynamic module, not a Wasm module
	vm       object         // vm_config of a Wasm module
	rules    *policy.Config // nil if the rules can't be read
	auth     bool           // some rule needs a credential
	raw      object         // the rules as written
	field    string         // path of the field with the rules
	tree     any            // value of that field, of any type
	problem  string         // a problem with the field, after the field's path
	document *document      // the file with the filter, nil for the analysed file itself
	source   findings.Rules // lines of the rules' fields
}

func (p *plugin) listenerName() string { return p.listener.text("name") }

// analysis holds the state of one Analyze call.
type analysis struct {
	resources
	name      string               // of the file, "" if it is nobody's
	documents map[string]*document // files of discovered filters, by filter name
	report    findings.Report
	source    findings.Source
	entries   map[uintptr]findings.Entry // position of each object in the source
	plugins   []*plugin
	chains    []chain
	// candidates are Wasm plugins without Gatehouse's vm_id. A candidate is Gatehouse's if the push listener has the same
	// vm_id: mesh control planes choose the vm_id.
	candidates []*plugin
}

// Analyze reads an Envoy configuration, YAML or JSON: a bootstrap file, a resource with listeners, or the output of
// Envoy's /config_dump. Analyze also reads the files of discovered filters that the configuration names.
func Analyze(name string, file []byte) findings.Report {
	a := &analysis{name: name}
	tree, source, err := parseTree(file)
	if err != nil {
		a.report.AddSyntax(&unreadable, findings.Place{}, err)
		return a.report
	}
	if m, _ := tree.(map[string]any); !object(m).has("configs") { // a /config_dump has no file with lines
		a.source, a.entries = source, map[uintptr]findings.Entry{}
		a.indexEntries(tree, source.Root())
	}
	a.findPlugins(tree)
	a.chains = a.collectChains(tree)
	for i := range a.chains {
		a.chains[i].targets = a.chainTargets(&a.chains[i])
	}
	if len(a.plugins) == 0 {
		a.add(&noFilter, "", "", "has no Gatehouse filter: want an http_filter of type %s with vm_id %q, or with rules in "+
			"vm_config.configuration, or of type %s with the module libgatehouse.so", wasmType, vmID, nativeType)
	}
	for _, p := range a.plugins {
		a.checkPlugin(p)
		if p.rules == nil {
			continue
		}
		if p.rules.PushListener {
			a.checkPush(p)
		} else {
			a.checkEdge(p)
		}
	}
	a.checkPluginPairs()
	a.checkBypasses()
	a.report.Sort()
	return a.report
}

// findPlugins collects resources and finds Gatehouse's plugins.
func (a *analysis) findPlugins(tree any) {
	a.collectResources(tree)
	a.readDiscovered(tree)
	a.walkTree(tree, plugin{})
	for _, p := range a.candidates {
		if slices.ContainsFunc(a.plugins, func(push *plugin) bool {
			return push.raw.has("push_listener") && push.vm.text("vm_id") == p.vm.text("vm_id")
		}) {
			a.addPlugin(p)
		}
	}
}

// walkTree finds Gatehouse's plugins below v; at is the position of v.
func (a *analysis) walkTree(v any, at plugin) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			a.walkTree(item, at)
		}
	case map[string]any:
		o := object(v)
		if o.has("static_resources") {
			a.checkBootstrap(o)
		}
		if o.has("filter_chains") || o.has("default_filter_chain") {
			at.listener = o
		}
		kind, inner := o.typed()
		switch {
		case isType(kind, wasmType):
			at.config = inner.object("config")
			a.considerWasm(at)
			return
		case isType(kind, nativeType):
			at.config, at.native = inner, true
			a.considerNative(at)
			return
		case isType(kind, managerType):
			at.manager = inner
			at.filters = inner.list("http_filters")
			for i, filter := range at.filters {
				at.index = i
				at.document = nil
				if filter.has("config_discovery") {
					at.document = a.documents[filter.text("name")]
				}
				a.walkTree(map[string]any(a.withDiscovered(filter)), at)
			}
			return
		}
		for _, key := range o.keys() { // sorted: findings come in the same order each time
			if !isSkipped(o, key) {
				a.walkTree(o[key], at)
			}
		}
	}
}

// checkBootstrap checks fields of the bootstrap.
func (a *analysis) checkBootstrap(o object) {
	if !slices.ContainsFunc(o.object("stats_config").list("stats_tags"), func(tag object) bool {
		return tag.text("tag_name") == "rule"
	}) {
		a.add(&noLabels, "", "stats_config.stats_tags",
			"has no tag rule: Prometheus shows the counters of each rule as metrics of their own, without labels")
	}
}

// considerWasm adds a Wasm plugin that is Gatehouse's.
func (a *analysis) considerWasm(p plugin) {
	p.vm = p.config.object("vm_config")
	p.field, p.tree, p.problem = p.findConfiguration()
	p.raw, _ = p.tree.(map[string]any)
	switch {
	case p.vm.text("vm_id") == vmID, p.field == inVM && (p.raw.has("rules") || p.raw.has("push_listener")):
		a.addPlugin(&p)
	case p.field == inPlugin:
		a.candidates = append(a.candidates, &p)
	}
}

// considerNative adds a dynamic module that is Gatehouse's.
func (a *analysis) considerNative(p plugin) {
	p.field, p.tree, p.problem = readConfiguration(inFilter, p.config.object("filter_config"))
	p.raw, _ = p.tree.(map[string]any)
	if path.Base(p.moduleSource().object("local").text("filename")) == "libgatehouse.so" ||
		p.config.object("dynamic_module_config").text("name") == "gatehouse" ||
		p.raw.has("rules") || p.raw.has("push_listener") {
		a.addPlugin(&p)
	}
}

// moduleSource returns the location of a dynamic module.
func (p *plugin) moduleSource() object {
	return p.config.object("dynamic_module_config").object("module")
}

func (a *analysis) addPlugin(p *plugin) {
	a.plugins = append(a.plugins, p)
	if p.problem != "" {
		path, message, _ := strings.Cut(p.problem, ": ")
		a.add(&misplaced, p.listenerName(), path, "%s", message)
		return
	}
	p.source = findings.Rules{Source: a.source, At: a.rulesEntry(p), Tree: p.tree}
	if p.document != nil {
		p.source.Source = p.document.source
	}
	config, err := policy.Parse(p.tree)
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			path, message, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			if p.raw == nil { // no field to name
				a.add(&badRules, p.listenerName(), p.field, "%s", strings.TrimSuffix(line, "\n"))
			} else {
				a.addInRules(&badRules, p, path, "%s", message)
			}
		}
		return
	}
	p.rules = config
	a.report.Rules += len(config.Rules)
}

// Fields that may hold the filter's configuration.
const (
	inVM     = "vm_config.configuration"
	inPlugin = "configuration" // only for the module that meshes fetch
	inFilter = "filter_config" // of a dynamic module
)

// findConfiguration returns the field with the plugin's configuration and the tree that the filter will see. A problem
// begins with the path of the field.
func (p *plugin) findConfiguration() (field string, tree any, problem string) {
	field = inVM
	from := p.vm.object("configuration")
	// Envoy Gateway always sets a configuration, at least "".
	if own := p.config.object("configuration"); own != nil && own.field("value") != "" {
		if from != nil {
			return field, nil, "configuration: is set, like vm_config.configuration: want the rules in one of them"
		}
		if path.Base(p.vm.object("code").object("local").text("filename")) == "gatehouse.wasm" {
			return field, nil,
				"configuration: gatehouse.wasm reads its rules from vm_config.configuration; only the module of the image " +
					"gatehouse-module reads them from here"
		}
		field, from = inPlugin, own
	}
	return readConfiguration(field, from)
}

// readConfiguration decodes the message of a configuration field, with the results of findConfiguration.
func readConfiguration(field string, from object) (in string, tree any, problem string) {
	switch kind := from.text("@type"); {
	case from == nil:
		return field, nil, ""
	case isType(kind, structType):
		return field, from["value"], ""
	case isType(kind, stringType):
		if err := json.Unmarshal([]byte(from.text("value")), &tree); err != nil {
			return field, nil, fmt.Sprintf("%s.value: is no JSON: %s", field, err)
		}
		return field, tree, ""
	case kind == "":
		return field, nil, field + ": has no @type: want type.googleapis.com/" + structType + " and the rules under value"
	default:
		return field, nil, fmt.Sprintf("%s.@type: %q, want type.googleapis.com/%s", field, kind, structType)
	}
}
