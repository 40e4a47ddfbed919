package envoyconfig

import (
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/check/findings"
)

const (
	// Texts of envoy.yaml that the tests replace.
	shippedRoutes = "              routes:\n              - match: {prefix: /}\n                route: {cluster: " +
		"upstream, timeout: 15s}"
	shippedPush     = "  # The sidecar pushes to this listener."
	shippedClusters = "  clusters:\n"
	shippedRules    = "                      rules: # first match wins\n"
	shippedFilters  = "          http_filters:\n"
	shippedRouter   = "          - &router\n"
	shippedDefault  = "                      default: pass"

	managerOf = `typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, `
)

// routeFirst puts a route before the route for all paths.
func routeFirst(route string) []string {
	return []string{shippedRoutes, "              routes:\n              - " + route +
		"\n              - {match: {prefix: /}, route: {cluster: upstream}}"}
}

// listener adds a listener at an address, with a network filter.
func listener(address, filter string) []string {
	return []string{shippedPush, "  - {name: second, address: {" + address + "}, filter_chains: [{filters: [{name: f, " +
		filter + "}]}]}\n" + shippedPush}
}

func managerWith(routes string) string {
	return managerOf + "route_config: {virtual_hosts: [{name: v, domains: ['*'], routes: [" + routes + "]}]}}"
}

// clearingRoute is a connection manager for a route, without the last brace, that removes identity headers.
func clearingRoute(route string) string {
	return strings.Replace(
		managerWith(route+", request_headers_to_remove: [x-gatehouse-device, x-gatehouse-permissions]}"), "route_config",
		"common_http_protocol_options: {headers_with_underscores_action: DROP_HEADER}, route_config", 1)
}

const (
	loopback = "socket_address: {address: 127.0.0.1, port_value: 8082}"
	anywhere = "socket_address: {address: 0.0.0.0, port_value: 8082}"
	tcp      = `typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, cluster: `
	identity = `request_headers_to_add: [{header: {key: X-Gatehouse_Device, value: root}}]`
	mutation = `{name: m, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation, mutations: {request_mutations: [{append: {header: {key: HEADER, value: x}}}]}}}`
)

// specifier is a plugin that chooses the sidecar's cluster.
const specifier = `{extension: {name: m, typed_config: {cluster_matcher: {on_no_match: {action: {typed_config: {cluster: gatehouse-sidecar}}}}}}}`

// storeFilter is a filter that stores a value.
func storeFilter(key, format string) string {
	return "          - {name: s, typed_config: {\"@type\": x/envoy.extensions.filters.http.set_filter_state.v3.Config, " +
		storeConfig(key, format) + "}}\n"
}

func storeConfig(key, format string) string {
	return "on_request_headers: [{object_key: " + key +
		", format_string: {text_format_source: {inline_string: '" + format + "'}}}]"
}

// storeOfConnection is a network filter that stores a value of a connection, followed by a tcp_proxy.
func storeOfConnection(key, format string) string {
	return `typed_config: {"@type": x/envoy.extensions.filters.network.set_filter_state.v3.Config, ` +
		strings.Replace(storeConfig(key, format), "on_request_headers", "on_new_connection", 1) +
		"}}, {name: t, " + tcp + "other}"
}

// quic makes a cluster connect by HTTP/3.
const quic = `transport_socket: {typed_config: {"@type": ` +
	"x/envoy.extensions.transport_sockets.quic.v3.QuicUpstreamTransport}}, "

const destination = "envoy.network.transport_socket.original_dst_address"

func cluster(name, address string) string {
	return shippedClusters + "  - {name: " + name +
		", load_assignment: {endpoints: [{lb_endpoints: [{endpoint: {address: {" + address + "}}}]}]}}\n"
}

func setHeaderFilter(header string) string {
	return "          - " + strings.Replace(mutation, "HEADER", header, 1) + "\n"
}

func appendAll(first []string, more ...string) []string {
	return append(first[:len(first):len(first)], more...)
}

func luaFilter(code string) string {
	return "          - {name: l, typed_config: {\"@type\": x/Lua, default_source_code: {inline_string: '" + code +
		"'}}}\n"
}

// sniFilter sends connections to the cluster named by the server name; a tcp_proxy follows.
const sniFilter = `typed_config: {"@type": x/envoy.extensions.filters.network.sni_cluster.v3.SniCluster}}, {name: t, ` + tcp +
	"other}"

// matchServerNames adds server names to the filter chain match of a listener.
func matchServerNames(names string, listener []string) []string {
	return appendAll(listener[:1], append([]string{strings.Replace(listener[1], "filter_chains: [{",
		"filter_chains: [{filter_chain_match: {server_names: ["+names+"]}, ", 1)}, listener[2:]...)...)
}

// innerListener is a listener with a tcp_proxy, followed by the next text of the file.
func innerListener(where, cluster string) string {
	return "  - {name: inner-listener, " + where + ", filter_chains: [{filters: [{name: f, " + tcp + cluster +
		"}}]}]}\n" + shippedPush
}

// meshListeners adds a public listener that leads to an address, and a mesh's listener at the address with the given
// binding; the edge is public.
func meshListeners(address, bound, to string) []string {
	return appendAll(listener(anywhere, tcp+"app}"), shippedPush, innerListener(bound, to), shippedClusters,
		cluster("app", address), shippedClusters, cluster("other", "socket_address: {address: 127.0.0.1, port_value: 8083}"),
		"socket_address: {address: 127.0.0.1, port_value: 8080}", "socket_address: {address: 0.0.0.0, port_value: 8080}")
}

// metricsListener makes the edge send a path to a listener whose route leads to Envoy's admin address.
func metricsListener(path, where, address, route string) []string {
	return appendAll(routeFirst("{match: {path: "+path+"}, route: {cluster: inner}}"), shippedPush,
		"  - {name: inner-listener, "+where+", filter_chains: [{filters: [{name: f, "+managerWith(route)+"}]}]}\n"+
			shippedPush,
		shippedClusters, cluster("inner", address), shippedClusters,
		cluster("p", "socket_address: {address: 127.0.0.1, port_value: 9901}"))
}

