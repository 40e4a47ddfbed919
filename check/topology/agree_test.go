package topology_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/check/envoyconfig"
	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/check/nginxconfig"
	"github.com/gatehouse/gatehouse/check/topology"
)

// abstract is a topology that both proxies can have. Left out is what differs by their nature:
//   - A path behind a variable: nginx sends the path as it is, Envoy puts what follows the prefix behind it.
//   - An identity header where Gatehouse is switched off: nginx's other checks leave such places out, since the headers
//     of server.conf apply there no more.
//   - Listeners with different rules (GH0504): nginx has one set of rules.
//   - A restricted place: nginx's allow has no counterpart that the analysis of Envoy knows.
//   - Rules without a credential: nginx's upstreams count as protected nevertheless.
//   - Expressions and rewrite directives, Lua, CONNECT and Upgrade: their forms have no counterpart.
//   - A virtual host without a server of its own: nginx has a default server for each address, Envoy answers 404. Each
//     server here has a host for "*".
type abstract struct {
	rules    string
	servers  []abstractServer
	loopback string // as which private servers listen; requests go to 127.0.0.1
}

// abstractServer takes connections at a port of its own.
type abstractServer struct {
	public, judged bool
	stream         bool // connections, to the first route's target
	hosts          []abstractHost
}

// abstractHost has the routes of some domains.
type abstractHost struct {
	domains []string
	routes  []abstractRoute
}

type abstractRoute struct {
	path, rewrite string
	exact         bool   // only the path itself
	to            string // "a" or "b" for upstreams, "sidecar", "push", "choice", or a server's index
	clears        bool   // identity headers
	off, sets     bool   // judged servers only: Gatehouse is switched off; an identity header is set
	restricted    bool   // nginx only, and not drawn: admits some addresses
}

// ruleTexts are rules, the last ones with virtual hosts.
var ruleTexts = []string{
	"rules: [{match: {prefix: /secret/}, auth: {}}, {match: {prefix: /open/}, cache: {}}]",
	"rules: [{match: {prefix: /open/}}, {match: {prefix: /}, auth: {}}]",
	"default: deny\nrules: [{match: {prefix: /open/}}, {match: {prefix: /secret/, methods: [POST]}, auth: " +
		"{permissions: [p]}}]",
	"rules: [{match: {prefix: /v1/, methods: [GET]}, cache: {}}, {match: {prefix: /v1/secret/}, auth: {}}]",
	"rules: [{match: {prefix: /v1/}, cache: {}}, {match: {prefix: /}, auth: {}}]",
	"rules: [{match: {prefix: /secret/, methods: [GET, POST]}, auth: {}}, {match: {prefix: /v1/}, auth: {enforce: " +
		"false}}]",
	"rules: [{match: {prefix: /v1/*/, methods: [GTE]}, auth: {enforce: false}}, {match: {prefix: /open/}, cache: {}}]",
	"rules: [{match: {prefix: /secret/}, auth: {}}]\n" +
		"virtual_hosts: {pub: {domains: [pub.example], rules: [{match: {prefix: /open/}}]}}",
	"rules: [{match: {prefix: /secret/}, auth: {permissions: [p]}}]\nvirtual_hosts: {shop: {domains: [shop.example], " +
		"default: deny, rules: [{match: {prefix: /secret/}, auth: {}}]}}",
}

const credentials = "credentials: {id_header: x-device-id, secret_header: x-device-token}\n"

