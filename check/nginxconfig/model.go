package nginxconfig

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/check/topology"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// addServers adds the servers of http and of the stream blocks to the model.
func (a *analysis) addServers(tree []*directive) {
	a.model.Proxy = findings.Nginx
	for _, d := range tree {
		if d == a.http.directive {
			a.addHTTP()
		} else if d.name == "stream" {
			a.addStream(newScope(d, nil))
		}
	}
	for address, description := range a.privateAddresses {
		allowed := func(string) bool { return false }
		if description == topology.SidecarAPI {
			allowed = topology.IsPublicPath
		}
		a.model.Private = append(a.model.Private, topology.Private{Description: description,
			Targets: topology.Targets{address}, Allowed: allowed})
	}
	a.model.PropagateReach()
}

func (a *analysis) addHTTP() {
	for _, server := range a.http.inner {
		added := a.addServer(server)
		server.each(func(s *scope) {
			if pass := s.pass(); pass != nil {
				added.Routes = append(added.Routes, a.readRoutes(s, pass)...)
			}
		})
	}
}

func (a *analysis) addStream(block *scope) {
	for _, server := range block.inner {
		added := a.addServer(server)
		for _, pass := range server.own("proxy_pass") {
			added.Routes = append(added.Routes, a.readConnection(block, server, pass))
		}
	}
}

func (a *analysis) addServer(server *scope) *topology.Server {
	s := &topology.Server{Name: "server " + server.serverTitle(), Reach: server.reach(), ListensAt: server.listensAt()}
	a.model.Servers = append(a.model.Servers, s)
	return s
}

// reach returns the clients that can connect to a server.
func (s *scope) reach() topology.Reach {
	switch listens := s.own("listen"); {
	case !s.isLocal():
		return topology.ReachNetwork
	case slices.ContainsFunc(listens, func(d *directive) bool { return !strings.HasPrefix(d.arg(0), "unix:") }):
		return topology.ReachMachine
	}
	return topology.ReachUser
}

// readRoutes returns the routes of a scope with a pass: one for the rules of each host, one if nobody judges.
func (a *analysis) readRoutes(s *scope, pass *directive) (all []topology.Route) {
	rt := topology.Route{Targets: a.directAddresses(s, pass), Paths: s.readPaths(pass), Restricted: s.isRestricted(),
		Choice: describeChoice(a.variablesOf(s).expand(pass.arg(0))), Report: a.reportOnce(s, pass),
		ClearsIdentity: func() bool { return a.clearsIdentity(s) }}
	rt.Mirrored = rt.Targets
	if a.isJudged(s) {
		if !rt.IsKnown() {
			rt.Rewrite = nil // checkRewrites judges such paths
		}
		for _, hr := range a.serverRules[s.server()] {
			rt.Rules = hr
			all = append(all, rt)
		}
		return all
	}
	for outer := s.parent; outer != nil; outer = outer.parent {
		rt.Reported = rt.Reported || a.isJudged(outer)
	}
	return []topology.Route{rt}
}

// readConnection returns the route of a server of a stream block.
func (a *analysis) readConnection(block, server *scope, pass *directive) topology.Route {
	texts := variablesIn(block, server).expand(pass.arg(0))
	rt := topology.Route{Restricted: server.isRestricted(), Choice: describeChoice(texts),
		Report: a.reportOnce(server, pass)}
	for _, text := range texts {
		rt.Targets = append(rt.Targets, a.hostAddresses(text, block)...)
	}
	rt.Mirrored = rt.Targets
	return rt
}

// reportOnce returns a function that reports findings about a directive of a scope, once for a kind.
func (a *analysis) reportOnce(s *scope, d *directive) func(*findings.Kind, string, ...any) {
	return func(k *findings.Kind, format string, args ...any) {
		a.addOnce(k, s, d, "%s: "+format, append([]any{d.arg(0)}, args...)...)
	}
}

// readPaths returns the paths that a scope with a pass takes and makes.
func (s *scope) readPaths(pass *directive) topology.Paths {
	p := topology.Paths{Start: "/", Takes: func(path string) bool { return s.mayTake(&policy.Match{Path: path}) }}
	kind := ""
	if l := s.location(); l != nil {
		if kind, p.Start = l.locationMatch(); strings.HasPrefix(kind, "~") || kind == "@" {
			p.Start = ""
		}
	}
	_, to := splitTarget(pass.arg(0))
	p.Made, _, _ = strings.Cut(to, "$")
	switch {
	case strings.Contains(to, "$") || s.own("rewrite") != nil:
		p.Rewrite = func(path string) (string, bool) { return path, false }
	case kind == "=":
		if p.UpstreamStart = p.Start; to != "" {
			p.UpstreamStart = to
			p.Rewrite = func(string) (string, bool) { return to, true }
		}
	case to != "":
		p.Rewrite = func(path string) (string, bool) {
			rest, found := strings.CutPrefix(path, p.Start)
			return to + rest, found
		}
	}
	return p
}

// describeChoice describes how clients choose where a pass leads, "" if clients can't.
func describeChoice(texts []string) string {
	for _, text := range texts {
		if name := clientVariable(text); name != "" {
			return "by $" + name
		}
	}
	return ""
}

// clientVariable returns the client-controlled variable in the host of a pass, "" for none.
func clientVariable(text string) string {
	if _, after, found := strings.Cut(text, "://"); found {
		text = after
	}
	host, _, _ := strings.Cut(text, "/")
	for _, m := range variable.FindAllStringSubmatch(host, -1) {
		name := m[1]
		if slices.Contains([]string{"host", "args", "query_string", "captured"}, name) || strings.HasSuffix(name, "uri") &&
			host[0] == '$' || name[0] >= '1' && name[0] <= '9' || strings.HasPrefix(name, "arg_") ||
			strings.HasPrefix(name, "http_") || strings.HasPrefix(name, "cookie_") || name == "ssl_server_name" ||
			strings.HasPrefix(name, "ssl_preread_") {
			return name
		}
	}
	return ""
}

// listensAt returns a function that reports whether a server listens at one of the addresses.
func (s *scope) listensAt() func(to topology.Targets) bool {
	own := map[string]bool{}
	type portRange struct {
		host        string // with the colon
		first, last int
	}
	var ranges []portRange
	for _, d := range s.own("listen") {
		address := normalizeAddress(d.arg(0))
		i := strings.LastIndexByte(address, ':')
		if first, last, ranged := strings.Cut(address[i+1:], "-"); ranged && !strings.HasPrefix(address, "unix:") {
			ranges = append(ranges, portRange{address[:i+1], parsePort(first), parsePort(last)})
		} else {
			own[address] = true
		}
	}
	if s.own("listen") == nil {
		own[normalizeAddress("80")] = true
	}
	return func(to topology.Targets) bool {
		return slices.ContainsFunc(to, func(address string) bool {
			return own[address] || slices.ContainsFunc(ranges, func(r portRange) bool {
				port, found := strings.CutPrefix(address, r.host)
				return found && r.first <= parsePort(port) && parsePort(port) <= r.last
			})
		})
	}
}

// parsePort returns a port, 0 for an invalid one.
func parsePort(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}