// behindFilter puts a listener between filter and upstream; a second listener leads to the upstream directly.
func behindFilter(where, address string) []string {
	second := listener(anywhere, tcp+"upstream}")
	return appendAll([]string{shippedRoutes,
		"              routes:\n              - {match: {prefix: /}, route: {cluster: inner}}"},
		shippedPush, strings.TrimSuffix(second[1], shippedPush)+innerListener(where, "upstream"), shippedClusters,
		cluster("inner", address), "socket_address: {address: 127.0.0.1, port_value: 8080}",
		"socket_address: {address: 0.0.0.0, port_value: 8080}")
}

// bypasses are configurations in which requests evade the filter. e2e/bypass proves each bypass in a real Envoy.
func bypasses() []analyzeTest {
	rule := func(text string) []string {
		return []string{shippedRules, shippedRules + "                      - " + text + "\n"}
	}
	filters := func(before, behind string) []string {
		return []string{shippedFilters + "          # Order", shippedFilters + before + "          # Order",
			shippedRouter + "            name: envoy.filters.http.router", behind + shippedRouter +
				"            name: envoy.filters.http.router"}
	}
	return []analyzeTest{
		{"a broader rule above", rule("{name: all, match: {prefix: /v1/, methods: [GET]}, cache: {}}"),
			[]string{openPart.Code}, "listener edge: rule all: rules[0].match"},
		{"a broader rule that asks less above", rule("{name: all, match: {prefix: /v1/, methods: [GET]}, auth: {}}"),
			[]string{openPart.Code}, "rules[0].match"},
		{"a broader rule of other methods above", rule("{name: all, match: {prefix: /v1/telemetry, methods: [GET]}}"),
			nil, ""},
		{"public reads of the same path",
			[]string{shippedDefault, "                      - {match: {prefix: /w/, methods: [GET]}, cache: {}}\n             " +
				"         - {match: {prefix: /w/}, auth: {}}\n                      default: pass"}, nil, ""},
		{"a method of nobody", []string{"methods: [POST]", "methods: [PSOT]"}, []string{unknownMethod.Code},
			"rules[0].match.methods"},
		{"admin for all", []string{"socket_address: {address: 127.0.0.1, port_value: 9901}",
			"socket_address: {address: 0.0.0.0, port_value: 9901}"}, []string{openAdmin.Code}, "admin.address"},
		{"optional", []string{"          - name: gatehouse\n",
			"          - name: gatehouse\n            is_optional: true\n"}, []string{notCertain.Code},
			"http_filters[0].is_optional"},
		{"another filter for the time being", []string{"          - name: gatehouse\n",
			"          - name: gatehouse\n            config_discovery: {default_config: {\"@type\": x/y.Buffer}}\n"},
			[]string{notCertain.Code}, "default_config"},
		{"within a matcher", []string{`            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
              config:
                name: gatehouse
`, `            typed_config:
             "@type": type.googleapis.com/envoy.extensions.common.matching.v3.ExtensionWithMatcher
             extension_config:
              name: gatehouse
              typed_config:
               "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
               config:
                name: gatehouse
`}, []string{matchedOnly.Code}, "http_filters[0]"},
		{"upgrades with own filters", []string{"          normalize_path: true",
			"          upgrade_configs: [{upgrade_type: websocket, filters: [{name: r, typed_config: {\"@type\": " +
				"x/envoy.extensions.filters.http.router.v3.Router}}]}]\n          normalize_path: true"},
			[]string{ownFilters.Code}, "upgrade_configs[0].filters"},
		{"upgrades", []string{"          normalize_path: true",
			"          upgrade_configs: [{upgrade_type: websocket}]\n          normalize_path: true"}, nil, ""},
		{"CONNECT", routeFirst("{match: {connect_matcher: {}}, route: {cluster: upstream}}"), []string{tunnel.Code},
			"routes[0].match.connect_matcher"},
		{"a cache of Envoy",
			filters("          - {name: c, typed_config: {\"@type\": x/envoy.extensions.filters.http.cache.v3.CacheConfig}}\n",
				""), []string{otherCache.Code}, "http_filters[0]"},
		{"a secret before the filter", filters(setHeaderFilter("X-Device-Token"), ""), []string{injects.Code},
			"http_filters[0]"},
		{"a secret early", []string{"          normalize_path: true", "          early_header_mutation_extensions: [" +
			strings.Replace(mutation, "HEADER", "x-device-token", 1) + "]\n          normalize_path: true"},
			[]string{injects.Code}, "early_header_mutation_extensions"},

		{"a second listener", listener(loopback, managerWith("{match: {prefix: /}, route: {cluster: upstream}}")),
			[]string{unjudged.Code}, "listener second: filter_chains[0]: virtual host v: routes[0]"},
		{"a second listener by another name",
			appendAll(listener(loopback, managerWith("{match: {prefix: /}, route: {cluster: again}}")), shippedClusters,
				cluster("again", "socket_address: {address: 127.0.0.1, port_value: 8081}")), []string{unjudged.Code},
			"listener second"},
		{"a second listener for the user",
			listener("pipe: {path: /x.sock}", managerWith("{match: {prefix: /}, route: {cluster: upstream}}")), nil, ""},
		{"a second listener for the machine, by a unix socket",
			listener("pipe: {path: /x.sock, mode: 511}", managerWith("{match: {prefix: /}, route: {cluster: upstream}}")),
			[]string{unjudged.Code}, "listener second"},
		{"routes by discovery", []string{"          route_config:\n            name: edge\n",
			"          rds: {route_config_name: edge}\n          x:\n            name: edge\n"}, []string{unseenRoutes.Code},
			"listener edge: filter_chains[0]"},
		{"a second listener for the machine, the first for all",
			appendAll(listener(loopback, managerWith("{match: {prefix: /}, route: {cluster: upstream}}")),
				"socket_address: {address: 127.0.0.1, port_value: 8080}", "socket_address: {address: 0.0.0.0, port_value: 8080}"),
			nil, ""},
		{"a second address for all",
			appendAll(listener(loopback+"}, additional_addresses: [{address: {"+anywhere+"}}], x: {",
				managerWith("{match: {prefix: /}, route: {cluster: upstream}}")),
				"socket_address: {address: 127.0.0.1, port_value: 8080}", "socket_address: {address: 0.0.0.0, port_value: 8080}"),
			[]string{unjudged.Code}, "listener second"},
		{"a mesh's listener for the programs beside it",
			appendAll(listener(anywhere+"}, bind_to_port: false, traffic_direction: OUTBOUND, x: {",
				managerWith("{match: {prefix: /}, route: {cluster: upstream}}")),
				"socket_address: {address: 127.0.0.1, port_value: 8080}", "socket_address: {address: 0.0.0.0, port_value: 8080}"),
			nil, ""},
		{"a second listener to another service",
			appendAll(listener(anywhere, managerWith("{match: {prefix: /}, route: {cluster: other}}")), shippedClusters,
				cluster("other", "socket_address: {address: 127.0.0.1, port_value: 8083}")), nil, ""},
		{"a second listener for open paths",
			listener(anywhere, managerWith("{match: {prefix: /open/}, route: {cluster: upstream}}")), []string{unjudged.Code},
			"listener second"},
		{"a second listener for open paths without identity headers",
			listener(anywhere, clearingRoute("{match: {prefix: /open/}, route: {cluster: upstream}")), nil, ""},
		{"a second listener that rewrites",
			listener(anywhere, clearingRoute("{match: {prefix: /open/}, route: {cluster: upstream, prefix_rewrite: /}")),
			[]string{unjudged.Code}, "listener second"},
		{"a second listener below a protected prefix",
			listener(anywhere, clearingRoute("{match: {prefix: /v1/telemetry/x/y/}, route: {cluster: upstream}")),
			[]string{unjudged.Code}, "listener second"},
		{"a second listener that rewrites below a protected prefix",
			listener(anywhere,
				clearingRoute("{match: {prefix: /open/}, route: {cluster: upstream, prefix_rewrite: /v1/telemetry/x/y/}")),
			[]string{unjudged.Code}, "listener second"},
		{"tcp_proxy", listener(loopback, tcp+"upstream}"), []string{unjudged.Code}, "listener second: filter_chains[0]"},
		{"tcp_proxy, weighted", listener(loopback, strings.TrimSuffix(tcp, "cluster: ")+
			"weighted_clusters: {clusters: [{name: upstream, weight: 1}]}}"), []string{unjudged.Code},
			"listener second: filter_chains[0]"},
		{"tcp_proxy to a local listener", appendAll(listener(anywhere, tcp+"inner}"), shippedClusters,
			"  - {name: inner-listener, address: {"+strings.Replace(loopback, "8082", "8084", 1)+
				"}, filter_chains: [{filters: [{name: f, "+managerWith("{match: {prefix: /}, route: {cluster: upstream}}")+
				"}]}]}\n"+cluster("inner", strings.Replace(loopback, "8082", "8084", 1)),
			"socket_address: {address: 127.0.0.1, port_value: 8080}", "socket_address: {address: 0.0.0.0, port_value: 8080}"),
			[]string{unjudged.Code}, "listener inner-listener"},
		{"a default filter chain", []string{"    # Flow control holds back",
			"    default_filter_chain: {filters: [{name: f, " + tcp + "upstream}}]}\n    # Flow control holds back"},
			[]string{unjudged.Code}, "listener edge: default_filter_chain"},
		{"a default filter chain to a cluster without endpoints",
			appendAll([]string{"    # Flow control holds back", "    default_filter_chain: {filters: [{name: f, " +
				tcp + "none}}]}\n    # Flow control holds back"}, shippedClusters, shippedClusters+
				"  - {name: none, type: STATIC}\n"), nil, ""},

		{"regex_rewrite",
			routeFirst(
				`{match: {prefix: /public/}, route: {cluster: upstream, regex_rewrite: {pattern: {regex: '^/public/(.*)$'}, substitution: '/\1'}}}`), []string{rewriteIn.Code}, "routes[0].route"},
		{"regex_rewrite elsewhere",
			routeFirst(
				`{match: {prefix: /public/}, route: {cluster: upstream, regex_rewrite: {pattern: {regex: '^/public/(.*)$'}, substitution: '/private/\1'}}}`), nil, ""},
		{"regex_rewrite that isn't followed",
			routeFirst(
				`{match: {prefix: /public/}, route: {cluster: upstream, regex_rewrite: {pattern: {regex: '^/public/([^/]+)/b/(.*)$'}, substitution: '/v1/\2/\1'}}}`), []string{unclear.Code}, "routes[0].route"},
		{"a template", routeFirst(`{match: {prefix: /public/}, route: {cluster: upstream, path_rewrite_policy: {name: x}}}`),
			[]string{unclear.Code}, "routes[0].route"},
		{"prefix_rewrite on /",
			[]string{shippedRoutes, "              routes:\n              - {match: {prefix: /}, route: {cluster: upstream, " +
				"prefix_rewrite: /v1/}}"}, []string{rewriteIn.Code}, "routes[0].route"},
		{"prefix_rewrite on / of open paths", []string{shippedRoutes, "              routes:\n              - {match: " +
			"{prefix: /}, route: {cluster: upstream, prefix_rewrite: /secret/}}", shippedDefault,
			"                      - {match: {prefix: /secret/}, auth: {}}\n                      - {match: {prefix: " +
				"/public/}}\n                      default: deny"}, []string{rewriteIn.Code}, "routes[0].route"},
		{"prefix_rewrite of what another route takes",
			[]string{shippedRoutes, "              routes:\n              - {match: {prefix: /public/}, direct_response: " +
				"{status: 404}}\n              - {match: {prefix: /public/v1/}, route: {cluster: upstream, prefix_rewrite: /v1/}}"},
			nil, ""},

		{"a route to the sidecar", routeFirst("{match: {prefix: /x/}, route: {cluster: gatehouse-sidecar}}"),
			[]string{toPrivate.Code}, "routes[0]"},
		{"a route to the sidecar's keys",
			routeFirst("{match: {path: /v1/session/jwks}, route: {cluster: gatehouse-sidecar}}"), nil, ""},
		{"a probe of the edge",
			routeFirst("{match: {path: /readyz}, route: {cluster: gatehouse-sidecar}}"), nil, ""},
		{"a mirror to the sidecar",
			routeFirst("{match: {prefix: /x/}, route: {cluster: upstream, request_mirror_policies: [{cluster: " +
				"gatehouse-sidecar}]}}"), []string{toPrivate.Code}, "routes[0]"},
		{"tcp_proxy to the sidecar", listener(loopback, tcp+"gatehouse-sidecar}"), []string{toPrivate.Code},
			"listener second"},
		{"a TCP connection to the cluster that its client names", listener(anywhere,
			`typed_config: {"@type": x/envoy.extensions.filters.network.sni_cluster.v3.SniCluster}}, {name: t, `+tcp+"other}"),
			[]string{clientsChoose.Code}, "listener second: filter_chains[0]"},
		{"a TCP connection to one of two clusters", matchServerNames("a.example, b.example", listener(anywhere, sniFilter)),
			nil, ""},
		{"a TCP connection to one of two clusters, one of them protected",
			matchServerNames("a.example, Upstream", listener(anywhere, sniFilter)), []string{unjudged.Code},
			"listener second: filter_chains[0]"},
		{"a TCP connection to one of two clusters, one of them the sidecar",
			matchServerNames("a.example, gatehouse-sidecar", listener(anywhere, sniFilter)), []string{toPrivate.Code},
			"listener second: filter_chains[0]"},
		{"a TCP connection to one of many clusters", matchServerNames("'*.example'", listener(anywhere, sniFilter)),
			[]string{clientsChoose.Code}, "listener second: filter_chains[0]"},
		{"a TCP connection to any cluster, by a matcher",
			appendAll(matchServerNames("a.example", listener(anywhere, sniFilter)),
				"name: second, ", "name: second, filter_chain_matcher: {}, "), []string{clientsChoose.Code}, "listener second"},
		{"a TCP connection to any cluster, of others", appendAll(listener(anywhere, sniFilter),
			"filter_chains: [{filters: [{name: f",
			"default_filter_chain: {filter_chain_match: {server_names: [a.example]}, filters: [{name: f",
			tcp+"other}}]}]}", tcp+"other}}]}}"), []string{clientsChoose.Code}, "listener second: default_filter_chain"},
		{"a TCP connection to the host that its client names", listener(anywhere, `typed_config: {"@type": `+
			"x/envoy.extensions.filters.network.sni_dynamic_forward_proxy.v3.FilterConfig, port_value: 443}}, {name: t, "+tcp+
			"other}"), []string{clientsChoose.Code}, "listener second: filter_chains[0]"},
		{"a TCP connection to a cluster that a filter stores", listener(anywhere,
			storeOfConnection("envoy.tcp_proxy.cluster", "%REQUESTED_SERVER_NAME%")), []string{clientsChoose.Code},
			"listener second: filter_chains[0]"},
		{"a TCP connection to a host that a filter stores", listener(anywhere,
			storeOfConnection("envoy.upstream.dynamic_host", "%REQUESTED_SERVER_NAME%")), []string{clientsChoose.Code},
			"listener second: filter_chains[0]"},
		{"a TCP connection to an address that a filter stores", appendAll(listener(anywhere,
			storeOfConnection(destination, "%REQUESTED_SERVER_NAME%:1")), shippedClusters,
			shippedClusters+"  - {name: other, type: ORIGINAL_DST}\n"), []string{clientsChoose.Code},
			"listener second: filter_chains[0]"},
		{"a TCP connection to a cluster that a filter names", listener(anywhere,
			storeOfConnection("envoy.tcp_proxy.cluster", "other")), nil, ""},
		{"a TCP connection to the protected cluster that a filter names", listener(anywhere,
			storeOfConnection("envoy.tcp_proxy.cluster", "upstream")), []string{unjudged.Code},
			"listener second: filter_chains[0]"},
		{"a TCP connection to one of two clusters that a filter stores", matchServerNames("a.example, b.example",
			listener(anywhere, storeOfConnection("envoy.tcp_proxy.cluster", "%REQUESTED_SERVER_NAME%"))), nil, ""},
		{"a TCP connection to one of two clusters that a filter stores, one of them protected",
			matchServerNames("a.example, upstream", listener(anywhere, storeOfConnection("envoy.tcp_proxy.cluster",
				"%REQUESTED_SERVER_NAME%"))), []string{unjudged.Code}, "listener second: filter_chains[0]"},
		{"a TCP connection to a part of the name that a filter stores", matchServerNames("a.example", listener(anywhere,
			storeOfConnection("envoy.tcp_proxy.cluster", "%REQUESTED_SERVER_NAME%x"))), []string{clientsChoose.Code},
			"listener second: filter_chains[0]"},
		{"a TCP connection to the protected address that a filter stores", appendAll(listener(anywhere,
			storeOfConnection(destination, "127.0.0.1:8081")), shippedClusters, shippedClusters+
			"  - {name: other, type: ORIGINAL_DST}\n"), []string{unjudged.Code}, "listener second: filter_chains[0]"},
		{"the protected address that a filter of another listener stores", appendAll(listener(anywhere, strings.Replace(
			managerWith("{match: {prefix: /}, route: {cluster: other}}"), "route_config", "http_filters: ["+strings.TrimPrefix(
				storeFilter(destination, "127.0.0.1:8081"), "          - ")+"], route_config", 1)), shippedClusters,
			shippedClusters+"  - {name: other, type: ORIGINAL_DST}\n"), []string{unjudged.Code}, "listener second"},
		{"copies to the protected upstream", listener(anywhere, managerWith("{match: {prefix: /}, route: {cluster: other, "+
			"request_mirror_policies: [{cluster: upstream}]}}")), []string{unjudged.Code}, "listener second"},
		{"copies of a virtual host to the protected upstream", listener(anywhere, strings.Replace(
			managerWith("{match: {prefix: /}, route: {cluster: other}}"), "name: v,",
			"name: v, request_mirror_policies: [{cluster: upstream}],", 1)), []string{unjudged.Code}, "listener second"},
		{"copies of another path to the protected upstream", appendAll(routeFirst("{match: {prefix: /x/}, route: {cluster: "+
			"other, prefix_rewrite: /, request_mirror_policies: [{cluster: upstream}]}}"), shippedClusters,
			cluster("other", "socket_address: {address: 127.0.0.1, port_value: 8083}")), []string{rewriteIn.Code}, "routes[0]"},
		{"copies of the same path to the protected upstream", appendAll(routeFirst("{match: {prefix: /x/}, route: {cluster: "+
			"other, request_mirror_policies: [{cluster: upstream}]}}"), shippedClusters,
			cluster("other", "socket_address: {address: 127.0.0.1, port_value: 8083}")), nil, ""},
		{"a listener behind the filter, and a way around both", behindFilter("address: {"+
			strings.Replace(loopback, "8082", "8084", 1)+"}", strings.Replace(loopback, "8082", "8084", 1)),
			[]string{unjudged.Code}, "listener second"},
		{"a listener of all addresses behind the filter, and a way around both", behindFilter("address: {"+
			strings.Replace(anywhere, "8082", "8084", 1)+"}", strings.Replace(loopback, "8082", "8084", 1)),
			[]string{unjudged.Code, unjudged.Code}, "listener second"},
		{"a listener of all addresses that isn't bound, and one to its port",
			meshListeners("socket_address: {address: 127.0.0.1, "+
				"port_value: 9090}", "address: {socket_address: {address: 0.0.0.0, port_value: 9090}}, bind_to_port: false, "+
				"traffic_direction: OUTBOUND", "upstream"), nil, ""},
		{"a listener of all addresses that isn't bound, as it was once written, and one to its port",
			meshListeners("socket_address: {address: 127.0.0.1, port_value: 9090}",
				"address: {socket_address: {address: 0.0.0.0, "+
					"port_value: 9090}}, deprecated_v1: {bind_to_port: false}, traffic_direction: OUTBOUND", "upstream"), nil, ""},
		{"a listener that isn't bound, and one to its address",
			meshListeners("socket_address: {address: 0.0.0.0, port_value: 9090}",
				"address: {socket_address: {address: 0.0.0.0, port_value: 9090}}, bind_to_port: false, traffic_direction: "+
					"OUTBOUND", "upstream"), []string{unjudged.Code}, "listener inner-listener"},
		{"a listener of all addresses that isn't bound, of the protected port",
			meshListeners("socket_address: {address: 127.0.0.1, port_value: 8083}",
				"address: {socket_address: {address: 0.0.0.0, "+
					"port_value: 8081}}, bind_to_port: false, traffic_direction: OUTBOUND", "other"), nil, ""},
		{"a QUIC listener of all addresses, of the protected port", appendAll(listener(
			"socket_address: {protocol: UDP, address: 0.0.0.0, port_value: 8081}",
			managerWith("{match: {prefix: /}, route: {cluster: other}}")), shippedClusters,
			cluster("other", "socket_address: {address: 127.0.0.1, port_value: 8083}")), nil, ""},
		{"a QUIC listener of the protected port", appendAll(listener(
			"socket_address: {protocol: 1, address: 127.0.0.1, port_value: 8081}",
			managerWith("{match: {prefix: /}, route: {cluster: other}}")), shippedClusters,
			cluster("other", "socket_address: {address: 127.0.0.1, port_value: 8083}")), nil, ""},
		{"a QUIC listener behind the filter, and a way around both", appendAll(behindFilter("address: {"+strings.Replace(
			strings.Replace(loopback, "8082", "8084", 1), "{", "{protocol: UDP, ", 1)+"}",
			strings.Replace(loopback, "8082", "8084", 1)), "{name: inner, ", "{name: inner, "+quic), []string{unjudged.Code},
			"listener second"},
		{"a QUIC listener of all addresses behind the filter, and a way around both", appendAll(behindFilter("address: {"+
			strings.Replace(strings.Replace(anywhere, "8082", "8084", 1), "{", "{protocol: UDP, ", 1)+"}",
			strings.Replace(loopback, "8082", "8084", 1)), "{name: inner, ", "{name: inner, transport_socket_matches: [{"+
			quic+"}], "), []string{unjudged.Code, unjudged.Code}, "listener second"},
		{"a listener with two addresses behind the filter, and a way around both", behindFilter("address: {"+
			strings.Replace(loopback, "8082", "8085", 1)+"}, additional_addresses: [{address: {"+
			strings.Replace(loopback, "8082", "8084", 1)+"}}]", strings.Replace(loopback, "8082", "8084", 1)),
			[]string{unjudged.Code}, "listener second"},
		{"an internal listener behind the filter, and a way around both", behindFilter("internal_listener: {}",
			"envoy_internal_address: {server_listener_name: inner-listener}"), []string{unjudged.Code}, "listener second"},
		{"another service behind a listener behind the filter, and a way to it",
			appendAll(behindFilter("internal_listener: {}",
				"envoy_internal_address: {server_listener_name: inner-listener}"), "{name: f, "+tcp+"upstream}}]}]}\n  - {name: in",
				"{name: f, "+tcp+"static}}]}]}\n  - {name: in", tcp+"upstream}}]}]}\n"+shippedPush, managerWith(
					"{match: {prefix: /static/}, route: {cluster: static}}, {match: {prefix: /}, route: {cluster: upstream}}")+
					"}]}]}\n"+shippedPush, shippedClusters,
				cluster("static", "socket_address: {address: 127.0.0.1, port_value: 8083}")), nil, ""},
		{"a route by a listener to the sidecar", appendAll(routeFirst("{match: {prefix: /x/}, route: {cluster: inner}}"),
			shippedPush, innerListener("internal_listener: {}", "gatehouse-sidecar"), shippedClusters,
			cluster("inner", "envoy_internal_address: {server_listener_name: inner-listener}")), []string{toPrivate.Code},
			"routes[0]"},
		{"a TCP connection with the name that a client asks for", listener(anywhere,
			storeOfConnection("envoy.network.upstream_server_name", "%REQUESTED_SERVER_NAME%")), nil, ""},
		{"a route to the push listener", appendAll(routeFirst("{match: {prefix: /x/}, route: {cluster: p}}"),
			shippedClusters, cluster("p", "pipe: {path: /run/gatehouse/push.sock}")), []string{toPrivate.Code}, "routes[0]"},
		{"a route to admin", appendAll(routeFirst("{match: {prefix: /x/}, route: {cluster: p}}"), shippedClusters,
			cluster("p", "socket_address: {address: localhost, port_value: 9901}")), []string{toPrivate.Code}, "routes[0]"},
		{"a route to the metrics", appendAll(routeFirst("{match: {prefix: /stats}, route: {cluster: p}}"),
			shippedClusters, cluster("p", "socket_address: {address: 127.0.0.1, port_value: 9901}")), nil, ""},
		{"a route by a listener to the metrics", metricsListener("/metrics",
			"address: {"+strings.Replace(loopback, "8082", "9902", 1)+"}", strings.Replace(loopback, "8082", "9902", 1),
			"{match: {path: /metrics}, route: {cluster: p, prefix_rewrite: /stats/prometheus}}"), nil, ""},
		{"a route by a listener to all of admin", metricsListener("/metrics",
			"address: {"+strings.Replace(loopback, "8082", "9902", 1)+"}", strings.Replace(loopback, "8082", "9902", 1),
			"{match: {prefix: /}, route: {cluster: p}}"),
			[]string{toPrivate.Code, toPrivate.Code}, "virtual host upstream: routes[0]"},
		{"a route by an internal listener to the metrics", metricsListener("/stats", "internal_listener: {}",
			"envoy_internal_address: {server_listener_name: inner-listener}", "{match: {prefix: /}, route: {cluster: p}}"),
			nil, ""},
		{"a route by an internal listener to all of admin", metricsListener("/metrics", "internal_listener: {}",
			"envoy_internal_address: {server_listener_name: inner-listener}", "{match: {prefix: /}, route: {cluster: p}}"),
			[]string{toPrivate.Code}, "virtual host upstream: routes[0]"},
		{"a route by an internal listener that rewrites to what admin is asked", metricsListener("/stats",
			"internal_listener: {}",
			"envoy_internal_address: {server_listener_name: inner-listener}", "{match: {path: /stats}, route: {cluster: p, "+
				"prefix_rewrite: /quitquitquit}}"), []string{toPrivate.Code}, "virtual host upstream: routes[0]"},
		{"cluster_header", routeFirst("{match: {prefix: /x/}, route: {cluster_header: x-to}}"),
			[]string{clientsChoose.Code}, "routes[0]"},
		{"cluster_header, weighted",
			routeFirst("{match: {prefix: /x/}, route: {weighted_clusters: {clusters: [{cluster_header: x-to, weight: 1}]}}}"),
			[]string{clientsChoose.Code}, "routes[0]"},
		{"an address in a header", appendAll(routeFirst("{match: {prefix: /x/}, route: {cluster: any}}"),
			shippedClusters, shippedClusters+"  - {name: any, type: ORIGINAL_DST, original_dst_lb_config: {use_http_header: "+
				"true}}\n"), []string{clientsChoose.Code}, "routes[0]"},
		{"a forward proxy", appendAll(routeFirst("{match: {prefix: /x/}, route: {cluster: any}}"), shippedClusters,
			shippedClusters+"  - {name: any, cluster_type: {name: envoy.clusters.dynamic_forward_proxy}}\n"),
			[]string{clientsChoose.Code}, "routes[0]"},

		{"an address in metadata", appendAll(routeFirst("{match: {prefix: /x/}, route: {cluster: any}}"),
			shippedClusters, shippedClusters+"  - {name: any, type: ORIGINAL_DST, original_dst_lb_config: {metadata_key: "+
				"{key: x}}}\n"), []string{clientsChoose.Code}, "routes[0]"},
		{"an address that a filter stores",
			appendAll(appendAll(routeFirst("{match: {prefix: /x/}, route: {cluster: any}}"), shippedClusters,
				shippedClusters+"  - {name: any, type: ORIGINAL_DST}\n"),
				filters(storeFilter(destination, "%REQ(x-to)%"), "")...), []string{clientsChoose.Code}, "routes[0]"},
		{"an address that a filter stores, for a listener behind",
			appendAll(appendAll(routeFirst("{match: {prefix: /x/}, route: {cluster: inner}}"), shippedPush,
				innerListener("internal_listener: {}", "any"), shippedClusters,
				cluster("inner", "envoy_internal_address: {server_listener_name: inner-listener}")+
					"  - {name: any, type: ORIGINAL_DST}\n"),
				filters(storeFilter(destination, "%REQ(x-to)%"), "")...), []string{clientsChoose.Code},
			"listener edge: virtual host upstream: routes[0]"},
		{"an address that a route stores",
			appendAll(appendAll(routeFirst("{match: {prefix: /x/}, route: {cluster: any}, typed_per_filter_config: {s: {"+
				storeConfig(destination, "%REQ(x-to)%")+"}}}"), shippedClusters,
				shippedClusters+"  - {name: any, type: ORIGINAL_DST}\n"), filters(storeFilter("other", "x"), "")...),
			[]string{clientsChoose.Code}, "routes[0]"},
		{"the filter off below a protected prefix",
			routeFirst(
				`{match: {prefix: /v1/telemetry/health}, route: {cluster: upstream}, request_headers_to_remove: [x-gatehouse-device, x-gatehouse-permissions],
                typed_per_filter_config: {gatehouse: {"@type": type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true}}}`), []string{routeOff.Code}, "routes[0]"},
		{"a plugin's cluster", routeFirst("{match: {prefix: /x/}, route: {inline_cluster_specifier_plugin: " +
			specifier + "}}"), []string{toPrivate.Code}, "routes[0]"},
		{"a plugin's cluster, by name", appendAll(routeFirst("{match: {prefix: /x/}, route: {cluster_specifier_plugin: m}}"),
			"            name: edge\n            # Cache-Status",
			"            name: edge\n            cluster_specifier_plugins: ["+specifier+"]\n            # Cache-Status"),
			[]string{toPrivate.Code}, "routes[0]"},
		{"a plugin that isn't known", routeFirst("{match: {prefix: /x/}, route: {cluster_specifier_plugin: m}}"),
			[]string{clientsChoose.Code}, "routes[0]"},
		{"a plugin that is a program",
			routeFirst("{match: {prefix: /x/}, route: {inline_cluster_specifier_plugin: {extension: {name: l, typed_config: " +
				"{source_code: {inline_string: x}}}}}}"), []string{clientsChoose.Code}, "routes[0]"},
		{"a composite", appendAll(routeFirst("{match: {prefix: /x/}, route: {cluster: all}}"), shippedClusters,
			shippedClusters+"  - {name: all, cluster_type: {name: envoy.clusters.composite, typed_config: {clusters: [{name: "+
				"gatehouse-sidecar}]}}}\n"), []string{toPrivate.Code}, "routes[0]"},
		{"a second listener by the same service",
			appendAll(listener(loopback, managerWith("{match: {prefix: /}, route: {cluster: again}}")),
				"  - name: upstream\n    type: STATIC",
				"  - {name: again, type: EDS, eds_cluster_config: {service_name: shop}}\n  - name: upstream\n    "+
					"eds_cluster_config: {service_name: shop}\n    type: EDS"), []string{unjudged.Code}, "listener second"},
		{"sources that clients write to filter state",
			appendAll([]string{"#source source: {filter_state: gatehouse.source}", "source: {filter_state: gatehouse.source}"},
				filters(storeFilter("gatehouse.source", "%REQ(x-to)%"), "")...), []string{forgedSource.Code},
			"http_filters[0].on_request_headers"},
		{"sources that Envoy reads in a header",
			appendAll([]string{"#source source: {filter_state: gatehouse.source}", "source: {filter_state: gatehouse.source}",
				"use_remote_address: true", "use_remote_address: false"},
				filters(storeFilter("gatehouse.source", "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"), "")...),
			[]string{forgedSource.Code}, "http_filters[0].on_request_headers"},
		{"another method behind",
			filters("", "          - {name: g, typed_config: {\"@type\": "+
				"x/envoy.extensions.filters.http.connect_grpc_bridge.v3.FilterConfig}}\n"), []string{translated.Code},
			"http_filters[1]"},
		{"another method by Lua behind", filters("", luaFilter("h:headers():replace(\":method\", x)")),
			[]string{translated.Code}, "http_filters[1]"},
		{"another path by Lua behind", filters("", luaFilter("h:headers():replace( \":path\", x)")),
			[]string{translated.Code}, "http_filters[1]"},
		{"another path by Lua before", filters(luaFilter("h:headers():replace(\":path\", x)"), ""), nil, ""},
		{"another path by a route's Lua behind",
			appendAll(routeFirst("{match: {prefix: /x/}, route: {cluster: upstream}, typed_per_filter_config: {l: {"+
				"source_code: {inline_string: 'h:headers():replace(\":path\", x)'}}}}"), filters("", luaFilter("x"))...),
			[]string{translated.Code}, "routes[0].typed_per_filter_config.l"},
		{"path and identity as metadata",
			filters("", "          - {name: m, typed_config: {\"@type\": x/envoy.extensions.filters.http.header_to_metadata."+
				"v3.Config, request_rules: [{header: ':path'}, {header: x-gatehouse-device}]}}\n"), nil, ""},
		{"another method before",
			filters("          - {name: g, typed_config: {\"@type\": "+
				"x/envoy.extensions.filters.http.connect_grpc_bridge.v3.FilterConfig}}\n", ""), nil, ""},
		{"a secret of an injector",
			filters("          - {name: c, typed_config: {\"@type\": x/CredentialInjector, credential: {typed_config: "+
				"{header: x-device-token}}}}\n", ""), []string{injects.Code}, "http_filters[0]"},
		{"identity of an API key",
			filters("", "          - {name: k, typed_config: {\"@type\": x/ApiKeyAuth, key_sources: [{header: x-key}], "+
				"forwarding: {header: x-gatehouse-device}}}\n"), []string{setsIdentity.Code}, "http_filters[1]"},
		{"identity of a user name",
			filters("", "          - {name: b, typed_config: {\"@type\": x/BasicAuth, forward_username_header: "+
				"x-gatehouse-device}}\n"), []string{setsIdentity.Code}, "http_filters[1]"},
		{"fail open, by number", []string{"&failure_policy FAIL_RELOAD", "3", "*failure_policy", "FAIL_RELOAD"},
			[]string{failOpen.Code}, "listener edge: filter gatehouse: failure_policy"},

		{"identity of a route", routeFirst("{match: {prefix: /x/}, route: {cluster: upstream}, " + identity + "}"),
			[]string{setsIdentity.Code}, "routes[0].request_headers_to_add"},
		{"identity of a virtual host",
			[]string{"              routes:\n              - match: {prefix: /}\n                route",
				"              " + identity + "\n              routes:\n              - match: {prefix: /}\n                route"},
			[]string{setsIdentity.Code}, "virtual host upstream.request_headers_to_add"},
		{"identity of all routes", []string{"            name: edge\n            # Cache-Status",
			"            name: edge\n            " + identity + "\n            # Cache-Status"}, []string{setsIdentity.Code},
			"route_config.request_headers_to_add"},
		{"identity of a part of a route",
			routeFirst("{match: {prefix: /x/}, route: {weighted_clusters: {clusters: [{name: upstream, weight: 1, " +
				identity + "}]}}}"), []string{setsIdentity.Code}, "weighted_clusters[0].request_headers_to_add"},
		{"identity of a filter behind", filters("", setHeaderFilter("x-gatehouse-permissions")), []string{setsIdentity.Code},
			"http_filters[1]"},
		{"identity of a filter before", filters(setHeaderFilter("x-gatehouse-device"), ""), nil, ""},
		{"identity of a route's filter",
			routeFirst("{match: {prefix: /x/}, route: {cluster: upstream}, typed_per_filter_config: {m: " +
				strings.Replace(mutation, "HEADER", "x-gatehouse-device", 1) + "}}"), []string{setsIdentity.Code},
			"typed_per_filter_config.m"},
		{"identity of Lua",
			filters("", luaFilter("h:headers():add(\"X-Gatehouse-Device\", x)")), []string{setsIdentity.Code},
			"http_filters[1]"},
		{"identity that Lua reads", filters("", luaFilter("h:headers():get(\"X-Gatehouse-Device\")")), nil, ""},
		{"identity of claims",
			filters("", "          - {name: j, typed_config: {\"@type\": x/JWT, providers: {p: {claim_to_headers: "+
				"[{header_name: x-gatehouse-device, claim_name: sub}]}}}}\n"), []string{setsIdentity.Code}, "http_filters[1]"},
		{"identity in answers",
			filters("", "          - {name: m, typed_config: {\"@type\": x/M, mutations: {response_mutations: [{append: "+
				"{header: {key: x-gatehouse-device}}}]}}}\n"), nil, ""},
		{"identity of a cluster's filter", []string{"  - name: upstream\n    type: STATIC",
			"  - name: upstream\n    typed_extension_protocol_options: {x: {http_filters: [" +
				strings.Replace(mutation, "HEADER", "x-gatehouse-device", 1) + "]}}\n    type: STATIC"},
			[]string{setsIdentity.Code}, "cluster upstream"},
		{"identity in a matcher's route",
			[]string{shippedRoutes, "              matcher: {on_no_match: {action: {typed_config: {match: {prefix: /}, route: " +
				"{cluster: upstream}, " + identity + "}}}}"}, []string{setsIdentity.Code}, "routes[0]"},
		{"several domains",
			appendAll([]string{shippedRoutes, shippedRoutes +
				"\n            - {name: b, domains: [b.example], routes: [{match: {prefix: /}, route: {cluster: other}}]}"},
				shippedClusters, cluster("other", "socket_address: {address: 127.0.0.1, port_value: 8083}")),
			[]string{sharedKeys.Code}, "rules[1].cache"},
		{"several domains of one upstream",
			[]string{shippedRoutes, shippedRoutes + "\n            - {name: b, domains: [b.example], routes: [{match: " +
				"{prefix: /}, route: {cluster: upstream}}]}"}, nil, ""},
		{"pushes by an additional address", []string{"    # Envoy buffers a whole batch",
			"    additional_addresses: [{address: {" + anywhere + "}}]\n    # Envoy buffers a whole batch"},
			[]string{openPush.Code}, "listener gatehouse-push"},
	}
}

