package envoyconfig

import (
	"slices"
)

// checkExternalAddress checks a source in x-envoy-external-address. Envoy sets that header if its peer is external; an
// internal one, which sends no list of addresses besides, keeps its own header.
func (a *analysis) checkExternalAddress(p *plugin) {
	const header = "x-envoy-external-address"
	chosen := slices.ContainsFunc(p.allHostRules(), func(j hostRules) bool { return j.Source.Header == header })
	internal := p.manager.object("internal_address_config")
	if p.auth && chosen && p.manager.flag("use_remote_address") &&
		(len(internal.list("cidr_ranges")) > 0 || internal.flag("unix_sockets")) {
		a.add(&ownAddress, p.listenerName(), "internal_address_config",
			"names networks, and source is the header %s: clients there write that header themselves", header)
	}
}
