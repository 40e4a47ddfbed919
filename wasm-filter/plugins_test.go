package main

import (
	"testing"
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
	return p.plugins.configurePlugin(id, len(own))
}

// get sends GET of path to a plugin, and returns the status of the answer, 0 for upstream.
func (p *plugged) get(plugin uint32, path string) int {
	p.newest++
	x := &exchange{request: [][2]string{{":method", "GET"}, {":path", path}}}
	p.streams[p.newest], p.current = x, p.newest
	p.plugins.contextCreated(p.newest, plugin)
	p.plugins.requestHeaders(p.newest, true)
	return x.status
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
	p.plugins.contextCreated(99, 2)
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
			p.plugins.tickPlugin(id)
		}
	}
	if n := len(p.plugins.byID); n != 2 || p.get(kept, "/") != 403 || p.get(last, "/") != 0 {
		t.Errorf("got %d plugins, want the two that tick", n)
	}
}
