package bypass

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// networkListen returns a network address for a stream. If names are given, the prober asks for the names by TLS.
func (g *ngen) networkListen(names ...string) string {
	port := g.takePort()
	g.ports, g.streamed[port] = append(g.ports, port), true
	if names != nil {
		g.names[port] = names
	}
	return fmt.Sprintf("0.0.0.0:%d", port)
}

// loopbackListen returns an address that only this machine reaches.
func (g *ngen) loopbackListen() string {
	port := g.takePort()
	return pick(g.gen, fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("unix:DIR/%d-%d.sock", g.n, port))
}

// proxyURL returns an address in the form for a proxy_pass of http.
func proxyURL(address string) string {
	if strings.HasPrefix(address, "unix:") {
		address += ":"
	}
	return "http://" + address
}

// stream adds a server of the stream block.
func (g *ngen) stream(listen, format string, args ...any) {
	g.streams += fmt.Sprintf("server { listen %s; %s }\n", listen, fmt.Sprintf(format, args...))
}

const tlsLines = " ssl_certificate DIR/cert.pem; ssl_certificate_key DIR/key.pem;"

// uniqueWord makes a word unique in a batch.
func (g *ngen) uniqueWord(word string) string {
	return fmt.Sprintf("%s_%d_%06d", word, g.n, g.IntN(1_000_000))
}

// includeFile writes a file, and returns the directive that includes it.
func (g *ngen) includeFile(text string) string {
	name := g.uniqueWord("part") + ".conf"
	require.NoError(g.w.t, os.WriteFile(filepath.Join(g.w.dir, name), []byte(g.w.fillPlaceholders(text)), 0o600))
	return "include DIR/" + pick(g.gen, name, strings.Replace(name, ".", "*.", 1)) + ";"
}

// leadTo returns lines of a stream server that leads to an address.
func (g *ngen) leadTo(to string) string {
	name := g.uniqueWord("to")
	by := func(format string, args ...any) string {
		g.streams += fmt.Sprintf(format, args...)
		return "proxy_pass $" + name + ";"
	}
	switch g.IntN(9) {
	case 0:
		g.streams += fmt.Sprintf("upstream %s { server %s; }\n", strings.ToUpper(name), to)
		return "proxy_pass " + name + ";"
	case 1:
		g.streams += fmt.Sprintf("upstream %s { server %s; }\n", name, to)
		return by("map $remote_addr $%s { volatile; default %s; }\n", name, name)
	case 2:
		return by("geo $%s { default %s; }\n", name, to)
	case 3:
		return by("split_clients $remote_port $%s { 50%% %s; * %s; }\n", name, to, to)
	case 4:
		return by(`map $protocol $%s { "~^T(.*)" %s; }`+"\n", name, to)
	case 5:
		return fmt.Sprintf("set $%s %s; proxy_pass $%s;", name, to, name)
	case 6:
		return g.includeFile("proxy_pass " + to + ";")
	case 7:
		return by("map $server_port $%s { %s }\n", name, g.includeFile("default "+to+";"))
	}
	return "proxy_pass " + to + ";"
}

// addHops returns an address of this machine from which up to two streams lead to another address.
func (g *ngen) addHops(to string) string {
	for range 1 + g.IntN(2) {
		at := g.loopbackListen()
		g.stream(g.writeRange(at), "%s", g.leadTo(to))
		to = at
	}
	return to
}

// writeRange may write an address as a range of ports.
func (g *ngen) writeRange(address string) string {
	if i := strings.LastIndexByte(address, ':'); g.chance(30) && !strings.HasPrefix(address, "unix:") {
		return address + "-" + address[i+1:]
	}
	return address
}

