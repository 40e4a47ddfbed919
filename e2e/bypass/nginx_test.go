package bypass

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// nginxRules protect all resources, except for an open host: nginx has one set of rules.
const nginxRules = `
credentials: {id_header: x-device-id, secret_header: x-device-token}
rules:
- {match: {path: /v1/admin/health}}
- {match: {prefix: /v1/admin/}, auth: {}}
- {match: {path: /v1/me/config}, auth: {}, cache: {scope: device}}
- {match: {path: /v1/orders, methods: [POST]}, auth: {}}
- {match: {prefix: /v1/telemetry/, methods: [POST, PUT]}, auth: {}}
- {match: {prefix: /secret/}, auth: {}}
- {match: {path: /v1/fleet/config}, auth: {permissions: [admin]}}
- {match: {prefix: /v1/products/}, cache: {query: [lang]}}
virtual_hosts:
  pub: {domains: [pub.example, "*.pub.example"], rules: [{match: {prefix: /}}]}
`

// nginx is the world with nginx.
type nginx struct {
	*world
	base     string    // the shipped nginx.conf, with what all configurations need
	deployed []*config // at the next start
}

const (
	serverConf = "include PLUGIN/server.conf;\n"
	pass       = "proxy_pass http://service; proxy_http_version 1.1; proxy_set_header Connection $gatehouse_connection; " +
		"proxy_set_header Host $gatehouse_host;"
	cleared = `proxy_set_header X-Gatehouse-Device ""; proxy_set_header X-Gatehouse-Permissions "";`
)

// ngen makes one configuration of nginx.
type ngen struct {
	*gen
	locations, inServer, others string
	pub                         string // the server of the same port for the open host
}

// location adds a location, unless its name exists.
func (g *ngen) location(format string, args ...any) {
	text := "location " + fmt.Sprintf(format, args...) + "\n"
	if name, _, _ := strings.Cut(text, "{"); !strings.Contains("\n"+g.locations, "\n"+name+"{") {
		g.locations += text
	}
}

// server adds a server of the network, and a server on the same port for the open host.
func (g *ngen) server(format string, args ...any) {
	g.serve(named("pub.example *.Pub.example", "location / { proxy_pass http://other; }"), fmt.Sprintf(format, args...))
}

// serve adds a server of the network, and a second server on the same port, "" for none.
func (g *ngen) serve(named, text string) {
	port := g.takePort()
	g.ports = append(g.ports, port)
	servers := []string{fmt.Sprintf("server { listen 0.0.0.0:%d default_server;\n%s }\n", port, text)}
	if named != "" {
		servers = append(servers, fmt.Sprintf("server { listen 0.0.0.0:%d;\n%s }\n", port, named))
		if g.chance(50) {
			slices.Reverse(servers)
		}
	}
	g.others += strings.Join(servers, "")
}

// named is a server with names and the plugin.
func named(names, text string) string { return "server_name " + names + ";\n" + serverConf + text }

func generateNginx(w *nginx, seed uint64, n int, ports []int) *config {
	g := &ngen{gen: newGen(w.world, seed, n, ports)}
	g.pub = named("pub.example *.pub.example", "location / { proxy_pass http://other; }")
	for _, i := range []int{0, 2, 3, 4, 5, 6} {
		g.protected = append(g.protected, resources[i])
	}
	for _, i := range g.Perm(len(nginxVariations))[:g.IntN(5)] {
		nginxVariations[i](g)
	}
	switch n % 3 {
	case 0:
		g.kind = "clean"
	case 1:
		g.kind = "bypass"
		bypass := nthBypass(nginxBypasses, seed, n)
		g.bypasses = []string{bypass.name}
		bypass.open(g)
	default:
		g.kind = "wild"
		for range 1 + g.IntN(3) {
			g.addWild()
		}
	}
	g.location("/ { %s }", pass)
	others := g.others
	g.serve(g.pub, g.inServer+serverConf+g.locations)
	g.servers = strings.TrimPrefix(g.others, others) + others
	g.servers, g.streams = w.fillPlaceholders(g.servers), w.fillPlaceholders(g.streams)
	g.text = w.configWith(g.servers, g.streams)
	g.read.readNginx(g.servers)
	return g.config
}

