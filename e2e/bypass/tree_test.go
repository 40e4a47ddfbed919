package bypass

import (
	"encoding/json"
	"fmt"
)

// tree is a message of Envoy's configuration.
type tree = map[string]any

// parse reads JSON that this package writes itself.
func parse(format string, args ...any) tree {
	var t tree
	if err := json.Unmarshal(fmt.Appendf(nil, format, args...), &t); err != nil {
		panic(fmt.Sprintf("%v: %s", err, fmt.Sprintf(format, args...)))
	}
	return t
}

func marshal(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// at follows names and indexes.
func at(v any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			v = v.(tree)[step]
		case int:
			v = v.([]any)[step]
		}
	}
	return v
}

// join adds items to a list of a message.
func join(t tree, field string, items ...any) {
	list, _ := t[field].([]any)
	t[field] = append(list[:len(list):len(list)], items...)
}

// prepend puts items at the beginning of a list.
func prepend(t tree, field string, items ...any) {
	list, _ := t[field].([]any)
	t[field] = append(items, list...)
}

func cloneTree(t tree) tree { return parse("%s", marshal(t)) }
