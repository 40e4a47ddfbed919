package bypass

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// resource is a resource of the service that the generator means to protect.
type resource struct {
	path    string
	below   bool     // path is a prefix
	methods []string // nil: all
	admin   bool     // only devices with the permission admin
	except  string   // a path below that is open, "" for none
}

func (r *resource) covers(method, path string) bool {
	if r.methods != nil && !slices.Contains(r.methods, method) || path == r.except {
		return false
	}
	return strings.TrimSuffix(path, "/") == strings.TrimSuffix(r.path, "/") || r.below && strings.HasPrefix(path, r.path)
}

func (r *resource) samplePath() string {
	if r.below {
		return r.path + "x"
	}
	return r.path
}

var resources = []resource{
	{path: "/v1/me/config"},
	{path: "/v1/admin/", below: true},
	{path: "/v1/admin/", below: true, except: "/v1/admin/health"},
	{path: "/v1/orders", methods: []string{"POST"}},
	{path: "/v1/telemetry/", below: true, methods: []string{"POST", "PUT"}},
	{path: "/secret/", below: true},
	{path: "/v1/fleet/config", admin: true},
}

// config is one generated configuration of an edge.
type config struct {
	n         int
	kind      string   // clean, bypass or wild
	bypasses  []string // that were built in on purpose
	protected []resource
	others    []string         // domains of another service than the protected one
	ports     []int            // of the network
	streamed  map[int]bool     // ports of streams of nginx
	names     map[int][]string // by port, if it has TLS: server names to ask for, with /PROTOCOL for ALPN

	file, clusters []any  // listeners and clusters for Envoy
	servers        string // for nginx, of http
	streams        string // of stream
	text           string // what gatehousectl checks
	read           reader
}

// gen makes one configuration.
type gen struct {
	*config
	*rand.Rand
	w     *world
	edge  tree
	hcm   tree
	host  tree // the virtual host
	rules tree // the filter's configuration
	// hidden: the edge is to be an internal listener.
	hidden bool
	free   []int
}

func pick[T any](g *gen, list ...T) T { return list[g.IntN(len(list))] }

func (g *gen) chance(percent int) bool { return g.IntN(100) < percent }

// newGen begins the configuration with number n.
func newGen(w *world, seed uint64, n int, ports []int) *gen {
	c := &config{n: n, streamed: map[int]bool{}, names: map[int][]string{}}
	return &gen{config: c, Rand: rand.New(rand.NewPCG(seed, uint64(n))), w: w, free: ports}
}

// generateConfig makes the configuration of a number, always the same for a seed, with the bypasses built in.
func generateConfig(w *world, seed uint64, n int, ports []int) *config {
	g := newGen(w, seed, n, ports)
	g.buildEdge()
	g.addHarmless()
	switch n % 3 {
	case 0:
		g.kind = "clean"
	case 1:
		g.kind = "bypass"
		g.openBypass(nthBypass(bypasses, seed, n))
	default:
		g.kind = "wild"
		for range 1 + g.IntN(3) {
			g.addWild()
		}
	}
	return g.closeConfig()
}

// nthBypass returns the bypass of a configuration: a run has each bypass equally often, and each run begins with a
// different bypass.
func nthBypass[T any](bypasses []T, seed uint64, n int) T {
	return bypasses[(seed%uint64(len(bypasses))+uint64(n/3))%uint64(len(bypasses))]
}

func (g *gen) openBypass(d bypass) {
	g.bypasses = append(g.bypasses, d.name)
	delete(g.rules, "default") // deny would close it
	d.open(g)
}

// name makes a name unique among all configurations.
func (g *gen) name(text string) string { return fmt.Sprintf("%s-%d", text, g.n) }

func (g *gen) takePort() int {
	port := g.free[0]
	g.free = g.free[1:]
	return port
}

// buildEdge builds an edge whose rules protect all protected resources.
func (g *gen) buildEdge() {
	g.edge = cloneTree(g.w.edge)
	g.edge["name"] = g.name("edge")
	g.edge["address"] = g.anyAddress()
	g.hcm = at(g.edge, "filter_chains", 0, "filters", 0, "typed_config").(tree)
	delete(g.hcm, "access_log")
	g.host = tree{"name": "service", "domains": []any{"*"},
		"routes": []any{parse(`{"match": {"prefix": "/"}, "route": {"cluster": %q, "timeout": "5s"}}`, g.name("upstream"))}}
	at(g.hcm, "route_config").(tree)["virtual_hosts"] = []any{g.host}
	g.cluster("upstream", g.w.service)
	g.cluster("other", g.w.other)
	g.rules = ruleTree(g.hcm)
	g.protectResources()
}

