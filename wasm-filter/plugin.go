package main

import (
	"fmt"
	"strings"

	"github.com/gatehouse/gatehouse/wasm-filter/policy"
	"github.com/gatehouse/gatehouse/wire"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"
)

// tickMS is how often a plugin reads the state, flushes its counters and takes care of
// calls, ms.
const tickMS = 200

// vm is what all plugins of one VM share. Several plugin configurations can live in one
// VM, so nothing in it depends on a configuration.
type vm struct {
	types.DefaultVMContext
	host   host
	bodies bodyCache
	counts [policy.Counters]uint64 // since the last flush
}

func newVM(h host) *vm { return &vm{host: h} }

// NewPluginContext implements types.VMContext.
func (v *vm) NewPluginContext(uint32) types.PluginContext {
	return &plugin{vm: v}
}

func (v *vm) count(counter policy.Counter) { v.counts[counter]++ }

// flush adds what was counted to the proxy's counters.
func (v *vm) flush() {
	for c := policy.None + 1; c < policy.Counters; c++ {
		if v.counts[c] != 0 {
			v.host.count(c, v.counts[c])
			v.counts[c] = 0
		}
	}
}

// plugin is one plugin configuration: an edge, or the push listener.
type plugin struct {
	types.DefaultPluginContext
	vm    *vm
	edge  *policy.Edge
	calls calls
	hits  hits
}

// OnPluginStart implements types.PluginContext. It reads the configuration and has no
// other effect: the proxy also starts plugins only to see whether they would.
func (p *plugin) OnPluginStart(int) types.OnPluginStartStatus {
	config, err := pluginConfig()
	if err != nil {
		proxywasm.LogCriticalf("gatehouse: the plugin configuration is refused:\n%s", indent(err.Error()))
		return types.OnPluginStartStatusFailed
	}
	p.edge = policy.NewEdge(config)
	p.calls = calls{plugin: p, inFlight: map[string]*call{}}
	if err := proxywasm.SetTickPeriodMilliSeconds(tickMS); err != nil {
		proxywasm.LogCriticalf("gatehouse: set tick period of %d ms: %v", tickMS, err)
		return types.OnPluginStartStatusFailed
	}
	return types.OnPluginStartStatusOK
}

func pluginConfig() (*policy.Config, error) {
	raw, err := proxywasm.GetPluginConfiguration()
	if err != nil {
		return nil, fmt.Errorf("configuration: none is given: %w", err)
	}
	return policy.ParseBytes(raw)
}

// OnTick implements types.PluginContext.
func (p *plugin) OnTick() {
	p.vm.flush()
	if !p.edge.Config().PushListener {
		p.readState()
		p.calls.tick()
		p.hits.tick(p.vm.host, p.edge.Config())
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
	p.edge.SetState(state)
	return changed
}

// NewHttpContext implements types.PluginContext.
func (p *plugin) NewHttpContext(contextID uint32) types.HttpContext {
	if p.edge.Config().PushListener {
		return &ingest{vm: p.vm}
	}
	return &stream{plugin: p, id: contextID}
}

func indent(text string) string { return "  " + strings.ReplaceAll(text, "\n", "\n  ") }
