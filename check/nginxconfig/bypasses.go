package nginxconfig

import (
	"slices"
	"strings"
)

// Descriptions of private addresses, which clients must not reach.
const (
	sidecarAPI = "the sidecar, which answers any device's private objects without a credential"
	pushSocket = "the push listener, by which the cache and the verdicts are written"
)

// checkDestination reports a scope that sends requests to a private address or to an address of the client's choice.
func (a *analysis) checkDestination(s *scope) {
	own := s.own(passDirectives...)
	if own == nil || listensOnSocketsOnly(s.server()) {
		return
	}
	pass := own[0]
	for _, text := range a.variablesOf(s).expand(pass.arg(0)) {
		if name := clientVariable(text); name != "" {
			a.addOnce(&clientsChoose, s, pass,
				"%s: clients choose by $%s where their requests go: also to what only this machine may reach", pass.arg(0), name)
		}
	}
	for _, address := range a.passAddresses(s, pass) {
		what, found := a.privateAddresses[address]
		if found && !(what == sidecarAPI && slices.Equal(s.args, []string{"=", "/v1/session/jwks"})) {
			a.addOnce(&toPrivate, s, pass, "leads to %s", what)
		}
	}
}

// listensOnSocketsOnly reports whether a server listens on unix sockets only.
func listensOnSocketsOnly(server *scope) bool {
	listens := server.own("listen")
	return listens != nil && !slices.ContainsFunc(listens, func(d *directive) bool {
		return !strings.HasPrefix(d.arg(0), "unix:")
	})
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

// checkMethods reports that requests get upstream with another method than the judged one.
func (a *analysis) checkMethods(s *scope) {
	if d := s.effective("proxy_method"); d != nil {
		a.checkMethodChange(s, d[0], strings.ToUpper(d[0].arg(0)))
	}
}

// checkUpgrades reports that clients may agree on h2c with the upstream: nobody judges the requests that follow.
func (a *analysis) checkUpgrades(s *scope) {
	pass := s.pass()
	if pass == nil || pass.name != "proxy_pass" || a.rules != nil && !slices.ContainsFunc(a.rules.all, func(r rule) bool {
		return r.needsCredential()
	}) {
		return
	}
	for _, d := range s.effective("proxy_set_header") {
		if strings.EqualFold(d.arg(0), "upgrade") &&
			slices.ContainsFunc(a.variablesOf(s).expand(d.arg(1)), func(text string) bool {
				return strings.Contains(text, "$http_upgrade") || strings.EqualFold(text, "h2c")
			}) {
			a.addOnce(&tunnel, s, d,
				"passes on each protocol: with an upstream that takes h2c, clients ask further requests in "+
					"the same connection, which nobody judges")
		}
	}
}

// checkStreams checks the servers of stream blocks that other machines reach.
func (a *analysis) checkStreams() {
	for _, server := range a.servers {
		if server.parent == a.http || a.isLessReachable(server) || server.isRestricted() {
			continue
		}
		for _, pass := range server.own("proxy_pass") {
			a.checkStream(server.parent, server, pass)
		}
	}
}

// checkStream reports a server of a stream block that leads to a protected upstream, a private address, or an address
// of the client's choice.
func (a *analysis) checkStream(block, server *scope, pass *directive) {
	for _, text := range variablesIn(block, server).expand(pass.arg(0)) {
		if name := clientVariable(text); name != "" {
			a.addOnce(&clientsChoose, server, pass, "%s: clients choose by $%s where their connections go: also to what only "+
				"this machine may reach", pass.arg(0), name)
		}
		for _, name := range a.hostAddresses(text, block) {
			if what, found := a.privateAddresses[name]; found {
				a.addOnce(&toPrivate, server, pass, "leads to %s", what)
			} else if a.protectedUpstreams[name] {
				a.addOnce(&unjudged, server, pass,
					"%s: is an upstream that is protected elsewhere, but here no request is judged, and forged identity headers get "+
						"to it", pass.arg(0))
			}
		}
	}
}
