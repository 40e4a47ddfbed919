package envoyconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/topology"
)

func isIdentityHeader(name string) bool { return topology.IdentityHeader(name) != "" }

// isJudgedHeader reports whether the filter judges or sets a header: later filters must not set it.
func isJudgedHeader(name string) bool {
	return isIdentityHeader(name) || name == ":path" || name == ":method"
}

// affectsJudgement reports whether the filter judges or sets a header, or Envoy finds the judged host by it.
func (p *plugin) affectsJudgement(name string) bool {
	return isJudgedHeader(name) || p.Rules.DependsOnHost() &&
		(name == ":authority" || topology.NormalizeHeader(name) == "host")
}

// checkHeaders checks that no filter behind Gatehouse's sets an identity header, method or path, and no filter before
// it a credential.
func (a *analysis) checkHeaders(p *plugin) {
	if !p.auth {
		return
	}
	seen := map[string]bool{}
	report := func(at, header string) {
		if seen[at] {
			return
		}
		seen[at] = true
		if !isIdentityHeader(header) {
			a.add(&translated, p.ListenerName(), at, "sets %s behind the filter, which judged the client's", header)
		} else {
			a.add(&setsIdentity, p.ListenerName(), at, topology.SetsText, header)
		}
	}
	clusters := map[string]bool{}
	for _, rt := range a.listRoutes(p.Manager) {
		for _, l := range rt.levels {
			if header := headerInOptions(l.config.List("request_headers_to_add"), isIdentityHeader); header != "" {
				report(l.at+".request_headers_to_add", header)
			}
			a.checkPerFilterConfig(p, l, report)
		}
		to, _ := rt.routeTargets(&a.resources, false)
		for _, name := range to {
			clusters[strings.TrimPrefix(name, "cluster ")] = true
		}
	}
	for name := range a.clusters {
		if clusters[name] {
			options := a.clusters[name].Field("typed_extension_protocol_options")
			if header := headerSetByConfig(options, isJudgedHeader); header != "" {
				report("cluster "+name+": typed_extension_protocol_options", header)
			}
		}
	}
	a.checkFilterHeaders(p, report)
}

// checkPerFilterConfig checks a level's typed_per_filter_config for the filters behind Gatehouse's.
func (a *analysis) checkPerFilterConfig(p *plugin, l routeLevel, report func(at, header string)) {
	configs := l.config.Object("typed_per_filter_config")
	for _, name := range configs.Keys() {
		at := slices.IndexFunc(p.Filters, func(f object) bool { return f.Text("name") == name })
		if at >= 0 && at < p.Index {
			continue
		}
		if header := headerSetByConfig(configs[name], p.affectsJudgement); header != "" {
			report(l.at+".typed_per_filter_config."+name, header)
		}
	}
}

// checkFilterHeaders checks the other filters of the connection manager.
func (a *analysis) checkFilterHeaders(p *plugin, report func(at, header string)) {
	credential := func(name string) bool {
		return slices.ContainsFunc(topology.AllHostRules(p.Rules), func(hr topology.HostRules) bool {
			c := &hr.Credentials
			return topology.NormalizeHeader(name) == topology.NormalizeHeader(c.SecretHeader) && c.SecretHeader != "" ||
				topology.NormalizeHeader(name) == topology.NormalizeHeader(c.APIKeyHeader) && c.APIKeyHeader != "" ||
				(c.Basic || c.Bearer) && topology.NormalizeHeader(name) == "authorization"
		})
	}
	injected := func(at string, v any) {
		if header := headerSetByConfig(v, credential); header != "" {
			a.add(&injects, p.ListenerName(), at,
				"sets %s before the filter: any client is taken for the device whose secret it is", header)
		}
	}
	injected("early_header_mutation_extensions", p.Manager.Field("early_header_mutation_extensions"))
	for i, filter := range p.Filters {
		at := fmt.Sprintf("http_filters[%d]", i)
		config := a.WithDiscovered(filter).Field("typed_config")
		if i < p.Index {
			injected(at, config)
		} else if i > p.Index {
			if header := headerSetByConfig(config, p.affectsJudgement); header != "" {
				report(at, header)
			}
		}
	}
}

// headerInOptions returns the wanted header in a list of Envoy's HeaderValueOption, "" for none.
func headerInOptions(list []object, wanted func(string) bool) string {
	for _, option := range list {
		if name := option.Object("header").Text("key"); wanted(name) {
			return name
		}
	}
	return ""
}

// headerSetByConfig returns a wanted header that a filter's configuration sets in requests, "" for none.
func headerSetByConfig(v any, wanted func(string) bool) string {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			if name := headerSetByConfig(item, wanted); name != "" {
				return name
			}
		}
	case string:
		return headerSetByLua(v, wanted)
	case map[string]any:
		o := object(v)
		for _, name := range []string{o.Object("header").Text("key"), o.Text("header"), o.Text("forward_payload_header"),
			o.Text("forward_username_header")} {
			if name != "" && wanted(name) {
				return name
			}
		}
		for _, claim := range o.List("claim_to_headers") {
			if wanted(claim.Text("header_name")) {
				return claim.Text("header_name")
			}
		}
		for _, key := range o.Keys() {
			if plain := strings.ToLower(strings.ReplaceAll(key, "_", "")); strings.HasPrefix(plain, "response") ||
				strings.Contains(plain, "accesslog") || plain == "keysources" || plain == "requestrules" {
				continue
			}
			if name := headerSetByConfig(o[key], wanted); name != "" {
				return name
			}
		}
	}
	return ""
}

// headerLetters are the letters of header names.
const headerLetters = ":-_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

// headerSetByLua returns the wanted header that a script of Envoy's Lua filter sets, "" for none.
func headerSetByLua(code string, wanted func(string) bool) string {
	return headerInLuaCalls(code, []string{":add(", ":replace("}, wanted)
}

// headerInLuaCalls returns the wanted header named in one of the calls of a script, "" for none.
func headerInLuaCalls(code string, calls []string, wanted func(string) bool) string {
	for _, call := range calls {
		for rest := code; ; {
			var found bool
			if _, rest, found = strings.Cut(rest, call); !found {
				break
			}
			rest = strings.TrimLeft(rest, ` "'[`)
			name := rest[:len(rest)-len(strings.TrimLeft(rest, headerLetters))]
			if wanted(name) {
				return name
			}
		}
	}
	return ""
}
