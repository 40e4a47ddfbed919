// Package topology has what the analyses of Envoy's and nginx's configurations have in common: servers, routes to
// upstreams, the rules that judge requests, and the checks of these. The readers of both configurations fill the model.
package topology

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
)

// Reach is the set of clients that can connect to a server, from the smallest.
type Reach uint8

// The sets.
const (
	ReachProxy   Reach = iota // only other listeners of the same Envoy
	ReachUser                 // programs that may open a unix socket
	ReachMachine              // programs of the same machine, by loopback
	ReachNetwork
)

// IsLoopback reports whether a host is this machine's loopback, in any spelling that proxies accept: a name, an address
// with or without brackets, an IPv4 address within IPv6 or with less than four numbers.
func IsLoopback(host string) bool {
	host = strings.Trim(host, "[]")
	ip, _ := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || ip.IsLoopback() ||
		strings.HasPrefix(host, "127.") && strings.Trim(host, "0123456789.") == ""
}

// Server is what takes connections: a filter chain of Envoy's, or a server of nginx.
type Server struct {
	Name   string // for messages, with its kind
	Reach  Reach
	Routes []Route
	// ReportRules reports rules that ask less than those of another server with the same upstream.
	ReportRules func(method, path string, by *Server)
	// ListensAt reports whether one of the targets is the server.
	ListensAt func(to Targets) bool
}

// Private is a target that clients must not reach.
type Private struct {
	Description string
	Targets     Targets
	Allowed     func(path string) bool // exceptions: paths that clients may request
}

// Descriptions of private targets.
const (
	SidecarAPI   = "the sidecar, which answers any device's private objects without a credential"
	PushListener = "the push listener, by which the cache and the verdicts are written"
)

// IsPublicPath reports whether clients may request a path of the sidecar.
func IsPublicPath(path string) bool { return path == "/v1/session/jwks" || path == "/readyz" }

// Model is a proxy's configuration as clients see it.
type Model struct {
	Proxy   findings.Proxy
	Servers []*Server
	Private []Private

	protected []Protected // computed on demand
}

// PropagateReach raises reaches: if server A forwards unjudged requests to server B, clients who reach A reach B, so B
// gets A's reach.
func (m *Model) PropagateReach() {
	for changed := true; changed; {
		changed = false
		for _, from := range m.Servers {
			to := from.unjudgedTargets()
			for _, s := range m.Servers {
				if from.Reach > s.Reach && s.ListensAt(to) {
					s.Reach, changed = from.Reach, true
				}
			}
		}
	}
}

// unjudgedTargets returns the targets of unjudged requests that the server admits from all addresses.
func (s *Server) unjudgedTargets() (to Targets) {
	for i := range s.Routes {
		if rt := &s.Routes[i]; !rt.isJudged() && !rt.Restricted {
			to = append(to, rt.Mirrored...)
		}
	}
	return to
}

// isBehind reports whether another server leads unjudged requests to the server.
func (m *Model) isBehind(s *Server) bool {
	return slices.ContainsFunc(m.Servers, func(from *Server) bool { return s.ListensAt(from.unjudgedTargets()) })
}

// Follow adds the targets that requests reach through unjudged routes of other servers. With pr, only its protected
// requests count, without mirrored ones.
func (m *Model) Follow(to Targets, pr *Protected) Targets {
	seen := map[*Server]bool{}
	for next := to; len(next) > 0; {
		from := next
		next = nil
		for _, s := range m.Servers {
			if seen[s] || !s.ListensAt(from) {
				continue
			}
			seen[s] = true
			for i := range s.Routes {
				rt := &s.Routes[i]
				if rt.isJudged() {
					continue
				}
				if rt.Takes == nil || pr == nil {
					next = append(next, rt.Mirrored...)
				} else if pr.leadsTo(rt) {
					next = append(next, rt.Targets...)
				}
			}
		}
		to = append(to[:len(to):len(to)], next...)
	}
	return to
}

// Protected returns the judged routes with protected paths. The model is complete.
func (m *Model) Protected() []Protected {
	if m.protected == nil {
		m.protected = m.findProtected()
	}
	return m.protected
}

