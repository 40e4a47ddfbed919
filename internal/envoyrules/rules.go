package envoyrules

import (
	"encoding/json"
	"errors"
)

// Rules are the rules of one listener.
type Rules struct {
	Listener string // "": the file has the rules only
	JSON     json.RawMessage
}

// RulesOf returns the rules of each edge in an Envoy configuration, read as [Find] reads it, or the rules of a file
// with rules only, as for nginx.
func RulesOf(name string, file []byte) ([]Rules, error) {
	tree, _, err := Parse(file)
	if err != nil {
		return nil, err
	}
	if m, ok := tree.(map[string]any); ok && hasRules(m) {
		if Object(m).Has("format") {
			return nil, errors.New("is what nginx render writes: give the file that it reads")
		}
		text, err := json.Marshal(m)
		return []Rules{{JSON: text}}, err
	}
	c := Find(name, tree)
	var all []Rules
	for _, p := range c.Plugins {
		if p.Rules != nil && p.Rules.PushListener {
			continue
		}
		if p.Rules == nil && len(c.extensions) > len(c.Documents) {
			return nil, errors.New("the rules in use are unknown: Envoy refused those that it read last, and goes on with " +
				"earlier ones, which it doesn't show; its log says why")
		}
		text, err := json.Marshal(p.Raw)
		if err != nil {
			return nil, err
		}
		all = append(all, Rules{p.ListenerName(), text})
	}
	if len(all) == 0 {
		return nil, errors.New("has no Gatehouse filter and no rules")
	}
	return all, nil
}

// IsRules reports whether a file has rules only, as for nginx.
func IsRules(file []byte) bool {
	tree, _, err := Parse(file)
	m, ok := tree.(map[string]any)
	return err == nil && ok && hasRules(m)
}

// IsChartValues reports whether a file has values of our Helm chart.
func IsChartValues(file []byte) bool {
	tree, _, err := Parse(file)
	m, ok := tree.(map[string]any)
	if err != nil || !ok {
		return false
	}
	_, hosts := m["virtualHosts"].(map[string]any)
	_, upstream := m["upstream"].(map[string]any)
	_, redis := m["redis"].(map[string]any)
	_, mode := m["mode"].(string)
	return hosts || upstream || redis || mode
}

func hasRules(o Object) bool {
	_, hosts := o["virtual_hosts"].(map[string]any) // Envoy's routes have a list
	return o.Has("rules") || o.Has("credentials") || o.Has("max_staleness") || o.Has("default") || hosts
}
