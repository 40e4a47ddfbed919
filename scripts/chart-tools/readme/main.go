// Command readme writes the table of values in the chart's README, the descriptions in values.schema.json, and the list
// of values that can't be null, from values.yaml and its comments. The schema gets the $defs of the rules' schema.
// Usage: readme [-check] CHART RULES.SCHEMA.JSON
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	begin = "<!-- values: from values.yaml, by make chart-readme -->\n"
	end   = "<!-- /values -->\n"
)

func main() {
	check := flag.Bool("check", false, "fail if one of the files is not up to date, instead of writing them")
	flag.Parse()
	if err := run(flag.Arg(0), flag.Arg(1), *check); err != nil {
		fmt.Fprintln(os.Stderr, "readme:", err)
		os.Exit(1)
	}
}

func run(chart, rules string, check bool) error {
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return err
	}
	t, err := describeValues(values)
	if err != nil {
		return err
	}
	ofRules, err := os.ReadFile(rules)
	if err != nil {
		return err
	}
	schema := func(old []byte) (string, error) { return describeSchema(old, ofRules, t.comments) }
	return errors.Join(
		updateFile(filepath.Join(chart, "README.md"), check, t.replaceTable),
		updateFile(filepath.Join(chart, "values.schema.json"), check, schema),
		updateFile(filepath.Join(chart, "templates", "_required.tpl"), check, t.listRequired),
	)
}

// updateFile rewrites the file by change. With check, a difference is an error.
func updateFile(name string, check bool, change func(old []byte) (string, error)) error {
	old, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	written, err := change(old)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	case written == string(old):
		return nil
	case check:
		return fmt.Errorf("%s: is not what values.yaml or the rules' schema says; run: make chart-readme", name)
	}
	return os.WriteFile(name, []byte(written), 0o644)
}

// replaceTable returns the README with the table.
func (t *table) replaceTable(readme []byte) (string, error) {
	head, rest, found := bytes.Cut(readme, []byte(begin))
	_, tail, ended := bytes.Cut(rest, []byte(end))
	if !found || !ended {
		return "", fmt.Errorf("has no %q and %q", begin, end)
	}
	return string(head) + begin + t.text.String() + end + string(tail), nil
}

// listRequired returns the template with the paths of values with a default: null would remove the value.
func (t *table) listRequired([]byte) (string, error) {
	return "{{/* Paths of the values that null would remove; from values.yaml, by make chart-readme. */}}\n" +
		"{{- define \"gatehouse.required\" -}}\n" + strings.Join(t.required, "\n") + "\n{{- end }}\n", nil
}

// describeValues returns a table for each section of the values.
func describeValues(values []byte) (*table, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(values, &document); err != nil {
		return nil, err
	}
	t := &table{comments: map[string]string{}}
	t.addRows(document.Content[0], "")
	return t, errors.Join(t.errs...)
}

type table struct {
	text     strings.Builder
	comments map[string]string // by path
	required []string          // paths of values that have a default
	open     bool              // under a header
	errs     []error
}

// addRows describes the keys of a mapping. A key with a comment is a value, and a key without one is a mapping of
// values.
func (t *table) addRows(mapping *yaml.Node, prefix string) {
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		section, comment := parseComment(key.HeadComment)
		if value.Tag != "!!null" && (value.Value != "" || len(value.Content) > 0) {
			t.required = append(t.required, prefix+key.Value)
		}
		if section != "" {
			fmt.Fprintf(&t.text, "\n### %s\n\n", section)
			t.open = false
		}
		switch {
		case comment != "":
			if !t.open {
				t.text.WriteString("| value | default | meaning |\n|---|---|---|\n")
				t.open = true
			}
			t.comments[prefix+key.Value] = comment
			fmt.Fprintf(&t.text, "| `%s` | `%s` | %s |\n", prefix+key.Value, inlineYAML(value),
				strings.ReplaceAll(comment, "|", "\\|"))
		case value.Kind == yaml.MappingNode && len(value.Content) > 0:
			t.addRows(value, prefix+key.Value+".")
		default:
			t.errs = append(t.errs, fmt.Errorf("values.yaml:%d: %s has no comment", key.Line, prefix+key.Value))
		}
	}
}

// parseComment parses the comment before a key: a line of dashes names a section.
func parseComment(comment string) (section, text string) {
	var words []string
	for line := range strings.Lines(comment) {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#"))
		if name, found := strings.CutPrefix(line, "---- "); found {
			section, words = strings.TrimRight(name, " -"), nil
			continue
		}
		if line == "" {
			words = nil // of an earlier paragraph
			continue
		}
		words = append(words, line)
	}
	return section, strings.Join(words, " ")
}

// inlineYAML returns the value on one line.
func inlineYAML(value *yaml.Node) string {
	var flow func(*yaml.Node)
	flow = func(n *yaml.Node) {
		n.HeadComment, n.LineComment, n.FootComment = "", "", ""
		if n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode {
			n.Style = yaml.FlowStyle
		}
		for _, child := range n.Content {
			flow(child)
		}
	}
	flow(value)
	text, err := yaml.Marshal(value)
	if err != nil {
		panic(err) // parsed from YAML
	}
	return strings.Join(strings.Fields(string(text)), " ")
}