// generate returns a topology.
func generate(g *rand.Rand) (t abstract) {
	t.rules = credentials + ruleTexts[g.IntN(len(ruleTexts))]
	chance := func(percent int) bool { return g.IntN(100) < percent }
	n := 1 + g.IntN(4)
	for i := range n {
		s := abstractServer{public: chance(60), judged: i == 0 || chance(40)}
		s.stream = !s.judged && chance(25)
		target := func() string {
			switch k := g.IntN(20); {
			case k == 0:
				return "sidecar"
			case k == 1:
				return "push"
			case k == 2:
				return "choice"
			case k < 8 && n > 1:
				return fmt.Sprint((i + 1 + g.IntN(n-1)) % n)
			case k < 12:
				return "b"
			}
			return "a"
		}
		hosts := [][]string{{"*"}}
		if !s.stream && chance(40) {
			hosts = append(hosts, [][]string{{"pub.example"}, {"shop.example"}, {"pub.example", "*.example"}}[g.IntN(3)])
		}
		for _, domains := range hosts {
			h := abstractHost{domains: domains}
			paths := []string{"/"}
			for _, p := range []string{"/open/", "/secret/", "/v1/", "/secret/in/", "/v1/secret/in/"} {
				if chance(25) {
					paths = append(paths, p)
				}
			}
			slices.SortFunc(paths, func(a, b string) int { return len(b) - len(a) })
			if len(paths) > 1 && chance(30) {
				paths = paths[:len(paths)-1]
			}
			if chance(20) {
				paths = slices.Insert(paths, 0, []string{"/secret/one", "/v1/secret/one"}[g.IntN(2)])
			}
			for _, p := range paths {
				rt := abstractRoute{path: p, exact: strings.HasSuffix(p, "one"), to: target(), clears: !s.judged && chance(50)}
				if rt.to != "choice" && chance(15) {
					rt.rewrite = []string{"/open/", "/secret/", "/v1/secret/"}[g.IntN(3)]
				}
				rt.off = s.judged && chance(5)
				rt.sets = s.judged && !rt.off && chance(5)
				h.routes = append(h.routes, rt)
			}
			s.hosts = append(s.hosts, h)
		}
		t.servers = append(t.servers, s)
	}
	return t
}

// address returns where a server listens.
func (t *abstract) address(i int) (host string, port int) {
	if t.servers[i].public {
		return "0.0.0.0", 8000 + i
	}
	return cmp.Or(t.loopback, "127.0.0.1"), 8000 + i
}

// sockets are the addresses of the targets that are no servers.
var sockets = map[string]string{"sidecar": "/run/gatehouse/api.sock", "push": "/run/gatehouse/push.sock"}

