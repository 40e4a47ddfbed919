package envoyconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/edge/policy"
)

// spelled is a header's name as upstreams may read it.
func spelled(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

func isIdentity(name string) bool {
	return spelled(name) == policy.DeviceHeader || spelled(name) == policy.PermissionsHeader
}

// isJudged reports whether a header is one that the filter judges or sets: nothing may set it later.
func isJudged(name string) bool { return isIdentity(name) || name == ":path" || name == ":method" }

// routesBy reports whether a header is one that the filter judges or sets, or by which Envoy finds the host that the
// filter judged.
func (p *plugin) routesBy(name string) bool {
	return isJudged(name) || p.rules.DependsOnHost() && (name == ":authority" || spelled(name) == "host")
}

// headers checks that nothing behind the filter sets an identity header, method or path, and nothing before it a
// credential.
func (a *analysis) headers(p *plugin) {
	if !p.auth {
		return
	}
	seen := map[string]bool{}
	report := func(at, header string) {
		if seen[at] {
			return
		}
		seen[at] = true
		if !isIdentity(header) {
			a.add(&translated, p.name(), at, "sets %s behind the filter, which judged the client's", header)
		} else {
			a.add(&setsIdentity, p.name(), at, "sets %s behind the filter: the upstream takes any client for that device",
				header)
		}
	}
	clusters := map[string]bool{}
	for _, w := range a.ways(p.manager) {
		for _, l := range w.levels {
			if header := setBy(l.of.list("request_headers_to_add"), isIdentity); header != "" {
				report(l.at+".request_headers_to_add", header)
			}
			a.perFilter(p, l, report)
		}
		to, _ := w.targets(&a.resources, false)
		for _, name := range to {
			clusters[strings.TrimPrefix(name, "cluster ")] = true
		}
	}
	for name := range a.clusters {
		if clusters[name] {
			if header := setWithin(a.clusters[name].field("typed_extension_protocol_options"), isJudged); header != "" {
				report("cluster "+name+": typed_extension_protocol_options", header)
			}
		}
	}
	a.filterHeaders(p, report)
}

// perFilter checks what a level of routes tells filters behind Gatehouse's.
func (a *analysis) perFilter(p *plugin, l level, report func(at, header string)) {
	configs := l.of.object("typed_per_filter_config")
	for _, name := range configs.keys() {
		at := slices.IndexFunc(p.filters, func(f object) bool { return f.text("name") == name })
		if at >= 0 && at < p.index {
			continue
		}
		if header := setWithin(configs[name], p.routesBy); header != "" {
			report(l.at+".typed_per_filter_config."+name, header)
		}
	}
}

// filterHeaders checks the other filters of the connection manager.
func (a *analysis) filterHeaders(p *plugin, report func(at, header string)) {
	credential := func(name string) bool {
		return slices.ContainsFunc(p.judges(), func(j judge) bool {
			c := &j.Credentials
			return spelled(name) == spelled(c.SecretHeader) && c.SecretHeader != "" ||
				spelled(name) == spelled(c.APIKeyHeader) && c.APIKeyHeader != "" ||
				(c.Basic || c.Bearer) && spelled(name) == "authorization"
		})
	}
	injected := func(at string, v any) {
		if header := setWithin(v, credential); header != "" {
			a.add(&injects, p.name(), at, "sets %s before the filter: any client is taken for the device whose secret it is",
				header)
		}
	}
	injected("early_header_mutation_extensions", p.manager.field("early_header_mutation_extensions"))
	for i, filter := range p.filters {
		at := fmt.Sprintf("http_filters[%d]", i)
		config := a.discovered(filter).field("typed_config")
		if i < p.index {
			injected(at, config)
		} else if i > p.index {
			if header := setWithin(config, p.routesBy); header != "" {
				report(at, header)
			}
		}
	}
}

// setBy returns the header of a list of Envoy's HeaderValueOption that is wanted, "" if there is none.
func setBy(list []object, wanted func(string) bool) string {
	for _, option := range list {
		if name := option.object("header").text("key"); wanted(name) {
			return name
		}
	}
	return ""
}

// setWithin returns a wanted header that a filter's configuration sets in requests, "" if there is none.
func setWithin(v any, wanted func(string) bool) string {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			if name := setWithin(item, wanted); name != "" {
				return name
			}
		}
	case string:
		return luaSets(v, wanted)
	case map[string]any:
		o := object(v)
		for _, name := range []string{o.object("header").text("key"), o.text("header"), o.text("forward_payload_header"),
			o.text("forward_username_header")} {
			if name != "" && wanted(name) {
				return name
			}
		}
		for _, claim := range o.list("claim_to_headers") {
			if wanted(claim.text("header_name")) {
				return claim.text("header_name")
			}
		}
		for _, key := range o.keys() {
			if plain := strings.ToLower(strings.ReplaceAll(key, "_", "")); strings.HasPrefix(plain, "response") ||
				strings.Contains(plain, "accesslog") || plain == "keysources" || plain == "requestrules" { // these are read
				continue
			}
			if name := setWithin(o[key], wanted); name != "" {
				return name
			}
		}
	}
	return ""
}

// letters are those of a header's name.
const letters = ":-_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

// luaSets returns the wanted header that a script of Envoy's Lua filter sets, "" if it sets none.
func luaSets(code string, wanted func(string) bool) string {
	return luaCalls(code, []string{":add(", ":replace("}, wanted)
}

// luaCalls returns the wanted header to which a script applies one of these calls, "" if there is none.
func luaCalls(code string, calls []string, wanted func(string) bool) string {
	for _, call := range calls {
		for rest := code; ; {
			var found bool
			if _, rest, found = strings.Cut(rest, call); !found {
				break
			}
			rest = strings.TrimLeft(rest, ` "'[`)
			name := rest[:len(rest)-len(strings.TrimLeft(rest, letters))]
			if wanted(name) {
				return name
			}
		}
	}
	return ""
}