var streamBypasses = []nginxBypass{
	{"a stream", func(g *ngen) { g.stream(g.networkListen(), "%s", g.leadTo("SERVICE")) }},
	{"a chain of streams", func(g *ngen) { g.stream(g.networkListen(), "%s", g.leadTo(g.addHops("SERVICE"))) }},
	{"a stream that allows halves", func(g *ngen) {
		g.stream(g.networkListen(), "allow 0.0.0.0/1; allow 128.0.0.0/1; deny all; %s", g.leadTo("SERVICE"))
	}},
	{"a stream by the server name", func(g *ngen) {
		name := g.uniqueWord("by")
		g.streams += fmt.Sprintf("map $ssl_server_name $%s { bypass.example SERVICE; default ELSEWHERE; }\n", name)
		g.stream(g.networkListen("bypass.example")+" ssl", tlsLines+" proxy_pass $%s;", name)
	}},
	{"streams by the server name that is read before", func(g *ngen) {
		name, at := g.uniqueWord("by"), g.loopbackListen()
		g.streams += fmt.Sprintf("map $ssl_preread_server_name $%s { hostnames; *.bypass.example %s; default ELSEWHERE; }\n",
			name, at)
		g.stream(g.networkListen("a.bypass.example"), "ssl_preread on; proxy_pass $%s;", name)
		g.stream(at+" ssl", tlsLines+" %s", g.leadTo("SERVICE"))
	}},
	{"a stream to a server without the plugin", func(g *ngen) {
		at := g.loopbackListen()
		g.others += fmt.Sprintf("server { listen %s; location / { proxy_pass http://service; } }\n", g.writeRange(at))
		g.stream(g.networkListen(), "%s", g.leadTo(at))
	}},
	{"a server without the plugin to a stream", func(g *ngen) {
		g.server("location / { proxy_pass %s; }", proxyURL(g.addHops("SERVICE")))
	}},
	{"a stream behind the plugin, and a way around both", func(g *ngen) {
		g.location("/ { %s }", strings.Replace(pass, "http://service", proxyURL(g.addHops("SERVICE")), 1))
		g.server("location / { proxy_pass http://SERVICE; }")
	}},
	{"a server behind the plugin, and a way around both", func(g *ngen) {
		at := g.loopbackListen()
		g.others += fmt.Sprintf("server { listen %s; location / { proxy_pass http://SERVICE; } }\n", at)
		g.location("/ { %s }", strings.Replace(pass, "http://service", proxyURL(at), 1))
		g.stream(g.networkListen(), "%s", g.leadTo("SERVICE"))
	}},
	{"an open host of the same service, by a stream", func(g *ngen) {
		g.pub = named("pub.example *.pub.example", "location / { proxy_pass "+proxyURL(g.addHops("SERVICE"))+"; }")
	}},
	{"a stream to the sidecar", func(g *ngen) { g.stream(g.networkListen(), "%s", g.leadTo("unix:APISOCK")) }},
	{"streams to the sidecar", func(g *ngen) { g.stream(g.networkListen(), "%s", g.leadTo(g.addHops("unix:APISOCK"))) }},
	{"a location to a stream to the sidecar", func(g *ngen) {
		g.location("/side/ { proxy_pass %s/; }", proxyURL(g.addHops("unix:APISOCK")))
	}},
	{"a stream to the server for operators", func(g *ngen) { g.stream(g.networkListen(), "%s", g.leadTo("OPERATORS")) }},
}

var streamVariations = []func(*ngen){
	func(g *ngen) { g.stream(g.networkListen(), "%s", g.leadTo("ELSEWHERE")) },
	func(g *ngen) { g.stream(g.networkListen(), "%s", g.leadTo(g.addHops("ELSEWHERE"))) },
	func(g *ngen) { g.stream(g.loopbackListen(), "%s", g.leadTo("SERVICE")) },
	func(g *ngen) { g.stream(g.networkListen(), "deny all; %s", g.leadTo("SERVICE")) },
	func(g *ngen) {
		g.location("/by/ { %s }", strings.Replace(pass, "http://service", proxyURL(g.addHops("SERVICE")), 1))
	},
	func(g *ngen) { // to a server with the plugin
		at := g.loopbackListen()
		g.others += fmt.Sprintf("server { listen %[1]s default_server; %[2]s location / { %[3]s } }\n"+
			"server { listen %[1]s; server_name .pub.example; location / { proxy_pass http://other; } }\n", at, serverConf, pass)
		g.stream(g.networkListen(), "%s", g.leadTo(at))
	},
	func(g *ngen) {
		name := g.uniqueWord("by")
		g.streams += fmt.Sprintf("map $ssl_server_name $%s { bypass.example 127.0.0.1:1; default ELSEWHERE; }\n", name)
		g.stream(g.networkListen("bypass.example", "a.example")+" ssl", tlsLines+" proxy_pass $%s;", name)
	},
}

// wildStream adds streams whose destination only the real nginx knows.
func (g *ngen) wildStream() {
	to := pick(g.gen, "SERVICE", "ELSEWHERE", "127.0.0.1:1", "unix:PUSHSOCK")
	for range g.IntN(3) {
		to = g.addHops(to)
	}
	listen := g.loopbackListen()
	if g.chance(50) {
		listen = g.networkListen()
	}
	g.stream(listen, "%s%s", pick(g.gen, "", "", "allow 192.0.2.0/24; deny all; "), g.leadTo(to))
}
