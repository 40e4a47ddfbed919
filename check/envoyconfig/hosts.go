package envoyconfig

import (
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// judge is what decides about requests: the rules of a virtual host, or those of the top level.
type judge struct {
	*plugin
	policy.HostRules
	host int // its index in the rules
}

func (p *plugin) judge(host int) judge { return judge{p, p.rules.HostRules(host), host} }

// judges are all of an edge.
func (p *plugin) judges() (all []judge) {
	for host := policy.NoVirtualHost; host < len(p.rules.VirtualHosts); host++ {
		all = append(all, p.judge(host))
	}
	return all
}

func (j *judge) own() []policy.Rule { return j.rules.Rules[j.First:j.End] }

// asksCredential reports whether some rule wants a credential.
func (j *judge) asksCredential() bool {
	return slices.ContainsFunc(j.own(), func(r policy.Rule) bool { return protects(&r) })
}

func (j *judge) need(method, path string) policy.Need {
	return j.rules.NeedOf(j.HostRules, method, path)
}

// title names the judge.
func (j *judge) title() string {
	if j.host == policy.NoVirtualHost {
		return "the top level of the rules"
	}
	return "virtual_hosts." + j.rules.VirtualHosts[j.host].Name
}

func domainsOf(config object) (all []findings.Domain) {
	for i, host := range config.list("virtual_hosts") {
		texts, _ := host.field("domains").([]any)
		for _, text := range texts {
			text, _ := text.(string)
			all = append(all, findings.Domain{Text: strings.ToLower(text), Owner: i})
		}
	}
	return all
}

// withoutPort is a host as the filter reads it.
func withoutPort(host string) string {
	if colon := strings.LastIndexByte(host, ':'); colon > strings.LastIndexByte(host, ']') {
		return host[:colon]
	}
	return host
}

// judgesOf returns the hosts of the rules that judge requests for each virtual host of a route configuration. How a
// client writes a port doesn't count.
func (p *plugin) judgesOf(config object) map[int][]int {
	domains, find, all := domainsOf(config), p.rules.FindVirtualHost(), map[int][]int{}
	for _, host := range findings.SampleHosts(domains, p.rules) {
		at, by := findings.Route(domains, host), find(withoutPort(host))
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

// judged returns the routes of an edge, each once for each of those who judge its requests.
func (a *analysis) judged(p *plugin) (all []way) {
	var config object
	var hosts map[int][]int
	for _, w := range a.ways(p.manager) {
		if !same(config, w.levels[0].of) {
			config = w.levels[0].of
			hosts = p.judgesOf(config)
		}
		for _, host := range hosts[w.host] {
			w.by = p.judge(host)
			all = append(all, w)
		}
	}
	return all
}

// hosts checks that Envoy and the rules read the same host, and that no virtual host of the rules is without requests.
func (a *analysis) hosts(p *plugin) {
	configs, unseen := a.routings(p.manager)
	if len(p.rules.VirtualHosts) == 0 || unseen != "" {
		return
	}
	used := map[int]bool{}
	discovers := len(configs) == 0
	for _, config := range configs {
		discovers = discovers || config.has("vhds")
		hosts := p.judgesOf(config)
		for at, by := range hosts {
			for _, host := range by {
				used[host] = used[host] || at >= 0
			}
		}
		a.ports(p, config, hosts)
	}
	if discovers {
		return
	}
	for i, host := range p.rules.VirtualHosts {
		if !used[i] {
			a.addOfRules(&noHost, p, "virtual_hosts."+host.Name+".domains",
				"no virtual host of Envoy has them: requests for %s get 404", strings.Join(host.Domains, ", "))
		}
	}
	if top := p.judge(policy.NoVirtualHost); !used[policy.NoVirtualHost] && len(top.own()) > 0 {
		a.addOfRules(&noHost, p, "rules",
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

// ports reports that by a port in the request clients get to a virtual host whose rules ask more.
func (a *analysis) ports(p *plugin, config object, hosts map[int][]int) {
	domains, find := domainsOf(config), p.rules.FindVirtualHost()
	ways := slices.DeleteFunc(a.ways(p.manager), func(w way) bool { return !same(w.levels[0].of, config) })
	for _, host := range findings.SampleHosts(domains, p.rules) {
		for _, port := range portForms(p.manager, config) {
			host := withoutPort(host) + port
			at, by := findings.Route(domains, host), find(withoutPort(host))
			if slices.Contains(hosts[at], by) {
				continue
			}
			for _, w := range ways {
				if w.host != at {
					continue
				}
				for _, other := range hosts[at] {
					guarded := w
					w.by, guarded.by = p.judge(by), p.judge(other)
					if method, path := w.weaker(&guard{way: guarded, paths: guarded.protects()}); path != "" {
						a.add(&otherPort, p.name(), "route_config.ignore_port_in_host_matching",
							"is not true: Envoy sends requests for the host %q to %s, where %s asks more for %s %s than %s, which "+
								"judges them by the host without its port", host, w.levels[1].at, guarded.by.title(), method, path,
							w.by.title())
						return
					}
				}
			}
		}
	}
}

// weakerHosts reports a host by which clients get to an upstream with less than the rules ask for another host.
// Hosts without rules, which are refused or pass, protect nothing.
func (a *analysis) weakerHosts(c *chain, guards []guard) {
	for _, w := range a.judged(c.edge) {
		to := a.reached(&w)
		for _, g := range guards {
			if g.chain != c || g.way.by.First == g.way.by.End || g.way.by.host == w.by.host || !g.to.meet(to) {
				continue
			}
			if method, path := w.weaker(&g); path != "" {
				a.add(&weakerHost, c.listener.text("name"), w.at,
					"leads to an upstream that %s protects for other hosts, but here %s judges, and asks less for %s %s",
					g.way.by.title(), w.by.title(), method, path)
				return
			}
		}
	}
}
