package envoyconfig

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/internal/envoyrules"
)

// checkBypasses checks that no listener, filter chain or socket of Gatehouse takes requests past the filter.
func (a *analysis) checkBypasses() {
	if a.hasUnreadRules() {
		return
	}
	chains := a.chains
	a.propagateReach(chains)
	a.checkAdmin()
	inner, protected := a.privateTargets(), a.protectedRoutes(chains)
	for i := range chains {
		c := &chains[i]
		a.reportUnseenRoutes(c)
		if c.reach <= reachUser {
			continue
		}
		a.checkPrivateTargets(c, inner)
		if c.edge == nil {
			a.checkUnfilteredChain(c, protected)
		} else {
			a.checkWeakerEdge(c, protected)
			a.checkWeakerHosts(c, protected)
		}
	}
}

// reportUnseenRoutes reports routes of a chain that come by discovery, if some rule needs a credential.
func (a *analysis) reportUnseenRoutes(c *chain) {
	protects := slices.ContainsFunc(a.plugins, func(p *plugin) bool { return p.auth })
	if _, routes := a.routeConfigs(c.manager); protects && routes != "" {
		name := c.listener.Text("name")
		a.add(&unseenRoutes, name, c.at, "the routes %q are not in the file, and were not checked", routes)
	}
}

// propagateReach raises reaches: if listener A forwards unfiltered requests to listener B, clients who reach A reach B,
// so B gets A's reach.
func (a *analysis) propagateReach(chains []chain) {
	for changed := true; changed; {
		changed = false
		for i := range chains {
			for j := range chains {
				if c := &chains[j]; chains[i].edge == nil && chains[i].reach > c.reach && a.leadsToListener(chains[i].targets, c) {
					c.reach, changed = chains[i].reach, true
				}
			}
		}
	}
}

// leadsToListener reports whether one of the targets is the listener of a chain.
func (a *analysis) leadsToListener(to targets, c *chain) bool {
	own := targets{"listener " + c.listener.Text("name")}
	addresses := []object{c.listener.Object("address")}
	for _, more := range c.listener.List("additional_addresses") {
		addresses = append(addresses, more.Object("address"))
	}
	for _, address := range addresses {
		socket := address.Object("socket_address")
		protocol := socket.Field("protocol")
		if (protocol == "UDP" || protocol == 1.0) && !slices.ContainsFunc(to, a.usesHTTP3) {
			continue
		}
		if key := addressKey(address); key != "" {
			own = append(own, key)
		}
		// A listener without bind_to_port gets only connections handed over by listeners; the port may belong to a different
		// program.
		if ip, _ := netip.ParseAddr(socket.Text("address")); ip.IsUnspecified() && bindsPort(c.listener) {
			own = append(own, fmt.Sprintf("loopback:%v", socket.Field("port_value")))
		}
	}
	return to.intersects(own)
}

// usesHTTP3 reports whether a target is a cluster that connects by HTTP/3.
func (a *analysis) usesHTTP3(target string) bool {
	name, _ := strings.CutPrefix(target, "cluster ")
	cluster := a.clusters[name]
	return slices.ContainsFunc(append(cluster.List("transport_socket_matches"), cluster), func(o object) bool {
		kind, _ := o.Object("transport_socket").Object("typed_config").Typed()
		return strings.HasSuffix(kind, ".QuicUpstreamTransport")
	})
}

// chainTargets returns the targets of a chain's requests.
func (a *analysis) chainTargets(c *chain) (all targets) {
	for _, rt := range a.chainRoutes(c) {
		to, _ := rt.routeTargets(&a.resources, true)
		all = append(all, to...)
	}
	if c.manager == nil {
		for _, filter := range c.filters {
			all = append(all, a.networkTargets(filter)...)
			if isSNICluster(filter) {
				for _, name := range c.exactServerNames() {
					all = append(all, a.clusterTargets(name)...)
				}
			}
		}
		for _, s := range c.stored {
			if s.key != storedCluster {
				continue
			}
			names := []string{s.format}
			if s.format == serverName {
				names = c.exactServerNames()
			}
			for _, name := range names {
				all = append(all, a.clusterTargets(name)...)
			}
		}
	}
	return a.addStoredDestinations(c, all)
}

