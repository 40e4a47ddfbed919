package nginxconfig

import (
	"slices"
	"strconv"
	"strings"
)

// scopePass is a scope with a pass directive.
type scopePass struct {
	s    *scope
	pass *directive
}

// senderKey is a server of http or of a stream block; protectedOnly: only scopes that take protected paths count.
type senderKey struct {
	*scope
	protectedOnly bool
}

// findServers records the servers of http and of the stream blocks.
func (a *analysis) findServers(tree []*directive) {
	a.servers = slices.Clone(a.http.inner)
	for _, d := range tree {
		if d.name == "stream" {
			a.servers = append(a.servers, newScope(d, nil).inner...)
		}
	}
}

// unjudgedAddresses returns the addresses to which a server sends unjudged requests; with protectedOnly, only from
// scopes that take paths which need a credential.
func (a *analysis) unjudgedAddresses(of *scope, protectedOnly bool) []string {
	all, found := a.unjudgedTargets[senderKey{of, protectedOnly}]
	if !found {
		all = a.findUnjudgedAddresses(of, protectedOnly)
		a.unjudgedTargets[senderKey{of, protectedOnly}] = all
	}
	return all
}

func (a *analysis) findUnjudgedAddresses(server *scope, protectedOnly bool) (all []string) {
	if server.parent != a.http {
		for _, pass := range server.own("proxy_pass") {
			for _, text := range variablesIn(server.parent, server).expand(pass.arg(0)) {
				all = append(all, a.hostAddresses(text, server.parent)...)
			}
		}
		return all
	}
	server.each(func(s *scope) {
		if pass := s.own(passDirectives...); pass != nil && !a.isJudged(s) &&
			(!protectedOnly || a.mayGovern(s, (*rule).needsCredential)) {
			all = append(all, a.directAddresses(s, pass[0])...)
		}
	})
	return all
}

// followServers adds the addresses that unjudged requests reach through servers at the addresses.
func (a *analysis) followServers(to []string) []string {
	seen := map[*scope]bool{}
	for next := to; next != nil; {
		from := next
		next = nil
		for _, server := range a.servers {
			if !seen[server] && server.listensAt(from) {
				seen[server] = true
				next = append(next, a.unjudgedAddresses(server, true)...)
			}
		}
		to = append(to, next...)
	}
	return to
}

// markExposed records the local servers to which other servers lead, unjudged.
func (a *analysis) markExposed() {
	for changed := true; changed; {
		changed = false
		for _, server := range a.servers {
			if a.isLessReachable(server) || server.parent != a.http && server.isRestricted() {
				continue
			}
			to := a.unjudgedAddresses(server, false)
			for _, other := range a.servers {
				if other.isLocal() && !a.exposed[other] && other.listensAt(to) {
					a.exposed[other], changed = true, true
				}
			}
		}
	}
}

// listensAt reports whether a server listens at one of the addresses.
func (s *scope) listensAt(to []string) bool {
	listens := s.own("listen")
	if listens == nil {
		return slices.Contains(to, normalizeAddress("80"))
	}
	return slices.ContainsFunc(listens, func(d *directive) bool {
		own := normalizeAddress(d.arg(0))
		i := strings.LastIndexByte(own, ':')
		first, last, ranged := strings.Cut(own[i+1:], "-")
		if strings.HasPrefix(own, "unix:") || !ranged {
			return slices.Contains(to, own)
		}
		return slices.ContainsFunc(to, func(other string) bool {
			port, found := strings.CutPrefix(other, own[:i+1])
			return found && parsePort(first) <= parsePort(port) && parsePort(port) <= parsePort(last)
		})
	})
}

// parsePort returns a port, 0 for an invalid one.
func parsePort(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}
