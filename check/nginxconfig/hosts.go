package nginxconfig

import (
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gatehouse/gatehouse/check/samples"
	"github.com/gatehouse/gatehouse/check/topology"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// findServerRules records the rules that judge each server's requests. Like the plugin, nginx selects among the servers
// of an address by the host without port and trailing dot.
func (a *analysis) findServerRules() {
	a.serverRules = map[*scope][]topology.HostRules{}
	byAddress := map[string][]*scope{}
	for _, server := range a.http.inner {
		for _, address := range listenAddresses(server) {
			byAddress[address] = append(byAddress[address], server)
		}
	}
	find := a.rules.FindVirtualHost()
	for address, servers := range byAddress {
		names := a.collectServerNames(address, servers)
		hosts := append(samples.Hosts(names.domains, a.rules), names.exampleHosts...)
		slices.Sort(hosts)
		for _, host := range append([]string{""}, hosts...) {
			server, by := servers[names.findServer(host)], find(host)
			if !slices.ContainsFunc(a.serverRules[server], func(hr topology.HostRules) bool { return hr.Host == by }) {
				hr := topology.NewHostRules(a.rules, by)
				hr.Example = strconv.Quote(host)
				a.serverRules[server] = append(a.serverRules[server], hr)
			}
		}
	}
}

// listenAddresses returns the addresses of a server, normalized so that equal addresses are equal texts.
func listenAddresses(server *scope) (all []string) {
	for _, d := range server.own("listen") {
		text := d.arg(0)
		if !strings.HasPrefix(text, "unix:") {
			if _, port, found := strings.Cut(text[strings.LastIndexByte(text, ']')+1:], ":"); found {
				text = strings.TrimSuffix(text, ":"+port)
				text += ":" + port
			} else if strings.Trim(text, "0123456789") == "" {
				text = "*:" + text
			} else {
				text += ":80"
			}
			if ap, err := netip.ParseAddrPort(text); err == nil && ap.Addr().Is4() && ap.Addr().IsUnspecified() {
				text = "*" + text[strings.LastIndexByte(text, ':'):]
			}
		}
		all = append(all, text)
	}
	if all == nil {
		all = []string{"*:80"}
	}
	return all
}

// serverNames are the names of all servers of an address.
type serverNames struct {
	domains      []samples.Domain
	expressions  []serverExpression
	exampleHosts []string // a host for each expression
	fallback     int      // server for hosts without a server
}

type serverExpression struct {
	*regexp.Regexp
	server int
}

func (a *analysis) collectServerNames(address string, servers []*scope) *serverNames {
	n := &serverNames{}
	chosen := false
	for i, server := range servers {
		for j, d := range server.own("listen") {
			if !chosen && listenAddresses(server)[j] == address && slices.ContainsFunc(d.args, func(arg string) bool {
				return arg == "default_server" || arg == "default"
			}) {
				n.fallback, chosen = i, true
			}
		}
		for _, d := range server.own("server_name") {
			for _, name := range d.args {
				if text, found := strings.CutPrefix(name, "~"); !found {
					n.addName(strings.ToLower(name), i)
				} else if compiled, err := regexp.Compile("(?i)" + text); err == nil {
					n.expressions = append(n.expressions, serverExpression{compiled, i})
					n.exampleHosts = append(n.exampleHosts, strings.ToLower(strings.TrimPrefix(samplePath(text, "", ""), "/")))
				} else {
					a.reportUnclear(server, d, text)
				}
			}
		}
	}
	return n
}

func (n *serverNames) addName(name string, server int) {
	if end, found := strings.CutPrefix(name, "."); found {
		n.domains = append(n.domains, samples.Domain{Text: end, Owner: server})
		name = "*." + end
	}
	n.domains = append(n.domains, samples.Domain{Text: name, Owner: server})
}

// findServer returns the index of the server that takes a host.
func (n *serverNames) findServer(host string) int {
	if server := samples.FindOwner(n.domains, host); server >= 0 {
		return server
	}
	for _, e := range n.expressions {
		if e.MatchString(host) {
			return e.server
		}
	}
	return n.fallback
}

// hostRulesOf returns the rules that judge a scope's requests; for an unjudged scope, the rules of all hosts.
func (a *analysis) hostRulesOf(s *scope) []topology.HostRules {
	if server := s.server(); server != nil && a.isJudged(s) {
		return a.serverRules[server]
	}
	return topology.AllHostRules(a.rules)
}

// rulesOf returns the single rules in hostRulesOf.
func (a *analysis) rulesOf(s *scope) (all []policy.Rule) {
	for _, hr := range a.hostRulesOf(s) {
		all = append(all, hr.Own()...)
	}
	return all
}

// peerHostRules returns the rules of a scope's server and of all judged servers with a common upstream.
func (a *analysis) peerHostRules(s *scope) []topology.HostRules {
	own := s.server()
	all, found := a.peerRules[own]
	if found {
		return all
	}
	all = slices.Clone(a.hostRulesOf(s))
	to := a.passedAddresses(own)
	for _, other := range a.http.inner {
		if other != own && to.Intersects(a.passedAddresses(other)) {
			all = append(all, a.serverRules[other]...)
		}
	}
	a.peerRules[own] = all
	return all
}

// passedAddresses returns the addresses to which the judged scopes of a server pass requests.
func (a *analysis) passedAddresses(server *scope) (all topology.Targets) {
	server.each(func(s *scope) {
		if pass := s.pass(); pass != nil && a.isJudged(s) {
			all = append(all, a.passAddresses(s, pass)...)
		}
	})
	return all
}
