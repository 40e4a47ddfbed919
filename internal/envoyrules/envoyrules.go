// Package envoyrules reads Gatehouse's filters and their rules from an Envoy configuration, without judging them.
package envoyrules

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/gatehouse/gatehouse/edge/policy"
)

// VMID is the vm_id of Gatehouse's Wasm modules, except where a mesh's control plane chooses it.
const VMID = "gatehouse"

// Types of messages.
const (
	WasmType    = "envoy.extensions.filters.http.wasm.v3.Wasm"
	NativeType  = "envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter"
	ManagerType = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
	StructType  = "google.protobuf.Struct"
	typedStruct = "xds.type.v3.TypedStruct"
	stringType  = "google.protobuf.StringValue"
)

// Plugin is a Gatehouse filter and its position in the file.
type Plugin struct {
	Listener   Object // nil outside of a listener
	Manager    Object // nil outside of a connection manager
	Filters    []Object
	Index      int // position in Filters
	Config     Object
	Native     bool           // a dynamic module, not a Wasm module
	VM         Object         // vm_config of a Wasm module
	Rules      *policy.Config // nil if the rules can't be read
	RulesError error          // why the rules are invalid
	Raw        Object         // the rules as written
	Field      string         // path of the field with the rules
	Tree       any            // value of that field, of any type
	Problem    string         // a problem with the field, after the field's path
	Document   *Document      // the file with the filter, nil for the configuration itself
}

// ListenerName returns the name of the plugin's listener, "" outside of a listener.
func (p *Plugin) ListenerName() string { return p.Listener.Text("name") }

// ModuleSource returns the location of a dynamic module.
func (p *Plugin) ModuleSource() Object {
	return p.Config.Object("dynamic_module_config").Object("module")
}

// Configuration is the part of an Envoy configuration that is Gatehouse's.
type Configuration struct {
	Plugins    []*Plugin
	Bootstraps []Object
	Documents  map[string]*Document // files of discovered filters, by filter name
	Unread     []Unread

	name       string            // of the file, "" if unknown
	extensions map[string]Object // configurations of discovered filters, by filter name
	// candidates are Wasm plugins without Gatehouse's vm_id. A candidate is Gatehouse's if the push listener has the same
	// vm_id: mesh control planes choose the vm_id.
	candidates []*Plugin
}

// Find finds Gatehouse's plugins in the tree of an Envoy configuration. If the file has a name, Find also reads the
// files of discovered filters that the configuration names.
func Find(name string, tree any) *Configuration {
	c := &Configuration{name: name, extensions: map[string]Object{}}
	m, _ := tree.(map[string]any)
	for _, dump := range Object(m).List("configs") {
		for _, item := range dump.List("ecds_filters") {
			extension := item.Object("ecds_filter")
			c.extensions[extension.Text("name")] = extension
		}
	}
	c.readDiscovered(tree)
	c.walkTree(tree, Plugin{})
	for _, p := range c.candidates {
		if slices.ContainsFunc(c.Plugins, func(push *Plugin) bool {
			return push.Raw.Has("push_listener") && push.VM.Text("vm_id") == p.VM.Text("vm_id")
		}) {
			c.addPlugin(p)
		}
	}
	return c
}

// WithDiscovered returns a filter with its configuration, also if the configuration comes by discovery.
func (c *Configuration) WithDiscovered(filter Object) Object {
	extension, found := c.extensions[filter.Text("name")]
	if !filter.Has("config_discovery") || !found {
		return filter
	}
	whole := maps.Clone(filter)
	whole["typed_config"] = extension.Field("typed_config")
	return whole
}

