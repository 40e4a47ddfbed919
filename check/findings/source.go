package findings

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/internal/yamltext"
)

// Source is a text in YAML or JSON. The zero Source has no lines.
type Source struct {
	lines []string
	root  *yaml.Node
}

// ParseSource reads a text with one document. Its error is a [yamltext.SyntaxError], also for duplicate keys.
func ParseSource(text []byte) (Source, error) {
	root, err := yamltext.Parse(text)
	if err != nil {
		return Source{}, err
	}
	return NewSource(text, root), nil
}

// NewSource returns the source of a text and its root.
func NewSource(text []byte, root *yaml.Node) Source {
	return Source{strings.Split(string(text), "\n"), root}
}

// Entry is a value of a source with its key, nil in a list. The zero Entry stands for no value.
type Entry struct{ key, value *yaml.Node }

// Root returns the whole source.
func (s Source) Root() Entry { return Entry{value: s.root} }

// Tree returns the entry's value.
func (e Entry) Tree() (tree any, err error) {
	err = e.value.Decode(&tree)
	return tree, err
}

// Line returns the line where the entry begins, 0 for none.
func (e Entry) Line() int {
	switch {
	case e.key != nil:
		return e.key.Line
	case e.value != nil:
		return e.value.Line
	}
	return 0
}

// resolveAlias returns the value, with an alias replaced by its anchor's value.
func (e Entry) resolveAlias() *yaml.Node {
	if e.value != nil && e.value.Kind == yaml.AliasNode {
		return e.value.Alias
	}
	return e.value
}

// Child returns the value of a field, or false. For protobuf's JSON, Child also finds the name in lowerCamelCase.
func (e Entry) Child(name string) (Entry, bool) {
	n := e.resolveAlias()
	if n == nil || n.Kind != yaml.MappingNode {
		return Entry{}, false
	}
	var merged []Entry
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Value == name || key.Value == lowerCamel(name) {
			return Entry{key, value}, true
		}
		if key.Tag == "!!merge" {
			merged = append(append(merged, Entry{value: value}), Entry{value: value}.Items()...)
		}
	}
	for _, from := range merged {
		if child, found := from.Child(name); found {
			return child, true
		}
	}
	return Entry{}, false
}

func lowerCamel(name string) string {
	words := strings.Split(name, "_")
	for i, word := range words[1:] {
		if word != "" {
			words[i+1] = strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return strings.Join(words, "")
}

// Items returns the values of a list.
func (e Entry) Items() (all []Entry) {
	if n := e.resolveAlias(); n != nil && n.Kind == yaml.SequenceNode {
		for _, item := range n.Content {
			all = append(all, Entry{value: item})
		}
	}
	return all
}

// text returns the text of a scalar, "" for other values.
func (e Entry) text() string {
	if n := e.resolveAlias(); n != nil && n.Kind == yaml.ScalarNode {
		return n.Value
	}
	return ""
}

var pathStep = regexp.MustCompile(`^(?:\.?([^.\[\]]+)|\[([0-9]+)\])`)

// At follows a path such as "rules[0].match" as far as the source has the path; whole: the source has the whole path.
func (e Entry) At(path string) (at Entry, whole bool) {
	for path != "" {
		found := pathStep.FindStringSubmatch(path)
		if found == nil {
			return e, false
		}
		var next Entry
		ok := false
		if i, err := strconv.Atoi(found[2]); err == nil {
			items := e.Items()
			if ok = i < len(items); ok {
				next = items[i]
			}
		} else {
			next, ok = e.Child(found[1])
		}
		if !ok {
			return e, false
		}
		e, path = next, path[len(found[0]):]
	}
	return e, true
}

// Search is [Entry.At] for a path that begins anywhere below the entry, the least deep match first; without a match the
// result is the entry. Search ignores fields with a name in skip.
func (e Entry) Search(path string, skip ...string) Entry {
	first := pathStep.FindString(path)
	if i := strings.IndexByte(path, '['); i >= 0 && i < len(first) {
		first = path[:i]
	}
	if first == "" {
		return e
	}
	if below := e.findBelow(skip, func(under Entry) bool { _, found := under.Child(first); return found }); below != nil {
		at, _ := below.At(path)
		return at
	}
	return e
}

// FindNamed returns the mapping below the entry with this name that has a field, or the entry itself.
func (e Entry) FindNamed(name, field string) Entry {
	below := e.findBelow(nil, func(under Entry) bool {
		is, _ := under.Child("name")
		_, has := under.Child(field)
		return has && is.text() == name
	})
	if below == nil {
		return e
	}
	return *below
}

// findBelow returns the first wanted entry, least deep first.
func (e Entry) findBelow(skip []string, wanted func(Entry) bool) *Entry {
	for level := []Entry{e}; len(level) > 0; {
		var next []Entry
		for i, under := range level {
			if wanted(under) {
				return &level[i]
			}
			n := under.resolveAlias()
			switch {
			case n == nil:
			case n.Kind == yaml.SequenceNode:
				next = append(next, under.Items()...)
			case n.Kind == yaml.MappingNode:
				for i := 0; i+1 < len(n.Content); i += 2 {
					if !slices.Contains(skip, n.Content[i].Value) {
						next = append(next, Entry{n.Content[i], n.Content[i+1]})
					}
				}
			}
		}
		level = next
	}
	return nil
}
