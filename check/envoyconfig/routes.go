package envoyconfig

// routesOf checks that no route takes a protected path past the filter.
func (a *analysis) routesOf(p *plugin) {
	off, seen := map[string]bool{}, map[string]bool{}
	var guarded targets
	for _, w := range a.judged(p) {
		if to, _ := w.targets(&a.resources, false); w.protects() != nil {
			guarded = append(guarded, a.through(to, w.protects())...)
		}
	}
	for _, w := range a.judged(p) {
		a.switchedOff(p, &w, off)
		if guarded != nil && !guarded.meet(a.reached(&w)) {
			continue // another service, whose paths are its own
		}
		if seen[w.at] {
			continue
		}
		if o, found := w.opens(); found {
			seen[w.at] = true
			a.add(&rewriteIn, p.name(), w.at+".route", "makes %s of %s behind the filter, and %s asks more of %s there",
				o.upstream, o.client, w.by.asker(o.rule), o.method)
		} else if w.unclear() && p.auth {
			seen[w.at] = true
			a.add(&unclear, p.name(), w.at+".route", "rewrites paths behind the filter, maybe to ones that a rule protects")
		}
	}
}

// switchedOff reports levels of a route that switch the filter off for requests that it refuses or changes.
func (a *analysis) switchedOff(p *plugin, w *way, seen map[string]bool) {
	name := p.filter().text("name")
	for _, l := range w.levels {
		if !l.of.object("typed_per_filter_config").object(name).flag("disabled") || seen[l.at] || !w.sends() {
			continue
		}
		at := l.at + ": typed_per_filter_config." + name
		if path, found := w.carries(append(w.by.protectedPaths(w), w.by.ownPaths(w)...)); found {
			seen[l.at] = true
			rule, _ := w.by.asks(path)
			a.add(&routeOff, p.name(), at, "is disabled, but %s asks for a credential for %s: requests go upstream without one",
				w.by.asker(rule), path)
		} else if p.auth && !w.clears(p.manager) {
			seen[l.at] = true
			a.add(&routeOff, p.name(), at, "is disabled: clients' identity headers get to the upstream")
		}
	}
}