// findProtected returns the judged routes with protected paths. If none of them leads to a known upstream, each judged
// route counts: others may lead protected paths to the same upstreams. If no path is protected, all upstreams of
// nginx's judged routes are, and none of Envoy's.
func (m *Model) findProtected() (all []Protected) {
	var others []Protected
	for _, s := range m.Servers {
		for i := range s.Routes {
			rt := &s.Routes[i]
			if !rt.isJudged() {
				continue
			}
			pr := Protected{Route: rt, Server: s, paths: rt.ProtectedPaths()}
			takes := pr.paths != nil
			if !takes {
				pr.paths = rt.Rules.ProtectedSamples(&rt.Paths)
			}
			if len(pr.paths) == 0 && m.Proxy == findings.Envoy {
				continue
			}
			pr.Reached = m.Follow(rt.Targets, &pr)
			if takes && len(pr.Reached) > 0 {
				all = append(all, pr)
			} else {
				others = append(others, pr)
			}
		}
	}
	if all == nil {
		return others
	}
	return all
}

// Check reports servers that lead past the rules, or to private targets.
func (m *Model) Check() {
	protected := m.Protected()
	for _, s := range m.Servers {
		m.checkRewrites(s, protected)
		if s.Reach <= ReachUser && s.Reach < m.judgedReach() {
			continue
		}
		for i := range s.Routes {
			if rt := &s.Routes[i]; !rt.Restricted || rt.Takes != nil || m.isBehind(s) {
				m.checkPrivate(rt)
			}
		}
		m.checkUnjudged(s, protected)
		m.checkWeaker(s, protected)
	}
}

// checkRewrites reports judged routes that rewrite paths to ones for which the rules ask more, also the rules of other
// hosts with the same upstream. If the edge protects upstreams, paths of other services mean something else.
func (m *Model) checkRewrites(s *Server, protected []Protected) {
	for i := range s.Routes {
		rt := &s.Routes[i]
		if !rt.isJudged() || rt.Rewrite == nil {
			continue
		}
		to, protects, leads := m.Follow(rt.Mirrored, nil), false, false
		var opened *OpenedPath
		for j := range protected {
			pr := &protected[j]
			protects = protects || pr.Rules.Config == rt.Rules.Config
			if !pr.Reached.Intersects(to) {
				continue
			}
			leads = true
			skipped := rt.Restricted || !s.isAsOpenAs(pr.Server) // by checkWeaker
			if opened == nil && skipped && pr.Rules.isSameSet(&rt.Rules) {
				opened = rt.FindOpenedPath(&rt.Rules, &pr.Rules)
			}
		}
		if protects && !leads {
			continue
		}
		if opened == nil {
			opened = rt.FindOpenedPath(&rt.Rules, &rt.Rules)
		}
		if opened != nil {
			rt.Report(&OpenRewrite[m.Proxy], "%s", opened)
		} else if rt.IsUnclear != nil && rt.Rules.NeedsCredential() && rt.IsUnclear(&rt.Rules) {
			rt.Report(&UnclearRewrite[m.Proxy], "rewrites paths behind the filter, maybe to ones that a rule protects")
		}
	}
}

// judgedReach returns the largest set of clients of a server that judges requests.
func (m *Model) judgedReach() (most Reach) {
	for _, s := range m.Servers {
		if slices.ContainsFunc(s.Routes, func(rt Route) bool { return rt.isJudged() }) {
			most = max(most, s.Reach)
		}
	}
	return most
}

// checkPrivate reports a route by which clients reach a private target or choose the target.
func (m *Model) checkPrivate(rt *Route) {
	what := "requests"
	if rt.Takes == nil {
		what = "connections"
	}
	if rt.Choice != "" {
		rt.Report(&ClientsChoose[m.Proxy],
			"clients choose where their %s go, %s: also to the sidecar, and to what this machine only may reach", what,
			rt.Choice)
	}
	all := rt.Mirrored
	if rt.isJudged() || rt.Restricted { // else the server behind has the same reach, and is reported
		all = m.Follow(all, nil)
	}
	for i := range m.Private {
		in := &m.Private[i]
		if all.Intersects(in.Targets) && m.reachesPrivate(rt.Mirrored, in, in.Allowed(rt.UpstreamStart), map[visit]bool{}) {
			rt.Report(&ToPrivate[m.Proxy], "leads to %s", in.Description)
			return
		}
	}
}

// visit is a server that requests reach; allowed: only requests for allowed paths reach the server.
type visit struct {
	*Server
	allowed bool
}