// TestStored: a stored source or destination counts as chosen by the client, except for values known to be safe.
func TestStored(t *testing.T) {
	for _, test := range []struct {
		format          string
		chosen, trusted bool // trusted: with use_remote_address
	}{
		{"10.0.0.1", false, false},
		{"100%%", false, false},
		{"%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%", false, false},
		{"%DOWNSTREAM_LOCAL_ADDRESS%", false, false},
		{"%DOWNSTREAM_PEER_URI_SAN%", false, false},
		{"%DYNAMIC_METADATA(envoy.filters.http.jwt_authn:m:sub):40%", false, false},
		{"%ENVIRONMENT(HOST)%:80", false, false},
		{"%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%", false, true},
		{"%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%", true, false},
		{"%REQ(x)%", true, false},
		{"%REQ(x):9%", true, true},
		{"%REQUEST_HEADER(x)%", true, true},
		{"%QUERY_PARAM(x)%", true, true},
		{"%REQUESTED_SERVER_NAME%", true, true},
		{"%FILTER_STATE(x:PLAIN)%", true, true},
		{"%DYNAMIC_METADATA(a%b:c)%%REQ(x)%", true, true},
		{"%START_TIME(%s)%", true, true},
		{"%DYNAMIC_METADATA(a)", true, true},
		{"", true, true}, // format in a file
	} {
		s, manager := storedValue{format: test.format}, object{"use_remote_address": test.trusted}
		if got := s.isClientChosen(manager); got != test.chosen {
			t.Errorf("%q with use_remote_address: %t: chosen by clients: %t", test.format, test.trusted, got)
		}
	}
}

