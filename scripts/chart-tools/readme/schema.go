package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// describeSchema returns the schema with the comments of values.yaml as descriptions, and with the $defs of the rules'
// schema, whose virtual hosts also have an upstream. A property without a comment in values.yaml keeps its description;
// a property without both is an error. Types shared by several values are described in $defs.
func describeSchema(schema, rules []byte, comments map[string]string) (string, error) {
	var document, ofRules yaml.Node // JSON is YAML, and a node keeps the order of keys
	if err := errors.Join(yaml.Unmarshal(schema, &document), yaml.Unmarshal(rules, &ofRules)); err != nil {
		return "", err
	}
	root := document.Content[0]
	own, theirs := valueOf(root, "$defs"), valueOf(ofRules.Content[0], "$defs")
	for i := 0; i < len(theirs.Content); i += 2 {
		if old := valueOf(own, theirs.Content[i].Value); old != nil {
			*old = *theirs.Content[i+1]
		} else {
			own.Content = append(own.Content, theirs.Content[i], theirs.Content[i+1])
		}
	}
	if err := addUpstream(own); err != nil {
		return "", err
	}
	s := describer{comments: comments}
	s.describeProperties(root, "")
	s.comments = nil
	for i := 0; i < len(own.Content); i += 2 {
		s.describeProperties(own.Content[i+1], "$defs."+own.Content[i].Value)
	}
	var compact, indented bytes.Buffer
	if err := errors.Join(append(s.errs, writeJSON(&compact, root))...); err != nil {
		return "", err
	}
	if err := json.Indent(&indented, compact.Bytes(), "", "  "); err != nil {
		return "", err
	}
	return indented.String() + "\n", nil
}

// addUpstream adds a property of the chart's virtual hosts to the virtual hosts of the rules: the upstream of requests.
func addUpstream(defs *yaml.Node) error {
	properties := defs
	for _, name := range []string{"virtual_hosts", "additionalProperties", "properties"} {
		if properties = valueOf(properties, name); properties == nil {
			return fmt.Errorf("the rules' schema describes no virtual hosts: $defs.virtual_hosts has no %s", name)
		}
	}
	var key, reference yaml.Node
	key.SetString("upstream")
	if err := reference.Encode(map[string]string{"$ref": "#/$defs/hostUpstream"}); err != nil {
		return err
	}
	properties.Content = append(properties.Content, &key, &reference)
	return nil
}

type describer struct {
	comments map[string]string // by path
	errs     []error
}

// describeProperties describes the properties in a schema of the value at a path, also in its items and alternatives.
func (d *describer) describeProperties(schema *yaml.Node, path string) {
	if properties := valueOf(schema, "properties"); properties != nil {
		for i := 0; i < len(properties.Content); i += 2 {
			d.describeProperty(properties.Content[i+1], strings.TrimPrefix(path+"."+properties.Content[i].Value, "."))
		}
	}
	if items := valueOf(schema, "items"); items != nil && items.Kind == yaml.MappingNode {
		d.describeProperties(items, path+"[]")
	}
	if alternatives := valueOf(schema, "anyOf"); alternatives != nil {
		for _, alternative := range alternatives.Content {
			d.describeProperties(alternative, path)
		}
	}
}

func (d *describer) describeProperty(schema *yaml.Node, path string) {
	old := valueOf(schema, "description")
	switch comment := d.comments[path]; {
	case comment != "" && old != nil:
		old.SetString(comment)
	case comment != "":
		var key, value yaml.Node
		key.SetString("description")
		value.SetString(comment)
		schema.Content = append([]*yaml.Node{&key, &value}, schema.Content...)
	case old == nil && valueOf(schema, "$ref") == nil:
		d.errs = append(d.errs, fmt.Errorf("%s has no description, and values.yaml no comment", path))
	}
	d.describeProperties(schema, path)
}

// valueOf returns the value of a key of a mapping, or nil.
func valueOf(mapping *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

// writeJSON appends the value as JSON, with the keys of mappings in their order.
func writeJSON(out *bytes.Buffer, n *yaml.Node) error {
	switch n.Kind {
	case yaml.MappingNode, yaml.SequenceNode:
		brackets := map[yaml.Kind]string{yaml.MappingNode: "{}", yaml.SequenceNode: "[]"}[n.Kind]
		out.WriteByte(brackets[0])
		for i, child := range n.Content {
			switch {
			case i == 0:
			case n.Kind == yaml.MappingNode && i%2 == 1:
				out.WriteByte(':')
			default:
				out.WriteByte(',')
			}
			if err := writeJSON(out, child); err != nil {
				return err
			}
		}
		out.WriteByte(brackets[1])
		return nil
	default:
		if n.Tag == "!!int" || n.Tag == "!!float" {
			out.WriteString(n.Value)
			return nil
		}
		var value any
		if err := n.Decode(&value); err != nil {
			return err
		}
		encoder := json.NewEncoder(out)
		encoder.SetEscapeHTML(false)
		return encoder.Encode(value)
	}
}