// walkTree finds Gatehouse's plugins below v; at is the position of v.
func (c *Configuration) walkTree(v any, at Plugin) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			c.walkTree(item, at)
		}
	case map[string]any:
		o := Object(v)
		if o.Has("static_resources") {
			c.Bootstraps = append(c.Bootstraps, o)
		}
		if o.Has("filter_chains") || o.Has("default_filter_chain") {
			at.Listener = o
		}
		kind, inner := o.Typed()
		switch {
		case IsType(kind, WasmType):
			at.Config = inner.Object("config")
			c.considerWasm(at)
			return
		case IsType(kind, NativeType):
			at.Config, at.Native = inner, true
			c.considerNative(at)
			return
		case IsType(kind, ManagerType):
			at.Manager = inner
			at.Filters = inner.List("http_filters")
			for i, filter := range at.Filters {
				at.Index = i
				at.Document = nil
				if filter.Has("config_discovery") {
					at.Document = c.Documents[filter.Text("name")]
				}
				c.walkTree(map[string]any(c.WithDiscovered(filter)), at)
			}
			return
		}
		for _, key := range o.Keys() { // sorted: plugins come in the same order each time
			if !IsSkipped(o, key) {
				c.walkTree(o[key], at)
			}
		}
	}
}

// considerWasm adds a Wasm plugin that is Gatehouse's.
func (c *Configuration) considerWasm(p Plugin) {
	p.VM = p.Config.Object("vm_config")
	p.Field, p.Tree, p.Problem = p.findConfiguration()
	p.Raw, _ = p.Tree.(map[string]any)
	switch {
	case p.VM.Text("vm_id") == VMID, p.Field == inVM && (p.Raw.Has("rules") || p.Raw.Has("push_listener")):
		c.addPlugin(&p)
	case p.Field == inPlugin:
		c.candidates = append(c.candidates, &p)
	}
}

// considerNative adds a dynamic module that is Gatehouse's.
func (c *Configuration) considerNative(p Plugin) {
	p.Field, p.Tree, p.Problem = readConfiguration(inFilter, p.Config.Object("filter_config"))
	p.Raw, _ = p.Tree.(map[string]any)
	if path.Base(p.ModuleSource().Object("local").Text("filename")) == "libgatehouse.so" ||
		p.Config.Object("dynamic_module_config").Text("name") == "gatehouse" ||
		p.Raw.Has("rules") || p.Raw.Has("push_listener") {
		c.addPlugin(&p)
	}
}

func (c *Configuration) addPlugin(p *Plugin) {
	if p.Problem == "" {
		p.Rules, p.RulesError = policy.Parse(p.Tree)
	}
	c.Plugins = append(c.Plugins, p)
}

// Fields that may hold the filter's configuration.
const (
	inVM     = "vm_config.configuration"
	inPlugin = "configuration" // only for the module that meshes fetch
	inFilter = "filter_config" // of a dynamic module
)

// findConfiguration returns the field with the plugin's configuration and the tree that the filter will see. A problem
// begins with the path of the field.
func (p *Plugin) findConfiguration() (field string, tree any, problem string) {
	field = inVM
	from := p.VM.Object("configuration")
	// Envoy Gateway always sets a configuration, at least "".
	if own := p.Config.Object("configuration"); own != nil && own.Field("value") != "" {
		if from != nil {
			return field, nil, "configuration: is set, like vm_config.configuration: want the rules in one of them"
		}
		if path.Base(p.VM.Object("code").Object("local").Text("filename")) == "gatehouse.wasm" {
			return field, nil,
				"configuration: gatehouse.wasm reads its rules from vm_config.configuration; only the module of the image " +
					"gatehouse-module reads them from here"
		}
		field, from = inPlugin, own
	}
	return readConfiguration(field, from)
}

// readConfiguration decodes the message of a configuration field, with the results of findConfiguration.
func readConfiguration(field string, from Object) (in string, tree any, problem string) {
	switch kind := from.Text("@type"); {
	case from == nil:
		return field, nil, ""
	case IsType(kind, StructType):
		return field, from["value"], ""
	case IsType(kind, stringType):
		if err := json.Unmarshal([]byte(from.Text("value")), &tree); err != nil {
			return field, nil, fmt.Sprintf("%s.value: is no JSON: %s", field, err)
		}
		return field, tree, ""
	case kind == "":
		return field, nil, field + ": has no @type: want type.googleapis.com/" + StructType + " and the rules under value"
	default:
		return field, nil, fmt.Sprintf("%s.@type: %q, want type.googleapis.com/%s", field, kind, StructType)
	}
}
