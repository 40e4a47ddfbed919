package envoyrules

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/internal/yamltext"
)

// Parse reads YAML or JSON to the tree that JSON would give, and returns the nodes of YAML too. Its error is a
// [yamltext.SyntaxError].
func Parse(text []byte) (tree any, root *yaml.Node, err error) {
	if root, err = yamltext.Parse(text); err != nil {
		return nil, nil, err
	}
	err = root.Decode(&tree)
	return ToJSONTree(tree), root, err
}

// ToJSONTree turns values of YAML into the values that JSON would give.
func ToJSONTree(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			v[key] = ToJSONTree(value)
		}
		return v
	case map[any]any: // some key is no string
		m := make(map[string]any, len(v))
		for key, value := range v {
			m[fmt.Sprint(key)] = ToJSONTree(value)
		}
		return m
	case []any:
		for i, value := range v {
			v[i] = ToJSONTree(value)
		}
		return v
	case int:
		return float64(v)
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	case time.Time:
		return v.Format(time.RFC3339)
	}
	return v
}

// IsType compares a type URL, whose host does not count.
func IsType(url, name string) bool {
	return url[strings.LastIndexByte(url, '/')+1:] == name
}

// MayBePlugin reports whether filters of a type may be Gatehouse's.
func MayBePlugin(url string) bool { return IsType(url, WasmType) || IsType(url, NativeType) }

// Object is a protobuf message. Its fields have snake_case names; protobuf's JSON also allows lowerCamelCase.
type Object map[string]any

// Field returns the value of a field, nil if absent.
func (o Object) Field(name string) any {
	if v, found := o[name]; found {
		return v
	}
	words := strings.Split(name, "_")
	for i, word := range words[1:] {
		if word != "" {
			words[i+1] = strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return o[strings.Join(words, "")]
}

// Has reports whether the message has a field.
func (o Object) Has(name string) bool { return o.Field(name) != nil }

// Object returns the message in a field, nil if absent.
func (o Object) Object(name string) Object {
	m, _ := o.Field(name).(map[string]any)
	return m
}

// List returns a field's objects; a value that is no object counts as an empty object.
func (o Object) List(name string) []Object {
	items, _ := o.Field(name).([]any)
	objects := make([]Object, len(items))
	for i, item := range items {
		m, _ := item.(map[string]any)
		objects[i] = m
	}
	return objects
}

// Text returns the text in a field, "" if absent.
func (o Object) Text(name string) string {
	s, _ := o.Field(name).(string)
	return s
}

// Flag returns a bool or a google.protobuf.BoolValue.
func (o Object) Flag(name string) bool {
	b, _ := o.Field(name).(bool)
	return b
}

// Number returns a field's number, preset if absent. protobuf's JSON writes 64-bit numbers as text.
func (o Object) Number(name string, preset float64) float64 {
	switch v := o.Field(name).(type) {
	case float64:
		return v
	case string:
		if n, err := strconv.ParseFloat(v, 64); err == nil {
			return n
		}
	}
	return preset
}

// VisitObjects calls visit with v and the objects below v, outer objects first. If visit returns false, the objects
// below that object are left out.
func VisitObjects(v any, visit func(o Object) (below bool)) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			VisitObjects(item, visit)
		}
	case map[string]any:
		if o := Object(v); visit(o) {
			for _, key := range o.Keys() {
				VisitObjects(o[key], visit)
			}
		}
	}
}

// Keys returns the names of the fields, sorted.
func (o Object) Keys() []string { return slices.Sorted(maps.Keys(o)) }

// Typed returns the type of an Any, and its message. A TypedStruct has the message under value.
func (o Object) Typed() (string, Object) {
	kind := o.Text("@type")
	if IsType(kind, typedStruct) {
		return o.Text("type_url"), o.Object("value")
	}
	return kind, o
}

// IsSkipped reports whether a field of a /config_dump is no longer active, or repeats another part of the dump.
func IsSkipped(o Object, key string) bool {
	switch key {
	case "draining_state", "error_state", "warming_state":
		return true
	}
	return key == "bootstrap" && strings.HasSuffix(o.Text("@type"), ".BootstrapConfigDump")
}
