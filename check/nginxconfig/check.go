package nginxconfig

import (
	"regexp"
	"slices"
	"strings"
)

// judged reports whether requests in a scope run the plugin's access_by_lua.
func (a *analysis) judged(s *scope) bool {
	_, calls, _ := a.calls(s, "access_by_lua", edgeModule, callAccess)
	return calls
}

// protect takes the upstreams that get requests which need a credential from judged scopes, by names and addresses; if
// there are none, those of all judged scopes.
func (a *analysis) protect() {
	judged := map[string]bool{}
	for _, server := range a.http.inner {
		server.each(func(s *scope) {
			pass := s.pass()
			if pass == nil || !a.judged(s) {
				return
			}
			for _, name := range a.addresses(s, pass) {
				judged[name] = true
				if a.covers(s, (*rule).protects) {
					a.upstreams[name] = true
				}
			}
		})
	}
	if len(a.upstreams) == 0 {
		a.upstreams = judged
	}
}

// elsewhere reports whether a pass leads to another upstream than those that are protected.
func (a *analysis) elsewhere(s *scope, pass *directive) bool {
	return len(a.upstreams) > 0 && !slices.ContainsFunc(a.addresses(s, pass), func(name string) bool {
		return a.upstreams[name]
	})
}

// addresses are where a pass of a scope may lead, by names and addresses in the form of [address], also by way of other
// servers.
func (a *analysis) addresses(s *scope, pass *directive) []string {
	at := way{s, pass}
	all, found := a.ways[at]
	if !found {
		all = a.through(a.direct(s, pass))
		a.ways[at] = all
	}
	return all
}

// secure is a pass whose default port is 443.
var secure = regexp.MustCompile(`^(https|grpcs)://`)

// direct is addresses without what other servers lead to.
func (a *analysis) direct(s *scope, pass *directive) (all []string) {
	for _, text := range a.variablesOf(s).expand(pass.arg(0)) {
		host, _ := target(text)
		if host == "" { // a variable
			continue
		}
		named := a.named(host, a.http)
		if secure.MatchString(text) && named[0] == address(host+":80") {
			named[0] = address(host + ":443")
		}
		all = append(all, named...)
	}
	return all
}

// named returns the address of a host, and if it is an upstream of the block its addresses.
func (a *analysis) named(host string, block *scope) []string {
	names := []string{address(host)}
	for _, upstream := range block.own("upstream") {
		if strings.EqualFold(upstream.arg(0), host) { // as nginx compares them
			for _, d := range upstream.block {
				if d.name == "server" {
					names = append(names, address(d.arg(0)))
				} else if strings.HasPrefix(d.name, "balancer_by_lua") {
					names = append(names, a.peersOf(d)...)
				}
			}
		}
	}
	return names
}

// check looks for what a scope takes past the plugin, or changes of what it judges.
func (a *analysis) check(s *scope) {
	a.destination(s)
	if !a.judged(s) {
		a.unjudged(s)
		return
	}
	if a.satisfyAny(s) {
		return
	}
	a.returns(s)
	a.rewrites(s)
	a.requestHeaders(s)
	a.methods(s)
	a.upgrades(s)
	a.authRequest(s)
	a.lua(s)
	a.clientAddress(s)
	a.answers(s)
}

// unjudged reports what isn't judged: a part of a judged server, or another way to its upstream. Such a request has the
// identity headers that the client chooses.
func (a *analysis) unjudged(s *scope) {
	if a.judged(s.parent) {
		own := s.own("access_by_lua", "access_by_lua_block", "access_by_lua_file")[0]
		passes := false
		s.each(func(inner *scope) { passes = passes || inner.pass() != nil })
		if passes || a.covers(s, (*rule).protects) {
			const why = "takes the place of the plugin's: no request is judged, and forged identity headers get to the upstream"
			if _, known := a.code(own); !known {
				a.addAt(&ownAccess, s, own, "can't be read here; unless it calls the plugin, it %s", why)
			} else {
				a.addAt(&ownAccess, s, own, "%s", why)
			}
		}
		return
	}
	for outer := s.parent; outer != nil; outer = outer.parent {
		if a.judged(outer) {
			return // reported where it ends
		}
	}
	pass := s.own(passes...)
	if pass == nil || a.apart(s.server()) || s.closed() {
		return
	}
	if !slices.ContainsFunc(a.direct(s, pass[0]), func(name string) bool { return a.upstreams[name] }) {
		return
	}
	if !a.clears(s) {
		a.addAt(&unjudged, s, pass[0],
			"%s: is an upstream that is protected elsewhere, but here no request is judged, and forged identity headers get "+
				"to it", pass[0].arg(0))
	} else if a.rules == nil || a.leads(s, pass[0]) {
		a.addAt(&unjudged, s, pass[0],
			"%s: is an upstream that is protected elsewhere, but here no request is judged, also for paths that need a "+
				"credential", pass[0].arg(0))
	}
}

