package bypass

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// Ways by which nginx itself requests another path than the client's: internal redirects, subrequests, and Lua.

const judge = `require("gatehouse.edge").access()`

// named makes a location of a name that asks upstream for a path.
func (g *ngen) named(path string) string {
	name := "@" + g.uniqueWord("inside")
	g.location("%s { %s }", name, pick(g.gen, fmt.Sprintf("rewrite ^ %s break; %s", path, pass),
		fmt.Sprintf("set $path %s; proxy_pass http://service$path;", path),
		fmt.Sprintf("try_files /none %s;", path), fmt.Sprintf("rewrite ^ %s last;", path)))
	return name
}

// copyLocation makes a location for subrequests that ask upstream for a path.
func (g *ngen) copyLocation(path string) string {
	name := "/" + g.uniqueWord("copy")
	g.location("%s%s { internal; %s proxy_pass http://service%s; }", pick(g.gen, "= ", "", "^~ "), name, cleared, path)
	return name
}

// redirects are lines of a location that turn the location's requests into requests for a path.
var redirects = []func(g *ngen, path string) string{
	func(g *ngen, path string) string { return "root DIR; error_page 404 = " + path + ";" },
	func(g *ngen, path string) string { return "root DIR; set $to " + path + "; error_page 404 = $to;" },
	func(g *ngen, path string) string { return "error_page 403 =200 " + path + "; deny all;" },
	func(g *ngen, path string) string { return "error_page 418 " + path + "; return 418;" },
	func(g *ngen, path string) string { return "root DIR; error_page 404 = " + g.named(path) + ";" },
	func(g *ngen, path string) string { return "root DIR; try_files $uri " + path + ";" },
	func(g *ngen, path string) string { return "root DIR; set $to " + path + "; try_files $uri $to;" },
	func(g *ngen, path string) string { return "root DIR; try_files $uri $uri/ " + g.named(path) + ";" },
	func(g *ngen, path string) string { return "rewrite ^ " + path + " last;" },
	func(g *ngen, path string) string {
		return fmt.Sprintf(`content_by_lua_block { ngx.exec("%s") }`, path)
	},
	func(g *ngen, path string) string {
		return fmt.Sprintf(`content_by_lua_block { --[==[ } ]==] local to = '%s' return ngx.exec(to) }`, path)
	},
	func(g *ngen, path string) string {
		return fmt.Sprintf(`content_by_lua_block { ngx.exec("%s") }`, g.named(path))
	},
	func(g *ngen, path string) string {
		return fmt.Sprintf(`content_by_lua_block { ngx.print(ngx.location.capture("%s").body) }`, path)
	},
	func(g *ngen, path string) string {
		return fmt.Sprintf(`content_by_lua_block { ngx.print(ngx.location.capture_multi{ { [[%s]] } }.body) }`, path)
	},
	func(g *ngen, path string) string {
		return fmt.Sprintf(`access_by_lua_block { %s ngx.location.capture("%s") } %s`, judge, path, pass)
	},
	func(g *ngen, path string) string {
		return fmt.Sprintf(`rewrite_by_lua_block { ngx.req.set_uri("%s"%s) } %s`, path, pick(g.gen, "", ", true"), pass)
	},
	func(g *ngen, path string) string { return "mirror " + path + "; " + pass },
	func(g *ngen, path string) string { return "mirror " + g.copyLocation(path) + "; " + pass },
	func(g *ngen, path string) string { return "auth_request " + path + "; " + pass },
	func(g *ngen, path string) string { return "auth_request " + g.copyLocation(path) + "; " + pass },
	func(g *ngen, path string) string { return "add_before_body " + path + "; addition_types *; " + pass },
	func(g *ngen, path string) string {
		return fmt.Sprintf(`if ($request_method = GET) { error_page 404 = %s; } root DIR;`, path)
	},
}