// reachesPrivate reports whether requests to targets reach a private target by a path that isn't allowed. Unjudged
// routes of other servers count, too: they may rewrite or select paths. allowed: all paths sent to targets are allowed.
func (m *Model) reachesPrivate(to Targets, in *Private, allowed bool, seen map[visit]bool) bool {
	if !allowed && to.Intersects(in.Targets) {
		return true
	}
	for _, s := range m.Servers {
		if seen[visit{s, allowed}] || !s.ListensAt(to) {
			continue
		}
		seen[visit{s, allowed}] = true
		for i := range s.Routes {
			rt := &s.Routes[i]
			if !rt.isJudged() && m.reachesPrivate(rt.Mirrored, in,
				rt.Takes != nil && in.Allowed(rt.UpstreamStart) || allowed && rt.Rewrite == nil, seen) {
				return true
			}
		}
	}
	return false
}

// protectedAt returns the protected routes to one of the targets, of servers that are at most as open.
func (s *Server) protectedAt(to Targets, protected []Protected) (all []*Protected) {
	for i := range protected {
		if pr := &protected[i]; s.isAsOpenAs(pr.Server) && pr.Reached.Intersects(to) {
			all = append(all, pr)
		}
	}
	return all
}

// isAsOpenAs reports whether a server's clients include all clients of the other server, or all machines of the
// network.
func (s *Server) isAsOpenAs(other *Server) bool {
	return s.Reach >= other.Reach || s.Reach == ReachNetwork
}

// checkUnjudged reports an unjudged route that leads to a protected upstream, once for a server.
func (m *Model) checkUnjudged(s *Server, protected []Protected) {
	for i := range s.Routes {
		rt := &s.Routes[i]
		if rt.isJudged() || rt.Restricted || rt.Reported {
			continue
		}
		own := s.protectedAt(rt.Mirrored, protected)
		if own == nil || s.isInner(rt.Mirrored, protected) {
			continue
		}
		if why := rt.describeEvasion(own); why != "" {
			rt.Report(&Unjudged[m.Proxy], "leads to an upstream that %s protects%s", own[0].Server.Name, why)
			return
		}
	}
}

// isInner reports whether one of the targets is protected by a server that is more open. Who reaches only the other
// server is a client of this machine, and trusted as such.
func (s *Server) isInner(to Targets, protected []Protected) bool {
	return slices.ContainsFunc(protected, func(pr Protected) bool {
		return pr.Reached.Intersects(to) && !s.isAsOpenAs(pr.Server)
	})
}

// describeEvasion says what an unjudged route to protected upstreams opens, "" for nothing.
func (rt *Route) describeEvasion(own []*Protected) string {
	if rt.Takes == nil {
		return ": here no request is judged, and clients' identity headers get to it"
	}
	var paths []string
	for _, pr := range own {
		paths = append(paths, pr.evasionSamples(rt)...)
	}
	if path, found := rt.FindCarriedPath(paths); found {
		return ", where " + path + " needs a credential: here no request is judged"
	}
	if !rt.ClearsIdentity() {
		return ": here clients' identity headers get to it"
	}
	return ""
}

// checkWeaker reports, once for a server, rules by which clients reach an upstream with less than those of another
// server ask, and a host by which they do with less than for another host. Hosts without rules protect nothing: their
// requests are refused or pass.
func (m *Model) checkWeaker(s *Server, protected []Protected) {
	host, rules := false, s.ReportRules == nil // reported
	for i := range s.Routes {
		rt := &s.Routes[i]
		if !rt.isJudged() || rt.Restricted {
			continue
		}
		to := m.Follow(rt.Mirrored, nil)
		inner := s.isInner(to, protected)
		for _, pr := range s.protectedAt(to, protected) {
			same := pr.Rules.isSameSet(&rt.Rules)
			if same && (host || inner || pr.Rules.First == pr.Rules.End || pr.Rules.Host == rt.Rules.Host) || !same && rules {
				continue
			}
			weaker := rt.FindWeaker(pr, same)
			switch {
			case weaker == nil:
			case same:
				host = true
				rt.reportWeakerHost(&WeakerHost[m.Proxy], pr, weaker)
			default:
				rules = true
				s.ReportRules(weaker.Method, weaker.Path, pr.Server)
			}
		}
	}
}

func (rt *Route) reportWeakerHost(k *findings.Kind, pr *Protected, w *Weaker) {
	judged := rt.Rules.DisplayName() + " judges"
	if rt.Rules.Example != "" {
		judged += " the host " + rt.Rules.Example
	}
	rt.Report(k, "leads to an upstream that %s protects for other hosts, but here %s, and asks less for %s %s: "+
		"here %s, there %s", pr.Rules.DisplayName(), judged, w.Method, w.Path, w.less, w.more)
}
