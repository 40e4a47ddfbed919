package main

import (
	"fmt"

	"github.com/gatehouse/gatehouse/edge"
	"github.com/gatehouse/gatehouse/edge/policy"
)

// plugins are the plugins of one VM, in the build with rules in a plugin's own configuration. Each plugin with rules
// has an edge.VM. The proxy names the plugin of a stream only when it creates the stream's context, right before the
// stream's headers; the callback costs every request time, so only this build exports it.
type plugins struct {
	host    host
	shared  *edge.VM           // of the VM's configuration; nil if unused
	byID    map[uint32]*plugin // by the proxy's id of the plugin
	ticks   uint64
	created struct{ stream, plugin uint32 } // the newest context
}

type plugin struct {
	vm     *edge.VM
	ticked uint64 // plugins.ticks at the newest tick
}

func newPlugins(h host) *plugins { return &plugins{host: h, byID: map[uint32]*plugin{}} }

// configurePlugin configures a plugin with size bytes of its own configuration. It returns false for a refused
// configuration.
func (p *plugins) configurePlugin(id uint32, size int) bool {
	if p.byID[id] == nil {
		p.byID[id] = &plugin{vm: edge.New(p.host)}
	}
	current := p.byID[id]
	current.ticked = p.ticks
	if size == 0 {
		if p.shared == nil {
			p.shared = edge.New(p.host)
		}
		current.vm = p.shared
		return configureVM(p.shared, p.host, 0)
	}
	if n := len(p.host.configuration()); n > 0 {
		p.host.logCritical(fmt.Sprintf(
			"gatehouse: configuration has %d bytes, and vm_config.configuration %d: want one of them", size, n))
		return false
	}
	if !startVM(current.vm, p.host, p.host.pluginConfiguration(size), "configuration") {
		return false
	}
	if current.vm.Config().PushListener {
		p.host.logCritical("gatehouse: configuration is invalid:\n  push_listener: want it in vm_config.configuration")
		return false
	}
	return true
}

// contextCreated is called for each new context: for a stream with the id of its plugin, for a plugin with 0.
func (p *plugins) contextCreated(id, of uint32) { p.created.stream, p.created.plugin = id, of }

// goneTicks is the number of ticks, per plugin, after which a plugin without a tick of its own has gone: a minute. The
// proxy would call a callback for the end of plugins for every stream, too.
const goneTicks = 60_000 / edge.TickMS

// tickPlugin is called for each plugin, in the plugin's context.
func (p *plugins) tickPlugin(id uint32) {
	p.ticks++
	current := p.byID[id]
	if current == nil {
		return
	}
	current.ticked = p.ticks
	current.vm.Tick()
	for other, o := range p.byID {
		if p.ticks-o.ticked > uint64(goneTicks*len(p.byID)) {
			delete(p.byID, other)
		}
	}
}

// requestHeaders begins a stream.
func (p *plugins) requestHeaders(id uint32, endOfStream bool) edge.Action {
	of := p.byID[p.created.plugin]
	if of == nil || p.created.stream != id {
		d := policy.RefuseUnreadable()
		p.host.Reply(d.Status, d.Details(), d.Headers, d.Body) // the rules are unknown
		return edge.Pause
	}
	return of.vm.RequestHeaders(id, endOfStream)
}