// addStoredDestinations adds the addresses that filters of the chain store as the destination to the chain's targets.
func (a *analysis) addStoredDestinations(c *chain, to targets) targets {
	if !slices.ContainsFunc(to, a.isOriginalDestination) {
		return to
	}
	for _, s := range c.stored {
		if host, port, err := net.SplitHostPort(s.format); s.key == storedDestination && err == nil {
			to = append(to, addressKey(object{"socket_address": map[string]any{"address": host, "port_value": port}}))
		}
	}
	return to
}

// followListeners adds the targets that requests reach through listeners without the filter. If paths is not nil,
// mirrored requests and routes without any of the paths don't count.
func (a *analysis) followListeners(to targets, paths []string) targets {
	seen := map[int]bool{}
	for changed := true; changed; {
		changed = false
		for i := range a.chains {
			c := &a.chains[i]
			if seen[i] || c.edge != nil || !a.leadsToListener(to, c) {
				continue
			}
			seen[i], changed = true, true
			if c.manager == nil || paths == nil {
				to = append(to, c.targets...)
				continue
			}
			for _, rt := range a.chainRoutes(c) {
				if _, found := rt.findCarriedPath(paths); found {
					next, _ := rt.routeTargets(&a.resources, false)
					to = append(to, a.addStoredDestinations(c, next)...)
				}
			}
		}
	}
	return to
}

func (a *analysis) chainRoutes(c *chain) []httpRoute {
	if c.manager == nil {
		return nil
	}
	return a.listRoutes(c.manager)
}

// checkAdmin reports an admin address that other machines reach.
func (a *analysis) checkAdmin() {
	if a.admin != nil && addressReach(a.admin) == reachNetwork {
		a.add(&openAdmin, "", "admin.address", "%s is not a loopback address: anyone who can reach it controls Envoy",
			addressKey(a.admin))
	}
}

// privateTarget is a target that clients must not reach: sidecar, push listener or Envoy's admin address.
type privateTarget struct {
	description string
	targets     targets
	allowed     func(path string) bool // exceptions: paths that clients may request
}

func (a *analysis) privateTargets() (all []privateTarget) {
	for _, p := range a.plugins {
		if !p.Rules.PushListener {
			all = append(all, privateTarget{"the sidecar, which answers any device's private objects without a credential",
				a.clusterTargets(p.Rules.SidecarCluster), func(path string) bool { return path == "/v1/session/jwks" }})
		} else if key := addressKey(p.Listener.Object("address")); key != "" {
			all = append(all, privateTarget{"the push listener, by which the cache and the verdicts are written",
				targets{key}, func(string) bool { return false }})
		}
	}
	if key := addressKey(a.admin); key != "" {
		all = append(all, privateTarget{"Envoy's admin address, by which Envoy is controlled", targets{key},
			func(path string) bool {
				return strings.HasPrefix(path, "/stats") || path == "/ready"
			}})
	}
	return all
}

// checkPrivateTargets reports routes by which clients reach a private target or choose the target.
func (a *analysis) checkPrivateTargets(c *chain, inner []privateTarget) {
	name := c.listener.Text("name")
	const why = "clients choose where their %s go, %s: also to the sidecar, and to what this machine only may reach"
	if c.manager == nil {
		if chosen := a.chainClientChoice(c); chosen != "" {
			a.add(&clientsChoose, name, c.at, why, "connections", chosen)
		}
		for _, in := range inner {
			if c.targets.intersects(in.targets) {
				a.add(&toPrivate, name, c.at, "leads to %s", in.description)
				return
			}
		}
		return
	}
	for _, rt := range a.chainRoutes(c) {
		to, chosen := rt.routeTargets(&a.resources, true)
		to = a.addStoredDestinations(c, to)
		all := to
		if c.edge != nil {
			all = a.followListeners(to, nil)
		}
		if chosen == "" && slices.ContainsFunc(all, a.isOriginalDestination) && a.storesClientChoice(c, storedDestination) {
			chosen = "by what a filter stores as the destination"
		}
		if chosen != "" {
			a.add(&clientsChoose, name, rt.at, why, "requests", chosen)
		}
		for _, in := range inner {
			if all.intersects(in.targets) && a.reachesPrivate(to, in, in.allowed(rt.upstreamPathStart()),
				map[visitedChain]bool{}) {
				a.add(&toPrivate, name, rt.at, "leads to %s", in.description)
				break
			}
		}
	}
}

