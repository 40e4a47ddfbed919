package envoyconfig

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/check/findings"
)

// parseTree reads YAML or JSON to the tree that JSON would give.
func parseTree(file []byte) (any, findings.Source, error) {
	source, err := findings.ParseSource(file)
	if err != nil {
		return nil, source, err
	}
	tree, err := source.Root().Tree()
	return toJSONTree(tree), source, err
}

// toJSONTree turns values of YAML into the values that JSON would give.
func toJSONTree(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			v[key] = toJSONTree(value)
		}
		return v
	case map[any]any: // some key is no string
		m := make(map[string]any, len(v))
		for key, value := range v {
			m[fmt.Sprint(key)] = toJSONTree(value)
		}
		return m
	case []any:
		for i, value := range v {
			v[i] = toJSONTree(value)
		}
		return v
	case int:
		return float64(v)
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	case time.Time:
		return v.Format(time.RFC3339)
	}
	return v
}

// isType compares a type URL, whose host does not count.
func isType(url, name string) bool {
	return url[strings.LastIndexByte(url, '/')+1:] == name
}

// object is a protobuf message. Its fields have snake_case names; protobuf's JSON also allows lowerCamelCase.
type object map[string]any

func (o object) field(name string) any {
	if v, found := o[name]; found {
		return v
	}
	words := strings.Split(name, "_")
	for i, word := range words[1:] {
		if word != "" {
			words[i+1] = strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return o[strings.Join(words, "")]
}

func (o object) has(name string) bool { return o.field(name) != nil }

func (o object) object(name string) object {
	m, _ := o.field(name).(map[string]any)
	return m
}

// list returns a field's objects; a value that is no object counts as an empty object.
func (o object) list(name string) []object {
	items, _ := o.field(name).([]any)
	objects := make([]object, len(items))
	for i, item := range items {
		m, _ := item.(map[string]any)
		objects[i] = m
	}
	return objects
}

func (o object) text(name string) string {
	s, _ := o.field(name).(string)
	return s
}

// flag returns a bool or a google.protobuf.BoolValue.
func (o object) flag(name string) bool {
	b, _ := o.field(name).(bool)
	return b
}

// number returns a field's number, preset if absent. protobuf's JSON writes 64-bit numbers as text.
func (o object) number(name string, preset float64) float64 {
	switch v := o.field(name).(type) {
	case float64:
		return v
	case string:
		if n, err := strconv.ParseFloat(v, 64); err == nil {
			return n
		}
	}
	return preset
}

// isSame reports whether two objects are the same object of the file.
func isSame(a, b object) bool {
	return a != nil && b != nil && reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

func (o object) keys() []string { return slices.Sorted(maps.Keys(o)) }

// typed returns the type of an Any, and its message. A TypedStruct has the message under value.
func (o object) typed() (string, object) {
	kind := o.text("@type")
	if isType(kind, typedStruct) {
		return o.text("type_url"), o.object("value")
	}
	return kind, o
}

// isSkipped reports whether a field of a /config_dump is no longer active, or repeats another part of the dump.
func isSkipped(o object, key string) bool {
	switch key {
	case "draining_state", "error_state", "warming_state":
		return true
	}
	return key == "bootstrap" && strings.HasSuffix(o.text("@type"), ".BootstrapConfigDump")
}

// resources are the objects that listeners refer to by name.
type resources struct {
	clusters map[string]object
	// complete: the file has all clusters and listeners.
	complete   bool
	routes     map[string]object
	extensions map[string]object
	admin      object // the admin address, nil if absent
}

// collectResources finds the resources of a file.
func (r *resources) collectResources(tree any) {
	r.clusters, r.routes, r.extensions = map[string]object{}, map[string]object{}, map[string]object{}
	m, _ := tree.(map[string]any)
	bootstrap := object(m)
	dynamic := bootstrap.object("dynamic_resources")
	r.admin = bootstrap.object("admin").object("address")
	r.complete = bootstrap.has("static_resources") && !dynamic.has("cds_config") && !dynamic.has("lds_config") &&
		!dynamic.has("ads_config")
	for _, cluster := range bootstrap.object("static_resources").list("clusters") {
		r.clusters[cluster.text("name")] = cluster
	}
	for _, dump := range bootstrap.list("configs") {
		r.complete = true // a dump of a running Envoy
		if admin := dump.object("bootstrap").object("admin"); admin != nil {
			r.admin = admin.object("address")
		}
		r.addDump(dump)
	}
}

func (r *resources) addDump(dump object) {
	for _, kind := range []string{"static_clusters", "dynamic_active_clusters"} {
		for _, item := range dump.list(kind) {
			cluster := item.object("cluster")
			r.clusters[cluster.text("name")] = cluster
		}
	}
	for _, kind := range []string{"static_route_configs", "dynamic_route_configs"} {
		for _, item := range dump.list(kind) {
			route := item.object("route_config")
			r.routes[route.text("name")] = route
		}
	}
	for _, item := range dump.list("ecds_filters") {
		extension := item.object("ecds_filter")
		r.extensions[extension.text("name")] = extension
	}
}

// withDiscovered returns a filter with its configuration, also if the configuration comes by discovery.
func (r *resources) withDiscovered(filter object) object {
	extension, found := r.extensions[filter.text("name")]
	if !filter.has("config_discovery") || !found {
		return filter
	}
	whole := maps.Clone(filter)
	whole["typed_config"] = extension.field("typed_config")
	return whole
}

// routeConfigs returns the known route configurations of a connection manager; unseen is the name of an unknown one.
func (r *resources) routeConfigs(manager object) (all []object, unseen string) {
	scopes := manager.object("scoped_routes")
	if scopes.has("scoped_rds") {
		unseen = scopes.text("name")
	}
	scoped := scopes.object("scoped_route_configurations_list").list("scoped_route_configurations")
	for _, from := range append([]object{manager}, scoped...) {
		inline := from.object("route_config")
		if from.has("route_configuration") {
			inline = from.object("route_configuration")
		}
		if inline == nil {
			name := from.object("rds").text("route_config_name") + from.text("route_configuration_name")
			if inline = r.routes[name]; inline == nil && name != "" {
				unseen = name
			}
		}
		if inline != nil {
			all = append(all, inline)
		}
	}
	return all, unseen
}