// envoy renders a topology.
func (t *abstract) envoy() string {
	var b strings.Builder
	rules := strings.ReplaceAll(t.rules, "\n", "\n                ")
	b.WriteString("static_resources:\n  listeners:\n")
	for i, s := range t.servers {
		host, port := t.address(i)
		fmt.Fprintf(&b, "  - name: s%d\n    address: {socket_address: {address: '%s', port_value: %d}}\n    filter_chains:\n"+
			"    - filters:\n      - name: f\n        typed_config:\n", i, strings.Trim(host, "[]"), port)
		if s.stream {
			fmt.Fprintf(&b, "          \"@type\": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy\n"+
				"          cluster: to-%s\n", s.hosts[0].routes[0].to)
			continue
		}
		b.WriteString(`          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          common_http_protocol_options: {headers_with_underscores_action: REJECT_REQUEST}
          http_filters:
`)
		if s.judged {
			b.WriteString(`          - name: gatehouse
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
              config: {vm_config: {vm_id: gatehouse, configuration: {"@type": type.googleapis.com/google.protobuf.Struct, value: {
                sidecar: {cluster: to-sidecar},
                ` + flow(rules) + "}}}}\n")
		}
		b.WriteString("          - {name: router, typed_config: {\"@type\": type.googleapis.com/envoy.extensions.filters." +
			"http.router.v3.Router}}\n          route_config:\n            ignore_port_in_host_matching: true\n" +
			"            virtual_hosts:\n")
		for j, h := range s.hosts {
			fmt.Fprintf(&b, "            - name: v%d\n              domains: [%s]\n              routes:\n", j,
				quoted(h.domains))
			for _, rt := range h.routes {
				action := "cluster: to-" + rt.to
				if rt.to == "choice" {
					action = "cluster_header: x-to"
				}
				if rt.rewrite != "" {
					action += ", prefix_rewrite: " + rt.rewrite
				}
				more := ""
				if rt.clears {
					more += ", request_headers_to_remove: [x-gatehouse-device, x-gatehouse-permissions]"
				}
				if rt.sets {
					more += ", request_headers_to_add: [{header: {key: x-gatehouse-device, value: root}}]"
				}
				if rt.off {
					more += ", typed_per_filter_config: {gatehouse: {disabled: true}}"
				}
				fmt.Fprintf(&b, "              - {match: {%s: %s}, route: {%s}%s}\n",
					map[bool]string{true: "path", false: "prefix"}[rt.exact], rt.path, action, more)
			}
		}
	}
	fmt.Fprintf(&b, `  - name: push
    address: {pipe: {path: %s, mode: 384}}
    filter_chains:
    - filters:
      - name: f
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          http_filters:
          - name: gatehouse
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
              config: {vm_config: {vm_id: gatehouse, configuration: {"@type": type.googleapis.com/google.protobuf.Struct, value: {push_listener: true}}}}
  clusters:
`, sockets["push"])
	cluster := func(name, address string) {
		fmt.Fprintf(&b, "  - {name: to-%s, load_assignment: {endpoints: [{lb_endpoints: [{endpoint: {address: {%s}}}]}]}}\n",
			name, address)
	}
	for name, path := range sockets {
		cluster(name, "pipe: {path: "+path+"}")
	}
	cluster("a", "socket_address: {address: 192.0.2.1, port_value: 80}")
	cluster("b", "socket_address: {address: 192.0.2.2, port_value: 80}")
	cluster("choice", "socket_address: {address: 192.0.2.3, port_value: 80}")
	for i := range t.servers {
		cluster(fmt.Sprint(i), fmt.Sprintf("socket_address: {address: 127.0.0.1, port_value: %d}", 8000+i))
	}
	return b.String()
}

// flow returns rules as fields of a mapping in YAML's flow style.
func flow(rules string) string {
	var all []string
	for line := range strings.SplitSeq(rules, "\n") {
		all = append(all, strings.TrimSpace(line))
	}
	return strings.Join(all, ", ")
}

func quoted(domains []string) string { return "'" + strings.Join(domains, "', '") + "'" }

const allow = " allow 10.0.0.0/8; deny all;"

// nginx renders a topology.
func (t *abstract) nginx() string {
	var servers, streams strings.Builder
	for i, s := range t.servers {
		host, port := t.address(i)
		pass := func(to string) string {
			if path := sockets[to]; path != "" {
				return "unix:" + path
			}
			switch to {
			case "a", "b":
				return map[string]string{"a": "192.0.2.1:80", "b": "192.0.2.2:80"}[to]
			case "choice":
				return "$http_x_to"
			}
			return fmt.Sprintf("127.0.0.1:800%s", to)
		}
		if s.stream {
			to := s.hosts[0].routes[0].to
			if to == "choice" {
				to = "192.0.2.3:80"
			} else {
				to = pass(to)
			}
			fmt.Fprintf(&streams, "  server { listen %s:%d;%s proxy_pass %s; }\n", host, port,
				map[bool]string{true: allow}[s.hosts[0].routes[0].restricted], to)
			continue
		}
		for _, h := range s.hosts {
			fmt.Fprintf(&servers, "  server {\n    listen %s:%d%s;\n    server_name %s;\n", host, port,
				map[bool]string{true: " default_server"}[h.domains[0] == "*"],
				strings.ReplaceAll(strings.Join(h.domains, " "), "*", map[bool]string{true: "_", false: "*"}[h.domains[0] == "*"]))
			if s.judged {
				servers.WriteString("    access_by_lua_block { require(\"gatehouse.edge\").access() }\n")
			}
			for _, rt := range h.routes {
				more := ""
				if rt.clears {
					more += ` proxy_set_header X-Gatehouse-Device ""; proxy_set_header X-Gatehouse-Permissions "";`
				}
				if rt.sets {
					more += " proxy_set_header X-Gatehouse-Device root;"
				}
				if rt.off {
					more += " access_by_lua_block { }"
				}
				if rt.restricted {
					more += allow
				}
				to := "http://" + pass(rt.to)
				if rt.rewrite != "" {
					to += map[bool]string{true: ":"}[sockets[rt.to] != ""] + rt.rewrite
				}
				fmt.Fprintf(&servers, "    location %s%s {%s proxy_pass %s; }\n", map[bool]string{true: "= "}[rt.exact], rt.path,
					more, to)
			}
			servers.WriteString("  }\n")
		}
	}
	return fmt.Sprintf(`events { }
stream {
%s}
http {
  lua_shared_dict gatehouse 1m;
  init_by_lua_block { require("gatehouse.edge").init{ rules = "rules.json", socket = "unix:%s", push = "unix:%s" } }
  init_worker_by_lua_block { require("gatehouse.edge").start() }
%s  server {
    listen unix:%s;
    client_max_body_size 4m;
    location / { content_by_lua_block { require("gatehouse.push").apply() } }
  }
}
`, streams.String(), sockets["sidecar"], sockets["push"], servers.String(), sockets["push"])
}

