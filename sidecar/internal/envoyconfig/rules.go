package envoyconfig

import (
	"encoding/json"
	"errors"
)

// Rules are those of one listener.
type Rules struct {
	Listener string // "": the file has the rules only
	JSON     json.RawMessage
}

// RulesOf returns the rules of each edge in an Envoy configuration, as [Analyze] reads it, or in a file that has the
// rules only, as for nginx.
func RulesOf(file []byte) ([]Rules, error) {
	tree, err := parse(file)
	if err != nil {
		return nil, err
	}
	if m, ok := tree.(map[string]any); ok && (object(m).has("rules") || object(m).has("max_staleness")) {
		if object(m).has("format") {
			return nil, errors.New("is what nginx render writes: give the file that it reads")
		}
		text, err := json.Marshal(m)
		return []Rules{{JSON: text}}, err
	}
	a := &analysis{}
	a.find(tree)
	var all []Rules
	for _, p := range a.plugins {
		if p.rules != nil && p.rules.PushListener {
			continue
		}
		text, err := json.Marshal(p.raw)
		if err != nil {
			return nil, err
		}
		all = append(all, Rules{p.name(), text})
	}
	if len(all) == 0 {
		return nil, errors.New("has no Gatehouse filter and no rules")
	}
	return all, nil
}
