package topology_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/check/topology"
)

// server returns a server of one host with the routes "path [upstream's path] target".
func server(flags string, routes ...string) abstractServer {
	return abstractServer{public: strings.Contains(flags, "public"), judged: strings.Contains(flags, "judged"),
		stream: strings.Contains(flags, "stream"), hosts: []abstractHost{host("*", routes...)}}
}

func host(domain string, routes ...string) abstractHost {
	h := abstractHost{domains: []string{domain}}
	for _, text := range routes {
		text, restricted := strings.CutPrefix(text, "restricted ")
		text, exact := strings.CutPrefix(text, "= ")
		words := strings.Fields(text)
		rt := abstractRoute{path: words[0], exact: exact, restricted: restricted, to: words[len(words)-1]}
		if len(words) == 3 {
			rt.rewrite = words[1]
		}
		h.routes = append(h.routes, rt)
	}
	return h
}

// with adds hosts to a server.
func (s abstractServer) with(hosts ...abstractHost) abstractServer {
	s.hosts = append(s.hosts, hosts...)
	return s
}

// TestCheck has topologies whose findings depend on a detail of the model. The codes are those for Envoy.
func TestCheck(t *testing.T) {
	const (
		v1    = "rules: [{match: {prefix: /v1/}, auth: {}}]"
		hosts = "rules: [{match: {prefix: /v1/}, auth: {}}]\n" +
			"virtual_hosts: {pub: {domains: [pub.example], rules: [{match: {prefix: /open/}}]}}"
		denies = "rules: []\nvirtual_hosts: {pub: {domains: [pub.example], default: deny, rules: [{match: {prefix: /v1/}, " +
			"auth: {}}]}}"
		twoDeny = "virtual_hosts: {pub: {domains: [pub.example], default: deny, rules: [{match: {prefix: /v1/}, auth: " +
			"{}}]}, eu: {domains: [eu.example], default: deny, rules: [{match: {prefix: /eu/}, auth: {}}]}}"
	)
	below := server("public judged", "/v1/admin/ b", "/v1/ a")
	for _, c := range []struct {
		name, rules string
		servers     []abstractServer
		envoy       string // findings
		nginx       string // findings, if others
	}{
		{"a prefix below a rule's", v1, []abstractServer{below, server("public", "/ b")}, "GH0503 s1", ""},
		{"a prefix below a rule's, connections", v1, []abstractServer{below, server("public stream", "/ b")}, "GH0503 s1",
			""},
		{"a path below a rule's prefix", v1, []abstractServer{server("public judged", "= /v1/admin b", "/ a"),
			server("public", "/ b")}, "GH0503 s1", ""},
		{"a prefix below that of a rule with methods", strings.Replace(v1, "/v1/}", "/v1/, methods: [POST]}", 1),
			[]abstractServer{below, server("public", "/ b")}, "GH0503 s1", ""},
		{"a prefix below a rule's, by rewriting", v1, []abstractServer{server("public judged", "/v1/admin/ b", "/v1/ a",
			"/open/ /v1/admin/ b")}, "GH0602 s0", ""},
		{"a prefix below a rule's, for another host", hosts, []abstractServer{
			server("public judged", "/v1/admin/ b", "/ a").with(host("pub.example", "/v1/admin/ b"))}, "GH0611 s0", ""},
		{"a prefix below a rule's, of a server behind", v1, []abstractServer{server("public judged", "/ 1"),
			server("", "/v1/admin/ b", "/v1/ a"), server("public", "/ b")}, "GH0503 s2", ""},
		{"a rewritten prefix below a rule's, of a server behind", v1, []abstractServer{
			server("public judged", "/v1/ /api/ 1"), server("", "/api/admin/ b", "/api/ a"),
			server("public", "/ b")}, "GH0503 s2", ""},
		{"a prefix beside a rule's", v1, []abstractServer{server("public judged", "/open/ b", "/v1/ a"),
			server("public", "/ b")}, "", ""},

		// Envoy has an edge for each listener, and nginx has one.
		{"an edge without protected upstreams", v1, []abstractServer{server("public judged", "/ a"),
			server("public judged", "/open/ /v1/ b")}, "GH0602 s1", "-"},
		{"another service's paths", v1, []abstractServer{server("public judged", "/open/ /v1/ b", "/ a")}, "", ""},

		{"restricted, to a server with a private target", v1, []abstractServer{server("public judged", "/ a"),
			server("public", "restricted / 2"), server("", "/ sidecar")}, "GH0604 s2", "GH0604 s1, GH0604 s2"},
		{"to restricted connections with a private target", v1, []abstractServer{server("public judged", "/ a"),
			server("public", "/ 2"), server("stream", "restricted / sidecar")}, "GH0604 s2", ""},

		{"rewriting to a path of another host", hosts, []abstractServer{server("public judged", "/ a").with(
			host("pub.example", "/ /v1/ a"))}, "GH0611 s0", ""},
		{"restricted rewriting to a path of another host", hosts, []abstractServer{server("public judged", "/ a").with(
			host("pub.example", "restricted / /v1/ a"))}, "GH0611 s0", "GH0602 s0"},
		{"the same rewriting for hosts", hosts, []abstractServer{server("public judged", "/v1/ /api/ a")}, "GH0611 s0", ""},
		{"a path that another host refuses by default", denies, []abstractServer{server("public judged", "= /x a").with(
			host("pub.example", "/ a"))}, "GH0611 s0", ""},

		{"a path that another host refuses by default, and this one gives to devices", twoDeny,
			[]abstractServer{server("public judged", "/ b").with(host("pub.example", "/ a"), host("eu.example", "/ a"))},
			"", ""},
		{"a path that another host refuses by default, and this one gives to all",
			strings.Replace(twoDeny, "/eu/}, auth: {}", "/eu/}", 1), []abstractServer{
				server("public judged", "/ b").with(host("pub.example", "/ a"), host("eu.example", "/ a"))}, "GH0611 s0", ""},

		{"judged for this machine, and for others", v1, []abstractServer{server("judged", "/ a"),
			server("public judged", "/ a"), server("", "/ a")}, "", ""},
		{"judged for others, and for this machine", v1, []abstractServer{server("public judged", "/ a"),
			server("judged", "/ a"), server("", "/ a")}, "", ""},
		{"judged for others only", v1, []abstractServer{server("public judged", "/ a"), server("", "/ a")}, "", ""},
		{"hosts for this machine, and for others", hosts, []abstractServer{server("judged", "/ a"),
			server("public judged", "/ a").with(host("pub.example", "/open/ b"))}, "", ""},

		{"a rule on trial beside an enforced one", strings.Replace(v1, "}]", "}, {match: {prefix: /w/}, auth: {enforce: "+
			"false}}]", 1), []abstractServer{server("public judged", "/v1/ a", "/w/ b"), server("public", "/ b")},
			"GH0111 , GH0503 s1", ""},

		{"no rule for a credential", "rules: [{match: {prefix: /v1/}, cache: {}}]", []abstractServer{
			server("public judged", "/ a"), server("public", "/ a")}, "", "GH0503 s1"},
		{"protected paths to a chosen upstream", v1, []abstractServer{server("public judged", "/v1/ choice", "/ a"),
			server("public", "/ a")}, "GH0503 s1, GH0605 s0", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			topo := abstract{credentials + c.rules, c.servers, ""}
			if c.nginx == "" {
				c.nginx = c.envoy
			}
			envoy, nginx := topo.ideas()
			if got := strings.Join(envoy, ", "); got != c.envoy {
				t.Errorf("Envoy: got %q, want %q", got, c.envoy)
			}
			if got := strings.Join(nginx, ", "); got != strings.Trim(c.nginx, "-") {
				t.Errorf("nginx: got %q, want %q", got, c.nginx)
			}
		})
	}
}