var nginxPaths = regexp.MustCompile(`(?:location|rewrite|proxy_pass)[ =~^*]+(?:http://\w+)?(\^?/[^ ;]*)`)

var nginxNames = regexp.MustCompile(`server_name ([^~;]*);`)

// readNginx reads the paths and hosts of a configuration.
func (r *reader) readNginx(text string) {
	r.domains = []string{"pub.example", "*.pub.example", "edge.example"}
	for _, m := range nginxNames.FindAllStringSubmatch(text, -1) {
		r.domains = append(r.domains, strings.Fields(m[1])...)
	}
	for _, m := range nginxPaths.FindAllStringSubmatch(text, -1) {
		if strings.ContainsAny(m[1], "^$(*") {
			r.regexes = append(r.regexes, m[1])
		} else {
			r.heads = append(r.heads, m[1])
		}
	}
}

func (w *world) repositoryRoot() string {
	root, err := stack.Root()
	require.NoError(w.t, err)
	return root
}

// fillPlaceholders replaces placeholders by this machine's values.
func (w *world) fillPlaceholders(text string) string {
	host, port, _ := strings.Cut(w.service, ":")
	return strings.NewReplacer("PLUGIN", filepath.Join(w.repositoryRoot(), "nginx"), "DIR", w.dir, "SERVICEHOST", host,
		"SERVICEPORT", port, "SERVICE", w.service, "ELSEWHERE", w.other, "APISOCK", w.apiSocket, "PUSHSOCK", w.pushSocket,
		"OPERATORS", w.adminAddress).Replace(text)
}

// configWith returns the shipped configuration with these servers of http and stream.
func (w *nginx) configWith(servers, streams string) string {
	text := strings.Replace(w.base, "  # The push listener:", servers+"  # The push listener:", 1)
	if streams != "" {
		text = "load_module " + stack.NginxModules + "/ngx_stream_module.so;\n" +
			strings.Replace(text, "http {\n", "stream {\n"+streams+"}\nhttp {\n", 1)
	}
	return text
}

var nginxVariations = slices.Concat(httpVariations, streamVariations, insideVariations)