// anyAddress returns an address that the network reaches.
func (g *gen) anyAddress() tree {
	port := g.takePort()
	g.ports = append(g.ports, port)
	return parse(`{"socket_address": {"address": "0.0.0.0", "port_value": %d}}`, port)
}

// ruleTree is the configuration of the filter in a connection manager.
func ruleTree(hcm tree) tree {
	for _, filter := range hcm["http_filters"].([]any) {
		config := at(filter, "typed_config").(tree)
		if inner, found := config["config"].(tree); found && inner["vm_config"] != nil {
			return at(inner, "vm_config", "configuration", "value").(tree)
		}
		if inner, found := config["filter_config"].(tree); found {
			return at(inner, "value").(tree)
		}
	}
	panic("the edge has no filter")
}

// protectResources chooses the protected resources, and writes their rules.
func (g *gen) protectResources() {
	for _, i := range g.Perm(len(resources))[:1+g.IntN(4)] {
		if r := resources[i]; !slices.ContainsFunc(g.protected, func(other resource) bool { return other.path == r.path }) {
			g.protected = append(g.protected, r)
		}
	}
	var rules []any
	for i := range g.protected {
		r := &g.protected[i]
		if r.except != "" {
			rules = append(rules, parse(`{"match": {"path": %q}}`, r.except))
		}
		match := tree{"path": r.path}
		if r.below {
			match = tree{"prefix": r.path}
		}
		rule := tree{"match": match, "auth": tree{}}
		if r.methods != nil {
			match["methods"] = r.methods
		} else if g.chance(30) {
			rule["cache"] = tree{"scope": "device"}
		}
		if r.admin {
			rule["auth"] = tree{"permissions": []any{"admin"}}
		}
		rules = append(rules, rule)
	}
	if g.chance(50) {
		rules = append(rules, parse(`{"match": {"prefix": "/v1/products/"}, "cache": {"query": ["lang"]}}`))
	}
	if g.chance(30) {
		rules = append(rules, parse(`{"match": {"prefix": "/v1/", "methods": ["GET"]}, "cache": {}}`))
	}
	if g.chance(20) {
		rules = append([]any{parse(`{"match": {"prefix": "/", "methods": ["OPTIONS"]}}`)}, rules...)
	}
	if g.chance(20) {
		rules = append(rules, parse(`{"match": {"prefix": "/open/"}}`))
	}
	clear(g.rules)
	g.rules["virtual_hosts"] = tree{}
	g.rules["credentials"] = parse(`{"id_header": "x-device-id", "secret_header": "x-device-token"}`)
	g.rules["rules"] = rules
	if g.chance(25) {
		g.rules["default"] = "deny"
		g.rules["rules"] = append(rules, parse(`{"match": {"prefix": "/public/"}}`))
	}
}

// closeConfig closes the configuration: the checked file, and its parts for Envoy.
func (g *gen) closeConfig() *config {
	if slices.Contains(g.others, "b.example") { // static.example may have what is cached for it
		g.others = []string{"b.example"}
	}
	g.sameRules()
	if g.hidden {
		g.hideEdge()
	}
	g.prependListener(g.edge)
	g.read.read(g.file)
	g.text = marshal(tree{
		"static_resources": tree{"listeners": append(slices.Clone(g.file), g.w.push),
			"clusters": append(slices.Clone(g.clusters), g.w.sidecar)},
		"admin": g.w.admin, "stats_config": g.w.stats,
	})
	return g.config
}

func (g *gen) prependListener(listener tree) { g.file = append([]any{listener}, g.file...) }