// addInside adds a location whose requests become requests for a path.
func (g *ngen) addInside(path string, redirect func(*ngen, string) string) {
	lines := redirect(g, path)
	if g.chance(20) {
		lines = g.includeFile(lines)
	}
	location := pick(g.gen, "/missing/", "/missing", "= /missing/x", "^~ /missing/x", "~ ^/missing/",
		"~* ^/Missing/(.*)$", "~ g/x$", "~ (missing|none)")
	if strings.HasPrefix(path, "/open/") { // has another place than a bypass
		location = strings.NewReplacer("issing", "oved", "/x", "/y").Replace(location)
	}
	g.location("%s { %s }", location, lines)
}

// to is inside for lines with a path, for a list of bypasses.
func to(format string) func(*ngen) {
	return func(g *ngen) {
		g.addInside("/secret/x", func(_ *ngen, path string) string { return strings.ReplaceAll(format, "TO", path) })
	}
}

var insideBypasses = []nginxBypass{
	{"a redirect inside", func(g *ngen) { g.addInside("/secret/x", pick(g.gen, redirects...)) }},
	{"ngx.exec", to(`content_by_lua_block { ngx.exec("TO") }`)},
	{"ngx.location.capture", to(`content_by_lua_block { ngx.print(ngx.location.capture("TO").body) }`)},
	{"ngx.location.capture in the access phase", to(`access_by_lua_block { ` + judge + ` ngx.location.capture("TO") } ` +
		pass)},
	{"ngx.exec to what the client names", func(g *ngen) {
		g.location(`~ ^/any(/.*)$ { content_by_lua_block { ngx.exec(%s) } }`, pick(g.gen, `ngx.var[1]`,
			`(ngx.var.uri:gsub("^/any", ""))`, `ngx.var.uri:sub(5)`))
	}},
	{"ngx.req.set_uri", to(`rewrite_by_lua_block { ngx.req.set_uri("TO") } ` + pass)},
	{"ngx.req.set_uri behind", to(`access_by_lua_block { ` + judge + ` ngx.req.set_uri("TO") } ` + pass)},
	{"ngx.req.set_method", func(g *ngen) {
		g.location(`/v1/orders { access_by_lua_block { %s ngx.req.set_method(ngx.HTTP_POST) } %s }`, judge, pass)
	}},
	{"an identity by Lua", func(g *ngen) {
		g.location(`/missing/ { access_by_lua_block { %s ngx.req.set_header("X-Gatehouse-Device", %s) } %s }`, judge,
			pick(g.gen, `"root"`, `ngx.var.http_x_user`), pass)
	}},
	{"the call in a text", func(g *ngen) {
		g.location(`/secret/ { access_by_lua_block { local s = %s } %s }`,
			pick(g.gen, `[==[ `+judge+` ]==]`, `'`+judge+`'`, `[[]] .. [=[`+judge+`]=]`), pass)
	}},
	{"the call in a comment", func(g *ngen) {
		g.location(`/secret/ { access_by_lua_block { %s } %s }`,
			pick(g.gen, `--[==[ ]] } `+judge+` ]=] ]==]`, "-- "+judge+"\n", `local a = "\"--[[" --[[ `+judge+` ]]`,
				"--[ "+judge+" ]]\n"), pass)
	}},
	{"balancer_by_lua", func(g *ngen) {
		name := g.uniqueWord("by")
		g.others += fmt.Sprintf(`upstream %s { server 0.0.0.1; balancer_by_lua_block { %s } }`+"\n", name,
			pick(g.gen, `require("ngx.balancer").set_current_peer("SERVICEHOST", SERVICEPORT)`,
				`local b = require "ngx.balancer" b.set_current_peer("SERVICEHOST:SERVICEPORT")`,
				`local host, port = 'SERVICEHOST', SERVICEPORT require("ngx.balancer").set_current_peer(host, port)`))
		g.server("location / { proxy_pass http://%s; }", name)
	}},
	{"an upstream by Lua", func(g *ngen) {
		g.server("location / { %s proxy_pass http://$to; }", pick(g.gen, `set_by_lua_block $to { return "service" }`,
			`set $to ""; rewrite_by_lua_block { ngx.var.to = "service" }`,
			`set $to ""; access_by_lua_block { ngx.var["to"] = 'SERVICE' }`, `set_by_lua $to "return 'service'";`))
	}},
	{"index", func(g *ngen) { g.location("/open/ { alias DIR/; index none.html /secret/x; }") }},
	{"index of a server", func(g *ngen) {
		g.inServer += "index none.html /secret/x;\n"
		g.location("/open/ { alias DIR/; }")
	}},
	{"auth_request with forged headers, by an expression", func(g *ngen) {
		g.location("/missing/ { auth_request /asked/x; %s }", pass)
		g.location("~ ^/asked/ { internal; proxy_pass http://service; }")
	}},
	{"auth_request with forged headers, of a server", func(g *ngen) {
		g.inServer += "auth_request /asked/x;\n"
		g.location("/asked { location /asked/ { internal; proxy_pass http://service; } }")
	}},
	{"a pass in an if", func(g *ngen) {
		g.server("location / { if ($request_method = GET) { proxy_pass http://service; } root DIR; }")
	}},
	{"a pass in a limit_except", func(g *ngen) {
		g.server("location / { limit_except POST { proxy_pass http://service; } proxy_pass http://other; }")
	}},
	{"an included location", func(g *ngen) {
		g.inServer += g.includeFile("location /public/ { proxy_pass http://service/; }") + "\n"
	}},
	{"an included server", func(g *ngen) {
		port := g.takePort()
		g.ports = append(g.ports, port)
		g.others += fmt.Sprintf("server { listen 0.0.0.0:%d; %s }\n", port,
			g.includeFile("location / { proxy_pass http://service; }"))
	}},
	{"two redirects inside", func(g *ngen) {
		g.location("/missing/ { rewrite ^/missing/(.*)$ /between/$1 last; }")
		g.location("/between/ { internal; proxy_pass http://service/secret/; }")
	}},
}

