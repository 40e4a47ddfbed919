package envoyconfig

import (
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/samples"
	"github.com/gatehouse/gatehouse/check/topology"
	"github.com/gatehouse/gatehouse/edge/policy"
)

func routeDomains(config object) (all []samples.Domain) {
	for i, host := range config.List("virtual_hosts") {
		texts, _ := host.Field("domains").([]any)
		for _, text := range texts {
			text, _ := text.(string)
			all = append(all, samples.Domain{Text: strings.ToLower(text), Owner: i})
		}
	}
	return all
}

// trimPort returns a host as the filter reads it: without the port.
func trimPort(host string) string {
	if colon := strings.LastIndexByte(host, ':'); colon > strings.LastIndexByte(host, ']') {
		return host[:colon]
	}
	return host
}

// judgingHosts returns, for each virtual host of a route configuration, the virtual hosts of the rules that judge its
// requests. Spellings of a port don't count.
func (p *plugin) judgingHosts(config object) map[int][]int {
	domains, find, all := routeDomains(config), p.Rules.FindVirtualHost(), map[int][]int{}
	for _, host := range samples.Hosts(domains, p.Rules) {
		at, by := samples.FindOwner(domains, host), find(trimPort(host))
		if !slices.Contains(all[at], by) {
			all[at] = append(all[at], by)
		}
	}
	if len(p.Rules.VirtualHosts) == 0 {
		for i := range config.List("virtual_hosts") {
			all[i] = []int{policy.NoVirtualHost}
		}
	}
	return all
}

// judgedRoutes returns the routes of an edge, once for each virtual host of the rules that judges the route's requests.
func (a *analysis) judgedRoutes(p *plugin) (all []httpRoute) {
	var config object
	var hosts map[int][]int
	for _, rt := range a.listRoutes(p.Manager) {
		if !isSame(config, rt.levels[0].config) {
			config = rt.levels[0].config
			hosts = p.judgingHosts(config)
		}
		for _, host := range hosts[rt.host] {
			rt.Rules = topology.NewHostRules(p.Rules, host)
			all = append(all, rt)
		}
	}
	return all
}

// checkHosts checks that Envoy and the rules read the same host, and that every virtual host of the rules gets
// requests.
func (a *analysis) checkHosts(p *plugin) {
	configs, unseen := a.routeConfigs(p.Manager)
	if len(p.Rules.VirtualHosts) == 0 || unseen != "" {
		return
	}
	used := map[int]bool{}
	discovers := len(configs) == 0
	for _, config := range configs {
		discovers = discovers || config.Has("vhds")
		hosts := p.judgingHosts(config)
		for at, by := range hosts {
			for _, host := range by {
				used[host] = used[host] || at >= 0
			}
		}
		a.checkPorts(p, config, hosts)
	}
	if discovers {
		return
	}
	for i, host := range p.Rules.VirtualHosts {
		if !used[i] {
			a.addInRules(&noHost, p, "virtual_hosts."+host.Name+".domains",
				"no virtual host of Envoy has them: requests for %s get 404", strings.Join(host.Domains, ", "))
		}
	}
	if top := topology.NewHostRules(p.Rules, policy.NoVirtualHost); !used[policy.NoVirtualHost] && len(top.Own()) > 0 {
		a.addInRules(&noHost, p, "rules",
			"judge no request: virtual_hosts have all hosts that Envoy's virtual hosts have")
	}
}

// portForms returns ports in requests with which Envoy and the filter read different hosts.
func portForms(manager, config object) []string {
	switch {
	case config.Flag("ignore_port_in_host_matching"):
		return nil
	case manager.Flag("strip_any_host_port"):
		return []string{":"} // Envoy keeps an empty port
	}
	return []string{":1", ":"}
}

// checkPorts reports a port by which clients evade the rules: with the port, Envoy sends the request to a virtual host
// whose rules ask more.
func (a *analysis) checkPorts(p *plugin, config object, hosts map[int][]int) {
	domains, find := routeDomains(config), p.Rules.FindVirtualHost()
	routes := slices.DeleteFunc(a.listRoutes(p.Manager), func(rt httpRoute) bool {
		return !isSame(rt.levels[0].config, config)
	})
	for _, host := range samples.Hosts(domains, p.Rules) {
		for _, port := range portForms(p.Manager, config) {
			host := trimPort(host) + port
			at, by := samples.FindOwner(domains, host), find(trimPort(host))
			if slices.Contains(hosts[at], by) {
				continue
			}
			for _, rt := range routes {
				if rt.host != at {
					continue
				}
				for _, other := range hosts[at] {
					stricter := rt
					rt.Rules, stricter.Rules = topology.NewHostRules(p.Rules, by), topology.NewHostRules(p.Rules, other)
					if w := rt.FindWeaker(topology.NewProtected(&stricter.Route), false); w != nil {
						a.add(&otherPort, p.ListenerName(), "route_config.ignore_port_in_host_matching",
							"is not true: Envoy sends requests for the host %q to %s, where %s asks more for %s %s than %s, which "+
								"judges them by the host without its port", host, rt.levels[1].at, stricter.Rules.DisplayName(),
							w.Method, w.Path, rt.Rules.DisplayName())
						return
					}
				}
			}
		}
	}
}