// cluster adds a cluster with an endpoint: an address, or the path of a socket.
func (g *gen) cluster(name, endpoint string, fields ...string) {
	address := parse(`{"pipe": {"path": %q}}`, endpoint)
	if host, port, found := strings.Cut(endpoint, ":"); found {
		address = parse(`{"socket_address": {"address": %q, "port_value": %s}}`, host, port)
	}
	c := parse(`{"name": %q, "type": "STATIC", "connect_timeout": "1s"}`, g.name(name))
	c["load_assignment"] = tree{"cluster_name": g.name(name),
		"endpoints": []any{tree{"lb_endpoints": []any{tree{"endpoint": tree{"address": address}}}}}}
	for _, field := range fields {
		for key, value := range parse("%s", field) {
			c[key] = value
		}
	}
	g.clusters = append(g.clusters, c)
}

// route puts a route before the existing routes.
func (g *gen) route(match, action string) tree {
	r := tree{"match": parse("%s", match), "route": parse("%s", action)}
	prepend(g.host, "routes", r)
	return r
}

// to is an action with a cluster, and more fields.
func (g *gen) to(cluster string, fields ...string) string {
	return fmt.Sprintf(`{%s}`,
		strings.Join(append([]string{fmt.Sprintf(`"cluster": %q`, g.name(cluster))}, fields...), ", "))
}

// lastRoute is the route for /.
func (g *gen) lastRoute() tree {
	routes := g.host["routes"].([]any)
	return routes[len(routes)-1].(tree)
}

const router = `{"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}`

// manager is a connection manager without Gatehouse's filter, with the given routes.
func (g *gen) manager(routes ...string) tree {
	return parse(`{"name": "hcm", "typed_config": {
		"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
		"stat_prefix": "plain", "http_filters": [%s], "upgrade_configs": [{"upgrade_type": "websocket"}],
		"route_config": {"virtual_hosts": [{"name": "plain", "domains": ["*"], "routes": [%s]}]}}}`,
		router, strings.Join(routes, ", "))
}

func (g *gen) tcp(cluster string) tree {
	return parse(
		`{"name": "tcp", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
		"stat_prefix": "tcp", "cluster": %q}}`, g.name(cluster))
}

func (g *gen) listen(name string, address tree, filters ...tree) {
	list := []any{}
	for _, f := range filters {
		list = append(list, f)
	}
	g.file = append(g.file, tree{"name": g.name(name), "address": address, "filter_chains": []any{tree{"filters": list}}})
}

func (g *gen) loopbackAddress() (tree, int) {
	port := g.takePort()
	return parse(`{"socket_address": {"address": "127.0.0.1", "port_value": %d}}`, port), port
}

// filterAt returns the index of Gatehouse's filter, or the index behind it.
func (g *gen) filterAt() int {
	filters := g.hcm["http_filters"].([]any)
	return slices.IndexFunc(filters, func(f any) bool { return at(f, "name") == "gatehouse" })
}

func (g *gen) insert(i int, filter tree) {
	g.hcm["http_filters"] = slices.Insert(g.hcm["http_filters"].([]any), i, any(filter))
}

// mutationFilter returns a filter that appends to requests.
func mutationFilter(name, header, value string) tree {
	return parse(
		`{"name": %q, "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
		"mutations": {"request_mutations": [{"append": {"header": {"key": %q, "value": %q}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}]}}}`, name, header, value)
}

func lua(name, code string) tree {
	return parse(
		`{"name": %q, "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua", "default_source_code": {"inline_string": %q}}}`, name, code)
}

// filterState is a filter that stores a value under a name, by a factory.
func filterState(name, key, factory, format string) tree {
	return parse(
		`{"name": %q, "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config",
		"on_request_headers": [{"object_key": %q, "factory_key": %q,
			"format_string": {"text_format_source": {"inline_string": %q}}}]}}`,
		name, key, factory, format)
}

// passHosts gives hosts a virtual host of the rules that lets all requests pass.
func (g *gen) passHosts(domains ...any) {
	g.rules["virtual_hosts"].(tree)["pub"] = tree{"domains": domains, "rules": []any{parse(`{"match": {"prefix": "/"}}`)}}
	g.routeConfig()["ignore_port_in_host_matching"] = true
}

// sameRules gives the virtual host app of the rules the top level's rules.
func (g *gen) sameRules() {
	if app, found := g.rules["virtual_hosts"].(tree)["app"].(tree); found {
		delete(app, "default")
		for _, name := range []string{"rules", "default"} {
			if g.rules[name] != nil {
				app[name] = g.rules[name]
			}
		}
	}
}

