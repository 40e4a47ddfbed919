package envoyconfig

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// around checks that nothing takes requests past the filter: other listeners and filter chains, and Gatehouse's own
// sockets.
func (a *analysis) around() {
	if a.unread() {
		return
	}
	chains := a.known
	a.spread(chains)
	a.openAdmin()
	inner, guards := a.innerTargets(), a.guards(chains)
	for i := range chains {
		c := &chains[i]
		a.unseen(c)
		if c.reach <= user {
			continue
		}
		a.toInner(c, inner)
		if c.edge == nil {
			a.unjudged(c, guards)
		} else {
			a.weakerEdge(c, guards)
			a.weakerHosts(c, guards)
		}
	}
}

// unseen reports routes of a chain that come by discovery, where some filter protects something.
func (a *analysis) unseen(c *chain) {
	protects := slices.ContainsFunc(a.plugins, func(p *plugin) bool { return p.auth })
	if _, routes := a.routings(c.manager); protects && routes != "" {
		name := c.listener.text("name")
		a.add(&unseenRoutes, name, c.at, "the routes %q are not in the file, and were not checked", routes)
	}
}

// spread gives listeners that another one sends what it gets to, unjudged, the reach of that one.
func (a *analysis) spread(chains []chain) {
	for changed := true; changed; {
		changed = false
		for i := range chains {
			for j := range chains {
				if c := &chains[j]; chains[i].edge == nil && chains[i].reach > c.reach && a.leads(chains[i].to, c) {
					c.reach, changed = chains[i].reach, true
				}
			}
		}
	}
}

// leads reports whether some of the targets is the listener of a chain.
func (a *analysis) leads(to targets, c *chain) bool {
	own := targets{"listener " + c.listener.text("name")}
	addresses := []object{c.listener.object("address")}
	for _, more := range c.listener.list("additional_addresses") {
		addresses = append(addresses, more.object("address"))
	}
	for _, address := range addresses {
		socket := address.object("socket_address")
		protocol := socket.field("protocol")
		if (protocol == "UDP" || protocol == 1.0) && !slices.ContainsFunc(to, a.byUDP) {
			continue
		}
		if key := addressKey(address); key != "" {
			own = append(own, key)
		}
		// One that isn't bound gets only what another listener hands over, so the port may be another program's.
		if ip, _ := netip.ParseAddr(socket.text("address")); ip.IsUnspecified() && binds(c.listener) {
			own = append(own, fmt.Sprintf("loopback:%v", socket.field("port_value")))
		}
	}
	return to.meet(own)
}

// byUDP reports whether a target is a cluster that connects by HTTP/3.
func (a *analysis) byUDP(target string) bool {
	name, _ := strings.CutPrefix(target, "cluster ")
	cluster := a.clusters[name]
	return slices.ContainsFunc(append(cluster.list("transport_socket_matches"), cluster), func(o object) bool {
		kind, _ := o.object("transport_socket").object("typed_config").typed()
		return strings.HasSuffix(kind, ".QuicUpstreamTransport")
	})
}

// chainTargets are where a chain sends requests.
func (a *analysis) chainTargets(c *chain) (all targets) {
	for _, w := range a.waysOf(c) {
		to, _ := w.targets(&a.resources, true)
		all = append(all, to...)
	}
	if c.manager == nil {
		for _, filter := range c.filters {
			all = append(all, a.networkTargets(filter)...)
			if isSNICluster(filter) {
				for _, name := range c.exactNames() {
					all = append(all, a.targets(name)...)
				}
			}
		}
		for _, s := range c.stored {
			if s.key != storedCluster {
				continue
			}
			names := []string{s.format}
			if s.format == serverName {
				names = c.exactNames()
			}
			for _, name := range names {
				all = append(all, a.targets(name)...)
			}
		}
	}
	return a.destinations(c, all)
}

// destinations adds to targets of a chain the addresses that its filters store as the destination.
func (a *analysis) destinations(c *chain, to targets) targets {
	if !slices.ContainsFunc(to, a.toDestination) {
		return to
	}
	for _, s := range c.stored {
		if host, port, err := net.SplitHostPort(s.format); s.key == storedDestination && err == nil {
			to = append(to, addressKey(object{"socket_address": map[string]any{"address": host, "port_value": port}}))
		}
	}
	return to
}

