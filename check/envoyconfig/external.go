package envoyconfig

import (
	"slices"

	"github.com/gatehouse/gatehouse/check/topology"
)

// checkExternalAddress checks a source read from x-envoy-external-address. Envoy sets that header for external peers
// only; an internal peer that sends no X-Forwarded-For keeps the header that the peer wrote.
func (a *analysis) checkExternalAddress(p *plugin) {
	const header = "x-envoy-external-address"
	chosen := slices.ContainsFunc(topology.AllHostRules(p.Rules), func(hr topology.HostRules) bool {
		return hr.Source.Header == header
	})
	internal := p.Manager.Object("internal_address_config")
	if p.auth && chosen && p.Manager.Flag("use_remote_address") &&
		(len(internal.List("cidr_ranges")) > 0 || internal.Flag("unix_sockets")) {
		a.add(&ownAddress, p.ListenerName(), "internal_address_config",
			"names networks, and source is the header %s: clients there write that header themselves", header)
	}
}
