package envoyconfig

import (
	"strings"

	"github.com/gatehouse/gatehouse/sidecar/internal/findings"
)

var ownAddress = findings.ErrorKind("GH0320",
	"remove internal_address_config, or set source: {filter_state: …}, see envoy/envoy.yaml")

// externalAddress checks a source in x-envoy-external-address. Envoy sets that header if its peer is external; an
// internal one, which sends no list of addresses besides, keeps its own header.
func (a *analysis) externalAddress(p *plugin) {
	header := p.raw.object("source").text("header")
	internal := p.manager.object("internal_address_config")
	if p.auth && strings.EqualFold(header, "x-envoy-external-address") && p.manager.flag("use_remote_address") &&
		(len(internal.list("cidr_ranges")) > 0 || internal.flag("unix_sockets")) {
		a.add(&ownAddress, p.name(), "internal_address_config",
			"names networks, and source is the header %s: clients there write that header themselves", header)
	}
}
