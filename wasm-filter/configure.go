package main

import (
	"fmt"

	"github.com/gatehouse/gatehouse/edge"
)

// host is what the module needs of the proxy.
type host interface {
	edge.Host
	// configuration returns the VM's configuration, during configure.
	configuration() []byte
	// pluginConfiguration returns the first size bytes of the plugin's own configuration, during configure.
	pluginConfiguration(size int) []byte
	setTickPeriod(ms uint32) error
	logCritical(message string)
}

// configureVM is called for each plugin of a VM; there is mostly one. size is the size of the plugin's own configuration,
// which must be empty: this build could not distinguish the rules of different plugins in one VM. It returns false if
// it refuses the configuration.
func configureVM(v *edge.VM, h host, size int) bool {
	if size > 0 {
		h.logCritical(
			fmt.Sprintf("gatehouse: configuration has %d bytes, want none: move its content to vm_config.configuration, or "+
				"load the module of the image gatehouse-module", size))
		return false
	}
	return startVM(v, h, h.configuration(), "vm_config.configuration")
}

// startVM starts a VM with a configuration, which the field has, and has the proxy tick the plugin, in whose context it
// makes the VM's calls.
func startVM(v *edge.VM, h host, configuration []byte, field string) bool {
	if err := v.Start(configuration, field); err != nil {
		h.logCritical("gatehouse: " + err.Error())
		return false
	}
	if err := h.setTickPeriod(edge.TickMS); err != nil {
		h.logCritical(fmt.Sprintf("gatehouse: set tick period of %d ms: %v", edge.TickMS, err))
		return false
	}
	return true
}
