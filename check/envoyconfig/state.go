package envoyconfig

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/internal/envoyrules"
)

// storedValue is a value that a filter stores in filter state.
type storedValue struct {
	at, key string
	format  string // "" if it isn't in the file
}

// storedByFilters returns the values that filters of a connection manager store, also by typed_per_filter_config of
// some routes only.
func (a *analysis) storedByFilters(manager object, filters []object) (all []storedValue) {
	for i, filter := range filters {
		all = append(all, storedByConfig(fmt.Sprintf("http_filters[%d]", i),
			a.WithDiscovered(filter).Field("typed_config"))...)
	}
	for _, rt := range a.listRoutes(manager) {
		for _, l := range rt.levels {
			configs := l.config.Object("typed_per_filter_config")
			for _, name := range configs.Keys() {
				if slices.ContainsFunc(filters, func(f object) bool { return f.Text("name") == name }) {
					all = append(all, storedByConfig(l.at+".typed_per_filter_config."+name, configs[name])...)
				}
			}
		}
	}
	return all
}

// storedByConfig returns the values that set_filter_state filters in a configuration store.
func storedByConfig(at string, v any) (all []storedValue) {
	envoyrules.VisitObjects(v, func(o object) bool {
		for _, event := range []string{"on_request_headers", "on_new_connection"} {
			for _, state := range o.List(event) {
				format := state.Object("format_string")
				all = append(all, storedValue{at + "." + event, state.Text("object_key"),
					format.Object("text_format_source").Text("inline_string") + format.Text("text_format")})
			}
		}
		return true
	})
	return all
}

// formatOperator matches a command operator in Envoy's format strings.
var formatOperator = regexp.MustCompile(`%%|%([A-Z0-9_]+)(?:\([^)]*\))?(?::[0-9]+)?%`)

// isClientChosen reports whether clients may choose the value. Operators of the given list, and texts without
// operators, are safe.
func (s *storedValue) isClientChosen(manager object) bool {
	given := []string{"DOWNSTREAM_DIRECT_REMOTE_ADDRESS", "DOWNSTREAM_LOCAL_", "DOWNSTREAM_PEER_", "DYNAMIC_METADATA",
		"METADATA", "ENVIRONMENT"}
	if manager.Flag("use_remote_address") {
		given = append(given, "DOWNSTREAM_REMOTE_ADDRESS")
	}
	for _, match := range formatOperator.FindAllStringSubmatch(s.format, -1) {
		known := slices.ContainsFunc(given, func(name string) bool { return strings.HasPrefix(match[1], name) })
		if match[0] != "%%" && !known {
			return true
		}
	}
	return s.format == "" || strings.Contains(formatOperator.ReplaceAllString(s.format, ""), "%")
}
