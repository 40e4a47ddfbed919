package bypass

import (
	"fmt"
	"slices"
)

// bypass is a change of a configuration by which clients reach a resource without its credential, forge an identity, or
// reach Gatehouse's or Envoy's internal addresses.
type bypass struct {
	name string
	open func(*gen)
}

func withoutFilter() tree {
	return parse(`{"gatehouse": {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": true}}`)
}

var rootHeader = `{"header": {"key": "X-Gatehouse-Device", "value": "root"}}`

// protectResource adds a resource, so that a bypass has a target.
func (g *gen) protectResource(r resource) tree {
	match := tree{"path": r.path}
	if r.below {
		match = tree{"prefix": r.path}
	}
	if r.methods != nil {
		match["methods"] = r.methods
	}
	rule := tree{"match": match, "auth": tree{}}
	if r.admin {
		rule["auth"] = tree{"permissions": []any{"admin"}}
	}
	g.protected = append(g.protected, r)
	prepend(g.rules, "rules", rule)
	return rule
}

func (g *gen) toUpstream(match string, fields ...string) string {
	return fmt.Sprintf(`{"match": %s, "route": %s}`, match, g.to("upstream", fields...))
}

// wrapFilter replaces the filter by a matcher around the filter.
func (g *gen) wrapFilter(matcher string) {
	i := g.filterAt()
	filter := g.hcm["http_filters"].([]any)[i].(tree)
	filter["typed_config"] = parse(
		`{"@type": "type.googleapis.com/envoy.extensions.common.matching.v3.ExtensionWithMatcher",
		"extension_config": {"name": "gatehouse", "typed_config": %s}, "xds_matcher": %s}`,
		marshal(filter["typed_config"]), matcher)
}

const always = `{"prefix": "/"}`

var bypasses = slices.Concat(httpFilterBypasses, tcpBypasses)