// visitedChain is a chain that requests reach; allowed: only requests for allowed paths reach the chain.
type visitedChain struct {
	*chain
	allowed bool
}

// reachesPrivate reports whether requests to targets reach a private target by a path that isn't allowed. Listeners
// without the filter count, too: their routes may rewrite or select paths. allowed: all paths sent to targets are
// allowed.
func (a *analysis) reachesPrivate(to targets, in privateTarget, allowed bool, seen map[visitedChain]bool) bool {
	if !allowed && to.intersects(in.targets) {
		return true
	}
	for i := range a.chains {
		c := &a.chains[i]
		if c.edge != nil || seen[visitedChain{c, allowed}] || !a.leadsToListener(to, c) {
			continue
		}
		seen[visitedChain{c, allowed}] = true
		if c.manager == nil && a.reachesPrivate(c.targets, in, allowed, seen) {
			return true
		}
		for _, rt := range a.chainRoutes(c) {
			next, _ := rt.routeTargets(&a.resources, true)
			next = a.addStoredDestinations(c, next)
			if a.reachesPrivate(next, in, in.allowed(rt.upstreamPathStart()) || allowed && !rt.rewritesPath(), seen) {
				return true
			}
		}
	}
	return false
}

// chainClientChoice describes how clients choose the target of a chain without a connection manager, "" if clients
// can't.
func (a *analysis) chainClientChoice(c *chain) string {
	for _, filter := range c.filters {
		kind, _ := filter.Object("typed_config").Typed()
		if isSNICluster(filter) && c.exactServerNames() == nil ||
			strings.HasSuffix(kind, ".sni_dynamic_forward_proxy.v3.FilterConfig") {
			return "by the server name that they ask for"
		}
	}
	if a.storesClientChoice(c, storedCluster) || a.storesClientChoice(c, "envoy.upstream.dynamic_host") ||
		slices.ContainsFunc(c.targets, a.isOriginalDestination) && a.storesClientChoice(c, storedDestination) {
		return "by what a filter stores as the destination"
	}
	return ""
}

func isSNICluster(filter object) bool {
	kind, _ := filter.Object("typed_config").Typed()
	return strings.HasSuffix(kind, ".SniCluster")
}

// exactServerNames returns the server names that a chain matches, nil if the chain also matches unlisted names.
func (c *chain) exactServerNames() (all []string) {
	names, _ := c.match.Field("server_names").([]any)
	for _, v := range names {
		name, _ := v.(string)
		if name == "" || strings.HasPrefix(name, "*") {
			return nil
		}
		all = append(all, strings.ToLower(name))
	}
	return all
}

const (
	storedCluster     = "envoy.tcp_proxy.cluster"
	storedDestination = "envoy.network.transport_socket.original_dst_address"
	serverName        = "%REQUESTED_SERVER_NAME%"
)

// storedByChain returns the values that filters of a chain store.
func (a *analysis) storedByChain(c *chain) []storedValue {
	all := a.storedByFilters(c.manager, c.manager.List("http_filters"))
	for _, filter := range c.filters {
		all = append(all, storedByConfig("", map[string]any(filter))...)
	}
	return all
}

// storesClientChoice reports whether a filter of a chain stores a client's choice under a key of filter state.
func (a *analysis) storesClientChoice(c *chain, key string) bool {
	return slices.ContainsFunc(c.stored, func(s storedValue) bool {
		named := key == storedCluster && s.format == serverName && c.exactServerNames() != nil
		return s.key == key && s.isClientChosen(c.manager) && !named
	})
}

// isOriginalDestination reports whether a target is a cluster that connects to the stored destination.
func (a *analysis) isOriginalDestination(target string) bool {
	name, found := strings.CutPrefix(target, "cluster ")
	return found && a.clusters[name].Text("type") == "ORIGINAL_DST"
}

