package envoyconfig

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/internal/envoyrules"
)

// Split is an Envoy configuration in parts: Envoy rereads a filter's file on every change, and the bootstrap only at
// start.
type Split struct {
	Bootstrap []byte
	Filters   []Filter
}

// Filter is a filter with rules, in the file form of Envoy's extension configuration discovery service (ECDS).
type Filter struct {
	Name    string
	Version string // shown by Envoy once the file is applied
	Text    []byte
}

// File returns the name of the filter's file.
func (f *Filter) File() string { return f.Name + ".yaml" }

// BootstrapFile is the name of the file with which Envoy starts.
const BootstrapFile = "envoy.yaml"

// SplitFilters moves the filters with rules out of an Envoy configuration into files of the directory dir. Filters with
// the same name but different rules stay in place: Envoy discovers one filter per name.
func SplitFilters(file []byte, dir string) (*Split, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(file, &doc); err != nil {
		return nil, err
	}
	if doc.Kind != yaml.DocumentNode || doc.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("want one YAML or JSON document: Envoy's bootstrap")
	}
	root := resolveAliases(doc.Content[0])
	split := &Split{}
	for name, filters := range edgeFilters(root) {
		if file := (&Filter{Name: name}).File(); file == BootstrapFile || filepath.Base(file) != file {
			return nil, fmt.Errorf("a filter with rules is named %q: its file %s would replace Envoy's own, or be in another "+
				"directory; give the filter another name", name, file)
		}
		versions := make([]Filter, len(filters))
		for i, node := range filters {
			var err error
			if versions[i], err = filterFile(name, node); err != nil {
				return nil, err
			}
		}
		if slices.ContainsFunc(versions, func(f Filter) bool { return f.Version != versions[0].Version }) {
			continue
		}
		for _, node := range filters {
			if err := setDiscovery(node, filepath.Join(dir, versions[0].File())); err != nil {
				return nil, err
			}
		}
		split.Filters = append(split.Filters, versions[0])
	}
	if len(split.Filters) == 0 {
		return nil, errors.New("has no filter of Gatehouse with rules in http_filters, or several of one name with " +
			"different rules: give each a name")
	}
	slices.SortFunc(split.Filters, func(a, b Filter) int { return strings.Compare(a.Name, b.Name) })
	// Envoy's subscriptions need a node.
	if err := setDefault(root, "node", map[string]string{"id": "gatehouse", "cluster": "gatehouse"}); err != nil {
		return nil, err
	}
	var err error
	split.Bootstrap, err = encodeYAML(root)
	return split, err
}

// edgeFilters returns the filters with rules below a node, by name.
func edgeFilters(node *yaml.Node) map[string][]*yaml.Node {
	all := map[string][]*yaml.Node{}
	var walk func(*yaml.Node)
	walk = func(node *yaml.Node) {
		for _, filter := range fieldOf(node, "http_filters", "httpFilters").Content {
			name := fieldOf(filter, "name").Value
			if isEdge(filter) && name != "" {
				all[name] = append(all[name], filter)
			}
		}
		for _, part := range node.Content {
			walk(part)
		}
	}
	walk(node)
	return all
}

// isEdge reports whether a filter is Gatehouse's and has its rules in the configuration itself.
func isEdge(filter *yaml.Node) bool {
	var tree map[string]any
	if filter.Kind != yaml.MappingNode || filter.Decode(&tree) != nil || !object(tree).Has("typed_config") {
		return false
	}
	plugins := envoyrules.Find("", envoyrules.ToJSONTree(tree)).Plugins
	return len(plugins) == 1 && !plugins[0].Raw.Has("push_listener")
}

// filterFile returns the file of a filter.
func filterFile(name string, filter *yaml.Node) (Filter, error) {
	config := fieldOf(filter, "typed_config", "typedConfig")
	text, err := encodeYAML(config)
	if err != nil {
		return Filter{}, err
	}
	version := fmt.Sprintf("%x", sha256.Sum256(text))[:16]
	resource := newMapping("@type", "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig", "name", name,
		"typed_config", config)
	text, err = encodeYAML(newMapping("version_info", version,
		"resources", &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{resource}}))
	return Filter{name, version, text}, err
}

// setDiscovery makes Envoy read a filter's configuration from a file.
func setDiscovery(filter *yaml.Node, path string) error {
	var tree map[string]any
	if err := fieldOf(filter, "typed_config", "typedConfig").Decode(&tree); err != nil {
		return err
	}
	kind, _ := object(tree).Typed()
	discovery := map[string]any{
		"config_source": map[string]any{
			"path_config_source": map[string]any{"path": path}, "resource_api_version": "V3",
		},
		"type_urls": []string{kind},
	}
	var fresh yaml.Node
	if err := fresh.Encode(discovery); err != nil {
		return err
	}
	for i := 0; i+1 < len(filter.Content); i += 2 {
		if key := filter.Content[i]; key.Value == "typed_config" || key.Value == "typedConfig" {
			filter.Content[i], filter.Content[i+1] = newScalar("config_discovery"), &fresh
		}
	}
	return nil
}

// resolveAliases returns a copy of a node with each alias replaced by its value, and scalars as written.
func resolveAliases(node *yaml.Node) *yaml.Node {
	for node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	whole := &yaml.Node{Kind: node.Kind, Style: node.Style, Tag: node.Tag, Value: node.Value}
	for _, part := range node.Content {
		whole.Content = append(whole.Content, resolveAliases(part))
	}
	return whole
}

// fieldOf returns a field of a mapping, by the first spelling that the mapping has, or an empty node.
func fieldOf(node *yaml.Node, spellings ...string) *yaml.Node {
	if node.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(node.Content); i += 2 {
			if slices.Contains(spellings, node.Content[i].Value) {
				return node.Content[i+1]
			}
		}
	}
	return &yaml.Node{}
}

func setDefault(mapping *yaml.Node, name string, value any) error {
	if fieldOf(mapping, name).Kind != 0 {
		return nil
	}
	var fresh yaml.Node
	if err := fresh.Encode(value); err != nil {
		return err
	}
	mapping.Content = append(mapping.Content, newScalar(name), &fresh)
	return nil
}

// newMapping returns a mapping of names to texts or nodes.
func newMapping(pairs ...any) *yaml.Node {
	mapping := &yaml.Node{Kind: yaml.MappingNode}
	for _, part := range pairs {
		node, ok := part.(*yaml.Node)
		if !ok {
			node = newScalar(part.(string))
		}
		mapping.Content = append(mapping.Content, node)
	}
	return mapping
}

func newScalar(text string) *yaml.Node {
	var node yaml.Node
	node.SetString(text)
	return &node
}

func encodeYAML(node *yaml.Node) ([]byte, error) {
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	if err := encoder.Encode(node); err != nil {
		return nil, err
	}
	return text.Bytes(), encoder.Close()
}
