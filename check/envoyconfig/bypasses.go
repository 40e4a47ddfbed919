package envoyconfig

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/check/samples"
	"github.com/gatehouse/gatehouse/check/topology"
	"github.com/gatehouse/gatehouse/internal/envoyrules"
)

// checkBypasses checks that no listener, filter chain or socket of Gatehouse takes requests past the filter.
func (a *analysis) checkBypasses() {
	if a.hasUnreadRules() {
		return
	}
	for i := range a.chains {
		a.reportUnseenRoutes(&a.chains[i])
	}
	a.checkAdmin()
	a.addPrivateTargets()
	a.model.PropagateReach()
	a.model.Check()
}

// addServer adds a filter chain to the model.
func (a *analysis) addServer(c *chain) {
	s := &topology.Server{Name: "listener " + c.listener.Text("name"), Reach: listenerReach(c.listener)}
	s.ListensAt = c.leadsToListener
	seen := map[string]bool{}
	report := func(at string) func(*findings.Kind, string, ...any) {
		return func(k *findings.Kind, format string, args ...any) {
			at := at
			if k.Code == rewriteIn.Code || k.Code == unclear.Code {
				at += ".route"
			}
			if key := k.Code + at; !seen[key] { // several rules judge a route's requests
				seen[key] = true
				a.add(k, c.listener.Text("name"), at, format, args...)
			}
		}
	}
	a.model.Servers = append(a.model.Servers, s)
	if c.manager == nil {
		to := c.connectionTargets()
		s.Routes = []topology.Route{{Targets: to, Mirrored: to, Choice: c.clientChoice(to), Report: report(c.at)}}
		return
	}
	routes := a.listRoutes(c.manager)
	if c.edge != nil {
		routes = a.judgedRoutes(c.edge)
		s.ReportRules = func(method, path string, by *topology.Server) {
			a.addInRules(&weakerEdge, c.edge, "rules", "ask less for %s %s than those of %s, to the same upstream", method, path,
				by.Name)
		}
	}
	for _, rt := range routes {
		rt.Targets, rt.Choice = rt.routeTargets(&a.resources, false)
		rt.Mirrored, rt.Choice = rt.routeTargets(&a.resources, true)
		rt.Targets, rt.Mirrored = c.addStoredDestinations(rt.Targets), c.addStoredDestinations(rt.Mirrored)
		rt.ClearsIdentity, rt.Report = func() bool { return rt.clearsIdentity(c.manager) }, report(rt.at)
		if c.edge == nil {
			rt.Report = report(c.at + ": " + rt.at)
		} else if rt.isSwitchedOff(c.edge.httpFilter().Text("name")) {
			rt.Rules, rt.Reported = topology.HostRules{}, true // by checkSwitchedOff
		}
		s.Routes = append(s.Routes, rt.Route)
	}
}

