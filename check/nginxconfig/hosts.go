package nginxconfig

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// judge is what decides about requests of a server: the rules of a virtual host, or those of the top level.
type judge struct {
	policy.HostRules
	host int    // its index in the rules
	as   string // a host that it judges
}

func (a *analysis) title(j *judge) string {
	if j.host == policy.NoVirtualHost {
		return "the top level of the rules"
	}
	return "virtual_hosts." + a.rules.VirtualHosts[j.host].Name
}

func (a *analysis) need(j *judge, method, path string) policy.Need {
	return a.rules.NeedOf(j.HostRules, method, path)
}

// findJudges notes who judges the requests of each server. nginx chooses among the servers of an address by the host,
// without its port and a dot at its end, like the plugin.
func (a *analysis) findJudges() {
	a.judges = map[*scope][]judge{}
	if a.rules == nil {
		return
	}
	byAddress := map[string][]*scope{}
	for _, server := range a.http.inner {
		for _, address := range listens(server) {
			byAddress[address] = append(byAddress[address], server)
		}
	}
	find := a.rules.FindVirtualHost()
	for address, servers := range byAddress {
		names := namesOf(address, servers)
		hosts := append(findings.SampleHosts(names.domains, a.rules.Config), names.matched...)
		slices.Sort(hosts)
		for _, host := range append([]string{""}, hosts...) {
			server, by := servers[names.find(host)], find(host)
			if !slices.ContainsFunc(a.judges[server], func(j judge) bool { return j.host == by }) {
				a.judges[server] = append(a.judges[server], judge{a.rules.HostRules(by), by, host})
			}
		}
	}
}

// listens are the addresses of a server, in a form that is the same for the same address.
func listens(server *scope) (all []string) {
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

// names are those of the servers of an address.
type names struct {
	domains     []findings.Domain
	expressions []expression
	matched     []string // a host that each expression matches
	other       int      // the server for hosts without one
}

type expression struct {
	*regexp.Regexp
	server int
}

func namesOf(address string, servers []*scope) *names {
	n := &names{}
	chosen := false
	for i, server := range servers {
		for j, d := range server.own("listen") {
			if !chosen && listens(server)[j] == address && slices.ContainsFunc(d.args, func(arg string) bool {
				return arg == "default_server" || arg == "default"
			}) {
				n.other, chosen = i, true
			}
		}
		for _, d := range server.own("server_name") {
			for _, name := range d.args {
				n.add(strings.ToLower(name), name, i)
			}
		}
	}
	return n
}

func (n *names) add(name, written string, server int) {
	if text, found := strings.CutPrefix(written, "~"); found {
		if compiled, err := regexp.Compile("(?i)" + text); err == nil {
			n.expressions = append(n.expressions, expression{compiled, server})
			n.matched = append(n.matched, strings.ToLower(strings.TrimPrefix(sample(text, "", ""), "/")))
		}
		return
	}
	if end, found := strings.CutPrefix(name, "."); found {
		n.domains = append(n.domains, findings.Domain{Text: end, Owner: server})
		name = "*." + end
	}
	n.domains = append(n.domains, findings.Domain{Text: name, Owner: server})
}

// find returns the index of the server that takes a host.
func (n *names) find(host string) int {
	if server := findings.Route(n.domains, host); server >= 0 {
		return server
	}
	for _, e := range n.expressions {
		if e.MatchString(host) {
			return e.server
		}
	}
	return n.other
}

// judgesOf are those of a scope's server, and all for a scope that isn't judged.
func (a *analysis) judgesOf(s *scope) []judge {
	if server := s.server(); server != nil && a.judged(s) {
		return a.judges[server]
	}
	all := []judge{{HostRules: a.rules.HostRules(policy.NoVirtualHost), host: policy.NoVirtualHost}}
	for i := range a.rules.VirtualHosts {
		all = append(all, judge{HostRules: a.rules.HostRules(i), host: i})
	}
	return all
}

// rulesOf are the rules of a scope's judges.
func (a *analysis) rulesOf(s *scope) (all []rule) {
	for _, j := range a.judgesOf(s) {
		all = append(all, a.rules.all[j.First:j.End]...)
	}
	return all
}

// peers are the judges of a scope's server, and of all judged servers with an upstream of it.
func (a *analysis) peers(s *scope) []judge {
	all := slices.Clone(a.judgesOf(s))
	to := a.passed(s.server())
	for _, other := range a.http.inner {
		if other != s.server() && slices.ContainsFunc(a.passed(other),
			func(name string) bool { return slices.Contains(to, name) }) {
			all = append(all, a.judges[other]...)
		}
	}
	return all
}

// passed are the addresses to which the judged scopes of a server pass requests.
func (a *analysis) passed(server *scope) (all []string) {
	server.each(func(s *scope) {
		if pass := s.pass(); pass != nil && a.judged(s) {
			all = append(all, a.addresses(s, pass)...)
		}
	})
	return all
}

// hosts reports a host by which clients get to an upstream with less than the rules ask for another host.
// Hosts without rules, which are refused or pass, protect nothing.
func (a *analysis) hosts() {
	if a.rules == nil || len(a.rules.VirtualHosts) == 0 {
		return
	}
	var all []*scope
	for _, server := range a.http.inner {
		server.each(func(s *scope) {
			if s.pass() != nil && a.judged(s) {
				all = append(all, s)
			}
		})
	}
	seen := map[*scope]bool{}
	for _, s := range all {
		if s.closed() || !a.machineOnly && a.apart(s.server()) {
			continue
		}
		to := a.addresses(s, s.pass())
		for _, guard := range all {
			if !slices.ContainsFunc(a.addresses(guard, guard.pass()), func(name string) bool {
				return slices.Contains(to, name)
			}) {
				continue
			}
			for _, by := range a.judges[s.server()] {
				for _, other := range a.judges[guard.server()] {
					if other.First == other.End || by.host == other.host || seen[s.server()] {
						continue
					}
					method, path := a.weaker(s, guard, &by, &other)
					if path == "" {
						continue
					}
					seen[s.server()] = true
					a.addAt(&weakerHost, s, s.pass(), "%s: is an upstream that %s protects, but here %s judges the host %q, and "+
						"asks less for %s %s", s.pass().arg(0), a.title(&other), a.title(&by), by.as, method, path)
				}
			}
		}
	}
}

// weaker returns a request of a scope of which its judge asks less than the judge of another scope of the same
// upstream, "" for none.
func (a *analysis) weaker(s, guard *scope, by, other *judge) (method, path string) {
	paths := []string{"/"}
	for _, r := range slices.Concat(a.rules.all[other.First:other.End], a.rules.all[by.First:by.End]) {
		paths = append(paths, r.Samples()...)
	}
	if l := s.location(); l != nil {
		if kind, path := l.match(); kind == "" || kind == "=" || kind == "^~" {
			paths = append(paths, path)
		}
	}
	for _, path := range paths {
		asked := &rule{Match: policy.Match{Path: path}}
		if !guard.takes(asked) || !s.takes(asked) {
			continue
		}
		for _, method := range a.rules.SampleMethods() {
			if a.need(by, method, path).Weaker(a.need(other, method, path)) {
				return method, path
			}
		}
	}
	return "", ""
}