func (g *gen) routeConfig() tree {
	if scopes, found := g.hcm["scoped_routes"].(tree); found {
		return at(scopes, "scoped_route_configurations_list", "scoped_route_configurations", 0, "route_configuration").(tree)
	}
	return g.hcm["route_config"].(tree)
}

// routeHosts gives hosts a virtual host of Envoy for these routes.
func (g *gen) routeHosts(route string, domains ...any) {
	config := g.routeConfig()
	config["virtual_hosts"] = slices.DeleteFunc(config["virtual_hosts"].([]any), func(host any) bool {
		return at(host, "name") == "pub"
	})
	join(config, "virtual_hosts", tree{"name": "pub", "domains": domains, "routes": []any{parse("%s", route)}})
}

// toOther is a route of all paths to the unprotected service.
func (g *gen) toOther() string {
	return fmt.Sprintf(`{"match": {"prefix": "/"}, "route": %s}`, g.to("other"))
}

// addOpenHost adds an open host of another service.
func (g *gen) addOpenHost() {
	g.passHosts("pub.example", "*.pub.example")
	g.routeHosts(g.toOther(), "pub.example", "*.Pub.example")
}

// addHarmless makes changes that open nothing.
func (g *gen) addHarmless() {
	for _, i := range g.Perm(len(variations))[:g.IntN(5)] {
		variations[i](g)
	}
}

var variations = slices.Concat(httpFilterVariations, tcpVariations)

