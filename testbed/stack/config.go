package stack

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Config is an Envoy configuration as a tree of nodes: single values can be changed, and everything else is kept, with
// comments.
type Config struct {
	doc yaml.Node
}

// LoadConfig reads an Envoy configuration.
func LoadConfig(path string) (*Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read Envoy configuration: %w", err)
	}
	var c Config
	if err := yaml.Unmarshal(text, &c.doc); err != nil {
		return nil, fmt.Errorf("parse %s: %w", path, err)
	}
	if c.doc.Kind != yaml.DocumentNode {
		return nil, fmt.Errorf("parse %s: the file is empty", path)
	}
	return &c, nil
}

// Find follows path from the root. A step names a field of a mapping, or an element of a sequence by the element's
// "name" field or index. The node belongs to the tree: changing the node changes the configuration.
func (c *Config) Find(path ...string) (*yaml.Node, error) {
	node := c.doc.Content[0]
	for i, step := range path {
		next := childNode(node, step)
		if next == nil {
			return nil, fmt.Errorf("envoy configuration: no %q in %q", step, path[:i])
		}
		node = next
	}
	return node, nil
}

// Set replaces the node at path by value, encoded as YAML. The last step may be a new field of a mapping.
func (c *Config) Set(value any, path ...string) error {
	var fresh yaml.Node
	if err := fresh.Encode(value); err != nil {
		return fmt.Errorf("encode %q: %w", path, err)
	}
	if node, err := c.Find(path...); err == nil {
		replaceNode(node, &fresh)
		return nil
	}
	last := len(path) - 1
	parent, err := c.Find(path[:last]...)
	if err != nil {
		return err
	}
	if parent.Kind != yaml.MappingNode {
		return fmt.Errorf("envoy configuration: no %q in %q", path[last], path[:last])
	}
	parent.Content = append(parent.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: path[last]}, &fresh)
	return nil
}

// Copy appends a copy of an element, named by the "name" field, to the sequence at path, under a new name.
func (c *Config) Copy(from, to string, path ...string) error {
	list, err := c.Find(path...)
	if err != nil {
		return err
	}
	node, err := c.Find(append(path[:len(path):len(path)], from)...)
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(node)
	if err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	list.Content = append(list.Content, doc.Content[0])
	childNode(doc.Content[0], "name").Value = to
	return nil
}

// SetAddress replaces the socket_address below path by address, an IP:PORT.
func (c *Config) SetAddress(address string, path ...string) error {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("address %q: %w", address, err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("address %q: %w", address, err)
	}
	path = append(path[:len(path):len(path)], "address", "socket_address")
	node, err := c.Find(path...)
	if err != nil {
		return err
	}
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf("envoy configuration: %q is not a mapping", path)
	}
	if err := c.Set(host, append(path, "address")...); err != nil {
		return err
	}
	return c.Set(port, append(path, "port_value")...)
}

// SetRules replaces the whole configuration of the edge filter, from "sidecar" to "default", by the YAML mapping in
// text.
func (c *Config) SetRules(text string) error {
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		return fmt.Errorf("parse rules: %w", err)
	}
	if doc.Kind != yaml.DocumentNode {
		return fmt.Errorf("parse rules: no YAML mapping in %q", text)
	}
	node, err := c.Find(rulesPath...)
	if err != nil {
		return err
	}
	replaceNode(node, doc.Content[0])
	return nil
}

// rulesPath is the path of the edge filter's configuration in envoy.yaml.
var rulesPath = []string{
	"static_resources", "listeners", "edge", "filter_chains", "0", "filters", "0", "typed_config",
	"http_filters", "gatehouse", "typed_config", "config", "vm_config", "configuration", "value",
}

// MoveRules moves the configuration of each edge's VM into the plugin itself.
func (c *Config) MoveRules() { moveRules(&c.doc) }

func moveRules(node *yaml.Node) {
	if vm := childNode(node, "vm_config"); vm != nil {
		for i := 0; i+1 < len(vm.Content); i += 2 {
			if value := childNode(vm.Content[i+1], "value"); vm.Content[i].Value == "configuration" && value != nil &&
				childNode(value, "push_listener") == nil {
				node.Content = append(node.Content, vm.Content[i:i+2]...)
				vm.Content = slices.Delete(slices.Clone(vm.Content), i, i+2)
				break
			}
		}
	}
	for _, part := range node.Content {
		moveRules(part)
	}
}

// Replace sets every string value that equals before to after. Without such a value, Replace fails.
func (c *Config) Replace(before, after string) error {
	if replaceScalars(&c.doc, before, after) == 0 {
		return fmt.Errorf("envoy configuration: no value %q to replace by %q", before, after)
	}
	return nil
}

// Bytes returns the configuration as YAML.
func (c *Config) Bytes() ([]byte, error) {
	var buf bytes.Buffer
	encoder := yaml.NewEncoder(&buf)
	encoder.SetIndent(2)
	encoder.CompactSeqIndent()
	if err := encoder.Encode(&c.doc); err != nil {
		return nil, fmt.Errorf("encode Envoy configuration: %w", err)
	}
	if err := encoder.Close(); err != nil {
		return nil, fmt.Errorf("encode Envoy configuration: %w", err)
	}
	return buf.Bytes(), nil
}

// childNode returns the part of node that step names, or nil. Aliases are followed.
func childNode(node *yaml.Node, step string) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == step {
				return node.Content[i+1]
			}
		}
	case yaml.SequenceNode:
		for i, element := range node.Content {
			if name := childNode(element, "name"); name != nil && name.Value == step || strconv.Itoa(i) == step {
				return element
			}
		}
	}
	return nil
}

// replaceNode puts fresh in node's place, and keeps node's comments and anchor.
func replaceNode(node, fresh *yaml.Node) {
	head, line, foot, anchor := node.HeadComment, node.LineComment, node.FootComment, node.Anchor
	*node = *fresh
	node.HeadComment, node.LineComment, node.FootComment, node.Anchor = head, line, foot, anchor
}

func replaceScalars(node *yaml.Node, before, after string) int {
	count := 0
	if node.Kind == yaml.ScalarNode && node.Value == before {
		node.Value = after
		count++
	}
	for _, part := range node.Content {
		count += replaceScalars(part, before, after)
	}
	return count
}
