package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"
)

// setting is a value of the file: a.b in line 3.
type setting struct {
	path  string
	value string
	line  int
}

// parseYAML reads mappings of mappings of scalars, and returns an error for everything else.
func parseYAML(name string, source []byte) (settings []setting, errs []error) {
	var document yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(source))
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, nil // an empty file sets nothing
	} else if err != nil {
		return nil, []error{fmt.Errorf("%s: %w", name, err)}
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		errs = append(errs, fmt.Errorf("%s: more than one YAML document", name))
	}
	w := yamlReader{name: name, lines: make(map[string]int), errs: errs}
	w.readNode("", document.Content[0])
	return w.settings, w.errs
}

type yamlReader struct {
	name     string
	lines    map[string]int // of the paths seen
	settings []setting
	errs     []error
}

func (w *yamlReader) readNode(path string, n *yaml.Node) {
	switch {
	case n.Kind == yaml.AliasNode:
		w.addError(n, "%s: write the value out: aliases are not read", path)
	case n.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			w.readEntry(path, n.Content[i], n.Content[i+1])
		}
	case path == "":
		w.addError(n, "want a mapping of settings")
	case n.Kind != yaml.ScalarNode:
		w.addError(n, "%s: want one value, not a list", path)
	case n.Tag == "!!null":
		w.addError(n, "%s: no value", path)
	default:
		w.settings = append(w.settings, setting{path, n.Value, n.Line})
	}
}

func (w *yamlReader) readEntry(path string, key, value *yaml.Node) {
	if key.Kind != yaml.ScalarNode || key.Value == "" {
		w.addError(key, "want the name of a setting")
		return
	}
	if path != "" {
		path += "."
	}
	path += key.Value
	if line, found := w.lines[path]; found {
		w.addError(key, "%s: set in line %d already", path, line)
		return
	}
	w.lines[path] = key.Line
	w.readNode(path, value)
}

func (w *yamlReader) addError(n *yaml.Node, format string, args ...any) {
	w.errs = append(w.errs, fmt.Errorf("%s:%d: %s", w.name, n.Line, fmt.Sprintf(format, args...)))
}