// ideasOf returns the ideas of a report, with the number of the server, "" for none.
func ideasOf(proxy findings.Proxy, r findings.Report, server func(findings.Place) string) (all []string) {
	for _, f := range r.Findings {
		for _, idea := range compared {
			if idea[proxy].Code == f.Code {
				all = append(all, idea[findings.Envoy].Code+" "+server(f.Place))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// ideas returns the ideas that the analyses of both proxies find.
func (t *abstract) ideas() (envoy, nginx []string) {
	envoy = ideasOf(findings.Envoy, envoyconfig.Analyze("envoy.yaml", []byte(t.envoy())), func(p findings.Place) string {
		if !strings.Contains(p.Path, "virtual host ") && !strings.HasPrefix(p.Path, "filter_chains") {
			return "" // a listener's rules
		}
		return p.Listener
	})
	text := t.nginx()
	lines := strings.Split(text, "\n")
	nginx = ideasOf(findings.Nginx, nginxconfig.Analyze("nginx.conf", []byte(text), "rules.yaml", []byte(t.rules)),
		func(p findings.Place) string {
			for i := p.Line - 1; i >= 0 && p.Server != ""; i-- {
				if _, address, is := strings.Cut(lines[i], "listen "); is {
					_, port, _ := strings.Cut(address, ":800")
					return "s" + port[:1]
				}
			}
			return ""
		})
	return envoy, nginx
}

// compared are the ideas that both proxies' configurations can have by topology and rules.
var compared = []topology.Idea{topology.Unjudged, topology.ToPrivate, topology.ClientsChoose, topology.WeakerHost,
	topology.OpenRewrite, topology.SwitchedOff, topology.SetsIdentity, topology.OpenMethod, topology.OpenPart,
	topology.UnknownMethod, topology.Wildcard, topology.NotEnforced}

// TestAgree: both analyses find the same ideas at the same servers of generated topologies.
func TestAgree(t *testing.T) {
	found := map[string]int{}
	for seed := range uint64(400) {
		topo := generate(rand.New(rand.NewPCG(seed, 1)))
		a, b := topo.ideas()
		if !slices.Equal(a, b) {
			t.Errorf("seed %d: Envoy's %q, nginx's %q of\n%+v\n%s\n%s", seed, a, b, topo, topo.envoy(), topo.nginx())
		}
		for _, idea := range append(a, "nothing")[:max(len(a), 1)] {
			found[strings.Fields(idea)[0]]++
		}
	}
	t.Log(found)
	for _, idea := range append(compared, topology.Idea{{Code: "nothing"}}) {
		if code := idea[findings.Envoy].Code; found[code] < 10 {
			t.Errorf("%s is found in %d topologies: want 10 at least", code, found[code])
		}
	}
}
