package envoyconfig

import (
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/sidecar/internal/findings"
)

// hostRules is what decides about requests: the rules of a virtual host, or those of the top level.
type hostRules struct {
	*plugin
	policy.HostRules
	host int // its index in the rules
}

func (p *plugin) hostRules(host int) hostRules { return hostRules{p, p.rules.HostRules(host), host} }

// allHostRules are all of an edge.
func (p *plugin) allHostRules() (all []hostRules) {
	for host := policy.NoVirtualHost; host < len(p.rules.VirtualHosts); host++ {
		all = append(all, p.hostRules(host))
	}
	return all
}

func (j *hostRules) ownRules() []policy.Rule { return j.rules.Rules[j.First:j.End] }

// needsCredential reports whether some rule wants a credential.
func (j *hostRules) needsCredential() bool {
	return slices.ContainsFunc(j.ownRules(), func(r policy.Rule) bool { return needsCredential(&r) })
}

func (j *hostRules) needOf(method, path string) policy.Need {
	return j.rules.NeedOf(j.HostRules, method, path)
}

// displayName names the judge.
func (j *hostRules) displayName() string {
	if j.host == policy.NoVirtualHost {
		return "the top level of the rules"
	}
	return "virtual_hosts." + j.rules.VirtualHosts[j.host].Name
}

func routeDomains(config object) (all []findings.Domain) {
	for i, host := range config.list("virtual_hosts") {
		texts, _ := host.field("domains").([]any)
		for _, text := range texts {
			text, _ := text.(string)
			all = append(all, findings.Domain{Text: strings.ToLower(text), Owner: i})
		}
	}
	return all
}

// trimPort is a host as the filter reads it.
func trimPort(host string) string {
	if colon := strings.LastIndexByte(host, ':'); colon > strings.LastIndexByte(host, ']') {
		return host[:colon]
	}
	return host
}

// judgingHosts returns the hosts of the rules that judge requests for each virtual host of a route configuration. How a
// client writes a port doesn't count.
func (p *plugin) judgingHosts(config object) map[int][]int {
	domains, find, all := routeDomains(config), p.rules.FindVirtualHost(), map[int][]int{}
	for _, host := range findings.SampleHosts(domains, p.rules) {
		at, by := findings.Route(domains, host), find(trimPort(host))
		if !slices.Contains(all[at], by) {
			all[at] = append(all[at], by)
		}
	}
	if len(p.rules.VirtualHosts) == 0 {
		for i := range config.list("virtual_hosts") {
			all[i] = []int{policy.NoVirtualHost}
		}
	}
	return all
}

// judgedRoutes returns the routes of an edge, each once for each of those who judge its requests.
func (a *analysis) judgedRoutes(p *plugin) (all []httpRoute) {
	var config object
	var hosts map[int][]int
	for _, rt := range a.listRoutes(p.manager) {
		if !isSame(config, rt.levels[0].of) {
			config = rt.levels[0].of
			hosts = p.judgingHosts(config)
		}
		for _, host := range hosts[rt.host] {
			rt.rules = p.hostRules(host)
			all = append(all, rt)
		}
	}
	return all
}

// checkHosts checks that Envoy and the rules read the same host, and that no virtual host of the rules is without requests.
func (a *analysis) checkHosts(p *plugin) {
	configs, unseen := a.routeConfigs(p.manager)
	if len(p.rules.VirtualHosts) == 0 || unseen != "" {
		return
	}
	used := map[int]bool{}
	discovers := len(configs) == 0
	for _, config := range configs {
		discovers = discovers || config.has("vhds")
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
	for i, host := range p.rules.VirtualHosts {
		if !used[i] {
			a.addInRules(&noHost, p, "virtual_hosts."+host.Name+".domains",
				"no virtual host of Envoy has them: requests for %s get 404", strings.Join(host.Domains, ", "))
		}
	}
	if top := p.hostRules(policy.NoVirtualHost); !used[policy.NoVirtualHost] && len(top.ownRules()) > 0 {
		a.addInRules(&noHost, p, "rules",
			"judge no request: virtual_hosts have all hosts that Envoy's virtual hosts have")
	}
}

// portForms are ports in requests with which Envoy reads another host than the filter.
func portForms(manager, config object) []string {
	switch {
	case config.flag("ignore_port_in_host_matching"):
		return nil
	case manager.flag("strip_any_host_port"):
		return []string{":"} // which Envoy keeps
	}
	return []string{":1", ":"}
}

// checkPorts reports that by a port in the request clients get to a virtual host whose rules ask more.
func (a *analysis) checkPorts(p *plugin, config object, hosts map[int][]int) {
	domains, find := routeDomains(config), p.rules.FindVirtualHost()
	ways := slices.DeleteFunc(a.listRoutes(p.manager), func(rt httpRoute) bool { return !isSame(rt.levels[0].of, config) })
	for _, host := range findings.SampleHosts(domains, p.rules) {
		for _, port := range portForms(p.manager, config) {
			host := trimPort(host) + port
			at, by := findings.Route(domains, host), find(trimPort(host))
			if slices.Contains(hosts[at], by) {
				continue
			}
			for _, rt := range ways {
				if rt.host != at {
					continue
				}
				for _, other := range hosts[at] {
					guarded := rt
					rt.rules, guarded.rules = p.hostRules(by), p.hostRules(other)
					if method, path := rt.findWeaker(&protectedRoute{route: guarded, paths: guarded.protectedPaths()}); path != "" {
						a.add(&otherPort, p.listenerName(), "route_config.ignore_port_in_host_matching",
							"is not true: Envoy sends requests for the host %q to %s, where %s asks more for %s %s than %s, which "+
								"judges them by the host without its port", host, rt.levels[1].at, guarded.rules.displayName(), method, path,
							rt.rules.displayName())
						return
					}
				}
			}
		}
	}
}

// checkWeakerHosts reports a host by which clients get to an upstream with less than the rules ask for another host.
// Hosts without rules, which are refused or pass, protect nothing.
func (a *analysis) checkWeakerHosts(c *chain, guards []protectedRoute) {
	for _, rt := range a.judgedRoutes(c.edge) {
		to := a.reachedTargets(&rt)
		for _, g := range guards {
			if g.chain != c || g.route.rules.First == g.route.rules.End || g.route.rules.host == rt.rules.host || !g.targets.intersects(to) {
				continue
			}
			if method, path := rt.findWeaker(&g); path != "" {
				a.add(&weakerHost, c.listener.text("name"), rt.at,
					"leads to an upstream that %s protects for other hosts, but here %s judges, and asks less for %s %s",
					g.route.rules.displayName(), rt.rules.displayName(), method, path)
				return
			}
		}
	}
}
