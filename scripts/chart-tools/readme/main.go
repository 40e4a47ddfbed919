// Command readme writes the table of values in the chart's README from the comments in its
// values.yaml. Usage: readme [-check] CHART
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
	check := flag.Bool("check", false, "fail if the README is not up to date, instead of writing it")
	flag.Parse()
	if err := run(flag.Arg(0), *check); err != nil {
		fmt.Fprintln(os.Stderr, "readme:", err)
		os.Exit(1)
	}
}

func run(chart string, check bool) error {
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return err
	}
	name := filepath.Join(chart, "README.md")
	readme, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	head, rest, found := bytes.Cut(readme, []byte(begin))
	_, tail, ended := bytes.Cut(rest, []byte(end))
	if !found || !ended {
		return fmt.Errorf("%s: has no %q and %q", name, begin, end)
	}
	table, err := describe(values)
	if err != nil {
		return err
	}
	written := string(head) + begin + table + end + string(tail)
	switch {
	case written == string(readme):
		return nil
	case check:
		return fmt.Errorf("%s: is not what values.yaml says; run: make chart-readme", name)
	}
	return os.WriteFile(name, []byte(written), 0o644)
}

// describe returns a table for each section of the values.
func describe(values []byte) (string, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(values, &document); err != nil {
		return "", err
	}
	var t table
	t.rows(document.Content[0], "")
	return t.text.String(), errors.Join(t.errs...)
}

type table struct {
	text strings.Builder
	open bool // under a header
	errs []error
}

// rows describes the keys of a mapping. A key with a comment is a value, and a key without one is a mapping of values.
func (t *table) rows(mapping *yaml.Node, prefix string) {
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		section, comment := parts(key.HeadComment)
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
			fmt.Fprintf(&t.text, "| `%s` | `%s` | %s |\n", prefix+key.Value, inline(value), strings.ReplaceAll(comment, "|", "\\|"))
		case value.Kind == yaml.MappingNode && len(value.Content) > 0:
			t.rows(value, prefix+key.Value+".")
		default:
			t.errs = append(t.errs, fmt.Errorf("values.yaml:%d: %s has no comment", key.Line, prefix+key.Value))
		}
	}
}

// parts parses the comment before a key: a line of dashes names a section.
func parts(comment string) (section, text string) {
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

// inline returns the value on one line.
func inline(value *yaml.Node) string {
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
		panic(err) // it was parsed from YAML
	}
	return strings.Join(strings.Fields(string(text)), " ")
}
