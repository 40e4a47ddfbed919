package bypass

import (
	"fmt"
	"strings"
)

// Ways by Envoy's TCP filter chains, internal listeners, and copies of requests.

const typeURL = "type.googleapis.com/envoy.extensions."

// tlsSocket returns the transport socket of a chain for TLS.
func (g *gen) tlsSocket() tree {
	return parse(`{"name": "tls", "typed_config": {"@type": "%stransport_sockets.tls.v3.DownstreamTlsContext",
		"common_tls_context": {"tls_certificates": [{"certificate_chain": {"filename": %q},
		"private_key": {"filename": %q}}]}}}`,
		typeURL, g.w.certificate, g.w.key)
}

// chains adds a listener with filter chains of TLS, each with a match and filters. The prober asks for the listener by
// the given names.
func (g *gen) chains(names []string, chains ...[]tree) tree {
	address := g.anyAddress()
	g.names[g.ports[len(g.ports)-1]] = names
	l := tree{"name": g.name(fmt.Sprintf("chains%d", g.IntN(1000))), "address": address,
		"listener_filters": []any{parse(
			`{"name": "tls", "typed_config": {"@type": "%sfilters.listener.tls_inspector.v3.TlsInspector"}}`, typeURL)}}
	for i, c := range chains {
		chain := tree{"name": fmt.Sprintf("chain-%d", i), "transport_socket": g.tlsSocket()}
		if c[0] != nil {
			chain["filter_chain_match"] = c[0]
		}
		for _, filter := range c[1:] {
			join(chain, "filters", any(filter))
		}
		join(l, "filter_chains", any(chain))
	}
	g.file = append(g.file, l)
	return l
}

// stores is a network filter that stores a text under a key of filter state.
func stores(key, text string) tree {
	return parse(`{"name": "state", "typed_config": {"@type": "%sfilters.network.set_filter_state.v3.Config",
		"on_new_connection": [{"object_key": %q, "format_string": {"text_format_source": {"inline_string": %q}}}]}}`,
		typeURL, key, text)
}

func sniCluster() tree {
	return parse(`{"name": "sni", "typed_config": {"@type": "%sfilters.network.sni_cluster.v3.SniCluster"}}`, typeURL)
}

const (
	storedCluster = "envoy.tcp_proxy.cluster"
	storedAddress = "envoy.network.transport_socket.original_dst_address"
)

// weightedProxy returns a TCP proxy to several clusters.
func (g *gen) weightedProxy(clusters ...string) tree {
	filter := g.tcp("")
	config := at(filter, "typed_config").(tree)
	delete(config, "cluster")
	list := []any{}
	for _, name := range clusters {
		list = append(list, tree{"name": g.name(name), "weight": 1})
	}
	config["weighted_clusters"] = tree{"clusters": list}
	return filter
}

// addInternal adds an internal listener with a filter, and returns a cluster that leads to the listener.
func (g *gen) addInternal(filter tree) string {
	name := fmt.Sprintf("internal%d", g.IntN(1_000_000))
	g.file = append(g.file, tree{"name": g.name(name), "internal_listener": tree{},
		"filter_chains": []any{tree{"filters": []any{filter}}}})
	return g.toInternal(name)
}

// toInternal adds a cluster, named like an internal listener, that leads to the listener.
func (g *gen) toInternal(name string) string {
	g.cluster(name, "127.0.0.1:1")
	endpoint := at(g.clusters[len(g.clusters)-1], "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint").(tree)
	endpoint["address"] = tree{"envoy_internal_address": tree{"server_listener_name": g.name(name)}}
	return name
}

// hideEdge makes the edge an internal listener behind a TCP proxy.
func (g *gen) hideEdge() {
	g.listen("front", g.edge["address"].(tree), g.tcp(g.toInternal("edge")))
	delete(g.edge, "address")
	g.edge["internal_listener"] = tree{}
}