var httpVariations = []func(*ngen){
	func(g *ngen) { g.location("/static/ { proxy_pass http://other/; }") },
	func(g *ngen) { g.location("/img/ { proxy_pass http://other/v1/; }") },
	func(g *ngen) { g.location("/old/ { rewrite ^/old/(.*)$ /new/$1 last; }") },
	func(g *ngen) { g.location("/moved/ { return 301 /v1/; }") },
	func(g *ngen) { g.location("= /healthz { return 200 ok; }") },
	func(g *ngen) { g.location("/files/ { alias DIR/; try_files $uri =404; }") },
	func(g *ngen) {
		g.location("= /50x.html { root DIR; }")
		g.inServer += "error_page 500 502 /50x.html;\n"
	},
	func(g *ngen) {
		g.location("/v1/admin/ { error_page 404 = @back; proxy_intercept_errors on; %s }", pass)
		g.location("@back { %s }", pass)
	},
	func(g *ngen) {
		g.inServer += "error_page 400 401 403 405 413 500 503 = @refused;\n"
		g.location("@refused { %s }", pass)
	},
	func(g *ngen) {
		g.location("/exit/ { error_page 400 = @exit; rewrite_by_lua_block { ngx.exit(400) } %s }", pass)
		g.location("@exit { %s }", pass)
	},
	func(g *ngen) {
		g.location("/exit/ { error_page 400 403 = @exit; access_by_lua_block { require(\"gatehouse.edge\").access() "+
			"if ngx.var.arg_a then ngx.exit(400) end } %s }", pass)
		g.location("@exit { %s }", pass)
	},
	func(g *ngen) { g.location("/v1/ { location /v1/products/ { %s } %s }", pass, pass) },
	func(g *ngen) {
		g.location("/asked/ { auth_request /auth; %s }", pass)
		g.location("= /auth { internal; %s proxy_pass http://other; }", cleared)
	},
	func(g *ngen) {
		g.location("/copied/ { mirror /copy; %s }", pass)
		g.location("= /copy { internal; proxy_pass http://other; }")
	},
	func(g *ngen) {
		g.others += fmt.Sprintf("server { listen 127.0.0.1:%d; location / { proxy_pass http://service; } }\n", g.takePort())
	},
	func(g *ngen) { g.server("location / { proxy_pass http://other; }") },
	func(g *ngen) { g.server("location / { return 200 ok; }") },
	func(g *ngen) {
		g.server("deny 192.0.2.1; allow 192.0.2.0/24; deny all; location / { proxy_pass http://service; }")
	},
	func(g *ngen) { g.server(serverConf+"location / { %s }", pass) },
	func(g *ngen) { g.pub = named(".pub.example", "location / { proxy_pass http://other; }") },
	func(g *ngen) { g.pub = named("~^(.+\\.)?pub\\.example$", "location / { proxy_pass http://other; }") },
	func(g *ngen) {
		g.pub = named("pub.example *.pub.example", "location / { return 200 ok; } location /open/ { "+pass+" }")
	},
	func(g *ngen) { g.server("location /open/ { %s proxy_pass http://service; }", cleared) },
	func(g *ngen) { g.inServer += "underscores_in_headers on;\n" },
	func(g *ngen) { g.inServer += "if ($arg_none) { set $none 1; }\n" },
	func(g *ngen) { g.location("/path/ { proxy_set_header X-Path $request_uri; %s }", pass) },
	func(g *ngen) {
		g.location("/called/ { access_by_lua_block { require(\"gatehouse.edge\").access() } %s }", pass)
	},
	func(g *ngen) { g.location("/v1/orders { limit_except POST { allow all; } %s }", pass) },
}

type nginxBypass struct {
	name string
	open func(*ngen)
}

var nginxBypasses = slices.Concat(httpBypasses, streamBypasses, insideBypasses)