var httpFilterVariations = []func(*gen){
	func(g *gen) { g.route(`{"prefix": "/static/"}`, g.to("other")) },
	func(g *gen) { g.route(`{"prefix": "/files/"}`, g.to("other", `"prefix_rewrite": "/v1/"`)) },
	func(g *gen) { g.route(`{"prefix": "/old/"}`, g.to("upstream", `"prefix_rewrite": "/new/"`)) },
	func(g *gen) {
		g.route(`{"prefix": "/legacy/"}`,
			g.to("upstream", `"regex_rewrite": {"pattern": {"regex": "^/legacy/(.*)$"}, "substitution": "/archive/\\1"}`))
	},
	func(g *gen) { g.route(`{"prefix": "/v1/"}`, g.to("upstream", `"prefix_rewrite": "/v1/"`)) },
	func(g *gen) {
		g.route(`{"safe_regex": {"regex": "/img/[a-z]+"}}`, g.to("upstream", `"host_rewrite_literal": "images"`))
	},
	func(g *gen) {
		prepend(g.host,
			"routes",
			parse(`{"match": {"path": "/healthz"}, "direct_response": {"status": 200, "body": {"inline_string": "ok"}}}`))
	},
	func(g *gen) {
		prepend(g.host, "routes", parse(`{"match": {"prefix": "/moved/"}, "redirect": {"prefix_rewrite": "/v1/"}}`))
	},
	func(g *gen) {
		g.lastRoute()["route"] = parse(
			`{"weighted_clusters": {"clusters": [{"name": %[1]q, "weight": 1}, {"name": %[1]q, "weight": 3, "request_headers_to_add": [{"header": {"key": "x-canary", "value": "1"}}]}]}}`, g.name("upstream"))
	},
	func(g *gen) {
		g.lastRoute()["request_headers_to_add"] = []any{parse(`{"header": {"key": "x-env", "value": "prod"}}`)}
	},
	func(g *gen) {
		g.lastRoute()["route"].(tree)["internal_redirect_policy"] = parse(
			`{"max_internal_redirects": 2, "redirect_response_codes": [302]}`)
	},
	func(g *gen) {
		g.lastRoute()["route"].(tree)["request_mirror_policies"] = []any{parse(`{"cluster": %q}`, g.name("other"))}
	},
	func(g *gen) {
		g.lastRoute()["route"].(tree)["hash_policy"] = []any{parse(`{"header": {"header_name": "x-gatehouse-device"}}`)}
	},
	func(g *gen) {
		g.hcm["upgrade_configs"] = []any{parse(`{"upgrade_type": "websocket"}`)}
		g.hcm["http2_protocol_options"] = parse(`{"allow_connect": true}`)
	},
	func(g *gen) { g.insert(0, mutationFilter("first", "x-region", "eu")) },
	func(g *gen) { g.insert(0, mutationFilter("early", "x-gatehouse-device", "root")) },
	func(g *gen) { g.insert(g.filterAt()+1, mutationFilter("late", "x-zone", "%REQ(:authority)%")) },
	func(g *gen) {
		g.insert(0, lua("lua", "function envoy_on_request(h) h:headers():add('x-lua', '1') end"))
	},
	func(g *gen) {
		g.insert(g.filterAt()+1, lua("later", "function envoy_on_request(h) h:headers():replace('x-lua', '1') end"))
	},
	func(g *gen) {
		g.rules["source"] = parse(`{"filter_state": "gatehouse.source"}`)
		g.insert(0, filterState("source", "gatehouse.source", "envoy.string", pick(g, "%DOWNSTREAM_REMOTE_ADDRESS%",
			"%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%", "%DOWNSTREAM_LOCAL_ADDRESS%", "10.0.0.1")))
	},
	func(g *gen) {
		here, _ := g.loopbackAddress()
		g.listen("local", here, g.manager(fmt.Sprintf(`{"match": {"prefix": "/"}, "route": %s}`, g.to("upstream"))))
	},
	func(g *gen) {
		g.listen("static", g.anyAddress(), g.manager(fmt.Sprintf(`{"match": {"prefix": "/"}, "route": %s}`, g.to("other"))))
	},
	func(g *gen) { g.listen("database", g.anyAddress(), g.tcp("other")) },
	func(g *gen) {
		g.cluster("prometheus", g.w.adminAddress)
		g.listen("metrics", g.anyAddress(),
			g.manager(fmt.Sprintf(`{"match": {"path": "/stats/prometheus"}, "route": %s}`, g.to("prometheus"))))
	},
	func(g *gen) {
		g.listen("health", g.anyAddress(), g.manager(`{"match": {"prefix": "/"}, "direct_response": {"status": 200}}`))
	},
	func(g *gen) {
		second := cloneTree(g.edge)
		second["name"], second["address"] = g.name("second"), g.anyAddress()
		g.file = append(g.file, second)
	},
	func(g *gen) { g.hcm["strip_any_host_port"] = true },
	(*gen).addOpenHost,
	(*gen).addOpenHost,
	func(g *gen) { // the same rules, also those that others add
		g.rules["virtual_hosts"].(tree)["app"] = tree{"domains": []any{"edge.example", "static.example"}}
		g.sameRules()
	},
	func(g *gen) {
		route := g.toOther()
		rule := `{"match": {"path": "/shared"}, "cache": {"on_miss": "fetch"%s}}`
		if g.chance(50) {
			prepend(g.rules, "rules", parse(rule, `, "scope": "host"`))
			route = strings.Replace(route, `"prefix": "/"`, `"path": "/shared"`, 1)
		} else {
			prepend(g.rules, "rules", parse(rule, ""))
			g.rules["virtual_hosts"].(tree)["b"] = tree{"domains": []any{"b.example"}, "rules": []any{parse(rule, "")}}
		}
		join(g.routeConfig(), "virtual_hosts",
			tree{"name": "shared", "domains": []any{"b.example"}, "routes": []any{parse("%s", route)}})
		g.routeConfig()["ignore_port_in_host_matching"] = true
		g.others = append(g.others, "b.example")
	},
	func(g *gen) {
		join(at(g.hcm, "route_config").(tree), "virtual_hosts", parse(`{"name": "static", "domains": ["static.example"],
			"routes": [{"match": {"prefix": "/files/"}, "route": {"cluster": %q}}]}`, g.name("other")))
		g.others = append(g.others, "static.example")
	},
}