// addHops returns a cluster from which up to two listeners of this machine lead to another cluster.
func (g *gen) addHops(to string) string {
	for range 1 + g.IntN(2) {
		filter := g.tcp(to)
		if g.chance(40) {
			filter = g.manager(fmt.Sprintf(`{"match": {"prefix": "/"}, "route": {"cluster": %q}}`, g.name(to)))
		}
		if g.chance(50) {
			to = g.addInternal(filter)
			continue
		}
		here, port := g.loopbackAddress()
		to = fmt.Sprintf("hop%d", port)
		g.listen(to, here, filter)
		if g.chance(30) { // leads to another address of the listener
			second, another := g.loopbackAddress()
			g.file[len(g.file)-1].(tree)["additional_addresses"] = []any{tree{"address": second}}
			port = another
		}
		g.cluster(to, fmt.Sprintf("127.0.0.1:%d", port))
	}
	return to
}

// aggregateCluster adds a cluster of clusters.
func (g *gen) aggregateCluster(names ...string) string {
	for i := range names {
		names[i] = g.name(names[i])
	}
	g.clusters = append(g.clusters, parse(`{"name": %q, "lb_policy": "CLUSTER_PROVIDED", "connect_timeout": "1s",
		"cluster_type": {"name": "envoy.clusters.aggregate", "typed_config": {
		"@type": "%sclusters.aggregate.v3.ClusterConfig", "clusters": %s}}}`, g.name("all"), typeURL, marshal(names)))
	return "all"
}

// storedDestination adds a cluster that connects to a stored address.
func (g *gen) storedDestination() string {
	g.cluster("any", "127.0.0.1:1", `{"type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "load_assignment": null}`)
	return "any"
}

// mirrorField returns a field of an action that copies requests to a cluster.
func (g *gen) mirrorField(to string) string {
	return fmt.Sprintf(`"request_mirror_policies": [{"cluster": %q}]`, g.name(to))
}

func names(list ...string) tree { return parse(`{"server_names": %s}`, marshal(list)) }