// through adds to targets those to which the listeners there lead without the filter. With paths, neither copies count
// nor what takes none of the paths.
func (a *analysis) through(to targets, paths []string) targets {
	seen := map[int]bool{}
	for changed := true; changed; {
		changed = false
		for i := range a.known {
			c := &a.known[i]
			if seen[i] || c.edge != nil || !a.leads(to, c) {
				continue
			}
			seen[i], changed = true, true
			if c.manager == nil || paths == nil {
				to = append(to, c.to...)
				continue
			}
			for _, w := range a.waysOf(c) {
				if _, found := w.carries(paths); found {
					next, _ := w.targets(&a.resources, false)
					to = append(to, a.destinations(c, next)...)
				}
			}
		}
	}
	return to
}

func (a *analysis) waysOf(c *chain) []way {
	if c.manager == nil {
		return nil
	}
	return a.ways(c.manager)
}

// openAdmin reports an admin address that other machines reach.
func (a *analysis) openAdmin() {
	if a.admin != nil && addressReach(a.admin) == network {
		a.add(&openAdmin, "", "admin.address", "%s is not a loopback address: anyone who can reach it controls Envoy",
			addressKey(a.admin))
	}
}

// innerTarget is one of what only Gatehouse, or this machine, may reach.
type innerTarget struct {
	what    string
	targets targets
	allowed func(path string) bool // what clients may ask there
}

func (a *analysis) innerTargets() (all []innerTarget) {
	for _, p := range a.plugins {
		if !p.rules.PushListener {
			all = append(all, innerTarget{"the sidecar, which answers any device's private objects without a credential",
				a.targets(p.rules.SidecarCluster), func(path string) bool { return path == "/v1/session/jwks" }})
		} else if key := addressKey(p.listener.object("address")); key != "" {
			all = append(all, innerTarget{"the push listener, by which the cache and the verdicts are written",
				targets{key}, func(string) bool { return false }})
		}
	}
	if key := addressKey(a.admin); key != "" {
		all = append(all, innerTarget{"Envoy's admin address, by which Envoy is controlled", targets{key},
			func(path string) bool {
				return strings.HasPrefix(path, "/stats") || path == "/ready"
			}})
	}
	return all
}

// toInner reports ways of clients to what only Gatehouse may reach, or to what they choose.
func (a *analysis) toInner(c *chain, inner []innerTarget) {
	name := c.listener.text("name")
	const why = "clients choose where their %s go, %s: also to the sidecar, and to what this machine only may reach"
	if c.manager == nil {
		if chosen := a.chosenBy(c); chosen != "" {
			a.add(&clientsChoose, name, c.at, why, "connections", chosen)
		}
		for _, in := range inner {
			if c.to.meet(in.targets) {
				a.add(&toInner, name, c.at, "leads to %s", in.what)
				return
			}
		}
		return
	}
	for _, w := range a.waysOf(c) {
		to, chosen := w.targets(&a.resources, true)
		to = a.destinations(c, to)
		all := to
		if c.edge != nil {
			all = a.through(to, nil)
		}
		if chosen == "" && slices.ContainsFunc(all, a.toDestination) && a.stores(c, storedDestination) {
			chosen = "by what a filter stores as the destination"
		}
		if chosen != "" {
			a.add(&clientsChoose, name, w.at, why, "requests", chosen)
		}
		for _, in := range inner {
			if all.meet(in.targets) && a.gets(to, in, in.allowed(w.onlyPath()), map[passed]bool{}) {
				a.add(&toInner, name, w.at, "leads to %s", in.what)
				break
			}
		}
	}
}

// passed is a chain that requests get to, and whether all of them have paths that clients may ask.
type passed struct {
	*chain
	allowed bool
}

// gets reports whether requests to targets get to what only Gatehouse may reach, also through listeners without the
// filter, which may rewrite paths or take fewer; allowed says that what gets to the targets is all allowed.
func (a *analysis) gets(to targets, in innerTarget, allowed bool, seen map[passed]bool) bool {
	if !allowed && to.meet(in.targets) {
		return true
	}
	for i := range a.known {
		c := &a.known[i]
		if c.edge != nil || seen[passed{c, allowed}] || !a.leads(to, c) {
			continue
		}
		seen[passed{c, allowed}] = true
		if c.manager == nil && a.gets(c.to, in, allowed, seen) {
			return true
		}
		for _, w := range a.waysOf(c) {
			next, _ := w.targets(&a.resources, true)
			next = a.destinations(c, next)
			if a.gets(next, in, in.allowed(w.onlyPath()) || allowed && !w.rewrites(), seen) {
				return true
			}
		}
	}
	return false
}