// TestWeakerEdge: two edges with different rules lead to the same upstream.
func TestWeakerEdge(t *testing.T) {
	whole := string(shippedConfig(t))
	begin, end := strings.Index(whole, "  - name: edge\n"), strings.Index(whole, shippedPush)
	second := strings.NewReplacer("name: edge\n    address", "name: second\n    address", "port_value: 8080",
		"port_value: 8082", "&code", "", "&failure_policy ", "", "&reload_config", "", "&router", "\n           ",
		"prefix: /v1/telemetry", "prefix: /v2/telemetry").Replace(whole[begin:end])
	report := Analyze("envoy.yaml", []byte(whole[:end]+second+whole[end:]))
	if got := findingCodes(report); len(got) != 2 || got[0] != weakerEdge.Code || got[1] != weakerEdge.Code {
		t.Errorf("got %+v, want %s of either", report.Findings, weakerEdge.Code)
	}
	same := []byte(strings.ReplaceAll(whole[:end]+second+whole[end:], "/v2/", "/v1/"))
	if got := findingCodes(Analyze("envoy.yaml", same)); got != nil {
		t.Errorf("with the same rules got %q", got)
	}
	rewriting := strings.Replace(second, "match: {prefix: /}\n                route: {",
		"match: {prefix: /v2/}\n                route: {prefix_rewrite: /v1/, ", 1)
	found := Analyze("envoy.yaml", []byte(whole[:end]+rewriting+whole[end:])).Findings
	if !slices.ContainsFunc(found, func(f findings.Finding) bool {
		return f.Code == weakerEdge.Code && f.Place.Listener == "second"
	}) {
		t.Errorf("of one that rewrites got %+v, want %s", found, weakerEdge.Code)
	}
}