var tcpBypasses = []bypass{
	{"tcp_proxy to parts", func(g *gen) { g.listen("bypass", g.anyAddress(), g.weightedProxy("other", "upstream")) }},
	{"tcp_proxy to an aggregate", func(g *gen) {
		g.listen("bypass", g.anyAddress(), g.tcp(g.aggregateCluster("upstream", "other")))
	}},
	{"tcp_proxy through listeners", func(g *gen) { g.listen("bypass", g.anyAddress(), g.tcp(g.addHops("upstream"))) }},
	{"a second listener through listeners", func(g *gen) {
		g.listen("bypass", g.anyAddress(), g.manager(fmt.Sprintf(`{"match": {"prefix": "/"}, "route": %s}`,
			g.to(g.addHops("upstream")))))
	}},
	{"listeners behind the filter, and a way around all", func(g *gen) {
		g.lastRoute()["route"] = parse("%s", g.to(g.addHops("upstream")))
		g.listen("bypass", g.anyAddress(), g.tcp("upstream"))
	}},
	{"an open host of the same service, by listeners", func(g *gen) {
		g.addOpenHost()
		g.routeHosts(fmt.Sprintf(`{"match": {"prefix": "/"}, "route": %s}`, g.to(g.addHops("upstream"))), "pub.example")
	}},
	{"the filter off on an open route, by listeners", func(g *gen) {
		g.route(`{"prefix": "/img/"}`, g.to(g.addHops("upstream")))["typed_per_filter_config"] = withoutFilter()
	}},
	{"tcp_proxy by listeners to the sidecar", func(g *gen) {
		g.cluster("side", g.w.apiSocket)
		g.listen("bypass", g.anyAddress(), g.tcp(g.addHops("side")))
	}},
	{"a route by listeners to the sidecar", func(g *gen) {
		g.cluster("side", g.w.apiSocket)
		g.route(`{"prefix": "/side/"}`, g.to(g.addHops("side"), `"prefix_rewrite": "/"`))
	}},
	{"a chain by the server name", func(g *gen) {
		g.chains([]string{"bypass.example"}, []tree{names("a.example", "*.a.example"), g.tcp("other")},
			[]tree{names(pick(g, "bypass.example", "*.example")), g.tcp("upstream")}, []tree{nil, g.tcp("other")})
	}},
	{"a chain by the protocol", func(g *gen) {
		g.chains([]string{"a.example", "a.example/bypass"}, []tree{parse(`{"application_protocols": ["bypass"]}`),
			g.tcp("upstream")}, []tree{nil, g.tcp("other")})
	}},
	{"a chain by the port", func(g *gen) {
		l := g.chains([]string{"a.example"}, []tree{nil, g.tcp("upstream")})
		l["default_filter_chain"] = cloneTree(at(l, "filter_chains", 0).(tree))
		l["default_filter_chain"].(tree)["filters"] = []any{g.tcp("other")}
		at(l, "filter_chains", 0).(tree)["filter_chain_match"] = parse(`{"destination_port": %v}`,
			at(l, "address", "socket_address", "port_value"))
	}},
	{"a chain by a matcher", func(g *gen) {
		l := g.chains([]string{"bypass.example"}, []tree{nil, g.tcp("other")}, []tree{nil, g.tcp("upstream")})
		l["filter_chain_matcher"] = parse(`{"matcher_tree": {"input": {"name": "sni", "typed_config": {
			"@type": "%smatching.common_inputs.network.v3.ServerNameInput"}}, "exact_match_map": {"map": {"bypass.example": %s}}},
			"on_no_match": %s}`, typeURL, chosenChain("chain-1"), chosenChain("chain-0"))
	}},
	{"sni_cluster", func(g *gen) {
		g.chains([]string{g.name("upstream")}, []tree{nil, sniCluster(), g.tcp("other")})
	}},
	{"sni_cluster of names, one of them protected", func(g *gen) {
		g.chains([]string{g.name("upstream")}, []tree{names(g.name("upstream"), g.name("other")), sniCluster(),
			g.tcp("other")})
	}},
	{"sni_cluster of a wildcard", func(g *gen) {
		g.cluster("again.bypass", g.w.service)
		g.clusters[len(g.clusters)-1].(tree)["name"] = fmt.Sprintf("again%d.bypass", g.n)
		g.chains([]string{fmt.Sprintf("again%d.bypass", g.n)}, []tree{names("*.bypass"), sniCluster(), g.tcp("other")})
	}},
	{"a cluster in filter state, by the server name", func(g *gen) {
		g.chains([]string{g.name("upstream")}, []tree{nil, stores(storedCluster, "%REQUESTED_SERVER_NAME%"), g.tcp("other")})
	}},
	{"a cluster in filter state", func(g *gen) {
		g.listen("bypass", g.anyAddress(), stores(storedCluster, g.name("upstream")), g.tcp("other"))
	}},
	{"the protected address in filter state, tcp_proxy", func(g *gen) {
		g.listen("bypass", g.anyAddress(), stores(storedAddress, g.w.service), g.tcp(g.storedDestination()))
	}},
	{"the protected address in filter state", func(g *gen) {
		plain := g.manager(fmt.Sprintf(`{"match": {"prefix": "/"}, "route": %s}`, g.to(g.storedDestination())))
		prepend(at(plain, "typed_config").(tree), "http_filters", any(filterState("bypass", storedAddress, "", g.w.service)))
		g.listen("bypass", g.anyAddress(), plain)
	}},
	{"a copy of a second listener", func(g *gen) {
		routes := func(fields ...string) string {
			return fmt.Sprintf(`{"match": {"prefix": "/"}, "route": %s}`, g.to("other", fields...))
		}
		if g.chance(50) {
			g.listen("bypass", g.anyAddress(), g.manager(routes(g.mirrorField("upstream"))))
			return
		}
		plain := g.manager(routes())
		config := at(plain, "typed_config", "route_config").(tree)
		if g.chance(50) {
			config = at(config, "virtual_hosts", 0).(tree)
		}
		config["request_mirror_policies"] = []any{tree{"cluster": g.name("upstream")}}
		g.listen("bypass", g.anyAddress(), plain)
	}},
	{"a copy of an open host", func(g *gen) {
		g.addOpenHost()
		g.routeHosts(fmt.Sprintf(`{"match": {"prefix": "/"}, "route": %s}`, g.to("other", g.mirrorField("upstream"))),
			"pub.example")
	}},
	{"a copy where the filter is off", func(g *gen) {
		g.route(`{"prefix": "/v1/"}`, g.to("other", g.mirrorField("upstream")))["typed_per_filter_config"] = withoutFilter()
	}},
	{"a copy of another path", func(g *gen) {
		g.route(`{"prefix": "/public/"}`, g.to("other", `"prefix_rewrite": "/"`, g.mirrorField("upstream")))
	}},
	{"a copy to a cluster of the client's choice", func(g *gen) {
		g.route(`{"prefix": "/any/"}`, g.to("other", `"request_mirror_policies": [{"cluster_header": "x-cluster"}]`,
			`"prefix_rewrite": "/"`))
	}},
	{"the filter off on all routes", func(g *gen) { g.routeConfig()["typed_per_filter_config"] = withoutFilter() }},
	{"a local listener with an address of the network", func(g *gen) {
		here, _ := g.loopbackAddress()
		g.listen("bypass", here, g.tcp("upstream"))
		g.file[len(g.file)-1].(tree)["additional_addresses"] = []any{tree{"address": g.anyAddress()}}
	}},
}