var insideVariations = []func(*ngen){
	func(g *ngen) { g.addInside("/open/x", pick(g.gen, redirects...)) },
	func(g *ngen) { g.addInside("/open/y", pick(g.gen, redirects...)) },
	func(g *ngen) { // nginx sends the client's target upstream
		require.NoError(g.w.t, os.MkdirAll(filepath.Join(g.w.dir, "secret"), 0o700))
		require.NoError(g.w.t, os.WriteFile(filepath.Join(g.w.dir, "secret", "x"), nil, 0o600))
		g.location("/tried/ { root DIR; try_files %s =404; %s }", pick(g.gen, "/secret/x", "/none /secret/x"), pass)
	},
	func(g *ngen) { g.location(`/said/ { content_by_lua_block { ngx.say("/secret/x") } }`) },
	func(g *ngen) {
		g.location("/long/ { access_by_lua_block { --[==[ } ]] ]==] %s local s = [=[ } ]=] } %s }", judge, pass)
	},
	func(g *ngen) {
		g.location(`/marked/ { access_by_lua_block { %s ngx.req.set_header("X-Path", "1") } %s }`, judge, pass)
	},
	func(g *ngen) {
		name := g.uniqueWord("by")
		g.others += fmt.Sprintf(`upstream %s { server 0.0.0.1; balancer_by_lua_block { `+
			`require("ngx.balancer").set_current_peer("127.0.0.1", 1) } }`+"\n", name)
		g.server("location / { proxy_pass http://%s; }", name)
	},
	func(g *ngen) {
		g.server(`location / { set_by_lua_block $to { return "other" } proxy_pass http://$to; }`)
	},
	func(g *ngen) { g.inServer += g.includeFile("location /part/ { "+pass+" }") + "\n" },
	func(g *ngen) { g.location("/dir/ { alias DIR/; index none.html /open/x; }") },
}

// wildInside adds a redirect whose effect only the real nginx knows.
func (g *ngen) wildInside() {
	g.addInside(pick(g.gen, "/secret/x", "/v1/me/config", "/v1/admin/health", "/v1/orders", "/none", "/secret",
		"/missing/y"), pick(g.gen, redirects...))
}