// apart reports whether fewer can connect to a server than to those that the plugin judges.
func (a *analysis) apart(server *scope) bool {
	if !server.local() || a.exposed[server] {
		return false
	}
	return !a.machineOnly || !slices.ContainsFunc(server.own("listen"), func(d *directive) bool {
		return !strings.HasPrefix(d.arg(0), "unix:")
	})
}

// leads reports whether requests for a path that needs a credential get upstream by a scope that isn't judged.
func (a *analysis) leads(s *scope, pass *directive) bool {
	_, to := target(pass.arg(0))
	if to == "" && s.own("rewrite") == nil {
		return a.covers(s, (*rule).protects)
	}
	return strings.Contains(to, "$") || s.own("rewrite") != nil || slices.ContainsFunc(a.rules.all, func(r rule) bool {
		return r.protects() && (strings.HasPrefix(r.text(), to) || r.Prefix != "" && strings.HasPrefix(to, r.Prefix))
	})
}

// satisfyAny reports that another check may let a request pass before the plugin judges it.
func (a *analysis) satisfyAny(s *scope) bool {
	if !s.satisfiesAny() {
		return false
	}
	for _, name := range []string{"allow", "auth_basic", "auth_request", "auth_jwt"} {
		if value := s.value(name); value != "" && value != "off" {
			a.addAt(&satisfyAny, s, s.effective("satisfy")[0],
				"is any, and there is %s: requests that it lets pass are not judged, and forged identity headers get to the "+
					"upstream", name)
			return true
		}
	}
	return false
}

// returns reports answers of the rewrite phase, which comes before the access phase. Redirects, refusals and empty
// answers tell nothing.
func (a *analysis) returns(s *scope) {
	for _, d := range s.own("return") {
		if len(d.args) == 2 && strings.HasPrefix(d.arg(0), "2") && a.covers(s, (*rule).protects) {
			a.addAt(&returnFirst, s, d,
				"answers before the plugin judges, and a rule wants a credential for paths of this place")
		}
	}
}

// authRequest reports that the subrequest of auth_request, which comes before the plugin, has forged identity headers.
func (a *analysis) authRequest(s *scope) {
	uri := s.value("auth_request")
	if uri == "" || uri == "off" {
		return
	}
	if l := s.server().find(uri); l != nil && l.pass() != nil && l.pass().name == "proxy_pass" &&
		l.value("proxy_pass_request_headers") != "off" && !a.clears(l) {
		a.addAt(&authRequest, s, s.effective("auth_request")[0],
			"%s: is asked before the plugin removes forged identity headers, so it gets them", uri)
	}
}

// clientAddress reports that clients choose their address.
func (a *analysis) clientAddress(s *scope) {
	if a.rules != nil && !slices.ContainsFunc(a.judgesOf(s), func(j judge) bool {
		return j.Source.Header == "" && slices.ContainsFunc(a.rules.all[j.First:j.End],
			func(r rule) bool { return r.protects() })
	}) {
		return
	}
	for _, d := range s.effective("set_real_ip_from") {
		if broad(d) {
			a.addAt(&anySource, s, d, "%s: clients there may write their address: they can evade limits of wrong secrets, and "+
				"have others limited", d.arg(0))
		}
	}
}

// answers checks what becomes of answers.
func (a *analysis) answers(s *scope) {
	if pass := s.pass(); pass != nil && a.covers(s, (*rule).protects) {
		a.sharedCache(s, strings.TrimSuffix(pass.name, "_pass"))
		if store := s.value("proxy_store"); store != "" && store != "off" {
			a.addAt(&sharedCache, s, s.effective("proxy_store")[0],
				"stores answers for all: a device, or a client without one, gets what was answered to another")
		}
		added := s.effective("add_header")
		if s.value("add_header_inherit") != "merge" && !slices.ContainsFunc(added, func(d *directive) bool {
			return strings.Contains(d.arg(1), "$gatehouse_cache_control")
		}) {
			const lost = "replaces the lines of server.conf: answers to authenticated requests have no Cache-Control: private " +
				"and no Vary, so caches may give them to others"
			if added == nil {
				a.add(&lostHeaders, s, "add_header", "is missing: %s", lost)
			} else {
				a.addAt(&lostHeaders, s, added[0], "%s", lost)
			}
		}
	}
	a.alterations(s)
}

var knowsDevice = regexp.MustCompile(`\$\{?(gatehouse_private|http_x_gatehouse_device)\b`)

// sharedCache reports a cache of nginx that doesn't tell devices apart.
func (a *analysis) sharedCache(s *scope, module string) {
	zone := s.value(module + "_cache")
	if zone == "" || zone == "off" {
		return
	}
	knows := func(name string) bool {
		return slices.ContainsFunc(s.effective(module+name), func(d *directive) bool {
			return knowsDevice.MatchString(strings.Join(d.args, " "))
		})
	}
	if !knows("_cache_key") && !(knows("_cache_bypass") && knows("_no_cache")) {
		a.addAt(&sharedCache, s, s.effective(module + "_cache")[0],
			"%s: doesn't know devices: one gets what was answered to another", zone)
	}
}