// upstreamPathStart returns the common start of all paths that the route sends upstream, "" if unknown. A start with a
// slash at its end stands for the paths below.
func (rt *httpRoute) upstreamPathStart() string {
	from := rt.pathStart()
	if from == "" {
		return rt.route.Object("route").Text("prefix_rewrite")
	}
	to, known := rt.upstreamPath(from)
	if !known || rt.route.Object("route").Has("regex_rewrite") {
		return ""
	}
	if rt.match.Text("path") == "" && !strings.HasPrefix(to, "/stats") {
		return to + "/"
	}
	return to
}

// protectedRoute is a route with paths for which the upstream gets only requests that satisfy the rules.
type protectedRoute struct {
	chain   *chain
	route   httpRoute
	targets targets
	paths   []string // the protected paths
}

// evasionSamples returns the route's protected paths, and samples of the paths that the other route takes or makes.
func (pr *protectedRoute) evasionSamples(other *httpRoute) []string {
	paths := append(pr.route.hostRules.protectedSamples(other), pr.route.hostRules.routeSamples(other)...)
	if other.hostRules.plugin != nil {
		for _, r := range other.hostRules.ownRules() { // the other rules may ask less for a part of a protected prefix
			paths = append(paths, slices.DeleteFunc(r.Match.Samples(), func(path string) bool {
				_, found := pr.route.hostRules.findRefusingRule(path)
				return !found
			})...)
		}
	}
	return append(slices.DeleteFunc(paths, func(path string) bool { return !pr.route.matchesPath(path) }), pr.paths...)
}

func (a *analysis) protectedRoutes(chains []chain) (all []protectedRoute) {
	for i := range chains {
		c := &chains[i]
		if c.edge == nil {
			continue
		}
		for _, rt := range a.judgedRoutes(c.edge) {
			if paths := rt.protectedPaths(); paths != nil {
				to, _ := rt.routeTargets(&a.resources, false)
				all = append(all, protectedRoute{c, rt, a.followListeners(to, paths), paths})
			}
		}
	}
	return all
}

// findProtectingChain returns the chain whose filter protects paths of one of the targets, with the protected routes;
// nil if no chain does.
func findProtectingChain(to targets, protected []protectedRoute) (by *chain, own []protectedRoute) {
	for _, pr := range protected {
		if (by == nil || by == pr.chain) && pr.targets.intersects(to) {
			by, own = pr.chain, append(own, pr)
		}
	}
	return by, own
}

// protectedPaths returns the paths for which the upstream gets only requests that satisfy the rules: in the client's
// spelling and in the upstream's.
func (rt *httpRoute) protectedPaths() (paths []string) {
	for _, path := range rt.hostRules.protectedSamples(rt) {
		if to, _ := rt.upstreamPath(path); rt.matchesPath(path) {
			paths = append(paths, path, to)
		}
	}
	return paths
}

// checkUnfilteredChain reports a chain without the filter that leads to a protected upstream.
func (a *analysis) checkUnfilteredChain(c *chain, protected []protectedRoute) {
	name := c.listener.Text("name")
	const why = "leads to an upstream that the filter protects in listener %s"
	if c.manager == nil {
		if by, _ := findProtectingChain(c.targets, protected); by != nil && c.isAsOpenAs(by) {
			a.add(&unjudged, name, c.at, why+": here no request is judged, and clients' identity headers get to it",
				by.listener.Text("name"))
		}
		return
	}
	for _, rt := range a.listRoutes(c.manager) {
		to, _ := rt.routeTargets(&a.resources, true)
		by, own := findProtectingChain(a.addStoredDestinations(c, to), protected)
		if by == nil || !c.isAsOpenAs(by) {
			continue
		}
		var paths []string
		for i := range own {
			paths = append(paths, own[i].evasionSamples(&rt)...)
		}
		if path, found := rt.findCarriedPath(paths); found {
			a.add(&unjudged, name, c.at+": "+rt.at, why+", where %s needs a credential: here no request is judged",
				by.listener.Text("name"), path)
			return
		}
		if !rt.clearsIdentity(c.manager) {
			a.add(&unjudged, name, c.at+": "+rt.at, why+": here clients' identity headers get to it", by.listener.Text("name"))
			return
		}
	}
}

