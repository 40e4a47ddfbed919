package findings

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/edge/policy"
)

// Rules are rules in a source. Without a source they have no lines.
type Rules struct {
	Source Source
	At     Entry // where they are in the source
	Tree   any   // what they say
}

// Place adds the line of a field, and the name of the rule that it is in.
func (r *Rules) Place(p Place, field string) Place {
	at, _ := r.At.At(field)
	p.Path, p.Line, p.Rule = field, at.Line(), r.ruleName(field)
	return p
}

// ruleName returns the name of the rule that a field is in, "" if it is in none, or in one without a name.
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

// edit is another key or value of a field.
type edit struct {
	key   string // "": the same
	value any    // nil: the same
}

// Correct returns the line of a field as it should be, "" if that isn't known: the filter must accept it there.
func (r *Rules) Correct(field string) string {
	at, whole := r.At.At(field)
	if !whole {
		if field == "credentials" {
			return "credentials: {id_header: x-device-id, secret_header: x-device-token}"
		}
		return ""
	}
	for _, e := range r.edits(field, at) {
		if text := r.line(at, e); text != "" && r.accepts(field, e) {
			return text
		}
	}
	return ""
}

// edits returns what may be meant.
func (r *Rules) edits(field string, at Entry) (all []edit) {
	beside, f, value := r.describe(field)
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

// findParent returns what has a field.
func (r *Rules) findParent(field string) any {
	value := r.Tree
	for path := field; ; {
		found := step.FindStringSubmatch(path)
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

// describe returns the fields that may be beside a field, its own description, nil if it is unknown, and its value.
func (r *Rules) describe(path string) (beside []policy.Field, f *policy.Field, value any) {
	fields, value := policy.Fields(), r.Tree
	for path != "" {
		found := step.FindStringSubmatch(path)
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

// accepts reports whether the filter has no problem with a field after an edit, and less than before.
func (r *Rules) accepts(field string, e edit) bool {
	text, err := json.Marshal(r.Tree)
	var tree any
	if err != nil || json.Unmarshal(text, &tree) != nil {
		return false
	}
	path, to := field, tree
	for {
		found := step.FindStringSubmatch(path)
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
	before, after := problems(r.Tree), problems(tree)
	return len(after) < max(len(before), 1) && !slices.ContainsFunc(after, func(problem string) bool {
		rest, found := strings.CutPrefix(problem, field)
		return found && rest != "" && strings.ContainsAny(rest[:1], ":.[")
	})
}

// problems are the filter's with rules.
func problems(tree any) []string {
	_, err := policy.Parse(tree)
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

// line returns the line of an entry after an edit, "" if it has another form than YAML's usual ones.
func (r *Rules) line(at Entry, e edit) string {
	if at.Line() == 0 || at.Line() > len(r.Source.lines) || at.value.Line != at.Line() && !at.empty() {
		return ""
	}
	line, ok := strings.TrimRight(r.Source.lines[at.Line()-1], "\r"), true
	if end := at.end(line); e.value != nil && end > 0 {
		text, err := r.Source.flow(e.value)
		line, ok = line[:end]+" "+text+line[end:], err == nil
	} else if e.value != nil { // first what is farther right
		line, ok = r.Source.replaced(line, at.value, e.value)
	}
	if ok && e.key != "" {
		line, ok = r.Source.replaced(line, at.key, e.key)
	}
	if !ok {
		return ""
	}
	return strings.TrimSpace(line)
}

// empty reports whether nothing is behind the key.
func (e Entry) empty() bool {
	return e.key != nil && e.value.Tag == "!!null" && e.value.Value == ""
}

// end returns where the key's colon ends in its line, if nothing is behind it, 0 otherwise.
func (e Entry) end(line string) int {
	if i := strings.Index(line, e.textOfKey()+":"); i >= 0 && e.empty() {
		return i + len(e.textOfKey()) + 1
	}
	return 0
}

func (e Entry) textOfKey() string {
	if e.key == nil {
		return ""
	}
	return e.key.Value
}

// replaced returns a line with another value in the place of one that begins and ends in it.
func (s Source) replaced(line string, n *yaml.Node, value any) (string, bool) {
	runes := []rune(line)
	if n.Column < 1 || n.Column > len(runes) {
		return "", false
	}
	before, after := string(runes[:n.Column-1]), string(runes[n.Column-1:])
	text, err := s.flow(value)
	if n.Kind != yaml.ScalarNode {
		end := findEnd(after)
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

// findEnd returns where the list or mapping in brackets ends with which text begins, 0 if it begins with none, or
// with one that doesn't end.
func findEnd(text string) int {
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

// flow returns a value as JSON, or YAML within brackets, has it.
func (s Source) flow(value any) (string, error) {
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

// nearest returns the word that differs least from text, in at most a third of its letters; "" if none does.
func nearest(text string, words []string) string {
	best, least := "", len(text)/3+1
	if len(text) > 3 {
		least = max(least, 3)
	}
	for _, word := range words {
		if d := distance(text, word); d < least {
			best, least = word, d
		}
	}
	return best
}

// distance returns how many letters to insert, remove, change or swap with their neighbour to make b of a.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			switch {
			case i == 0 || j == 0:
				rows[i][j] = i + j
				continue
			case a[i-1] == b[j-1]:
				rows[i][j] = rows[i-1][j-1]
			default:
				rows[i][j] = 1 + min(rows[i-1][j-1], rows[i-1][j], rows[i][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
