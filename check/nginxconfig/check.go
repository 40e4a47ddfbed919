package nginxconfig

import (
	"regexp"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/topology"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// isJudged reports whether requests in a scope run the plugin's access_by_lua.
func (a *analysis) isJudged(s *scope) bool {
	_, calls, _ := a.reader.findCall(s, "access_by_lua", edgeModule, callAccess)
	return calls
}

// isUnprotectedPass reports whether a pass leads to unprotected upstreams only.
func (a *analysis) isUnprotectedPass(s *scope, pass *directive) bool {
	to := a.passAddresses(s, pass)
	return len(a.model.Protected()) > 0 && !slices.ContainsFunc(a.model.Protected(), func(pr topology.Protected) bool {
		return pr.Reached.Intersects(to)
	})
}

// passAddresses returns the names and addresses (in normalizeAddress's form) to which a pass may lead, also through
// other servers.
func (a *analysis) passAddresses(s *scope, pass *directive) topology.Targets {
	return a.model.Follow(a.directAddresses(s, pass), nil)
}

// tlsScheme matches the schemes whose default port is 443.
var tlsScheme = regexp.MustCompile(`^(https|grpcs)://`)

// directAddresses returns the addresses that a pass names itself; passAddresses adds addresses reached through other
// servers.
func (a *analysis) directAddresses(s *scope, pass *directive) (all []string) {
	for _, text := range a.variablesOf(s).expand(pass.arg(0)) {
		host, _ := splitTarget(text)
		if host == "" { // a variable
			continue
		}
		named := a.hostAddresses(host, a.http)
		if tlsScheme.MatchString(text) && named[0] == normalizeAddress(host+":80") {
			named[0] = normalizeAddress(host + ":443")
		}
		all = append(all, named...)
	}
	return all
}

// hostAddresses returns the address of a host and, for an upstream of the block, the addresses of its servers.
func (a *analysis) hostAddresses(host string, block *scope) []string {
	names := []string{normalizeAddress(host)}
	for _, upstream := range block.own("upstream") {
		if strings.EqualFold(upstream.arg(0), host) { // nginx ignores case, too
			for _, d := range upstream.block {
				if d.name == "server" {
					names = append(names, normalizeAddress(d.arg(0)))
				} else if strings.HasPrefix(d.name, "balancer_by_lua") {
					names = append(names, a.reader.balancerAddresses(d)...)
				}
			}
		}
	}
	return names
}

// checkScope checks that a scope takes no request past the plugin, and changes nothing that the plugin judged.
func (a *analysis) checkScope(s *scope) {
	if !a.isJudged(s) {
		a.checkUnjudged(s)
		return
	}
	if a.checkSatisfyAny(s) {
		return
	}
	a.checkReturns(s)
	a.checkRewrites(s)
	a.checkRequestHeaders(s)
	a.checkMethods(s)
	a.checkUpgrades(s)
	a.checkAuthRequest(s)
	a.checkLua(s)
	a.checkClientAddress(s)
	a.checkAnswers(s)
}

// checkUnjudged reports a part of a judged server whose requests the plugin doesn't judge. Clients choose the identity
// headers of unjudged requests.
func (a *analysis) checkUnjudged(s *scope) {
	if !a.isJudged(s.parent) {
		return
	}
	own := s.own("access_by_lua", "access_by_lua_block", "access_by_lua_file")[0]
	passes := false
	s.each(func(inner *scope) { passes = passes || inner.pass() != nil })
	if !passes && !a.mayGovern(s, (*policy.Rule).NeedsCredential) {
		return
	}
	const why = "takes the place of the plugin's: no request is judged, and forged identity headers get to the upstream"
	if _, known := a.reader.directiveLua(own); !known {
		a.addOnce(&ownAccess, s, own, "can't be read here; unless it calls the plugin, it %s", why)
	} else {
		a.addOnce(&ownAccess, s, own, "%s", why)
	}
}

// checkSatisfyAny reports another check that may let a request pass before the plugin judges the request.
func (a *analysis) checkSatisfyAny(s *scope) bool {
	if !s.satisfiesAny() {
		return false
	}
	for _, name := range []string{"allow", "auth_basic", "auth_request", "auth_jwt"} {
		if value := s.value(name); value != "" && value != "off" {
			a.addOnce(&satisfyAny, s, s.effective("satisfy")[0],
				"is any, and there is %s: requests that it lets pass are not judged, and forged identity headers get to the "+
					"upstream", name)
			return true
		}
	}
	return false
}

// checkReturns reports answers of the rewrite phase, which precedes the access phase. Redirects, refusals and empty
// answers disclose nothing.
func (a *analysis) checkReturns(s *scope) {
	for _, d := range s.own("return") {
		if len(d.args) == 2 && strings.HasPrefix(d.arg(0), "2") && a.mayGovern(s, (*policy.Rule).NeedsCredential) {
			a.addOnce(&returnFirst, s, d,
				"answers before the plugin judges, and a rule wants a credential for paths of this place")
		}
	}
}

// checkAuthRequest reports that the subrequest of auth_request, sent before the plugin runs, has forged identity
// headers.
func (a *analysis) checkAuthRequest(s *scope) {
	uri := s.value("auth_request")
	if uri == "" || uri == "off" {
		return
	}
	if l := s.server().findLocation(uri); l != nil && l.pass() != nil && l.pass().name == "proxy_pass" &&
		l.value("proxy_pass_request_headers") != "off" && !a.clearsIdentity(l) {
		a.addOnce(&authRequest, s, s.effective("auth_request")[0],
			"%s: is asked before the plugin removes forged identity headers, so it gets them", uri)
	}
}

// checkClientAddress reports that clients choose their own address.
func (a *analysis) checkClientAddress(s *scope) {
	if !slices.ContainsFunc(a.hostRulesOf(s), func(hr topology.HostRules) bool {
		return hr.Source.Header == "" && hr.NeedsCredential()
	}) {
		return
	}
	for _, d := range s.effective("set_real_ip_from") {
		if isBroad(d) {
			a.addOnce(&anySource, s, d,
				"%s: clients there may write their address: "+topology.NoLimitsText, d.arg(0))
		}
	}
}

// checkAnswers checks that nginx doesn't share or change answers to devices.
func (a *analysis) checkAnswers(s *scope) {
	if pass := s.pass(); pass != nil && a.mayGovern(s, (*policy.Rule).NeedsCredential) {
		a.checkSharedCache(s, strings.TrimSuffix(pass.name, "_pass"))
		if store := s.value("proxy_store"); store != "" && store != "off" {
			a.addOnce(&sharedCache, s, s.effective("proxy_store")[0],
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
				a.addOnce(&lostHeaders, s, added[0], "%s", lost)
			}
		}
	}
	a.checkAlterations(s)
}

var deviceVariable = regexp.MustCompile(`\$\{?(gatehouse_private|http_x_gatehouse_device)\b`)

// checkSharedCache reports a cache of nginx whose keys don't distinguish devices.
func (a *analysis) checkSharedCache(s *scope, module string) {
	zone := s.value(module + "_cache")
	if zone == "" || zone == "off" {
		return
	}
	knows := func(name string) bool {
		return slices.ContainsFunc(s.effective(module+name), func(d *directive) bool {
			return deviceVariable.MatchString(strings.Join(d.args, " "))
		})
	}
	if !knows("_cache_key") && !(knows("_cache_bypass") && knows("_no_cache")) {
		a.addOnce(&sharedCache, s, s.effective(module + "_cache")[0],
			"%s: doesn't know devices: one gets what was answered to another", zone)
	}
}
