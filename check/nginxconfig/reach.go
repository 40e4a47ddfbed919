package nginxconfig

import (
	"slices"
	"strconv"
	"strings"
)

// way is a pass of a scope.
type way struct {
	s    *scope
	pass *directive
}

// sender is a server of http or of a stream block, and whether only its ways count that guarded paths take.
type sender struct {
	*scope
	guarded bool
}

// findServers notes the servers of http and of the stream blocks.
func (a *analysis) findServers(tree []*directive) {
	a.servers = slices.Clone(a.http.inner)
	for _, d := range tree {
		if d.name == "stream" {
			a.servers = append(a.servers, newScope(d, nil).inner...)
		}
	}
}

// unjudgedTo are the addresses to which a server sends what nobody judges; with guarded, only where it takes paths that
// need a credential.
func (a *analysis) unjudgedTo(of *scope, guarded bool) []string {
	all, found := a.unjudgedWays[sender{of, guarded}]
	if !found {
		all = a.findUnjudged(of, guarded)
		a.unjudgedWays[sender{of, guarded}] = all
	}
	return all
}

func (a *analysis) findUnjudged(server *scope, guarded bool) (all []string) {
	if server.parent != a.http {
		for _, pass := range server.own("proxy_pass") {
			for _, text := range variablesIn(server.parent, server).expand(pass.arg(0)) {
				all = append(all, a.named(text, server.parent)...)
			}
		}
		return all
	}
	server.each(func(s *scope) {
		if pass := s.own(passes...); pass != nil && !a.judged(s) && (!guarded || a.covers(s, (*rule).protects)) {
			all = append(all, a.direct(s, pass[0])...)
		}
	})
	return all
}

// through adds to addresses those to which the servers there lead, unjudged.
func (a *analysis) through(to []string) []string {
	seen := map[*scope]bool{}
	for next := to; next != nil; {
		from := next
		next = nil
		for _, server := range a.servers {
			if !seen[server] && server.listensAt(from) {
				seen[server] = true
				next = append(next, a.unjudgedTo(server, true)...)
			}
		}
		to = append(to, next...)
	}
	return to
}

// expose notes the local servers that others lead to, unjudged.
func (a *analysis) expose() {
	for changed := true; changed; {
		changed = false
		for _, server := range a.servers {
			if a.apart(server) || server.parent != a.http && server.closed() {
				continue
			}
			to := a.unjudgedTo(server, false)
			for _, other := range a.servers {
				if other.local() && !a.exposed[other] && other.listensAt(to) {
					a.exposed[other], changed = true, true
				}
			}
		}
	}
}

// listensAt reports whether a server listens at one of these addresses.
func (s *scope) listensAt(to []string) bool {
	listens := s.own("listen")
	if listens == nil {
		return slices.Contains(to, address("80"))
	}
	return slices.ContainsFunc(listens, func(d *directive) bool {
		own := address(d.arg(0))
		i := strings.LastIndexByte(own, ':')
		first, last, ranged := strings.Cut(own[i+1:], "-")
		if strings.HasPrefix(own, "unix:") || !ranged {
			return slices.Contains(to, own)
		}
		return slices.ContainsFunc(to, func(other string) bool {
			port, found := strings.CutPrefix(other, own[:i+1])
			return found && number(first) <= number(port) && number(port) <= number(last)
		})
	})
}

// number is a port, 0 for what is none.
func number(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}
