package main

import (
	"testing"

	"github.com/gatehouse/gatehouse/edge"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// plugged runs plugins in a fake.
type plugged struct {
	*fake
	plugins *plugins
}

func plug(vmConfiguration string) *plugged {
	f := newFake(vmConfiguration)
	return &plugged{f, newPlugins(f)}
}

func (p *plugged) configure(id uint32, own string) bool {
	p.own = own
	return p.plugins.configure(id, len(own))
}

// begin sends a request to a plugin.
func (p *plugged) begin(plugin uint32, endOfStream bool, headers ...[2]string) *exchange {
	p.newest++
	x := &exchange{request: headers}
	p.streams[p.newest], p.current = x, p.newest
	p.plugins.create(p.newest, plugin)
	x.action = p.plugins.requestHeaders(p.newest, endOfStream)
	return x
}

// get sends GET of path to a plugin, and returns the status of the answer, 0 for upstream.
func (p *plugged) get(plugin uint32, path string) int {
	return p.begin(plugin, true, [2]string{":method", "GET"}, [2]string{":path", path}).status
}

const deny, pass = `{"default": "deny"}`, `{"default": "pass"}`

func TestPluginsHaveTheirOwnRules(t *testing.T) {
	p := plug("")
	if !p.configure(1, deny) || !p.configure(2, pass) || !p.configure(1, deny) {
		t.Fatalf("refused: %v", p.logs)
	}
	for range 2 {
		if got := [...]int{p.get(1, "/"), p.get(2, "/")}; got != [...]int{403, 0} {
			t.Errorf("got %d, want a 403 and upstream", got)
		}
	}
	if got := p.get(3, "/"); got != 503 {
		t.Errorf("an unknown plugin: got %d, want 503", got)
	}
	x := &exchange{}
	p.newest++
	p.streams[p.newest], p.current = x, p.newest
	p.plugins.create(99, 2)
	if p.plugins.requestHeaders(p.newest, true); x.status != 503 {
		t.Errorf("a stream without a context: got %d, want 503", x.status)
	}
}

func TestPluginsShareTheConfigurationOfTheVM(t *testing.T) {
	p := plug(deny)
	if !p.configure(1, "") || !p.configure(2, "") {
		t.Fatalf("refused: %v", p.logs)
	}
	if got := [...]int{p.get(1, "/"), p.get(2, "/")}; got != [...]int{403, 403} {
		t.Errorf("got %d, want a 403 of each", got)
	}
	if p.plugins.byID[1].vm != p.plugins.byID[2].vm {
		t.Error("got two VMs for one configuration, want one")
	}
}

const rules = `{"credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"},
	"rules": [{"match": {"prefix": "/v1/telemetry"}, "auth": {}},
		{"match": {"prefix": "/v1/products/"}, "cache": {"on_miss": "fetch"}}]}`

// TestPluginsWait lets a device ask each of two plugins at once: each gets the answer to its own call.
func TestPluginsWait(t *testing.T) {
	p := plug("")
	if !p.configure(1, rules) || !p.configure(2, rules) {
		t.Fatalf("refused: %v", p.logs)
	}
	var waiting []*exchange
	for _, plugin := range []uint32{1, 2} {
		p.plugins.tick(plugin)
		waiting = append(waiting, p.begin(plugin, true, [2]string{":method", "GET"}, [2]string{":path", "/v1/telemetry"},
			[2]string{"x-device-id", "dev"}, [2]string{"x-device-token", "s3cret"}))
	}
	if len(p.calls) != 2 {
		t.Fatalf("got %d calls, want one of each plugin", len(p.calls))
	}
	for i, x := range waiting {
		if x.went() {
			t.Fatalf("request %d doesn't wait", i)
		}
		plugin, token := uint32(i+1), uint32(i+1)
		p.plugins.callResponse(plugin, token,
			wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Allow, Epoch: epoch}))
		if !x.went() {
			t.Errorf("request %d: got %+v, want it upstream", i, x)
		}
	}
}

// batch returns a batch with the state of an epoch and a body.
func batch(epoch, replaces uint64) []byte {
	b := wire.BeginBatch(nil, epoch, replaces)
	b = wire.AppendOp(b, wire.RegionState, 0, func(dst []byte) []byte {
		return wire.AppendState(dst, &wire.State{Epoch: epoch})
	})
	return wire.AppendOp(b, wire.RegionBodies, 3, func(dst []byte) []byte {
		return wire.AppendBody(dst, epoch, 1, []byte("hello"))
	})
}

func TestPluginsPush(t *testing.T) {
	p := plug(`{"push_listener": true}`)
	if !p.configure(1, "") {
		t.Fatalf("refused: %v", p.logs)
	}
	x := p.begin(1, false, [2]string{":method", "POST"}, [2]string{":path", "/v1/apply"})
	p.body = batch(epoch, epoch)
	if p.plugins.requestBody(p.newest, len(p.body), true); x.status != 200 {
		t.Errorf("got %d, %q; want 200", x.status, p.logs)
	}
	p = plug("")
	p.configure(1, deny)
	if got := p.plugins.requestBody(1, 5, true); got != edge.Continue {
		t.Errorf("a body at an edge: got %v, want it to go on", got)
	}
}

func TestPluginsRefuse(t *testing.T) {
	for _, tt := range []struct{ name, vm, own, want string }{
		{"both", pass, deny, "configuration has 19 bytes, and vm_config.configuration 19: want one of them"},
		{"none", "", "", "vm_config.configuration is invalid"},
		{"unknown field", "", `{"rule": []}`, "configuration is invalid:\n  rule: unknown field"},
		{"push listener", "", `{"push_listener": true}`, "push_listener: want it in vm_config.configuration"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := plug(tt.vm)
			if p.configure(1, tt.own) {
				t.Error("got true, want false")
			}
			p.logged(t, tt.want)
		})
	}
}

// TestPluginsThatHaveGone changes the configuration of a listener often: the plugins of earlier ones leave nothing.
func TestPluginsThatHaveGone(t *testing.T) {
	p := plug("")
	const kept, last = 1, 50
	p.configure(kept, deny)
	for id := uint32(2); id <= last; id++ {
		p.configure(id, pass)
	}
	for range 2 * goneTicks * last {
		for _, id := range []uint32{kept, last} {
			p.plugins.tick(id)
		}
	}
	if n := len(p.plugins.byID); n != 2 || p.get(kept, "/") != 403 || p.get(last, "/") != 0 {
		t.Errorf("got %d plugins, want the two that tick", n)
	}
}