// TestIsLoopback also has both analyses read each address, as that of a server without the filter: on loopback, clients
// reach that server only if another server leads to 127.0.0.1.
func TestIsLoopback(t *testing.T) {
	const rules = credentials + "rules: [{match: {prefix: /v1/}, auth: {}}]"
	edge, open := server("public judged", "/ a"), server("", "/ a")
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.1.2.3": true, "127.1": true, "localhost": true, "LocalHost": true, "[::1]": true,
		"[0:0:0:0:0:0:0:1]": true, "[::ffff:127.0.0.1]": true, "[::FFFF:7f00:2]": true,
		"192.0.2.1": false, "12.7.0.1": false, "[::2]": false, "[::ffff:192.0.2.1]": false, "127.example": false,
		"localhost.example": false, "0.0.0.0": false, "[::]": false,
	} {
		if topology.IsLoopback(host) != want || topology.IsLoopback(strings.Trim(host, "[]")) != want {
			t.Errorf("%s: want %v, with and without brackets", host, want)
		}
		alone := abstract{rules, []abstractServer{edge, open}, host}
		led := abstract{rules, []abstractServer{edge, open, server("public", "/ 1")}, host}
		for _, c := range []struct {
			topo abstract
			want bool
		}{{alone, !want}, {led, true}} {
			envoy, nginx := c.topo.ideas()
			if found := slices.Contains(envoy, "GH0503 s1"); found != c.want || !slices.Equal(envoy, nginx) {
				t.Errorf("%s, %d servers: got %q and %q, want GH0503 s1: %v", host, len(c.topo.servers), envoy, nginx, c.want)
			}
		}
	}
}
