package main

import (
	"fmt"

	"github.com/gatehouse/gatehouse/edge"
)

// host is the module's interface to the proxy.
type host interface {
	edge.Host
	// configuration returns the VM's configuration, during configure.
	configuration() []byte
	// pluginConfiguration returns the first size bytes of the plugin's own configuration, during configure.
	pluginConfiguration(size int) []byte
	setTickPeriod(ms uint32) error
	logCritical(message string)
}

// configureVM is called for each plugin of a VM, mostly a single plugin. size is the size of the plugin's own
// configuration, which must be empty: this build can't distinguish the rules of different plugins in one VM. It returns
// false for a refused configuration.
func configureVM(v *edge.VM, h host, size int) bool {
	if size > 0 {
		h.logCritical(
			fmt.Sprintf("gatehouse: configuration has %d bytes, want none: move its content to vm_config.configuration, or "+
				"load the module of the image gatehouse-module", size))
		return false
	}
	return startVM(v, h, h.configuration(), "vm_config.configuration")
}

// startVM starts a VM with a configuration, found in field, and has the proxy tick the plugin; the plugin's context
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