func chosenChain(name string) string {
	return fmt.Sprintf(`{"action": {"name": %[1]q, "typed_config": {
		"@type": "type.googleapis.com/google.protobuf.StringValue", "value": %[1]q}}}`, name)
}

var tcpVariations = []func(*gen){
	func(g *gen) { g.hidden = true },
	func(g *gen) { g.listen("away", g.anyAddress(), g.weightedProxy("other")) },
	func(g *gen) { g.listen("through", g.anyAddress(), g.tcp(g.addHops("other"))) },
	func(g *gen) { g.lastRoute()["route"] = parse("%s", g.to(g.addHops("upstream"), `"timeout": "5s"`)) },
	func(g *gen) { // to the filter itself
		second := cloneTree(g.edge)
		here, port := g.loopbackAddress()
		second["name"], second["address"] = g.name("behind"), here
		g.file = append(g.file, second)
		g.cluster("front", fmt.Sprintf("127.0.0.1:%d", port))
		g.listen("front", g.anyAddress(), g.tcp("front"))
	},
	func(g *gen) {
		g.chains([]string{"a.example", "b.example"}, []tree{names("a.example"), g.tcp("other")}, []tree{nil, g.tcp("other")})
	},
	func(g *gen) {
		g.cluster("elsewhere", g.w.other)
		g.chains([]string{g.name("other"), g.name("upstream")}, []tree{names(g.name("other"), g.name("elsewhere")),
			sniCluster(), g.tcp("other")})
	},
	func(g *gen) {
		g.listen("stored", g.anyAddress(), stores(storedCluster, g.name("other")), g.tcp("other"))
	},
	func(g *gen) {
		g.route(`{"prefix": "/static/"}`, g.to("other", g.mirrorField("upstream")))
	},
	func(g *gen) {
		g.listen("copied", g.anyAddress(), g.manager(fmt.Sprintf(`{"match": {"prefix": "/"}, "route": %s}`,
			g.to("other", g.mirrorField("other")))))
	},
}

// wildTCP draws chains whose destination only the real Envoy knows.
func (g *gen) wildTCP() {
	var chains [][]tree
	for i := range 1 + g.IntN(3) {
		to := pick(g, "upstream", "other", "other")
		if g.chance(40) {
			to = g.addHops(to)
		}
		filters := []tree{nil}
		if i > 0 || g.chance(50) {
			filters[0] = pick(g, names(fmt.Sprintf("c%d.example", i)), names(fmt.Sprintf("*.c%d.example", i)),
				names(g.name(pick(g, "upstream", "other")), fmt.Sprintf("d%d.example", i)),
				parse(`{"application_protocols": ["c%d"]}`, i))
			if strings.Contains(marshal(chains), marshal(filters[0])) {
				continue
			}
		}
		switch g.IntN(4) {
		case 0:
			filters = append(filters, sniCluster())
		case 1:
			filters = append(filters, stores(storedCluster, pick(g, g.name("upstream"), g.name("other"),
				"%REQUESTED_SERVER_NAME%")))
		}
		chains = append(chains, append(filters, pick(g, g.tcp(to), g.weightedProxy("other", to))))
	}
	g.chains([]string{"c0.example", "x.c1.example/c1", "c2.example/c2", g.name("upstream"), g.name("other")}, chains...)
}
