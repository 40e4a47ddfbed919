package main

import (
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/wire"
)

// plugged runs plugins in the emulator.
type plugged struct {
	*emulator
	plugins *plugins
}

func plug(t *testing.T, vmConfiguration string) *plugged {
	t.Helper()
	e := emulate(t, `{}`)
	e.config = []byte(vmConfiguration)
	return &plugged{e, newPlugins(e)}
}

func (p *plugged) configure(id uint32, own string) (ok bool) {
	p.own = []byte(own)
	p.callback(id, func() { ok = p.plugins.configure(id, len(own)) })
	return ok
}

// begin sends a request to a plugin.
func (p *plugged) begin(plugin uint32, endOfStream bool, headers ...[2]string) *exchange {
	p.nextID++
	id, x := p.nextID, &exchange{request: headers}
	p.streams[id] = x
	p.plugins.create(id, plugin)
	p.callback(id, func() { x.action = p.plugins.requestHeaders(id, endOfStream) })
	return x
}

// get sends GET of path to a plugin, and returns the status of the answer, 0 for upstream.
func (p *plugged) get(plugin uint32, path string) int {
	x := p.begin(plugin, true, [2]string{":method", "GET"}, [2]string{":path", path})
	if x.reply == nil {
		return 0
	}
	return x.reply.status
}

const deny, pass = `{"default": "deny"}`, `{"default": "pass"}`

func TestPluginsHaveTheirOwnRules(t *testing.T) {
	p := plug(t, "")
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
	p.plugins.create(99, 2)
	p.nextID++
	p.streams[p.nextID] = &exchange{}
	p.callback(p.nextID, func() { p.plugins.requestHeaders(p.nextID, true) })
	if x := p.streams[p.nextID]; x.reply == nil || x.reply.status != 503 {
		t.Errorf("a stream without a context: got %+v, want 503", x.reply)
	}
}

func TestPluginsShareTheConfigurationOfTheVM(t *testing.T) {
	p := plug(t, deny)
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

// TestPluginsWait lets a device ask each of two plugins at once: each gets the answer to its own call.
func TestPluginsWait(t *testing.T) {
	p := plug(t, "")
	if !p.configure(1, rules) || !p.configure(2, rules) {
		t.Fatalf("refused: %v", p.logs)
	}
	var waiting []*exchange
	for _, plugin := range []uint32{1, 2} {
		p.callback(plugin, func() { p.plugins.tick(plugin) })
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
		p.answer = allow()
		p.callback(uint32(i+1), func() { p.plugins.callResponse(uint32(i+1), p.calls[i].token, len(p.answer)) })
		if !x.went() {
			t.Errorf("request %d: got %+v, want it upstream", i, x.reply)
		}
	}
}

func TestPluginsPush(t *testing.T) {
	p := plug(t, `{"push_listener": true}`)
	if !p.configure(1, "") {
		t.Fatalf("refused: %v", p.logs)
	}
	x := p.begin(1, false, [2]string{":method", "POST"}, [2]string{":path", "/v1/apply"})
	delete(p.records, place(wire.RegionState, 0))
	p.body = batch(7, 0)
	p.callback(p.nextID, func() { p.plugins.requestBody(p.nextID, len(p.body), true) })
	if x.reply == nil || x.reply.status != 200 {
		t.Errorf("got %+v, want 200", x.reply)
	}
	p = plug(t, "")
	p.configure(1, deny)
	if got := p.plugins.requestBody(1, 5, true); got != actionContinue {
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
			p := plug(t, tt.vm)
			if p.configure(1, tt.own) {
				t.Error("got true, want false")
			}
			if logs := strings.Join(p.logs, ""); !strings.Contains(logs, tt.want) {
				t.Errorf("got %q, want %q", logs, tt.want)
			}
		})
	}
}

// TestPluginsThatHaveGone changes the configuration of a listener often: the plugins of earlier ones leave nothing.
func TestPluginsThatHaveGone(t *testing.T) {
	p := plug(t, "")
	const kept, last = 1, 50
	p.configure(kept, deny)
	for id := uint32(2); id <= last; id++ {
		p.configure(id, pass)
	}
	for range 2 * goneTicks * last {
		for _, id := range []uint32{kept, last} {
			p.callback(id, func() { p.plugins.tick(id) })
		}
	}
	if n := len(p.plugins.byID); n != 2 || p.get(kept, "/") != 403 || p.get(last, "/") != 0 {
		t.Errorf("got %d plugins, want the two that tick", n)
	}
}