// addWild makes a change whose effect only the real Envoy knows.
func (g *gen) addWild() {
	prefixes := []string{"/", "/public/", "/v1/", "/api", "/secret/", "/v1/me/", "/v1/admin/health", "/a/b/", "/x"}
	rules := g.rules["rules"].([]any)
	switch g.IntN(13) {
	case 12: // a redirect inside, which the upstream asks for, where the filter is off
		r := g.route(fmt.Sprintf(`{"prefix": %q}`, pick(g, "/open/", "/open/bounce", "/")),
			g.to(pick(g, "upstream", g.addHops("upstream")), `"internal_redirect_policy": {"redirect_response_codes": [302]}`))
		r["request_headers_to_remove"] = []any{"x-gatehouse-device", "x-gatehouse-permissions"}
		r["typed_per_filter_config"] = withoutFilter()
	case 10, 11:
		g.wildTCP()
	case 0:
		g.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
	case 1:
		prefix := pick(g, prefixes...)
		if slices.ContainsFunc(g.protected, func(r resource) bool { return r.below && strings.HasPrefix(prefix, r.path) }) {
			return // an exception that is meant
		}
		rule := tree{"match": tree{"prefix": prefix, "methods": []any{pick(g, "GET", "POST", "PUT", "HEAD")}}}
		g.rules["rules"] = slices.Insert(rules, g.IntN(len(rules)+1), any(rule))
	case 2:
		g.route(fmt.Sprintf(`{"prefix": %q}`, pick(g, prefixes...)),
			g.to("upstream", fmt.Sprintf(`"prefix_rewrite": %q`, pick(g, prefixes...))))
	case 3:
		pattern := pick(g, "^/public", "^/public/(.*)$", "/x", "^/([a-z]+)/(.*)$", "^/a/(.*)/c$", "public/",
			"(.*)/z$", "^(.*)$")
		to := pick(g, "", `/\\1`, `/v1/\\1`, `\\1`, `/secret/\\1`, "/v1/me", `/v1/admin/\\1`, "/new/")
		g.route(fmt.Sprintf(`{"prefix": %q}`, pick(g, prefixes...)),
			g.to("upstream", fmt.Sprintf(`"regex_rewrite": {"pattern": {"regex": %q}, "substitution": "%s"}`, pattern, to)))
	case 4:
		r := g.route(fmt.Sprintf(`{"prefix": %q}`, pick(g, prefixes...)), g.to(pick(g, "upstream", "other")))
		r["typed_per_filter_config"] = parse(
			`{"gatehouse": {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": true}}`)
		if g.chance(50) {
			r["request_headers_to_remove"] = []any{"x-gatehouse-device", "x-gatehouse-permissions"}
		}
	case 5:
		g.route(fmt.Sprintf(`{"path": %q}`, strings.TrimSuffix(pick(g, prefixes...), "/")+"/y"),
			g.to("upstream", fmt.Sprintf(`"prefix_rewrite": %q`, pick(g, "/v1/me/config", "/secret/x", "/v1/orders", "/none"))))
	case 6:
		route := fmt.Sprintf(
			`{"match": {"prefix": %q}, "route": %s, "request_headers_to_remove": ["x-gatehouse-device", "x-gatehouse-permissions"]}`,
			pick(g, prefixes...), g.to("upstream", fmt.Sprintf(`"prefix_rewrite": %q`, pick(g, prefixes...))))
		partly := g.manager(route)
		if g.chance(50) {
			at(partly, "typed_config").(tree)["common_http_protocol_options"] = parse(
				`{"headers_with_underscores_action": "REJECT_REQUEST"}`)
		}
		g.listen("partly", g.anyAddress(), partly)
	case 7, 8:
		g.wildHosts()
	default:
		g.openBypass(pick(g, bypasses...))
	}
}

// wildHosts draws virtual hosts of the rules and of Envoy.
func (g *gen) wildHosts() {
	some := func() (list []any) {
		all := []any{"pub.example", "*.pub.example", "*.example", "a.pub.example", "other.test", "*.test"}
		for _, i := range g.Perm(len(all))[:1+g.IntN(3)] {
			list = append(list, all[i])
		}
		return list
	}
	judged := some()
	g.passHosts(judged...)
	g.routeHosts(fmt.Sprintf(`{"match": {"prefix": %q}, "route": %s}`, pick(g, "/", "/", "/v1/", "/open/"),
		g.to(pick(g, "upstream", "other", "other"))), some()...)
	config := g.routeConfig()
	config["ignore_port_in_host_matching"] = g.chance(60)
	if !slices.Contains(judged, any("*.example")) && g.chance(30) { // else the rules say that edge.example is open
		g.host["domains"] = []any{"edge.example", "*.test"}
		if slices.ContainsFunc(config["virtual_hosts"].([]any), func(host any) bool {
			return at(host, "name") == "pub" && slices.Contains(at(host, "domains").([]any), any("*.test"))
		}) {
			g.host["domains"] = []any{"edge.example"}
		}
	}
}
