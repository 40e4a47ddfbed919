package credential

import (
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// Upgrade is a right generated secret whose hash has a slow scheme and should be gh1 of the first pepper. A gh1 hash of
// another pepper stays: sidecars with another order of peppers would undo each other's upgrades.
type Upgrade struct {
	Device, Secret string
	Hash           string // the matching hash
	Version        uint64 // of the record
}

// offerUpgrade offers the attempt's secret and its matching hash for an upgrade.
func (c *Config) offerUpgrade(a *attempt, r *record, hash string) {
	if c.Upgrade == nil || strings.HasPrefix(hash, "$"+contract.GH1+"$") || !contract.Generated(a.secret) {
		return
	}
	c.Upgrade(Upgrade{Device: a.id, Secret: a.secret, Hash: hash, Version: r.version})
}
