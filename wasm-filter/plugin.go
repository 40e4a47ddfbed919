package main

import (
	"fmt"
	"strings"

	"github.com/gatehouse/gatehouse/wasm-filter/abi"
	"github.com/gatehouse/gatehouse/wasm-filter/policy"
	"github.com/gatehouse/gatehouse/wire"
)

// tickMS is how often a plugin reads the state, flushes its counters and reports, ms.
const tickMS = 200

// plugin is one plugin configuration: an edge, or the push listener.
type plugin struct {
	vm   *vm
	id   uint32
	edge *policy.Edge
	// headers has the lengths of the names of those headers that the edge reads: most
	// headers of a request have others.
	headers uint64
	calls   calls
	hits    hits
}

// configure reads the configuration and has no other effect: the proxy also starts plugins
// only to see whether they would. false: it is refused.
func (p *plugin) configure(size int) bool {
	config, err := policy.ParseBytes(p.vm.host.configuration(size))
	if err != nil {
		p.vm.host.critical("gatehouse: the plugin configuration is refused:\n" + indent(err.Error()))
		return false
	}
	p.edge, p.headers = policy.NewEdge(config), 0
	for _, name := range config.HeadersRead() {
		p.headers |= abi.LengthBit(name)
	}
	p.calls = calls{plugin: p, inFlight: map[string]*call{}, holds: holds{}}
	if err := p.vm.host.setTickPeriod(tickMS); err != nil {
		p.vm.host.critical(fmt.Sprintf("gatehouse: set tick period of %d ms: %v", tickMS, err))
		return false
	}
	return true
}

func (p *plugin) tick() {
	p.vm.flush()
	p.vm.sweep()
	p.vm.host.enter(p.id)
	if !p.edge.Config().PushListener {
		p.readState()
		p.calls.report()
		p.calls.holds.sweep(p.vm.host.now())
		p.hits.tick(p)
	}
}

// readState reads the state record and reports whether another one is in force now than before.
func (p *plugin) readState() bool {
	state, err := wire.ParseState(p.vm.host.record(wire.RegionState, 0))
	if err != nil {
		return false // none yet, or of another release: what was read before stays
	}
	before := p.edge.State()
	changed := state.Epoch != before.Epoch || len(state.Permissions) != len(before.Permissions)
	if state.Epoch != before.Epoch {
		clear(p.calls.holds) // of a sidecar that may be another one
	}
	p.edge.SetState(state)
	return changed
}

// call makes a call to the sidecar; done gets the answer's body, or nil for none that is
// usable, which is the callback's as everything from the host.
func (p *plugin) call(path string, body []byte, done func(body []byte)) error {
	config := p.edge.Config()
	token, err := p.vm.host.call(config.SidecarCluster, path, body, config.SidecarTimeout)
	if err == nil {
		p.vm.calls[token] = done
	}
	return err
}

func indent(text string) string { return "  " + strings.ReplaceAll(text, "\n", "\n  ") }
