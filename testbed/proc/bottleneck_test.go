//go:build linux

package proc

import "testing"

func TestBottleneck(t *testing.T) {
	idle := map[string]float64{"envoy": .5, "sidecar": .1}
	full := map[string]float64{"envoy": .97, "sidecar": .1}
	for _, test := range []struct {
		name        string
		load        Load
		want        string
		clientBound bool
	}{
		{"client busy, servers not", Load{Client: .96, Servers: idle, Machine: .8}, "client", true},
		{"client just below", Load{Client: .949, Servers: idle, Machine: .8}, "waiting: nothing is busy", false},
		{"both busy", Load{Client: .99, Servers: full, Machine: 1}, "envoy core", false},
		{"server busy", Load{Client: .4, Servers: full, Machine: .7}, "envoy core", false},
		{"the second server busy", Load{Client: .4, Servers: map[string]float64{"envoy": .2, "sidecar": .99}},
			"sidecar core", false},
		{"segments lost", Load{Client: .4, Servers: idle, Lost: .01}, "network", false},
		{"threads wait for each other", Load{Client: .4, Servers: idle, Locked: .25}, "lock (25 % of samples)", false},
		{"somebody else's programs lose segments, too", Load{Client: .6, Servers: idle, Machine: .99, Others: .7, Lost: .1},
			"machine (others: 0.7 cores)", false},
		{"somebody else's programs", Load{Client: .6, Servers: idle, Machine: .99, Others: .7},
			"machine (others: 0.7 cores)", false},
		{"they share the cores", Load{Client: .9, Servers: map[string]float64{"envoy": .9}, Machine: .99},
			"machine: client and servers share its cores", false},
		{"nothing is busy", Load{Client: .1, Servers: idle, Machine: .3}, "waiting: nothing is busy", false},
		{"a rate that was held is no limit", Load{Client: .99, Servers: idle, Held: true}, "none: rate held", false},
	} {
		if got := test.load.FindBottleneck(); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
		if got := test.load.ClientBound(); got != test.clientBound {
			t.Errorf("%s: client-bound: got %v, want %v", test.name, got, test.clientBound)
		}
	}
}
