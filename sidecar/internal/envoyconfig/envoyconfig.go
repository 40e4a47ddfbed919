// Package envoyconfig checks the Gatehouse filters of an Envoy configuration offline, as
// Envoy does when it loads them.
package envoyconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/wasm-filter/policy"
)

const (
	vmID        = "gatehouse"
	wasmType    = "envoy.extensions.filters.http.wasm.v3.Wasm"
	typedStruct = "xds.type.v3.TypedStruct"
	structType  = "google.protobuf.Struct"
	stringType  = "google.protobuf.StringValue"
)

// Check reads an Envoy configuration, YAML or JSON: a bootstrap file, or a resource with
// listeners. It gives the number of Gatehouse's rules, every problem as a line that
// starts with the listener's name and the path of the field, and likewise what Envoy takes
// but is hardly meant.
func Check(file []byte) (rules int, problems, warnings []string) {
	tree, err := parse(file)
	if err != nil {
		return 0, []string{err.Error()}, nil
	}
	clusters, known := staticClusters(tree)
	found := false
	walk(tree, "", func(listener string, filter map[string]any) {
		plugin := object(filter, "config")
		vm := object(plugin, "vm_config")
		configuration, err := vmConfiguration(vm)
		m, _ := configuration.(map[string]any)
		_, hasRules := m["rules"]
		if text(vm, "vm_id") != vmID && !hasRules {
			return // another plugin's
		}
		found = true
		at := ""
		if listener != "" {
			at = "listener " + listener + ": "
		}
		report := func(err error) {
			for line := range strings.Lines(err.Error()) {
				problems = append(problems, at+strings.TrimSuffix(line, "\n"))
			}
		}
		if own := object(plugin, "configuration"); own != nil && field(own, "value") != "" { // Envoy Gateway always sets one, at least ""
			err = errors.New("configuration: move what is in it to vm_config.configuration, and remove it")
		}
		if err != nil {
			report(err)
			return
		}
		config, err := policy.Parse(configuration)
		if err != nil {
			if m == nil { // there is no field to name
				err = fmt.Errorf("vm_config.configuration: %w", err)
			}
			report(err)
			return
		}
		rules += len(config.Rules)
		for _, warning := range config.Warnings() {
			warnings = append(warnings, at+warning)
		}
		if name := config.SidecarCluster; name != "" && known && !slices.Contains(clusters, name) {
			report(fmt.Errorf("sidecar.cluster: %q is not a cluster of this file (has: %s)", name, strings.Join(clusters, ", ")))
		}
	})
	if !found {
		problems = append(problems, fmt.Sprintf("has no Gatehouse filter: want an http_filter of type %s with vm_id %q, or with rules in vm_config.configuration", wasmType, vmID))
	}
	return rules, problems, warnings
}

// vmConfiguration is the tree that the filter will see, of a Struct, or of the JSON in a StringValue.
func vmConfiguration(vm map[string]any) (any, error) {
	configuration := object(vm, "configuration")
	switch kind := text(configuration, "@type"); {
	case configuration == nil:
		return nil, nil
	case isType(kind, structType):
		return configuration["value"], nil
	case isType(kind, stringType):
		var tree any
		if err := json.Unmarshal([]byte(text(configuration, "value")), &tree); err != nil {
			return nil, fmt.Errorf("vm_config.configuration.value: is no JSON: %w", err)
		}
		return tree, nil
	case kind == "":
		return nil, errors.New("vm_config.configuration: has no @type: want type.googleapis.com/" + structType + " and the rules under value")
	default:
		return nil, fmt.Errorf("vm_config.configuration.@type: %q, want type.googleapis.com/%s", kind, structType)
	}
}

// staticClusters are the names of the file's clusters; known is false if others may come from elsewhere.
func staticClusters(tree any) (names []string, known bool) {
	bootstrap, _ := tree.(map[string]any)
	resources := object(bootstrap, "static_resources")
	list, _ := field(resources, "clusters").([]any)
	for _, item := range list {
		cluster, _ := item.(map[string]any)
		names = append(names, text(cluster, "name"))
	}
	return names, resources != nil && field(object(bootstrap, "dynamic_resources"), "cds_config") == nil
}