// isAsOpenAs reports whether a chain's clients include all clients of the other chain, or all machines of the network.
func (c *chain) isAsOpenAs(other *chain) bool {
	return c.reach >= other.reach || c.reach == reachNetwork
}

// reachedTargets returns the targets of a judged route's requests and mirrored requests, also through other listeners.
func (a *analysis) reachedTargets(rt *httpRoute) targets {
	to, _ := rt.routeTargets(&a.resources, true)
	return a.followListeners(to, nil)
}

// checkWeakerEdge reports an edge with weaker rules than a second edge of the same upstream.
func (a *analysis) checkWeakerEdge(c *chain, protected []protectedRoute) {
	for _, rt := range a.judgedRoutes(c.edge) {
		to := a.reachedTargets(&rt)
		for _, pr := range protected {
			if pr.chain.edge == c.edge || !c.isAsOpenAs(pr.chain) || !pr.targets.intersects(to) {
				continue
			}
			if method, path := rt.findWeaker(&pr); path != "" {
				a.addInRules(&weakerEdge, c.edge,
					"rules", "ask less for %s %s than those of listener %s, to the same upstream", method, path,
					pr.chain.listener.Text("name"))
				return
			}
		}
	}
}

// findWeaker returns a request by the route for which the rules ask less than a protected route's, "" for none.
func (rt *httpRoute) findWeaker(pr *protectedRoute) (method, path string) {
	for _, path := range pr.evasionSamples(rt) {
		for _, client := range rt.clientPaths(path) {
			if to, known := rt.upstreamPath(client); !known || to != path || !rt.matchesPath(client) {
				continue
			}
			for _, method := range pr.route.hostRules.Rules.SampleMethods() {
				if rt.hostRules.needOf(method, client).Weaker(pr.route.hostRules.needOf(method, path)) {
					return method, path
				}
			}
		}
	}
	return "", ""
}

// checkFilterPosition checks the filter's entry in the connection manager, and the filters around the entry.
func (a *analysis) checkFilterPosition(p *plugin) {
	at := fmt.Sprintf("http_filters[%d]", p.Index)
	filter := p.httpFilter()
	if filter.Flag("is_optional") {
		a.add(&notCertain, p.ListenerName(), at+".is_optional",
			"is true: an Envoy that can't load the filter runs without it")
	}
	if preset := filter.Object("config_discovery").Object("default_config"); preset != nil {
		if kind, _ := preset.Typed(); !envoyrules.MayBePlugin(kind) {
			a.add(&notCertain, p.ListenerName(), at+".config_discovery.default_config",
				"is another filter: until the configuration arrives, no request is judged")
		}
	}
	kind, _ := a.WithDiscovered(filter).Object("typed_config").Typed()
	if kind != "" && !envoyrules.MayBePlugin(kind) {
		a.add(&matchedOnly, p.ListenerName(), at, "stands within %s: requests that its matcher doesn't select are not judged",
			kind[strings.LastIndexByte(kind, '/')+1:])
	}
	a.checkUpgrades(p)
	a.checkCaches(p)
	a.checkTranslators(p)
}

// translatingFilters change the method or the path.
var translatingFilters = map[string]bool{
	"envoy.extensions.filters.http.grpc_json_reverse_transcoder.v3.GrpcJsonReverseTranscoder": true,
	"envoy.extensions.filters.http.connect_grpc_bridge.v3.FilterConfig":                       true,
	"envoy.extensions.filters.http.grpc_json_transcoder.v3.GrpcJsonTranscoder":                true,
}

// checkTranslators reports translating filters behind Gatehouse's filter.
func (a *analysis) checkTranslators(p *plugin) {
	for i, filter := range p.Filters {
		kind, _ := a.WithDiscovered(filter).Object("typed_config").Typed()
		if name := kind[strings.LastIndexByte(kind, '/')+1:]; i > p.Index && p.auth && translatingFilters[name] {
			a.add(&translated, p.ListenerName(), fmt.Sprintf("http_filters[%d]", i),
				"%s gives requests another method and path behind the filter, which judged the client's", name)
		}
	}
}

