package envoyconfig

import (
	"slices"
	"testing"

	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/internal/envoyrules"
)

const (
	shippedHosts = "            - name: upstream\n              domains: [\"*\"]\n" + shippedRoutes
	ignorePort   = "            name: edge\n            # Cache-Status"

	shopRules = "shop: {domains: [shop.example, '*.shop.example'], rules: [{match: {prefix: /me/}, auth: {}}, " +
		"{name: all, match: {prefix: /}, cache: {}}]}"
	toShop = "{name: shop, domains: [shop.example, '*.SHOP.example'], routes: [{match: {prefix: /}, route: {cluster: " +
		"shop}}]}"
	toRest   = ", {name: rest, domains: [rest.test], routes: [{match: {path: /x}, route: {cluster: rest}}]}"
	toOthers = "{name: others, domains: ['*'], routes: [{match: {prefix: /}, route: {cluster: upstream}}]}"
)

// withHosts returns replacements that add virtual hosts to the rules and to Envoy.
func withHosts(rules, hosts string, more ...string) []string {
	return appendAll([]string{shippedDefault, shippedDefault + "\n                      virtual_hosts: {" + rules + "}",
		shippedHosts, "              [" + hosts + "]", "name: edge\n            # Cache-Status",
		"name: edge\n            ignore_port_in_host_matching: true\n            # Cache-Status"}, more...)
}

const portsCount = "ignore_port_in_host_matching: true"

