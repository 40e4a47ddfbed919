package nginxconfig

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// hostRules are the rules for a host's requests: those of a virtual host, or those of the top level.
type hostRules struct {
	policy.HostRules
	host        int    // index of the virtual host in the rules
	exampleHost string // a host under these rules
}

func (a *analysis) displayName(hr *hostRules) string {
	if hr.host == policy.NoVirtualHost {
		return "the top level of the rules"
	}
	return "virtual_hosts." + a.rules.VirtualHosts[hr.host].Name
}

func (a *analysis) needOf(hr *hostRules, method, path string) policy.Need {
	return a.rules.NeedOf(hr.HostRules, method, path)
}

// findServerRules records the rules that judge each server's requests. Like the plugin, nginx selects among the servers
// of an address by the host without port and trailing dot.
func (a *analysis) findServerRules() {
	a.serverRules = map[*scope][]hostRules{}
	if a.rules == nil {
		return
	}
	byAddress := map[string][]*scope{}
	for _, server := range a.http.inner {
		for _, address := range listenAddresses(server) {
			byAddress[address] = append(byAddress[address], server)
		}
	}
	find := a.rules.FindVirtualHost()
	for address, servers := range byAddress {
		names := collectServerNames(address, servers)
		hosts := append(findings.SampleHosts(names.domains, a.rules.Config), names.exampleHosts...)
		slices.Sort(hosts)
		for _, host := range append([]string{""}, hosts...) {
			server, by := servers[names.findServer(host)], find(host)
			if !slices.ContainsFunc(a.serverRules[server], func(hr hostRules) bool { return hr.host == by }) {
				a.serverRules[server] = append(a.serverRules[server], hostRules{a.rules.HostRules(by), by, host})
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
	domains      []findings.Domain
	expressions  []serverExpression
	exampleHosts []string // a host for each expression
	fallback     int      // server for hosts without a server
}

type serverExpression struct {
	*regexp.Regexp
	server int
}

func collectServerNames(address string, servers []*scope) *serverNames {
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
				n.addName(strings.ToLower(name), name, i)
			}
		}
	}
	return n
}

func (n *serverNames) addName(name, written string, server int) {
	if text, found := strings.CutPrefix(written, "~"); found {
		if compiled, err := regexp.Compile("(?i)" + text); err == nil {
			n.expressions = append(n.expressions, serverExpression{compiled, server})
			n.exampleHosts = append(n.exampleHosts, strings.ToLower(strings.TrimPrefix(samplePath(text, "", ""), "/")))
		}
		return
	}
	if end, found := strings.CutPrefix(name, "."); found {
		n.domains = append(n.domains, findings.Domain{Text: end, Owner: server})
		name = "*." + end
	}
	n.domains = append(n.domains, findings.Domain{Text: name, Owner: server})
}

// findServer returns the index of the server that takes a host.
func (n *serverNames) findServer(host string) int {
	if server := findings.FindOwner(n.domains, host); server >= 0 {
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
func (a *analysis) hostRulesOf(s *scope) []hostRules {
	if server := s.server(); server != nil && a.isJudged(s) {
		return a.serverRules[server]
	}
	all := []hostRules{{HostRules: a.rules.HostRules(policy.NoVirtualHost), host: policy.NoVirtualHost}}
	for i := range a.rules.VirtualHosts {
		all = append(all, hostRules{HostRules: a.rules.HostRules(i), host: i})
	}
	return all
}

// rulesOf returns the single rules in hostRulesOf.
func (a *analysis) rulesOf(s *scope) (all []rule) {
	for _, hr := range a.hostRulesOf(s) {
		all = append(all, a.rules.all[hr.First:hr.End]...)
	}
	return all
}

// peerHostRules returns the rules of a scope's server and of all judged servers with a common upstream.
func (a *analysis) peerHostRules(s *scope) []hostRules {
	all := slices.Clone(a.hostRulesOf(s))
	to := a.passedAddresses(s.server())
	for _, other := range a.http.inner {
		if other != s.server() && slices.ContainsFunc(a.passedAddresses(other),
			func(name string) bool { return slices.Contains(to, name) }) {
			all = append(all, a.serverRules[other]...)
		}
	}
	return all
}

// passedAddresses returns the addresses to which the judged scopes of a server pass requests.
func (a *analysis) passedAddresses(server *scope) (all []string) {
	server.each(func(s *scope) {
		if pass := s.pass(); pass != nil && a.isJudged(s) {
			all = append(all, a.passAddresses(s, pass)...)
		}
	})
	return all
}

// checkHosts reports a host by which clients reach an upstream with less than the rules ask for another host. Hosts
// without rules protect nothing: their requests are refused or pass.
func (a *analysis) checkHosts() {
	if a.rules == nil || len(a.rules.VirtualHosts) == 0 {
		return
	}
	var all []*scope
	for _, server := range a.http.inner {
		server.each(func(s *scope) {
			if s.pass() != nil && a.isJudged(s) {
				all = append(all, s)
			}
		})
	}
	seen := map[*scope]bool{}
	for _, s := range all {
		if s.isRestricted() || !a.machineOnly && a.isLessReachable(s.server()) {
			continue
		}
		to := a.passAddresses(s, s.pass())
		for _, protected := range all {
			if !slices.ContainsFunc(a.passAddresses(protected, protected.pass()), func(name string) bool {
				return slices.Contains(to, name)
			}) {
				continue
			}
			for _, by := range a.serverRules[s.server()] {
				for _, other := range a.serverRules[protected.server()] {
					if other.First == other.End || by.host == other.host || seen[s.server()] {
						continue
					}
					method, path := a.findWeaker(s, protected, &by, &other)
					if path == "" {
						continue
					}
					seen[s.server()] = true
					a.addOnce(&weakerHost, s, s.pass(), "%s: is an upstream that %s protects, but here %s judges the host %q, and "+
						"asks less for %s %s", s.pass().arg(0), a.displayName(&other), a.displayName(&by), by.exampleHost, method, path)
				}
			}
		}
	}
}

// findWeaker returns a request of a scope for which the rules by ask less than the rules other of a scope with the same
// upstream, "" for none.
func (a *analysis) findWeaker(s, protected *scope, by, other *hostRules) (method, path string) {
	paths := []string{"/"}
	for _, r := range slices.Concat(a.rules.all[other.First:other.End], a.rules.all[by.First:by.End]) {
		paths = append(paths, r.Samples()...)
	}
	if l := s.location(); l != nil {
		if kind, path := l.locationMatch(); kind == "" || kind == "=" || kind == "^~" {
			paths = append(paths, path)
		}
	}
	for _, path := range paths {
		sample := &rule{Match: policy.Match{Path: path}}
		if !protected.mayTake(sample) || !s.mayTake(sample) {
			continue
		}
		for _, method := range a.rules.SampleMethods() {
			if a.needOf(by, method, path).Weaker(a.needOf(other, method, path)) {
				return method, path
			}
		}
	}
	return "", ""
}