// chosenBy tells how clients choose where a chain without a connection manager sends what it gets, "" if they don't.
func (a *analysis) chosenBy(c *chain) string {
	for _, filter := range c.filters {
		kind, _ := filter.object("typed_config").typed()
		if isSNICluster(filter) && c.exactNames() == nil ||
			strings.HasSuffix(kind, ".sni_dynamic_forward_proxy.v3.FilterConfig") {
			return "by the server name that they ask for"
		}
	}
	if a.stores(c, storedCluster) || a.stores(c, "envoy.upstream.dynamic_host") ||
		slices.ContainsFunc(c.to, a.toDestination) && a.stores(c, storedDestination) {
		return "by what a filter stores as the destination"
	}
	return ""
}

func isSNICluster(filter object) bool {
	kind, _ := filter.object("typed_config").typed()
	return strings.HasSuffix(kind, ".SniCluster")
}

// exactNames are the server names of a chain that takes no others, nil if it does.
func (c *chain) exactNames() (all []string) {
	names, _ := c.match.field("server_names").([]any)
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

// storedBy is what the filters of a chain store.
func (a *analysis) storedBy(c *chain) []stored {
	all := a.stored(c.manager, c.manager.list("http_filters"))
	for _, filter := range c.filters {
		all = append(all, storedIn("", map[string]any(filter))...)
	}
	return all
}

// stores reports whether a filter of a chain stores what clients choose under a key of filter state.
func (a *analysis) stores(c *chain, key string) bool {
	return slices.ContainsFunc(c.stored, func(s stored) bool {
		named := key == storedCluster && s.format == serverName && c.exactNames() != nil
		return s.key == key && s.chosen(c.manager) && !named
	})
}

// toDestination reports whether a target is a cluster that connects to the stored destination.
func (a *analysis) toDestination(target string) bool {
	name, found := strings.CutPrefix(target, "cluster ")
	return found && a.clusters[name].text("type") == "ORIGINAL_DST"
}

// onlyPath is what begins all paths that the upstream gets by the route, "" if that isn't known. With a slash at its
// end it stands for those below it.
func (w *way) onlyPath() string {
	from := w.from()
	if from == "" {
		return w.route.object("route").text("prefix_rewrite")
	}
	to, known := w.upstream(from)
	if !known || w.route.object("route").has("regex_rewrite") {
		return ""
	}
	if w.match.text("path") == "" && !strings.HasPrefix(to, "/stats") {
		return to + "/"
	}
	return to
}

// guard is a route by which an upstream gets paths only from whom the rules let pass.
type guard struct {
	chain *chain
	way   way
	to    targets
	paths []string // that they protect
}

// within returns the paths that a guard protects, also samples of those that another route takes or makes.
func (g *guard) within(other *way) []string {
	paths := append(g.way.by.protectedPaths(other), g.way.by.ownPaths(other)...)
	if other.by.plugin != nil {
		for _, r := range other.by.own() { // which may ask less for a part of what this one protects
			paths = append(paths, slices.DeleteFunc(r.Match.Samples(), func(path string) bool {
				_, found := g.way.by.asks(path)
				return !found
			})...)
		}
	}
	return append(slices.DeleteFunc(paths, func(path string) bool { return !g.way.takes(path) }), g.paths...)
}

func (a *analysis) guards(chains []chain) (all []guard) {
	for i := range chains {
		c := &chains[i]
		if c.edge == nil {
			continue
		}
		for _, w := range a.judged(c.edge) {
			if paths := w.protects(); paths != nil {
				to, _ := w.targets(&a.resources, false)
				all = append(all, guard{c, w, a.through(to, paths), paths})
			}
		}
	}
	return all
}

// protectedBy returns the chain whose filter protects paths of one of these targets, and by what; nil if none does.
func protectedBy(to targets, guards []guard) (by *chain, own []guard) {
	for _, g := range guards {
		if (by == nil || by == g.chain) && g.to.meet(to) {
			by, own = g.chain, append(own, g)
		}
	}
	return by, own
}

// protects are the paths that an upstream gets by the route only from whom the rules let pass, in the spelling of the
// rules, too.
func (w *way) protects() (paths []string) {
	for _, path := range w.by.protectedPaths(w) {
		if to, _ := w.upstream(path); w.takes(path) {
			paths = append(paths, path, to)
		}
	}
	return paths
}

// unjudged reports a chain without the filter to an upstream that the filter protects elsewhere.
func (a *analysis) unjudged(c *chain, guards []guard) {
	name := c.listener.text("name")
	const why = "leads to an upstream that the filter protects in listener %s"
	if c.manager == nil {
		if by, _ := protectedBy(c.to, guards); by != nil && c.asOpen(by) {
			a.add(&unjudged, name, c.at, why+": here no request is judged, and clients' identity headers get to it",
				by.listener.text("name"))
		}
		return
	}
	for _, w := range a.ways(c.manager) {
		to, _ := w.targets(&a.resources, true)
		by, own := protectedBy(a.destinations(c, to), guards)
		if by == nil || !c.asOpen(by) {
			continue
		}
		var paths []string
		for i := range own {
			paths = append(paths, own[i].within(&w)...)
		}
		if path, found := w.carries(paths); found {
			a.add(&unjudged, name, c.at+": "+w.at, why+", where %s needs a credential: here no request is judged",
				by.listener.text("name"), path)
			return
		}
		if !w.clears(c.manager) {
			a.add(&unjudged, name, c.at+": "+w.at, why+": here clients' identity headers get to it", by.listener.text("name"))
			return
		}
	}
}

// asOpen reports whether as many can connect to a chain as to another one, or all.
func (c *chain) asOpen(other *chain) bool { return c.reach >= other.reach || c.reach == network }

// reached is where requests of a judged route, and copies of them, get to.
func (a *analysis) reached(w *way) targets {
	to, _ := w.targets(&a.resources, true)
	return a.through(to, nil)
}

// weakerEdge reports an edge by which clients get to an upstream with less than another edge asks.
func (a *analysis) weakerEdge(c *chain, guards []guard) {
	for _, w := range a.judged(c.edge) {
		to := a.reached(&w)
		for _, g := range guards {
			if g.chain.edge == c.edge || !c.asOpen(g.chain) || !g.to.meet(to) {
				continue
			}
			if method, path := w.weaker(&g); path != "" {
				a.addOfRules(&weakerEdge, c.edge,
					"rules", "ask less for %s %s than those of listener %s, to the same upstream", method, path,
					g.chain.listener.text("name"))
				return
			}
		}
	}
}

// weaker returns a request by the route of which the rules ask less than a guard, "" for none.
func (w *way) weaker(g *guard) (method, path string) {
	for _, path := range g.within(w) {
		for _, client := range w.clientPaths(path) {
			if to, known := w.upstream(client); !known || to != path || !w.takes(client) {
				continue
			}
			for _, method := range g.way.by.rules.SampleMethods() {
				if w.by.need(method, client).Weaker(g.way.by.need(method, path)) {
					return method, path
				}
			}
		}
	}
	return "", ""
}

// wraps checks how the filter stands in its connection manager.
func (a *analysis) wraps(p *plugin) {
	at := fmt.Sprintf("http_filters[%d]", p.index)
	filter := p.filter()
	if filter.flag("is_optional") {
		a.add(&notCertain, p.name(), at+".is_optional", "is true: an Envoy that can't load the filter runs without it")
	}
	if preset := filter.object("config_discovery").object("default_config"); preset != nil {
		if kind, _ := preset.typed(); !isType(kind, wasmType) && !isType(kind, nativeType) {
			a.add(&notCertain, p.name(), at+".config_discovery.default_config",
				"is another filter: until the configuration arrives, no request is judged")
		}
	}
	kind, _ := a.discovered(filter).object("typed_config").typed()
	if kind != "" && !isType(kind, wasmType) && !isType(kind, nativeType) {
		a.add(&matchedOnly, p.name(), at, "stands within %s: requests that its matcher doesn't select are not judged",
			kind[strings.LastIndexByte(kind, '/')+1:])
	}
	a.upgrades(p)
	a.caches(p)
	a.translators(p)
}

// translates are the filters that change the method or the path.
var translates = map[string]bool{
	"envoy.extensions.filters.http.grpc_json_reverse_transcoder.v3.GrpcJsonReverseTranscoder": true,
	"envoy.extensions.filters.http.connect_grpc_bridge.v3.FilterConfig":                       true,
	"envoy.extensions.filters.http.grpc_json_transcoder.v3.GrpcJsonTranscoder":                true,
}

// translators reports such filters behind this one.
func (a *analysis) translators(p *plugin) {
	for i, filter := range p.filters {
		kind, _ := a.discovered(filter).object("typed_config").typed()
		if name := kind[strings.LastIndexByte(kind, '/')+1:]; i > p.index && p.auth && translates[name] {
			a.add(&translated, p.name(), fmt.Sprintf("http_filters[%d]", i),
				"%s gives requests another method and path behind the filter, which judged the client's", name)
		}
	}
}

// upgrades checks the filters of requests that ask for another protocol, and that none opens a tunnel.
func (a *analysis) upgrades(p *plugin) {
	for i, upgrade := range p.manager.list("upgrade_configs") {
		if own := upgrade.list("filters"); len(own) > 0 && !slices.ContainsFunc(own, a.judges) {
			a.add(&ownFilters, p.name(), fmt.Sprintf("upgrade_configs[%d].filters", i),
				"%s requests have these filters, without Gatehouse's: none is judged", upgrade.text("upgrade_type"))
		}
	}
	seen := map[string]bool{}
	for _, w := range a.judged(p) {
		if w.match.has("connect_matcher") && w.sends() && !w.by.DenyByDefault && p.auth && !seen[w.at] {
			seen[w.at] = true
			a.add(&tunnel, p.name(), w.at+".match.connect_matcher",
				"CONNECT has no path, so no rule covers it: clients get a connection to the upstream, in which nobody judges")
		}
	}
}

// judges reports whether a filter is one of Gatehouse's with rules.
func (a *analysis) judges(filter object) bool {
	kind, inner := a.discovered(filter).object("typed_config").typed()
	return slices.ContainsFunc(a.plugins, func(p *plugin) bool {
		return p.rules != nil && !p.rules.PushListener && (isType(kind, wasmType) && same(inner.object("config"), p.config) ||
			isType(kind, nativeType) && same(inner, p.config))
	})
}

// caches reports a cache of Envoy in the chain, which doesn't know devices.
func (a *analysis) caches(p *plugin) {
	for i, filter := range p.filters {
		kind, config := a.discovered(filter).object("typed_config").typed()
		cache := strings.HasSuffix(kind, ".CacheConfig") || strings.HasSuffix(kind, ".CacheV2Config")
		if p.auth && cache && !config.flag("disabled") {
			a.add(&otherCache, p.name(), fmt.Sprintf("http_filters[%d]", i),
				"is a cache of Envoy, which doesn't know devices: a client gets what was answered to another one")
		}
	}
}

// sharedKeys reports that several upstreams share the objects of a path.
func (a *analysis) sharedKeys(p *plugin) {
	ways := a.judged(p)
	for i := range p.rules.Rules {
		rule := &p.rules.Rules[i]
		if rule.Cache == nil {
			continue
		}
		to := map[int]map[string]bool{} // by what has objects of its own: a virtual host of Envoy, if keys have the host
		for _, w := range ways {
			if w.by.host != p.rules.VirtualHostOf(i) {
				continue
			}
			space := 0
			if rule.Cache.PerHost {
				space = w.host
			}
			all, _ := w.targets(&a.resources, false)
			if len(all) > 0 && w.sends() && slices.ContainsFunc(rule.Match.Samples(), w.takes) {
				if to[space] == nil {
					to[space] = map[string]bool{}
				}
				to[space][strings.Join(slices.Compact(slices.Sorted(slices.Values(all[1:]))), " ")+all.nameless()] = true
			}
		}
		for _, upstreams := range to {
			if len(upstreams) > 1 {
				a.addOfRules(&sharedKeys, p, p.rules.RuleField(i)+".cache",
					"requests for %s go to several upstreams, by domain or header, and keys don't tell which: all of them get the "+
						"same objects", rule.Match.Path+rule.Match.Prefix)
				return
			}
		}
	}
}

// nameless is the cluster's name where no endpoint tells more.
func (t targets) nameless() string {
	if len(t) == 1 {
		return t[0]
	}
	return ""
}
