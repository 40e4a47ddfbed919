package envoyconfig

// checkRoutes checks that no route takes a protected path past the filter.
func (a *analysis) checkRoutes(p *plugin) {
	off, seen := map[string]bool{}, map[string]bool{}
	var protectedTargets targets
	for _, rt := range a.judgedRoutes(p) {
		if to, _ := rt.routeTargets(&a.resources, false); rt.protectedPaths() != nil {
			protectedTargets = append(protectedTargets, a.followListeners(to, rt.protectedPaths())...)
		}
	}
	for _, rt := range a.judgedRoutes(p) {
		a.checkSwitchedOff(p, &rt, off)
		if protectedTargets != nil && !protectedTargets.intersects(a.reachedTargets(&rt)) {
			continue // another service: its paths mean something else
		}
		if seen[rt.at] {
			continue
		}
		if o, found := rt.findOpenedPath(); found {
			seen[rt.at] = true
			a.add(&rewriteIn, p.ListenerName(), rt.at+".route", "makes %s of %s behind the filter, and %s asks more of %s there",
				o.upstream, o.client, rt.hostRules.ruleName(o.rule), o.method)
		} else if rt.isUnclearRewrite() && p.auth {
			seen[rt.at] = true
			a.add(&unclear, p.ListenerName(), rt.at+".route",
				"rewrites paths behind the filter, maybe to ones that a rule protects")
		}
	}
}

// checkSwitchedOff reports levels of a route that switch the filter off for requests that the filter refuses or
// changes.
func (a *analysis) checkSwitchedOff(p *plugin, rt *httpRoute, seen map[string]bool) {
	name := p.httpFilter().Text("name")
	for _, l := range rt.levels {
		if !l.config.Object("typed_per_filter_config").Object(name).Flag("disabled") || seen[l.at] || !rt.sendsUpstream() {
			continue
		}
		at := l.at + ": typed_per_filter_config." + name
		samples := append(rt.hostRules.protectedSamples(rt), rt.hostRules.routeSamples(rt)...)
		if path, found := rt.findCarriedPath(samples); found {
			seen[l.at] = true
			rule, _ := rt.hostRules.findRefusingRule(path)
			a.add(&routeOff, p.ListenerName(), at,
				"is disabled, but %s asks for a credential for %s: requests go upstream without one",
				rt.hostRules.ruleName(rule), path)
		} else if p.auth && !rt.clearsIdentity(p.Manager) {
			seen[l.at] = true
			a.add(&routeOff, p.ListenerName(), at, "is disabled: clients' identity headers get to the upstream")
		}
	}
}