// addStoredChoices adds clients' choices by what filters of a chain store, also for listeners behind the chain.
func (a *analysis) addStoredChoices(c *chain, s *topology.Server) {
	if !c.storesClientChoice(storedDestination) {
		return
	}
	for i := range s.Routes {
		rt := &s.Routes[i]
		all := rt.Mirrored
		if c.edge != nil {
			all = a.model.Follow(all, nil)
		}
		if rt.Choice == "" && slices.ContainsFunc(all, a.isOriginalDestination) {
			rt.Choice = "by what a filter stores as the destination"
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

// leadsToListener reports whether one of the targets is the listener of a chain.
func (c *chain) leadsToListener(to topology.Targets) bool {
	own := topology.Targets{"listener " + c.listener.Text("name")}
	addresses := []object{c.listener.Object("address")}
	for _, more := range c.listener.List("additional_addresses") {
		addresses = append(addresses, more.Object("address"))
	}
	for _, address := range addresses {
		socket := address.Object("socket_address")
		protocol := socket.Field("protocol")
		if (protocol == "UDP" || protocol == 1.0) && !slices.ContainsFunc(to, c.resources.usesHTTP3) {
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
	return to.Intersects(own)
}

// usesHTTP3 reports whether a target is a cluster that connects by HTTP/3.
func (r *resources) usesHTTP3(target string) bool {
	name, _ := strings.CutPrefix(target, "cluster ")
	cluster := r.clusters[name]
	return slices.ContainsFunc(append(cluster.List("transport_socket_matches"), cluster), func(o object) bool {
		kind, _ := o.Object("transport_socket").Object("typed_config").Typed()
		return strings.HasSuffix(kind, ".QuicUpstreamTransport")
	})
}

// connectionTargets returns the targets of a chain without a connection manager.
func (c *chain) connectionTargets() (all topology.Targets) {
	for _, filter := range c.filters {
		all = append(all, c.resources.networkTargets(filter)...)
		if isSNICluster(filter) {
			for _, name := range c.exactServerNames() {
				all = append(all, c.resources.clusterTargets(name)...)
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
			all = append(all, c.resources.clusterTargets(name)...)
		}
	}
	return c.addStoredDestinations(all)
}

// addStoredDestinations adds the addresses that filters of the chain store as the destination to the chain's targets.
func (c *chain) addStoredDestinations(to topology.Targets) topology.Targets {
	if !slices.ContainsFunc(to, c.resources.isOriginalDestination) {
		return to
	}
	for _, s := range c.stored {
		if host, port, err := net.SplitHostPort(s.format); s.key == storedDestination && err == nil {
			to = append(to, addressKey(object{"socket_address": map[string]any{"address": host, "port_value": port}}))
		}
	}
	return to
}

// checkAdmin reports an admin address that other machines reach.
func (a *analysis) checkAdmin() {
	if a.admin != nil && addressReach(a.admin) == topology.ReachNetwork {
		a.add(&openAdmin, "", "admin.address", "%s is not a loopback address: anyone who can reach it controls Envoy",
			addressKey(a.admin))
	}
}

// addPrivateTargets adds sidecar, push listener and Envoy's admin address to the model.
func (a *analysis) addPrivateTargets() {
	add := func(description string, to topology.Targets, allowed func(path string) bool) {
		a.model.Private = append(a.model.Private, topology.Private{Description: description, Targets: to, Allowed: allowed})
	}
	for _, p := range a.plugins {
		if !p.Rules.PushListener {
			add(topology.SidecarAPI, a.clusterTargets(p.Rules.SidecarCluster), topology.IsPublicPath)
		} else if key := addressKey(p.Listener.Object("address")); key != "" {
			add(topology.PushListener, topology.Targets{key}, func(string) bool { return false })
		}
	}
	if key := addressKey(a.admin); key != "" {
		add("Envoy's admin address, by which Envoy is controlled", topology.Targets{key}, func(path string) bool {
			return strings.HasPrefix(path, "/stats") || path == "/ready"
		})
	}
}

// clientChoice describes how clients choose the target of a chain without a connection manager, "" if clients can't.
func (c *chain) clientChoice(to topology.Targets) string {
	for _, filter := range c.filters {
		kind, _ := filter.Object("typed_config").Typed()
		if isSNICluster(filter) && c.exactServerNames() == nil ||
			strings.HasSuffix(kind, ".sni_dynamic_forward_proxy.v3.FilterConfig") {
			return "by the server name that they ask for"
		}
	}
	if c.storesClientChoice(storedCluster) || c.storesClientChoice("envoy.upstream.dynamic_host") ||
		slices.ContainsFunc(to, c.resources.isOriginalDestination) && c.storesClientChoice(storedDestination) {
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
func (c *chain) storesClientChoice(key string) bool {
	return slices.ContainsFunc(c.stored, func(s storedValue) bool {
		named := key == storedCluster && s.format == serverName && c.exactServerNames() != nil
		return s.key == key && s.isClientChosen(c.manager) && !named
	})
}

// isOriginalDestination reports whether a target is a cluster that connects to the stored destination.
func (r *resources) isOriginalDestination(target string) bool {
	name, found := strings.CutPrefix(target, "cluster ")
	return found && r.clusters[name].Text("type") == "ORIGINAL_DST"
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
		if rt.match.Has("connect_matcher") && rt.sendsUpstream() && !rt.Rules.DenyByDefault && p.auth && !seen[rt.at] {
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
			if rt.Rules.Host != p.Rules.VirtualHostOf(i) {
				continue
			}
			space := 0
			if rule.Cache.PerHost {
				space = rt.host
			}
			all, _ := rt.routeTargets(&a.resources, false)
			if len(all) > 0 && rt.sendsUpstream() && slices.ContainsFunc(samples.PathsOf(&rule.Match), rt.Takes) {
				if to[space] == nil {
					to[space] = map[string]bool{}
				}
				endpoints := slices.Compact(slices.Sorted(slices.Values(all[1:])))
				to[space][strings.Join(endpoints, " ")+nameWithoutEndpoints(all)] = true
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
func nameWithoutEndpoints(t topology.Targets) string {
	if len(t) == 1 {
		return t[0]
	}
	return ""
}
