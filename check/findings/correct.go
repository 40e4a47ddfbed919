package findings

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/edge/policy"
)

// Rules are rules in a source. Without a source, rules have no lines.
type Rules struct {
	Source Source
	At     Entry // entry of the rules in the source
	Tree   any   // value of the rules
}

// Locate adds the line of a field and the name of the field's rule to a place.
func (r *Rules) Locate(p Place, field string) Place {
	at, _ := r.At.At(field)
	p.Path, p.Line, p.Rule = field, at.Line(), r.ruleName(field)
	return p
}

// ruleName returns the name of a field's rule, "" outside of a rule or for a rule without a name.
func (r *Rules) ruleName(field string) string {
	path, label := field, ""
	v, _ := r.Tree.(map[string]any)
	if rest, found := strings.CutPrefix(path, "virtual_hosts."); found {
		label, path, _ = strings.Cut(rest, ".")
		hosts, _ := v["virtual_hosts"].(map[string]any)
		v, _ = hosts[label].(map[string]any)
		label += "/"
	}
	rest, found := strings.CutPrefix(path, "rules[")
	text, _, _ := strings.Cut(rest, "]")
	i, err := strconv.Atoi(text)
	list, _ := v["rules"].([]any)
	if !found || err != nil || i >= len(list) {
		return ""
	}
	rule, _ := list[i].(map[string]any)
	name, _ := rule["name"].(string)
	if name == "" {
		return ""
	}
	return label + name
}

// edit is a new key or value of a field.
type edit struct {
	key   string // "": the same
	value any    // nil: unchanged
}

// Correct returns the corrected line of a field, "" if unknown. The filter accepts the corrected line.
func (r *Rules) Correct(field string) string {
	at, whole := r.At.At(field)
	if !whole {
		if field == "credentials" {
			return "credentials: {id_header: x-device-id, secret_header: x-device-token}"
		}
		return ""
	}
	for _, e := range r.candidateEdits(field, at) {
		if text := r.editedLine(at, e); text != "" && r.acceptsEdit(field, e) {
			return text
		}
	}
	return ""
}

// candidateEdits returns edits that may correct a field, in the order of trial.
func (r *Rules) candidateEdits(field string, at Entry) (all []edit) {
	beside, f, value := r.describeField(field)
	if f == nil {
		if at.key == nil {
			return nil
		}
		present, _ := r.findParent(field).(map[string]any)
		return findFields(at.key.Value, value, beside, present)
	}
	if text, _ := value.(string); f.Form == policy.Path {
		if i := strings.IndexAny(text, "*{"); i >= 0 {
			all = append(all, edit{"prefix", text[:strings.LastIndexByte(text[:i], '/')+1]})
		}
	}
	if f.Form == policy.Flag && value == false {
		all = append(all, edit{value: true})
	}
	for _, v := range convertValue(f, value) {
		all = append(all, edit{value: v})
	}
	return all
}

// findParent returns the object or list that has a field.
func (r *Rules) findParent(field string) any {
	value := r.Tree
	for path := field; ; {
		found := pathStep.FindStringSubmatch(path)
		if path = path[len(found[0]):]; path == "" {
			return value
		}
		switch v := value.(type) {
		case []any:
			i, _ := strconv.Atoi(found[2])
			value = v[i]
		case map[string]any:
			value = v[found[1]]
		}
	}
}

// describeField returns the known fields beside a field, the field's own description (nil if unknown), and the field's
// value.
func (r *Rules) describeField(path string) (beside []policy.Field, f *policy.Field, value any) {
	fields, value := policy.Fields(), r.Tree
	for path != "" {
		found := pathStep.FindStringSubmatch(path)
		path = path[len(found[0]):]
		switch v := value.(type) {
		case []any:
			i, _ := strconv.Atoi(found[2])
			value = v[i]
			for f.Item == nil && f.Or != nil {
				f = f.Or
			}
			f = f.Item
		case map[string]any:
			value = v[found[1]]
			if f != nil && f.Form == policy.Map {
				f = &policy.Field{Form: policy.Object, Fields: f.Fields}
				continue
			}
			if f != nil {
				for f.Fields == nil && f.Or != nil {
					f = f.Or
				}
				fields = f.Fields
			}
			i := slices.IndexFunc(fields, func(f policy.Field) bool { return f.Name == found[1] })
			if i < 0 {
				return fields, nil, value
			}
			f = &fields[i]
		}
	}
	return nil, f, value
}