var httpFilterBypasses = []bypass{
	{"a broader rule above", func(g *gen) {
		g.protectResource(resource{path: "/deep/config"})
		prepend(g.rules, "rules", parse(`{"match": {"prefix": "/deep/", "methods": ["GET"]}, "cache": {}}`))
	}},
	{"a broader rule for any device above", func(g *gen) {
		g.protectResource(resource{path: "/deep/config", admin: true})
		prepend(g.rules, "rules", parse(`{"match": {"prefix": "/deep/", "methods": ["GET"]}, "auth": {}}`))
	}},
	{"an unknown method", func(g *gen) {
		rule := g.protectResource(resource{path: "/deep/config", methods: []string{"POST"}})
		rule["match"].(tree)["methods"] = []any{"PSOT"}
	}},
	{"upgrades with own filters", func(g *gen) {
		g.hcm["upgrade_configs"] = []any{parse(`{"upgrade_type": "websocket", "filters": [%s]}`, router)}
	}},
	{"a second listener", func(g *gen) { g.listen("bypass", g.anyAddress(), g.manager(g.toUpstream(always))) }},
	{"a second listener, cluster of another name", func(g *gen) {
		g.cluster("again", g.w.service)
		g.listen("bypass", g.anyAddress(), g.manager(fmt.Sprintf(`{"match": {"prefix": "/"}, "route": %s}`, g.to("again"))))
	}},
	{"a second listener for open paths", func(g *gen) {
		g.listen("bypass", g.anyAddress(), g.manager(g.toUpstream(`{"prefix": "/open/"}`)))
	}},
	{"a second filter chain", func(g *gen) {
		chains := g.edge["filter_chains"].([]any)
		chains[0].(tree)["filter_chain_match"] = parse(`{"application_protocols": ["http/1.1", "http/1.0"]}`)
		g.edge["listener_filters"] = []any{
			parse(`{"name": "inspector", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.listener.http_inspector.v3.HttpInspector"}}`)}
		chain := tree{"filters": []any{g.manager(g.toUpstream(always))}}
		if g.chance(50) {
			g.edge["default_filter_chain"] = chain
			return
		}
		chain["filter_chain_match"] = parse(`{"application_protocols": ["h2c"]}`)
		join(g.edge, "filter_chains", chain)
	}},
	{"tcp_proxy", func(g *gen) { g.listen("bypass", g.anyAddress(), g.tcp("upstream")) }},
	{"tcp_proxy through a local listener", func(g *gen) {
		here, port := g.loopbackAddress()
		g.listen("inner", here, g.manager(g.toUpstream(always)))
		g.cluster("inner", fmt.Sprintf("127.0.0.1:%d", port))
		g.listen("bypass", g.anyAddress(), g.tcp("inner"))
	}},
	{"regex_rewrite", func(g *gen) {
		g.route(`{"prefix": "/public/"}`,
			g.to("upstream", `"regex_rewrite": {"pattern": {"regex": "^/public/(.*)$"}, "substitution": "/\\1"}`))
	}},
	{"prefix_rewrite on /", func(g *gen) {
		g.protectResource(resource{path: "/deep/", below: true})
		g.lastRoute()["route"].(tree)["prefix_rewrite"] = "/deep/"
	}},
	{"prefix_rewrite into a protected prefix", func(g *gen) {
		g.protectResource(resource{path: "/deep/", below: true})
		join(g.rules, "rules", parse(`{"match": {"prefix": "/free/"}}`))
		g.rules["default"] = "deny"
		g.lastRoute()["route"].(tree)["prefix_rewrite"] = "/deep/"
	}},
	{"a second listener into a protected prefix", func(g *gen) {
		g.protectResource(resource{path: "/deep/", below: true})
		plain := g.manager(`{"match": {"prefix": "/free/"}, "route": ` + g.to("upstream", `"prefix_rewrite": "/deep/a/"`) +
			`, "request_headers_to_remove": ["x-gatehouse-device", "x-gatehouse-permissions"]}`)
		at(plain, "typed_config").(tree)["common_http_protocol_options"] = parse(
			`{"headers_with_underscores_action": "REJECT_REQUEST"}`)
		g.listen("bypass", g.anyAddress(), plain)
	}},
	{"prefix_rewrite", func(g *gen) {
		g.route(`{"prefix": "/public/"}`, g.to("upstream", `"prefix_rewrite": "/"`))
	}},
	{"a route to the sidecar", func(g *gen) {
		g.route(`{"prefix": "/side/"}`, `{"cluster": "gatehouse-sidecar", "prefix_rewrite": "/"}`)
	}},
	{"a route to the sidecar, cluster of another name", func(g *gen) {
		g.cluster("side", g.w.apiSocket)
		g.route(`{"prefix": "/side/"}`, g.to("side", `"prefix_rewrite": "/"`))
	}},
	{"a route to the push listener", func(g *gen) {
		g.cluster("push", g.w.pushSocket)
		g.route(`{"prefix": "/side/"}`, g.to("push", `"prefix_rewrite": "/"`))
	}},
	{"a route to the admin address", func(g *gen) {
		g.cluster("admin", g.w.adminAddress)
		g.route(`{"prefix": "/side/"}`, g.to("admin", `"prefix_rewrite": "/"`))
	}},
	{"identity header of a route", func(g *gen) {
		g.lastRoute()["request_headers_to_add"] = []any{parse("%s", rootHeader)}
	}},
	{"identity header of a virtual host", func(g *gen) {
		g.host["request_headers_to_add"] = []any{parse("%s", rootHeader)}
	}},
	{"identity header of the route configuration", func(g *gen) {
		g.hcm["route_config"].(tree)["request_headers_to_add"] = []any{parse("%s", rootHeader)}
	}},
	{"identity header of a weighted cluster", func(g *gen) {
		g.lastRoute()["route"] = parse(
			`{"weighted_clusters": {"clusters": [{"name": %q, "weight": 1, "request_headers_to_add": [%s]}]}}`,
			g.name("upstream"), rootHeader)
	}},
	{"identity header of a filter behind", func(g *gen) {
		g.insert(g.filterAt()+1, mutationFilter("bypass", "x-gatehouse-device", "%REQ(x-user)%"))
	}},
	{"identity header of a route's filter", func(g *gen) {
		g.insert(g.filterAt()+1,
			parse(`{"name": "bypass", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation"}}`))
		g.lastRoute()["typed_per_filter_config"] = parse(
			`{"bypass": {"@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutationPerRoute",
			"mutations": {"request_mutations": [{"append": %s}]}}}`, rootHeader)
	}},
	{"identity header of Lua behind", func(g *gen) {
		g.insert(g.filterAt()+1,
			lua("bypass", "function envoy_on_request(h) h:headers():replace(\"x-gatehouse-device\", \"root\") end"))
	}},
	{"another path of Lua behind", func(g *gen) {
		g.protectResource(resource{path: "/deep/config"})
		g.insert(g.filterAt()+1,
			lua("bypass", "function envoy_on_request(h) h:headers():replace(':path', '/deep/config') end"))
	}},
	{"another method of Lua behind", func(g *gen) {
		g.protectResource(resource{path: "/open/", below: true, methods: []string{"POST"}})
		g.insert(g.filterAt()+1, lua("bypass", "function envoy_on_request(h) h:headers():replace(':method', 'POST') end"))
	}},
	{"identity header of a cluster's filter", func(g *gen) {
		for _, c := range g.clusters {
			if c := c.(tree); c["name"] == g.name("upstream") {
				c["typed_extension_protocol_options"] = parse(`{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
					"@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": {"http_protocol_options": {}},
					"http_filters": [%s, {"name": "codec", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec"}}]}}`,
					marshal(mutationFilter("bypass", "x-gatehouse-device", "root")))
			}
		}
	}},
	{"a secret before the filter", func(g *gen) {
		g.insert(0, mutationFilter("bypass", "x-device-token", g.w.secret))
		g.insert(0, mutationFilter("bypass2", "x-device-id", "d1"))
	}},
	{"a secret, early", func(g *gen) {
		extension := func(header, value string) any {
			return parse(
				`{"name": "early", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
				"mutations": [{"append": {"header": {"key": %q, "value": %q}}}]}}`, header, value)
		}
		g.hcm["early_header_mutation_extensions"] = []any{extension("x-device-id", "d1"),
			extension("x-device-token", g.w.secret)}
	}},
	{"cluster_header", func(g *gen) {
		g.route(`{"prefix": "/any/"}`, `{"cluster_header": "x-cluster", "prefix_rewrite": "/"}`)
	}},
	{"cluster_header of a weighted cluster", func(g *gen) {
		g.route(`{"prefix": "/any/"}`,
			`{"weighted_clusters": {"clusters": [{"cluster_header": "x-cluster", "weight": 1}]}, "prefix_rewrite": "/"}`)
	}},
	{"the address in a header", func(g *gen) {
		g.cluster("any", "127.0.0.1:1",
			`{"type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "original_dst_lb_config": {"use_http_header": true}, "load_assignment": null}`)
		g.route(`{"prefix": "/any/"}`, g.to("any", `"prefix_rewrite": "/"`))
	}},
	{"the address in filter state", func(g *gen) {
		g.cluster("any", "127.0.0.1:1", `{"type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "load_assignment": null}`)
		g.route(`{"prefix": "/any/"}`, g.to("any", `"prefix_rewrite": "/"`))
		g.insert(0, filterState("bypass", "envoy.network.transport_socket.original_dst_address", "",
			pick(g, "%REQ(x-envoy-original-dst-host)%", "%REQUEST_HEADER(x-envoy-original-dst-host)%")))
	}},
	{"several domains with one cache", func(g *gen) {
		rules := g.rules["rules"].([]any)
		g.rules["rules"] = append([]any{parse(`{"match": {"path": "/shared"}, "cache": {"on_miss": "fetch"}}`)}, rules...)
		join(g.routeConfig(), "virtual_hosts",
			parse(`{"name": "b", "domains": ["b.example"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": %q}}]}`,
				g.name("other")))
		g.others = append(g.others, "b.example")
	}},
	{"a port in the host", func(g *gen) {
		g.addOpenHost()
		g.routeConfig()["ignore_port_in_host_matching"] = false
		delete(g.hcm, "strip_any_host_port")
		if g.chance(50) {
			g.hcm["strip_matching_host_port"] = true
		}
	}},
	{"an empty port in the host", func(g *gen) {
		g.addOpenHost()
		g.routeConfig()["ignore_port_in_host_matching"] = false
		g.hcm["strip_any_host_port"] = true
	}},
	{"an open host of the same service", func(g *gen) {
		g.addOpenHost()
		g.routeHosts(g.toUpstream(always), "pub.example")
	}},
	{"an open host of the same service, by rewriting", func(g *gen) {
		g.addOpenHost()
		g.routeHosts(g.toUpstream(`{"prefix": "/public/"}`, `"prefix_rewrite": "/"`), "pub.example")
	}},
	{"an open host that Envoy doesn't know", func(g *gen) { g.passHosts("pub.example") }},
	{"more open hosts than Envoy knows", func(g *gen) {
		g.addOpenHost()
		g.routeHosts(g.toOther(), "pub.example")
	}},
	{"a host by a route's header", func(g *gen) {
		g.passHosts("pub.example")
		g.route(`{"prefix": "/", "headers": [{"name": ":authority", "string_match": {"exact": "pub.example"}}]}`, g.to("other"))
	}},
	{"another host of Lua behind", func(g *gen) {
		g.addOpenHost()
		g.insert(g.filterAt()+1,
			lua("bypass", "function envoy_on_request(h) h:headers():replace(':authority', 'edge.example') end"))
	}},
	{"the filter off on a route", func(g *gen) {
		g.route(`{"prefix": "/"}`, g.to("upstream"))["typed_per_filter_config"] = withoutFilter()
	}},
	{"the filter off on an open route", func(g *gen) {
		g.route(`{"prefix": "/img/"}`, g.to("upstream"))["typed_per_filter_config"] = withoutFilter()
	}},
	{"the filter off on a virtual host", func(g *gen) { g.host["typed_per_filter_config"] = withoutFilter() }},
	{"the filter off for a part of a route", func(g *gen) {
		g.lastRoute()["route"] = parse(
			`{"weighted_clusters": {"clusters": [{"name": %q, "weight": 1, "typed_per_filter_config": %s}]}}`,
			g.name("upstream"), marshal(withoutFilter()))
	}},
	{"the filter disabled", func(g *gen) { g.hcm["http_filters"].([]any)[g.filterAt()].(tree)["disabled"] = true }},
	{"a matcher around the filter", func(g *gen) {
		g.wrapFilter(`{"matcher_tree": {"input": {"name": "header", "typed_config": {"@type": "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput", "header_name": "x-internal"}},
			"exact_match_map": {"map": {"1": {"action": {"name": "skip", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.common.matcher.action.v3.SkipFilter"}}}}}}}`)
	}},
	{"CONNECT", func(g *gen) {
		g.hcm["upgrade_configs"] = []any{parse(`{"upgrade_type": "CONNECT"}`)}
		g.route(`{"connect_matcher": {}}`,
			g.to("upstream", `"upgrade_configs": [{"upgrade_type": "CONNECT", "connect_config": {}}]`))
	}},
	{"a cache before the filter", func(g *gen) {
		g.insert(0,
			parse(`{"name": "bypass", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.cache.v3.CacheConfig",
			"typed_config": {"@type": "type.googleapis.com/envoy.extensions.http.cache.simple_http_cache.v3.SimpleHttpCacheConfig"}}}`))
		g.protectResource(resource{path: "/deep/config"})
	}},
	{"a second edge with other rules", func(g *gen) {
		second := cloneTree(g.edge)
		second["name"], second["address"] = g.name("bypass"), g.anyAddress()
		rules := ruleTree(at(second, "filter_chains", 0, "filters", 0, "typed_config").(tree))
		rules["rules"] = []any{parse(`{"match": {"prefix": "/none/"}, "auth": {}}`)}
		g.file = append(g.file, second)
	}},
	{"a route in a matcher", func(g *gen) {
		route := parse(
			`{"@type": "type.googleapis.com/envoy.config.route.v3.Route", "match": {"prefix": "/"}, "route": %s, "request_headers_to_add": [%s]}`, g.to("upstream"), rootHeader)
		delete(g.host, "routes")
		g.host["matcher"] = parse(`{"on_no_match": {"action": {"name": "route", "typed_config": %s}}}`, marshal(route))
	}},
	{"scoped routes", func(g *gen) {
		routes := cloneTree(g.hcm["route_config"].(tree))
		routes["name"] = "scoped"
		routes["request_headers_to_add"] = []any{parse("%s", rootHeader)}
		delete(g.hcm, "route_config")
		g.hcm["scoped_routes"] = parse(
			`{"name": "scopes", "scope_key_builder": {"fragments": [{"header_value_extractor": {"name": "host", "index": 0}}]},
			"scoped_route_configurations_list": {"scoped_route_configurations": [{"name": "one", "route_configuration": %s,
			"key": {"fragments": [{"string_key": "edge.example"}]}}]}}`, marshal(routes))
	}},
}
