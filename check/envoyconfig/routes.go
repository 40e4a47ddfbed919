package envoyconfig

// checkRoutes checks that no route switches the filter off.
func (a *analysis) checkRoutes(p *plugin) {
	seen := map[string]bool{}
	for _, rt := range a.judgedRoutes(p) {
		a.checkSwitchedOff(p, &rt, seen)
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
		samples := append(rt.Rules.ProtectedSamples(&rt.Paths), rt.Rules.RouteSamples(&rt.Paths)...)
		if path, found := rt.FindCarriedPath(samples); found {
			seen[l.at] = true
			rule, _ := rt.Rules.FindRefusingRule(path)
			a.add(&routeOff, p.ListenerName(), at,
				"is disabled, but %s asks for a credential for %s: requests go upstream without one", rt.Rules.RuleName(rule), path)
		} else if p.auth && !rt.clearsIdentity(p.Manager) {
			seen[l.at] = true
			a.add(&routeOff, p.ListenerName(), at, "is disabled: clients' identity headers get to the upstream")
		}
	}
}

// isSwitchedOff reports whether a route switches the filter of a name off.
func (rt *httpRoute) isSwitchedOff(name string) (off bool) {
	for _, l := range rt.levels[:3] { // the most specific level decides
		if own := l.config.Object("typed_per_filter_config").Object(name); own != nil {
			off = own.Flag("disabled")
		}
	}
	return off
}