var httpBypasses = []nginxBypass{
	{"a server without the plugin", func(g *ngen) { g.server("location / { proxy_pass http://service; }") }},
	{"a server without the plugin, by address", func(g *ngen) { g.server("location / { proxy_pass http://SERVICE; }") }},
	{"a server with a deny line", func(g *ngen) { g.server("deny 192.0.2.1; location / { proxy_pass http://service; }") }},
	{"a server that allows halves", func(g *ngen) {
		g.server("allow 0.0.0.0/1; allow 128.0.0.0/1; deny all; location / { proxy_pass http://service; }")
	}},
	{"a server that clears the headers", func(g *ngen) {
		g.server("location / { %s proxy_pass http://service; }", cleared)
	}},
	{"a server that clears the headers and rewrites", func(g *ngen) {
		g.server("location /open/ { %s proxy_pass http://service/; }", cleared)
	}},
	{"a server for open paths", func(g *ngen) { g.server("location /open/ { proxy_pass http://service; }") }},
	{"a server that names the device", func(g *ngen) {
		g.server("location /open/ { %s proxy_pass http://service; }", strings.ReplaceAll(cleared, `""`, "root"))
	}},
	{"access_by_lua of a location", func(g *ngen) { g.location("/secret/ { access_by_lua_block { } %s }", pass) }},
	{"access_by_lua of a nested location", func(g *ngen) {
		g.location("/v1 { %s location /v1/me { access_by_lua_block { } %s } }", pass, pass)
	}},
	{"an open host of the same service", func(g *ngen) { g.pub = "" }},
	{"an open host of the same service, by name", func(g *ngen) {
		g.pub = named("pub.example *.pub.example", "location / { "+pass+" }")
	}},
	{"an open host of the same service, by rewriting", func(g *ngen) {
		g.pub = named("pub.example *.pub.example", "location /public/ { proxy_pass http://service/; }")
	}},
	{"more open hosts than a server has names", func(g *ngen) {
		g.pub = named("pub.example", "location / { proxy_pass http://other; }")
	}},
	{"an upstream by a map of the host", func(g *ngen) {
		g.pub = ""
		g.location("/ { proxy_pass http://$by_host; }")
	}},
	{"satisfy any", func(g *ngen) { g.location("/secret/ { satisfy any; allow all; %s }", pass) }},
	{"rewrite, last", func(g *ngen) { g.location("/public/ { rewrite ^/public/(.*)$ /$1 last; }") }},
	{"rewrite, break", func(g *ngen) { g.location("/public/ { rewrite ^/public/(.*)$ /$1 break; %s }", pass) }},
	{"rewrite in the server", func(g *ngen) { g.inServer += "rewrite ^/public/(.*)$ /secret/$1 last;\n" }},
	{"proxy_pass with a path", func(g *ngen) { g.location("/public/ { proxy_pass http://service/; }") }},
	{"proxy_pass with a captured path", func(g *ngen) {
		g.location("~ ^/public/(.*)$ { proxy_pass http://service/$1; }")
	}},
	{"error_page", func(g *ngen) { g.location("= /missing { root DIR; error_page 404 = /v1/me/config; }") }},
	{"error_page after an exit", func(g *ngen) {
		g.location("/exit/ { error_page 400 = @bare; rewrite_by_lua_block { ngx.exit(400) } }")
		g.location("@bare { access_by_lua_block { } %s }", pass)
	}},
	{"try_files", func(g *ngen) { g.location("/missing/ { root DIR; try_files $uri /secret/x; }") }},
	{"mirror", func(g *ngen) { g.location("/missing/ { mirror /secret/x; %s }", pass) }},
	{"add_after_body", func(g *ngen) { g.location("/missing/ { add_after_body /secret/x; addition_types *; %s }", pass) }},
	{"auth_request", func(g *ngen) { g.location("/missing/ { auth_request /secret/x; %s }", pass) }},
	{"auth_request with forged headers", func(g *ngen) {
		g.location("/missing/ { auth_request /asked; %s }", pass)
		g.location("= /asked { internal; proxy_pass http://service; }")
	}},
	{"a device for all", func(g *ngen) {
		g.location("/missing/ { proxy_set_header X-Gatehouse-Device root; proxy_pass http://service; }")
	}},
	{"a device of the client's choice", func(g *ngen) {
		g.location("/missing/ { proxy_set_header X-Gatehouse-Device $http_x_user; proxy_pass http://service; }")
	}},
	{"line ends in a header", func(g *ngen) {
		g.location("/missing/ { proxy_set_header X-Path $uri; proxy_pass http://service; }")
	}},
	{"the sidecar", func(g *ngen) { g.location("/side/ { proxy_pass http://unix:APISOCK:/; }") }},
	{"the push listener", func(g *ngen) { g.location("/side/ { proxy_pass http://unix:PUSHSOCK:/; }") }},
	{"the server for operators", func(g *ngen) { g.location("/side/ { proxy_pass http://OPERATORS/; }") }},
	{"an upstream of the client's choice", func(g *ngen) {
		g.location("~ ^/any(/.*)$ { proxy_pass http://$http_x_envoy_original_dst_host$1; }")
	}},
	{"another method", func(g *ngen) { g.location("/v1/orders { proxy_method POST; %s }", pass) }},
	{"h2c", func(g *ngen) {
		g.location("/open { proxy_pass http://service; proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; " +
			"proxy_set_header Connection $http_connection; }")
	}},
	{"a cache", func(g *ngen) {
		g.location(
			"/secret/ { proxy_cache answers; proxy_cache_valid 200 1m; proxy_ignore_headers Vary Cache-Control; %s }", pass)
	}},
}