// checkUpgrades checks the filters of requests for another protocol, and that no route opens a tunnel.
func (a *analysis) checkUpgrades(p *plugin) {
	for i, upgrade := range p.Manager.List("upgrade_configs") {
		if own := upgrade.List("filters"); len(own) > 0 && !slices.ContainsFunc(own, a.isEdgeFilter) {
			a.add(&ownFilters, p.ListenerName(), fmt.Sprintf("upgrade_configs[%d].filters", i),
				"%s requests have these filters, without Gatehouse's: none is judged", upgrade.Text("upgrade_type"))
		}
	}
	seen := map[string]bool{}
	for _, rt := range a.judgedRoutes(p) {
		if rt.match.Has("connect_matcher") && rt.sendsUpstream() && !rt.hostRules.DenyByDefault && p.auth && !seen[rt.at] {
			seen[rt.at] = true
			a.add(&tunnel, p.ListenerName(), rt.at+".match.connect_matcher",
				"CONNECT has no path, so no rule covers it: clients get a connection to the upstream, in which nobody judges")
		}
	}
}

// isEdgeFilter reports whether a filter is a Gatehouse filter with rules.
func (a *analysis) isEdgeFilter(filter object) bool {
	kind, inner := a.WithDiscovered(filter).Object("typed_config").Typed()
	return slices.ContainsFunc(a.plugins, func(p *plugin) bool {
		return p.Rules != nil && !p.Rules.PushListener &&
			(envoyrules.IsType(kind, envoyrules.WasmType) && isSame(inner.Object("config"), p.Config) ||
				envoyrules.IsType(kind, envoyrules.NativeType) && isSame(inner, p.Config))
	})
}

// checkCaches reports Envoy's own cache in the chain: Envoy's cache doesn't know devices.
func (a *analysis) checkCaches(p *plugin) {
	for i, filter := range p.Filters {
		kind, config := a.WithDiscovered(filter).Object("typed_config").Typed()
		cache := strings.HasSuffix(kind, ".CacheConfig") || strings.HasSuffix(kind, ".CacheV2Config")
		if p.auth && cache && !config.Flag("disabled") {
			a.add(&otherCache, p.ListenerName(), fmt.Sprintf("http_filters[%d]", i),
				"is a cache of Envoy, which doesn't know devices: a client gets what was answered to another one")
		}
	}
}

// checkSharedKeys reports cached paths that several upstreams serve: the upstreams would share objects.
func (a *analysis) checkSharedKeys(p *plugin) {
	routes := a.judgedRoutes(p)
	for i := range p.Rules.Rules {
		rule := &p.Rules.Rules[i]
		if rule.Cache == nil {
			continue
		}
		to := map[int]map[string]bool{} // upstreams by key space: by Envoy's virtual host if keys include the host, else 0
		for _, rt := range routes {
			if rt.hostRules.host != p.Rules.VirtualHostOf(i) {
				continue
			}
			space := 0
			if rule.Cache.PerHost {
				space = rt.host
			}
			all, _ := rt.routeTargets(&a.resources, false)
			if len(all) > 0 && rt.sendsUpstream() && slices.ContainsFunc(rule.Match.Samples(), rt.matchesPath) {
				if to[space] == nil {
					to[space] = map[string]bool{}
				}
				endpoints := slices.Compact(slices.Sorted(slices.Values(all[1:])))
				to[space][strings.Join(endpoints, " ")+all.nameWithoutEndpoints()] = true
			}
		}
		for _, upstreams := range to {
			if len(upstreams) > 1 {
				a.addInRules(&sharedKeys, p, p.Rules.RuleField(i)+".cache",
					"requests for %s go to several upstreams, by domain or header, and keys don't tell which: all of them get the "+
						"same objects", rule.Match.Path+rule.Match.Prefix)
				return
			}
		}
	}
}

// nameWithoutEndpoints returns the cluster's name if no endpoints are known, else "".
func (t targets) nameWithoutEndpoints() string {
	if len(t) == 1 {
		return t[0]
	}
	return ""
}