// acceptsEdit reports whether the filter has no problem with a field after an edit, and fewer problems with the rules.
func (r *Rules) acceptsEdit(field string, e edit) bool {
	text, err := json.Marshal(r.Tree)
	var tree any
	if err != nil || json.Unmarshal(text, &tree) != nil {
		return false
	}
	path, to := field, tree
	for {
		found := pathStep.FindStringSubmatch(path)
		path = path[len(found[0]):]
		last := path == ""
		switch v := to.(type) {
		case []any:
			i, _ := strconv.Atoi(found[2])
			if to = v[i]; last {
				v[i] = e.value
			}
		case map[string]any:
			if to = v[found[1]]; last {
				if e.key != "" {
					delete(v, found[1])
					field = strings.TrimSuffix(field, found[1]) + e.key
					found[1] = e.key
				}
				if v[found[1]] = to; e.value != nil {
					v[found[1]] = e.value
				}
			}
		}
		if last {
			break
		}
	}
	before, after := policyProblems(r.Tree), policyProblems(tree)
	return len(after) < max(len(before), 1) && !slices.ContainsFunc(after, func(problem string) bool {
		rest, found := strings.CutPrefix(problem, field)
		return found && rest != "" && strings.ContainsAny(rest[:1], ":.[")
	})
}

// policyProblems returns the filter's problems with rules.
func policyProblems(tree any) []string {
	_, err := policy.Parse(tree)
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

// editedLine returns the line of an entry after an edit, "" for an unusual form of YAML.
func (r *Rules) editedLine(at Entry, e edit) string {
	if at.Line() == 0 || at.Line() > len(r.Source.lines) || at.value.Line != at.Line() && !at.isEmpty() {
		return ""
	}
	line, ok := strings.TrimRight(r.Source.lines[at.Line()-1], "\r"), true
	if end := at.colonEnd(line); e.value != nil && end > 0 {
		text, err := r.Source.encodeFlow(e.value)
		line, ok = line[:end]+" "+text+line[end:], err == nil
	} else if e.value != nil { // value before key: the value is farther right
		line, ok = r.Source.replaceValue(line, at.value, e.value)
	}
	if ok && e.key != "" {
		line, ok = r.Source.replaceValue(line, at.key, e.key)
	}
	if !ok {
		return ""
	}
	return strings.TrimSpace(line)
}

// isEmpty reports whether the key has no value.
func (e Entry) isEmpty() bool {
	return e.key != nil && e.value.Tag == "!!null" && e.value.Value == ""
}

// colonEnd returns the end of the key's colon in its line if the key has no value, else 0.
func (e Entry) colonEnd(line string) int {
	if i := strings.Index(line, e.keyText()+":"); i >= 0 && e.isEmpty() {
		return i + len(e.keyText()) + 1
	}
	return 0
}

func (e Entry) keyText() string {
	if e.key == nil {
		return ""
	}
	return e.key.Value
}

// replaceValue returns a line with the value of n replaced; n begins and ends in the line.
func (s Source) replaceValue(line string, n *yaml.Node, value any) (string, bool) {
	runes := []rune(line)
	if n.Column < 1 || n.Column > len(runes) {
		return "", false
	}
	before, after := string(runes[:n.Column-1]), string(runes[n.Column-1:])
	text, err := s.encodeFlow(value)
	if n.Kind != yaml.ScalarNode {
		end := findFlowEnd(after)
		return before + text + after[max(end, 0):], end > 0 && err == nil
	}
	old := n.Value
	switch n.Style {
	case yaml.DoubleQuotedStyle:
		old = `"` + old + `"`
	case yaml.SingleQuotedStyle:
		old = "'" + old + "'"
	}
	rest, found := strings.CutPrefix(after, old)
	return before + text + rest, found && err == nil
}

// findFlowEnd returns the end of the bracketed list or mapping at the beginning of text, 0 if text begins with no
// bracket or the bracket is not closed.
func findFlowEnd(text string) int {
	depth, quote := 0, byte(0)
	for i := range len(text) {
		switch c := text[i]; {
		case quote != 0:
			if c == quote && (i == 0 || text[i-1] != '\\') {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
		if depth == 0 {
			return 0
		}
	}
	return 0
}

// encodeFlow returns a value in JSON, or in YAML's flow style.
func (s Source) encodeFlow(value any) (string, error) {
	if len(s.lines) > 0 && strings.HasPrefix(strings.TrimSpace(s.lines[0]), "{") {
		text, err := json.Marshal(value)
		return string(text), err
	}
	var n yaml.Node
	if err := n.Encode([]any{value}); err != nil {
		return "", err
	}
	n.Style = yaml.FlowStyle
	n.Content[0].Style |= yaml.FlowStyle
	text, err := yaml.Marshal(&n)
	inner, _ := strings.CutPrefix(strings.TrimSpace(string(text)), "[")
	return strings.TrimSuffix(inner, "]"), err
}
