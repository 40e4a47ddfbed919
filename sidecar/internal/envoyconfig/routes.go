package envoyconfig

import (
	"fmt"
	"strings"

	"github.com/gatehouse/gatehouse/wasm-filter/policy"
)

// routesOf checks that no route takes a protected path past the filter.
func (a *analysis) routesOf(p *plugin) {
	config := a.routing(p.manager)
	if a.switchedOff(p, config, "route_config", object{"prefix": "/"}) {
		return
	}
	for _, host := range config.list("virtual_hosts") {
		at := "virtual host " + host.text("name")
		if a.switchedOff(p, host, at, object{"prefix": "/"}) {
			continue
		}
		for i, route := range host.list("routes") {
			at := fmt.Sprintf("%s: routes[%d]", at, i)
			match := route.object("match")
			if a.switchedOff(p, route, at, match) {
				continue
			}
			for j, cluster := range route.object("route").object("weighted_clusters").list("clusters") {
				a.switchedOff(p, cluster, fmt.Sprintf("%s.route.weighted_clusters[%d]", at, j), match)
			}
			a.rewritten(p, route, at)
		}
	}
}

// switchedOff reports that level, which is a route or what has routes, switches the filter off for paths of a rule
// that wants a credential.
func (a *analysis) switchedOff(p *plugin, level object, at string, match object) bool {
	name := p.filter().text("name")
	if !level.object("typed_per_filter_config").object(name).flag("disabled") {
		return false
	}
	for i, rule := range p.rules.Rules {
		if protects(&rule) && overlap(match, &rule.Match) {
			a.add(&routeOff, p.name(), at+": typed_per_filter_config."+name, "is disabled, but rules[%d] wants a credential for %s%s: requests go upstream without one", i, rule.Match.Path, rule.Match.Prefix)
			return true
		}
	}
	if p.rules.DenyByDefault {
		a.add(&routeOff, p.name(), at+": typed_per_filter_config."+name, "is disabled, but default is deny: requests that no rule covers go upstream")
		return true
	}
	return false
}

// rewritten reports a route whose prefix_rewrite makes a path that no rule covers one that a rule protects: the
// router rewrites it behind the filter.
func (a *analysis) rewritten(p *plugin, route object, at string) {
	to := route.object("route").text("prefix_rewrite")
	match := route.object("match")
	from := match.text("prefix") + match.text("path") + match.text("path_separated_prefix")
	if to == "" || from == "" {
		return
	}
	for i, rule := range p.rules.Rules {
		if protects(&rule) && overlap(object{"prefix": to}, &rule.Match) && !overlap(object{"prefix": from}, &rule.Match) {
			a.add(&rewriteIn, p.name(), at+".route.prefix_rewrite", "makes %s of %s behind the filter, and rules[%d] wants a credential there, but not for %s", to, from, i, from)
			return
		}
	}
}

// overlap reports whether a request may fall both under a route's match and a rule's. Of a route that matches by
// an expression it may.
func overlap(route object, rule *policy.Match) bool {
	covered := rule.Path + rule.Prefix // one of the two is ""
	if path := route.text("path"); path != "" {
		return path == rule.Path || rule.Prefix != "" && strings.HasPrefix(path, rule.Prefix)
	}
	prefix := route.text("prefix") + route.text("path_separated_prefix")
	if prefix == "" {
		return true
	}
	return strings.HasPrefix(covered, prefix) || rule.Prefix != "" && strings.HasPrefix(prefix, rule.Prefix)
}
