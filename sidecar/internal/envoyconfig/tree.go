package envoyconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// parse reads YAML, of which JSON is a part, to the tree that JSON would give.
func parse(file []byte) (any, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(file))
	var tree any
	if err := decoder.Decode(&tree); errors.Is(err, io.EOF) {
		return nil, errors.New("is empty")
	} else if err != nil {
		return nil, err
	}
	var second any
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("has more than one YAML document, of which Envoy would read one")
	}
	return jsonTree(tree), nil
}

// jsonTree turns what only YAML has into what JSON has for it.
func jsonTree(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			v[key] = jsonTree(value)
		}
		return v
	case map[any]any: // some key is no string
		m := make(map[string]any, len(v))
		for key, value := range v {
			m[fmt.Sprint(key)] = jsonTree(value)
		}
		return m
	case []any:
		for i, value := range v {
			v[i] = jsonTree(value)
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

// walk calls visit for every Wasm filter below v, with the name of the listener it is in.
func walk(v any, listener string, visit func(listener string, filter map[string]any)) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			walk(item, listener, visit)
		}
	case map[string]any:
		if field(v, "filter_chains") != nil || field(v, "default_filter_chain") != nil {
			listener = text(v, "name")
		}
		kind := text(v, "@type")
		switch {
		case isType(kind, wasmType):
			visit(listener, v)
			return
		case isType(kind, typedStruct) && isType(text(v, "type_url"), wasmType):
			visit(listener, object(v, "value"))
			return
		}
		for _, key := range slices.Sorted(maps.Keys(v)) { // problems in the same order each time
			walk(v[key], listener, visit)
		}
	}
}

// isType compares a type URL, whose host does not count.
func isType(url, name string) bool {
	return url[strings.LastIndexByte(url, '/')+1:] == name
}

// field is m's field of a snake_case name; protobuf's JSON also allows lowerCamelCase.
func field(m map[string]any, name string) any {
	if v, found := m[name]; found {
		return v
	}
	words := strings.Split(name, "_")
	for i, word := range words[1:] {
		if word != "" {
			words[i+1] = strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return m[strings.Join(words, "")]
}

func object(m map[string]any, name string) map[string]any {
	o, _ := field(m, name).(map[string]any)
	return o
}

func text(m map[string]any, name string) string {
	s, _ := field(m, name).(string)
	return s
}
