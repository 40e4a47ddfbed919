package nginxconfig

import (
	"slices"
	"strings"
)

// What clients must not reach.
const (
	sidecarAPI = "the sidecar, which answers any device's private objects without a credential"
	pushSocket = "the push listener, by which the cache and the verdicts are written"
)

// destination checks where a scope sends requests: not to what is Gatehouse's own, and not to what clients choose.
func (a *analysis) destination(s *scope) {
	own := s.own(passes...)
	if own == nil || onSockets(s.server()) {
		return
	}
	pass := own[0]
	for _, text := range a.variablesOf(s).expand(pass.arg(0)) {
		if name := clientVariable(text); name != "" {
			a.addAt(&clientsChoose, s, pass,
				"%s: clients choose by $%s where their requests go: also to what only this machine may reach", pass.arg(0), name)
		}
	}
	for _, address := range a.addresses(s, pass) {
		what, found := a.inner[address]
		if found && !(what == sidecarAPI && slices.Equal(s.args, []string{"=", "/v1/session/jwks"})) {
			a.addAt(&toInner, s, pass, "leads to %s", what)
		}
	}
}

// onSockets reports whether a server listens on unix sockets only.
func onSockets(server *scope) bool {
	listens := server.own("listen")
	return listens != nil && !slices.ContainsFunc(listens, func(d *directive) bool {
		return !strings.HasPrefix(d.arg(0), "unix:")
	})
}

// clientVariable returns the variable of the client's by which the host of a pass is chosen, "" if it isn't.
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

// methods reports that requests get upstream with another method than the one that was judged.
func (a *analysis) methods(s *scope) {
	if d := s.effective("proxy_method"); d != nil {
		a.sends(s, d[0], strings.ToUpper(d[0].arg(0)))
	}
}

// upgrades reports that clients may agree on h2c with the upstream, and then ask it what nobody judges.
func (a *analysis) upgrades(s *scope) {
	pass := s.pass()
	if pass == nil || pass.name != "proxy_pass" || a.rules != nil && !slices.ContainsFunc(a.rules.all, func(r rule) bool {
		return r.protects()
	}) {
		return
	}
	for _, d := range s.effective("proxy_set_header") {
		if strings.EqualFold(d.arg(0), "upgrade") &&
			slices.ContainsFunc(a.variablesOf(s).expand(d.arg(1)), func(text string) bool {
				return strings.Contains(text, "$http_upgrade") || strings.EqualFold(text, "h2c")
			}) {
			a.addAt(&tunnel, s, d, "passes on each protocol: with an upstream that takes h2c, clients ask further requests in "+
				"the same connection, which nobody judges")
		}
	}
}

// streams checks the servers of stream blocks that other machines reach.
func (a *analysis) streams() {
	for _, server := range a.servers {
		if server.parent == a.http || a.apart(server) || server.closed() {
			continue
		}
		for _, pass := range server.own("proxy_pass") {
			a.stream(server.parent, server, pass)
		}
	}
}

// stream reports a server of a stream block that leads to what the plugin protects, to what is Gatehouse's own, or to
// what clients choose.
func (a *analysis) stream(block, server *scope, pass *directive) {
	for _, text := range variablesIn(block, server).expand(pass.arg(0)) {
		if name := clientVariable(text); name != "" {
			a.addAt(&clientsChoose, server, pass, "%s: clients choose by $%s where their connections go: also to what only "+
				"this machine may reach", pass.arg(0), name)
		}
		for _, name := range a.named(text, block) {
			if what, found := a.inner[name]; found {
				a.addAt(&toInner, server, pass, "leads to %s", what)
			} else if a.upstreams[name] {
				a.addAt(&unjudged, server, pass,
					"%s: is an upstream that is protected elsewhere, but here no request is judged, and forged identity headers get "+
						"to it", pass.arg(0))
			}
		}
	}
}