// virtualHosts are configurations with virtual hosts in the rules. e2e/bypass proves the open ones.
func virtualHosts() []analyzeTest {
	both := toShop + ", " + toOthers
	ports := func(more ...string) []string {
		return withHosts(shopRules, both, appendAll(more, portsCount, "x: y")...)
	}
	return []analyzeTest{
		{"virtual hosts", withHosts(shopRules, both), nil, ""},
		{"virtual hosts, ports count", ports(), []string{otherPort.Code}, "listener edge: route_config.ignore_port"},
		{"virtual hosts, the listener's port doesn't count",
			ports("normalize_path: true", "normalize_path: true\n          strip_matching_host_port: true"),
			[]string{otherPort.Code}, ""},
		{"virtual hosts, an empty port counts",
			ports("normalize_path: true", "normalize_path: true\n          strip_any_host_port: true"),
			[]string{otherPort.Code}, ""},
		{"virtual hosts, ports count, but nothing asks more", withHosts(shopRules,
			toShop+", {name: others, domains: ['*'], routes: [{match: {path: /v1/x}, route: {cluster: upstream}}]}", portsCount,
			"x: y"), nil, ""},
		{"virtual hosts, ports count, but no other host takes them", withHosts(shopRules, toShop+toRest, portsCount,
			"x: y"), nil, ""},
		{"virtual hosts, a port in a domain", withHosts(shopRules,
			"{name: shop, domains: ['shop.example', 'shop.example:*'], routes: [{match: {prefix: /}, route: {cluster: shop}}]}"+
				toRest, portsCount, "x: y"), nil, ""},
		{"virtual hosts with one upstream", withHosts(shopRules, "{name: all, domains: ['*'], routes: [{match: {prefix: /}, "+
			"route: {cluster: upstream}}]}"), []string{weakerHost.Code}, "listener edge: virtual host all: routes[0]"},
		{"virtual hosts with one upstream of two domains",
			withHosts(shopRules, toShop+", {name: others, domains: ['*'], routes: [{match: {prefix: /me/}, route: {cluster: "+
				"shop}}]}"),
			[]string{weakerHost.Code}, "virtual host others: routes[0]"},
		{"virtual hosts, another path of one upstream",
			withHosts(shopRules, toShop+", {name: others, domains: ['*'], routes: [{match: {path: /you}, route: {cluster: "+
				"shop}}]}"),
			nil, ""},
		{"virtual hosts, a path of one upstream by rewriting",
			withHosts(shopRules, toShop+", {name: others, domains: ['*'], routes: [{match: {prefix: /you/}, route: {cluster: "+
				"shop, prefix_rewrite: /me/}}]}"), []string{weakerHost.Code}, "virtual host others: routes[0]"},
		{"virtual hosts, the other one refuses",
			withHosts("all: {domains: [a.example], rules: [{match: {prefix: /}, auth: {}}]}, deny: {domains: [b.example], "+
				"default: deny, rules: [{match: {prefix: /part/}, auth: {permissions: [p]}}]}, none: {domains: [c.example], "+
				"default: deny}",
				"{name: all, domains: [a.example, b.example, c.example], routes: [{match: {path: /x}, route: {cluster: a}}]}, "+
					toOthers), nil, ""},
		{"virtual hosts, one of which is refused", withHosts("open: {domains: [a.example]}, none: {domains: [b.example], "+
			"default: deny}", "{name: all, domains: [a.example, b.example], routes: [{match: {prefix: /}, route: {cluster: "+
			"a}}]}"+toRest),
			nil, ""},
		{"virtual hosts, the other one opens a part",
			withHosts("all: {domains: [a.example], rules: [{match: {prefix: /}, auth: {}}]}, part: {domains: [b.example], "+
				"rules: [{match: {prefix: /part/}}, {match: {prefix: /}, auth: {}}]}",
				"{name: all, domains: [a.example, b.example], routes: [{match: {prefix: /}, route: {cluster: a}}]}"+toRest),
			[]string{weakerHost.Code}, "virtual host all: routes[0]"},
		{"virtual hosts by a route's header", withHosts(shopRules,
			"{name: all, domains: ['*'], routes: [{match: {prefix: /, "+
				"headers: [{name: ':authority', string_match: {exact: shop.example}}]}, route: {cluster: shop}}, {match: {prefix: "+
				"/v1/}, route: {cluster: upstream}}]}"), []string{weakerHost.Code, sharedKeys.Code}, "routes[0]"},
		{"a virtual host without requests", withHosts(shopRules+", gone: {domains: [gone.example]}", toShop+toRest),
			[]string{noHost.Code}, "listener edge: virtual_hosts.gone.domains"},
		{"rules without requests", withHosts(shopRules, toShop), []string{noHost.Code}, "listener edge: rules"},
		{"a virtual host for the others", withHosts(shopRules+", rest: {domains: ['*.example']}", both),
			[]string{weakerHost.Code}, "virtual host others: routes[0]"},
		{"virtual hosts by discovery", withHosts(shopRules+", gone: {domains: [gone.example]}", toShop, portsCount,
			"vhds: {}"), nil, ""},
		{"virtual hosts, another host by Lua", withHosts(shopRules, both, shippedRouter,
			luaFilter(`function envoy_on_request(h) h:headers():replace(":authority", "x") end`)+shippedRouter),
			[]string{translated.Code}, "http_filters[1]"},
		{"virtual hosts, another host by a filter", withHosts(shopRules, both, shippedRouter,
			setHeaderFilter("Host")+shippedRouter), []string{translated.Code}, "http_filters[1]"},
		{"virtual hosts, a host for the upstream", withHosts(shopRules,
			"{name: shop, domains: [shop.example, '*.shop.example'], routes: [{match: {prefix: /}, route: {cluster: shop, "+
				"host_rewrite_literal: x}}]}, "+toOthers), nil, ""},
		{"one cache, another host by Lua", []string{shippedRouter,
			luaFilter(`function envoy_on_request(h) h:headers():replace(":authority", "x") end`) + shippedRouter}, nil, ""},
		{"virtual hosts, a route without the filter", withHosts(shopRules,
			"{name: shop, domains: [shop.example, '*.shop.example'], typed_per_filter_config: {gatehouse: {disabled: true}}, "+
				"routes: [{match: {prefix: /}, route: {cluster: shop}}]}, "+toOthers), []string{routeOff.Code},
			"virtual host shop"},
		{"virtual hosts, rewritten", withHosts(shopRules,
			"{name: shop, domains: ['*.shop.example'], routes: [{match: {prefix: "+
				"/you/}, route: {cluster: shop, prefix_rewrite: /me/}}, {match: {prefix: /}, route: {cluster: shop}}]}"+
				toRest), []string{rewriteIn.Code}, "virtual host shop: routes[0]"},
		{"virtual hosts, rewritten to what only another one protects",
			withHosts(shopRules, toShop+", {name: others, domains: "+
				"['*'], routes: [{match: {prefix: /you/}, route: {cluster: upstream, prefix_rewrite: /me/}}, {match: {prefix: /}, "+
				"route: {cluster: upstream}}]}"), nil, ""},
		{"virtual hosts, a wildcard", withHosts("shop: {domains: [shop.example, '*.shop.example'], rules: [{match: {path: "+
			"'/*'}, auth: {}}]}", both), []string{wildcard.Code}, "listener edge: virtual_hosts.shop.rules[0].match"},
		{"virtual hosts, a secret before the filter",
			withHosts("shop: {default: deny, domains: [shop.example, '*.shop.example'], credentials: {id_header: x-id, "+
				"secret_header: x-shop}}", both,
				shippedFilters, shippedFilters+setHeaderFilter("x-shop")), []string{injects.Code}, "http_filters[0]"},
		{"several upstreams of one cache, by domains",
			withHosts("shop: {domains: ['*.example'], rules: [{match: {prefix: /}, "+
				"cache: {}}]}", toShop+", {name: b, domains: [b.example], routes: [{match: {prefix: /}, route: {cluster: "+
				"b}}]}"+toRest),
			[]string{sharedKeys.Code}, "listener edge: virtual_hosts.shop.rules[0].cache"},
		{"several upstreams, keys with hosts", withHosts("shop: {domains: ['*.example'], rules: [{match: {prefix: /}, "+
			"cache: {scope: host}}]}", toShop+", {name: b, domains: [b.example], routes: [{match: {prefix: /}, route: "+
			"{cluster: b}}]}"+toRest),
			nil, ""},
		{"several upstreams by a header, keys with hosts",
			withHosts("shop: {domains: ['*.example'], rules: [{match: {prefix: "+
				"/}, cache: {scope: host}}]}", "{name: b, domains: [b.example], routes: [{match: {prefix: /, headers: [{name: "+
				"x}]}, route: {cluster: b}}, {match: {prefix: /}, route: {cluster: c}}]}"+toRest), []string{sharedKeys.Code},
			"rules[0].cache"},
	}
}

// TestJudgesOf: the virtual hosts of the rules that judge the requests of each virtual host of Envoy.
func TestJudgesOf(t *testing.T) {
	rules, err := policy.Parse(map[string]any{"virtual_hosts": map[string]any{
		"a": map[string]any{"domains": []any{"a.example", "*.shop.test"}},
		"b": map[string]any{"domains": []any{"*.example"}}}})
	if err != nil {
		t.Fatal(err)
	}
	config := object{"virtual_hosts": []any{
		map[string]any{"domains": []any{"*"}}, map[string]any{"domains": []any{"A.example", "b.example:80"}},
		map[string]any{"domains": []any{"www.*"}}}}
	got := (&plugin{Plugin: &envoyrules.Plugin{Rules: rules}}).judgingHosts(config)
	for host, want := range map[int][]int{0: {-1, 0, 1}, 1: {0, 1}, 2: {-1, 0, 1}} {
		slices.Sort(got[host])
		if !slices.Equal(got[host], want) {
			t.Errorf("virtual host %d: judged by %v, want %v", host, got[host], want)
		}
	}
}
