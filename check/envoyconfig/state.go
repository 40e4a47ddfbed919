package envoyconfig

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// stored is what a filter stores in filter state.
type stored struct {
	at, key string
	format  string // "" if it isn't in the file
}

// stored returns what these filters of a connection manager store, also for some routes only.
func (a *analysis) stored(manager object, filters []object) (all []stored) {
	for i, filter := range filters {
		all = append(all, storedIn(fmt.Sprintf("http_filters[%d]", i), a.discovered(filter).field("typed_config"))...)
	}
	for _, w := range a.ways(manager) {
		for _, l := range w.levels {
			configs := l.of.object("typed_per_filter_config")
			for _, name := range configs.keys() {
				if slices.ContainsFunc(filters, func(f object) bool { return f.text("name") == name }) {
					all = append(all, storedIn(l.at+".typed_per_filter_config."+name, configs[name])...)
				}
			}
		}
	}
	return all
}

// storedIn returns what set_filter_state filters in a configuration store.
func storedIn(at string, v any) (all []stored) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			all = append(all, storedIn(at, item)...)
		}
	case map[string]any:
		o := object(v)
		for _, event := range []string{"on_request_headers", "on_new_connection"} {
			for _, state := range o.list(event) {
				format := state.object("format_string")
				all = append(all, stored{at + "." + event, state.text("object_key"),
					format.object("text_format_source").text("inline_string") + format.text("text_format")})
			}
		}
		for _, key := range o.keys() {
			all = append(all, storedIn(at, o[key])...)
		}
	}
	return all
}

// operator is one of Envoy's formats.
var operator = regexp.MustCompile(`%%|%([A-Z0-9_]+)(?:\([^)]*\))?(?::[0-9]+)?%`)

// chosen reports whether clients may choose the value: if not, it has only these.
func (s *stored) chosen(manager object) bool {
	given := []string{"DOWNSTREAM_DIRECT_REMOTE_ADDRESS", "DOWNSTREAM_LOCAL_", "DOWNSTREAM_PEER_", "DYNAMIC_METADATA",
		"METADATA", "ENVIRONMENT"}
	if manager.flag("use_remote_address") {
		given = append(given, "DOWNSTREAM_REMOTE_ADDRESS")
	}
	for _, match := range operator.FindAllStringSubmatch(s.format, -1) {
		known := slices.ContainsFunc(given, func(name string) bool { return strings.HasPrefix(match[1], name) })
		if match[0] != "%%" && !known {
			return true
		}
	}
	return s.format == "" || strings.Contains(operator.ReplaceAllString(s.format, ""), "%")
}
