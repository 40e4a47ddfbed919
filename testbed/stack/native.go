package stack

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// NativeEdge is Envoy with the filter as a dynamic module.
const NativeEdge EdgeKind = "native"

// OnEnvoy reports whether the edge is Envoy, with either form of the filter.
func (k EdgeKind) OnEnvoy() bool { return k == EnvoyEdge || k == NativeEdge }

const (
	wasmType   = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"
	nativeType = "type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter"
)

// MakeNative replaces each Wasm filter by the dynamic module in the file library, with the same configuration, and adds
// the filter that copies tokens' claims for the module.
func (c *Config) MakeNative(library string) error {
	if err := makeNative(&c.doc, library); err != nil {
		return err
	}
	return c.stripNamespace()
}

// isNative reports whether a filter is the dynamic module already.
func (c *Config) isNative() bool { return containsScalar(&c.doc, nativeType) }

func containsScalar(node *yaml.Node, scalar string) bool {
	return node.Kind == yaml.ScalarNode && node.Value == scalar ||
		slices.ContainsFunc(node.Content, func(part *yaml.Node) bool { return containsScalar(part, scalar) })
}

// stripNamespace gives the module's counters in Prometheus the names of the Wasm module's counters, without the prefix
// envoy_dynamicmodulescustom_.
func (c *Config) stripNamespace() error {
	layers := []any{map[string]any{"name": "gatehouse", "static_layer": map[string]any{stripFeature: true}}}
	runtime := childNode(c.doc.Content[0], "layered_runtime")
	if runtime == nil {
		layers = append(layers, map[string]any{"name": "admin", "admin_layer": map[string]any{}}) // as without any
		return c.Set(map[string]any{"layers": layers}, "layered_runtime")
	}
	var fresh yaml.Node
	if err := fresh.Encode(layers); err != nil {
		return err
	}
	given := childNode(runtime, "layers")
	given.Content = append(fresh.Content, given.Content...)
	return nil
}

const stripFeature = "envoy.reloadable_features.dynamic_modules_strip_custom_stat_prefix"

// Library returns the path of the module built by make native.
func Library() (string, error) {
	root, err := Root()
	return filepath.Join(root, "build", "libgatehouse.so"), err
}

func makeNative(node *yaml.Node, library string) error {
	if filters := childNode(node, "http_filters"); filters != nil {
		if err := copyClaims(filters); err != nil {
			return err
		}
	}
	if kind := childNode(node, "@type"); kind != nil && kind.Value == wasmType {
		return replaceWasm(node, library)
	}
	for _, part := range node.Content {
		if err := makeNative(part, library); err != nil {
			return err
		}
	}
	return nil
}

// replaceWasm changes the typed_config of a Wasm filter.
func replaceWasm(node *yaml.Node, library string) error {
	config := childNode(node, "config")
	vm := childNode(config, "vm_config")
	if vm == nil {
		return fmt.Errorf("envoy configuration: a Wasm filter without vm_config")
	}
	var fresh yaml.Node
	if err := fresh.Encode(DynamicModule(library)); err != nil {
		return err
	}
	if configuration := childNode(vm, "configuration"); configuration != nil {
		fresh.Content = append(fresh.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "filter_config"}, configuration)
	}
	replaceNode(node, &fresh)
	return nil
}

// DynamicModule returns the typed_config of a filter by the dynamic module in the file library.
func DynamicModule(library string) map[string]any {
	return map[string]any{
		"@type": nativeType,
		"dynamic_module_config": map[string]any{
			"module":       map[string]any{"local": map[string]any{"filename": library}},
			"do_not_close": true,
		},
		"filter_name": "gatehouse",
	}
}

// claims are the claims that the filter reads.
var claims = []string{"sub", "ver"}

// copyClaims adds a filter behind each JWT filter. The added filter copies the claims in payload_in_metadata into the
// filter state.
func copyClaims(filters *yaml.Node) error {
	var all []*yaml.Node
	for _, filter := range filters.Content {
		all = append(all, filter)
		providers := childNode(filter, "typed_config")
		if providers != nil {
			providers = childNode(providers, "providers")
		}
		if providers == nil {
			continue
		}
		var states []any
		for i := 1; i < len(providers.Content); i += 2 {
			metadata := childNode(providers.Content[i], "payload_in_metadata")
			if metadata == nil {
				continue
			}
			for _, claim := range claims {
				states = append(states, claimState(metadata.Value, claim))
			}
		}
		var copier yaml.Node
		if err := copier.Encode(map[string]any{
			"name": "gatehouse-claims",
			"typed_config": map[string]any{
				"@type":              "type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config",
				"on_request_headers": states,
			},
		}); err != nil {
			return err
		}
		all = append(all, &copier)
	}
	filters.Content = all
	return nil
}

func claimState(metadata, claim string) map[string]any {
	path := strings.Join([]string{"envoy.filters.http.jwt_authn", metadata, claim}, ":")
	return map[string]any{
		"object_key":  "gatehouse.claims." + metadata + "." + claim,
		"factory_key": "envoy.string",
		"format_string": map[string]any{
			"text_format_source": map[string]any{"inline_string": "%DYNAMIC_METADATA(" + path + ")%"},
			"omit_empty_values":  true,
		},
		"skip_if_empty": true,
	}
}