func (g *ngen) addWild() {
	prefixes := []string{"/public/", "/v1/", "/api", "/secret/", "/v1/me/", "/a/b/", "/x"}
	from, to := pick(g.gen, prefixes...), pick(g.gen, append(prefixes, "/")...)
	switch g.IntN(12) {
	case 8, 9, 10:
		g.wildInside()
	case 11:
		g.wildStream()
	case 0:
		g.location("%s { rewrite ^%s(.*)$ %s$1 %s; %s }", from, from, to, pick(g.gen, "last", "break"), pass)
	case 1:
		g.location("%s { proxy_pass http://%s%s; }", from, pick(g.gen, "service", "service", "other"), to)
	case 2:
		g.location("= %s { proxy_pass http://service%s; }", strings.TrimSuffix(from, "/")+"/y",
			pick(g.gen, "/v1/me/config", "/secret/x", "/none"))
	case 3:
		g.server("location %s { %s proxy_pass http://service%s; }", from, cleared, pick(g.gen, "", to))
	case 4:
		g.location("%s { access_by_lua_block { } %s }", from, pick(g.gen, pass, "return 404;"))
	case 5, 6:
		text := fmt.Sprintf("location %s { proxy_pass http://%s%s; }", pick(g.gen, "/", "/", from),
			pick(g.gen, "service", "other"), pick(g.gen, "", "", to))
		g.pub = named(pick(g.gen, "pub.example", "*.pub.example", ".pub.example", "*.example", "pub.*", "a.pub.example",
			"~^[a-z]+\\.pub\\.example$", ".pub.example other.test"), text)
	default:
		g.location("%s { error_page %s = %s; proxy_intercept_errors on; root DIR; }", from,
			pick(g.gen, "404", "400 401 403 404 503"), pick(g.gen, "/secret/x", "/none", "@none"))
		g.location("@none { %s }", pass)
	}
}

func newNginx(t *testing.T) *nginx {
	t.Helper()
	w := &nginx{world: startUpstreams(t)}
	service := regexp.MustCompile(`server 127[.0-9:]*;`)
	var err error
	w.Stack, err = stack.Start(t.Context(), stack.Options{
		Dir: filepath.Join(w.dir, "stack"), Concurrency: 1, Seed: seedRedis, EdgeKind: stack.NginxEdge, Rules: nginxRules,
		ModifyNginx: func(config string) string {
			w.base = strings.Replace(service.ReplaceAllString(config, "server "+w.service+";"), "  upstream service {",
				fmt.Sprintf("  map $http_host $by_host { pub.example other; default service; }\n"+
					"  proxy_cache_path %s/cache keys_zone=answers:1m;\n  upstream other { server %s; }\n  upstream "+
					"service {", w.dir, w.other), 1)
			servers, streams := "", ""
			for _, c := range w.deployed {
				servers, streams = servers+c.servers, streams+c.streams
			}
			return strings.ReplaceAll(w.configWith(servers, streams), "listen 0.0.0.0:", "listen "+networkAddress+":")
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Stop()) })
	w.adminAddress = strings.TrimPrefix(w.EnvoyAdminURL(), "http://")
	w.apiSocket, w.pushSocket = w.APISocket(), w.PushSocket()
	return w
}

// deploy makes nginx serve these configurations only.
func (w *nginx) deploy(configs []*config) {
	w.deployed = configs
	require.NoError(w.t, w.KillEdge())
	require.NoError(w.t, w.StartEdge(w.t.Context()))
	require.NoError(w.t, w.AwaitReady(w.t.Context()))
}

func TestNginx(t *testing.T) {
	t.Parallel()
	w := newNginx(t)
	seed, numbers := seedAndNumbers(t)
	n := newTally()
	set := reservePorts(t, batch*ports)
	for len(numbers) > 0 {
		size := min(batch, len(numbers))
		var all []*config
		for j, number := range numbers[:size] {
			all = append(all, generateNginx(w, seed, number, set[j*ports:(j+1)*ports]))
		}
		numbers = numbers[size:]
		w.deploy(all)
		for _, c := range all {
			w.judgeConfig(c, n)
		}
	}
	n.report(t)
}
