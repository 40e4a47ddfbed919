package nginxconfig

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// server.conf, and a location that sends requests upstream, as in most cases.
const (
	include = "include PLUGIN/server.conf;\n"
	plain   = include + "location / { proxy_pass http://service; }\n"
)

const forged = "X-Gatehouse-Device: root"

// bypasses are servers with a request for each. A real nginx shows the effect of the request. The analysis must find
// unjudged requests and changed answers, and nothing in harmless cases.
var bypasses = []struct {
	name, server   string
	method, target string
	headers        []string
	got            string   // part of nginx's answer, or of the requests to upstream or sidecar
	want           []string // codes
}{
	{"as shipped, no credential", plain, "GET", "/v1/secret", []string{forged}, "401 Unauthorized", nil},
	{"as shipped, a device", plain, "GET", "/v1/secret", append(device("d1"), forged), "/v1/secret device=d1", nil},
	{"as shipped, open", plain, "GET", "/open", []string{forged}, "/open device=\n", nil},

	// The access phase.
	{"own access_by_lua", include + "location / { access_by_lua_block { } proxy_pass http://service; }",
		"GET", "/v1/secret", []string{forged}, "/v1/secret device=root", []string{ownAccess.Code}},
	{"own access_by_lua of an open path", plain + "location /open { access_by_lua_block { } proxy_pass http://service; }",
		"GET", "/open", []string{forged}, "/open device=root", []string{ownAccess.Code}},
	{"own access_by_lua of files", plain + "location /v1/devices/ { access_by_lua_block { } alias DIR/; }",
		"GET", "/v1/devices/page.html", nil, "a page", []string{ownAccess.Code}},
	{"own access_by_lua in an if",
		include + "location / { if ($arg_x) { access_by_lua_block { } } proxy_pass http://service; }",
		"GET", "/v1/secret?x=1", []string{forged}, "/v1/secret?x=1 device=root", []string{ownAccess.Code}},
	{"own access_by_lua around a location",
		include + "location / { access_by_lua_block { } location /v1/ { proxy_pass http://service; } }",
		"GET", "/v1/secret", []string{forged}, "/v1/secret device=root", []string{ownAccess.Code}},
	{"own access_by_lua of a file", include + "location / { access_by_lua_file DIR/own.lua; proxy_pass http://service; }",
		"GET", "/v1/secret", []string{forged}, "/v1/secret device=root", []string{ownAccess.Code}},
	{"own access_by_lua around a part of a server",
		plain + "location /a/ { access_by_lua_block { } location /a/b/ { proxy_pass http://service; } }",
		"GET", "/a/b/", []string{forged}, "/a/b/ device=root", []string{ownAccess.Code}},
	{"own access_by_lua of a file that calls the plugin",
		include + "location / { access_by_lua_file DIR/plugin.lua; proxy_pass http://service; }",
		"GET", "/v1/secret", []string{forged}, "401 Unauthorized", nil},
	{"own access_by_lua that calls the plugin",
		include + "location / { access_by_lua_block { local x = '}' -- don't stop }\n require(\"gatehouse.edge\").access() " +
			"} proxy_pass http://service; }", "GET", "/v1/secret", []string{forged}, "401 Unauthorized", nil},
	{"own access_by_lua with the call in a comment",
		include + "location / { access_by_lua_block { -- require(\"gatehouse.edge\").access()\n } proxy_pass " +
			"http://service; }", "GET", "/v1/secret", []string{forged}, "/v1/secret device=root", []string{ownAccess.Code}},
	{"own access_by_lua with the call in a long comment",
		include + "location / { access_by_lua_block { --[[ later:\n require(\"gatehouse.edge\").access()\n ]] } " +
			"proxy_pass http://service; }", "GET", "/v1/secret", []string{forged}, "/v1/secret device=root",
		[]string{ownAccess.Code}},
	{"own access_by_lua with the call behind a long comment and dashes in a text",
		include + "location / { access_by_lua_block { --[==[ ]] --]==] local x = \"--\"; " +
			"require(\"gatehouse.edge\").access() } proxy_pass http://service; }", "GET", "/v1/secret", []string{forged},
		"401 Unauthorized", nil},
	{"limit_except", include + "location / { limit_except GET { allow all; } proxy_pass http://service; }",
		"POST", "/v1/secret", []string{forged, "Content-Length: 0"}, "401 Unauthorized", nil},
	{"satisfy any with allow", include + "location / { satisfy any; allow all; proxy_pass http://service; }",
		"GET", "/v1/secret", []string{forged}, "/v1/secret device=root", []string{satisfyAny.Code}},
	{"satisfy ANY", include + "location / { satisfy ANY; allow all; proxy_pass http://service; }",
		"GET", "/v1/secret", []string{forged}, "/v1/secret device=root", []string{satisfyAny.Code}},
	{"satisfy any with auth_request",
		include + "location / { satisfy any; auth_request /ok; proxy_pass http://service; } location = /ok { return 200; }",
		"GET", "/v1/secret", []string{forged}, "/v1/secret device=root", []string{satisfyAny.Code}},
	{"satisfy any alone", include + "location / { satisfy any; proxy_pass http://service; }",
		"GET", "/v1/secret", []string{forged}, "401 Unauthorized", nil},
	{"satisfy any around server.conf", "satisfy any; allow all; location / { " + include + " proxy_pass http://service; }",
		"GET", "/v1/secret", []string{forged}, "401 Unauthorized", nil},
	{"auth_basic", include + "location / { auth_basic x; auth_basic_user_file DIR/none; proxy_pass http://service; }",
		"GET", "/v1/secret", nil, "401 Unauthorized", nil},
	{"server without server.conf", "location / { proxy_pass http://service; } location /judged { " +
		include + " proxy_pass http://service; }", "GET", "/v1/secret", []string{forged}, "/v1/secret device=root",
		[]string{unjudged.Code}},
	{"server that denies an address", "deny 192.0.2.1; location / { proxy_pass http://service; } location /judged { " +
		include + " proxy_pass http://service; }", "GET", "/v1/secret", []string{forged}, "/v1/secret device=root",
		[]string{unjudged.Code}},
	{"server that denies all", "location / { deny all; allow all; proxy_pass http://service; } location /judged { " +
		include + " proxy_pass http://service; }", "GET", "/v1/secret", []string{forged}, "403 Forbidden", nil},
	{"server that denies all but some methods",
		"location / { deny all; limit_except GET { allow all; } proxy_pass http://service; } location /judged { " +
			include + " proxy_pass http://service; }", "POST", "/v1/secret", []string{forged, "Content-Length: 0"},
		"/v1/secret device=root", []string{unjudged.Code}},
	{"server that clears the headers",
		"location / { proxy_set_header X-Gatehouse-Device ''; proxy_set_header X-Gatehouse-Permissions ''; proxy_pass " +
			"http://service; } location /judged { " + include + " proxy_pass http://service; }",
		"GET", "/v1/secret", []string{forged}, "/v1/secret device=\n", []string{unjudged.Code}},
	{"server that clears the headers of open paths",
		"location /open { proxy_set_header X-Gatehouse-Device ''; proxy_set_header X-Gatehouse-Permissions ''; proxy_pass " +
			"http://service; } location /judged { " + include + " proxy_pass http://service; }",
		"GET", "/open", []string{forged}, "/open device=\n", nil},
	{"server that clears the headers of open paths, but not their other spellings",
		"underscores_in_headers on; location /open { proxy_set_header X-Gatehouse-Device ''; " +
			"proxy_set_header X-Gatehouse-Permissions ''; proxy_pass http://service; } location /judged { " + include +
			" proxy_pass http://service; }", "GET", "/open", []string{"X_Gatehouse_Device: root"},
		"/open device= and X_gatehouse_device", []string{unjudged.Code}},
	{"server that clears the headers of open paths, but not those with dots",
		"ignore_invalid_headers off; location /open { proxy_set_header X-Gatehouse-Device ''; " +
			"proxy_set_header X-Gatehouse-Permissions ''; proxy_pass http://service; } location /judged { " + include +
			" proxy_pass http://service; }", "GET", "/open", []string{"X.Gatehouse.Device: root"},
		"/open device= and X.gatehouse.device", []string{unjudged.Code}},
	{"server that clears the headers and rewrites",
		"location /open/ { proxy_set_header X-Gatehouse-Device ''; proxy_set_header X-Gatehouse-Permissions ''; proxy_pass " +
			"http://service/v1/; } location /judged { " + include + " proxy_pass http://service; }", "GET", "/open/secret", nil,
		"/v1/secret device=\n", []string{unjudged.Code}},
	{"server that sets the headers",
		"location /open { proxy_set_header X-Gatehouse-Device root; proxy_set_header X-Gatehouse-Permissions root; " +
			"proxy_pass http://service; } location /judged { " + include + " proxy_pass http://service; }",
		"GET", "/open", nil, "/open device=root", []string{unjudged.Code}},

	{"server without server.conf, by a variable",
		"location / { set $backend service; proxy_pass http://$backend; } location /judged { " + include +
			" proxy_pass http://service; }", "GET", "/v1/secret", []string{forged}, "/v1/secret device=root",
		[]string{unjudged.Code}},
	{"server without server.conf, by a map", "location / { proxy_pass http://$constant; } location /judged { " +
		include + " proxy_pass http://service; }", "GET", "/v1/secret", []string{forged}, "/v1/secret device=root",
		[]string{unjudged.Code}},
	{"server without server.conf, by the client's address", "location / { proxy_pass http://$near; } location /judged { " +
		include + " proxy_pass http://service; }", "GET", "/v1/secret", []string{forged}, "/v1/secret device=root",
		[]string{unjudged.Code}},
	{"server without server.conf, by chance", "location / { proxy_pass http://$part; } location /judged { " +
		include + " proxy_pass http://service; }", "GET", "/v1/secret", []string{forged}, "/v1/secret device=root",
		[]string{unjudged.Code}},
	{"an upstream by a map of constants", include + "location / { proxy_pass http://$constant; }",
		"GET", "/v1/secret", []string{forged}, "401 Unauthorized", nil},

	// Before and after the access phase.
	{"index", plain + "location /open/ { alias DIR/; index none.html /v1/secret; }", "GET", "/open/", nil,
		"/v1/secret device=\n", []string{rewriteIn.Code}},
	{"index of a server", "index /v1/secret; " + include + "location /v1/ { proxy_pass http://service; }", "GET", "/open/",
		nil, "/v1/secret device=\n", []string{rewriteIn.Code}},
	{"index where requests go upstream", "index /v1/secret; " + plain, "GET", "/open/", nil, "/open/ device=\n", nil},
	{"index of an open path", plain + "location /open/ { alias DIR/; index none.html /open; }", "GET", "/open/", nil,
		"/open device=\n", nil},
	{"error_page of an expression", plain + "location ~ ^/open/(a|b)$ { root DIR; error_page 404 = /v1/secret; }",
		"GET", "/open/a", nil, "GET /v1/secret", []string{rewriteIn.Code}},
	{"rewrite by an expression that isn't Go's", plain + "location /open/ { rewrite ^/open/(?!x)(.*)$ /v1/$1 break; " +
		"proxy_pass http://service; }", "GET", "/open/secret", nil, "GET /v1/secret", []string{unclear.Code}},
	{"error_page of an expression without a beginning",
		plain + "location ~ \\.(gif|jpg)$ { root DIR; error_page 404 = /v1/secret; }", "GET", "/a.gif", nil,
		"GET /v1/secret", []string{rewriteIn.Code}},
	{"error_page to a variable", plain + "location /open { root DIR; set $to /v1/secret; error_page 404 = $to; }",
		"GET", "/open", nil, "GET /v1/secret", []string{rewriteIn.Code}},
	{"error_page to a prefix without its slash", plain + "location /open { root DIR; error_page 404 = /v1/devices; }",
		"GET", "/open", nil, "GET /v1/devices", []string{rewriteIn.Code}},
	{"error_page to a named location that rewrites", plain + "location /open { root DIR; error_page 404 = @inside; } " +
		"location @inside { rewrite ^ /v1/secret break; proxy_pass http://service; }", "GET", "/open", nil,
		"GET /v1/secret", []string{rewriteIn.Code}},
	{"try_files to a named location with a path", plain + "location /open { root DIR; try_files $uri @inside; } " +
		"location @inside { set $path /v1/secret; proxy_pass http://service$path; }", "GET", "/open", nil,
		"GET /v1/secret", []string{rewriteIn.Code}},
	{"error_page of a protected path to a named location that rewrites",
		plain + "location /v1/ { root DIR; error_page 404 = @inside; } location /v1/secret { root DIR; error_page 404 = " +
			"@inside; } location @inside { rewrite ^ /open break; proxy_pass http://service; }", "GET", "/v1/secret",
		[]string{forged}, "401 Unauthorized", nil},
	{"a protected path's error_page to a named location", plain + "location = /v1/secret { root DIR; error_page 404 = " +
		"@inside; } location @inside { rewrite ^ /v1/secret break; proxy_pass http://service; }", "GET", "/v1/secret",
		[]string{forged}, "401 Unauthorized", nil},
	{"ngx.exec", plain + `location /open { content_by_lua_block { ngx.exec("/v1/secret") } }`, "GET", "/open", nil,
		"GET /v1/secret", []string{rewriteIn.Code}},
	{"ngx.exec of a variable", plain + `location ~ ^/open { content_by_lua_block { local to = [[/v1/secret]] return ` +
		`ngx.exec(to) } }`, "GET", "/open", nil, "GET /v1/secret", []string{rewriteIn.Code}},
	{"ngx.exec of a named location", plain + `location /open { content_by_lua_block { ngx.exec("@inside") } } ` +
		"location @inside { rewrite ^ /v1/secret break; proxy_pass http://service; }", "GET", "/open", nil,
		"GET /v1/secret", []string{rewriteIn.Code}},
	{"ngx.exec of what a client names", plain + `location /open { content_by_lua_block { ngx.exec(ngx.var.arg_to) } }`,
		"GET", "/open?to=/v1/secret", nil, "GET /v1/secret", []string{rewriteIn.Code}},
	{"ngx.exec of what an expression captures", plain + `location ~ ^/open(/.*)$ { content_by_lua_block { ` +
		`ngx.exec(ngx.var[1]) } }`, "GET", "/open/v1/secret", nil, "GET /v1/secret", []string{rewriteIn.Code}},
	{"ngx.location.capture of a variable, with one of the client's",
		plain + `location /a { content_by_lua_block { local to = "/open" ngx.location.capture(to, ` +
			`{ args = { x = ngx.var.arg_x } }) } }`, "GET", "/a", nil, "GET /open", nil},
	{"ngx.exec of an open path", plain + `location /a { content_by_lua_block { ngx.exec("/open") } }`, "GET", "/a", nil,
		"GET /open", nil},
	{"ngx.exec of the same path with another beginning",
		plain + `location /a { content_by_lua_block { ngx.exec("/open" .. ngx.var.uri) } }`, "GET", "/a", nil,
		"GET /open/a", nil},
	{"a protected path that Lua says", plain + `location /a { content_by_lua_block { ngx.say("/v1/secret") } }`, "GET",
		"/a", nil, "/v1/secret", nil},
	{"ngx.location.capture",
		plain + `location /open { content_by_lua_block { ngx.print(ngx.location.capture("/v1/secret").body) } }`,
		"GET", "/open", nil, "GET /v1/secret", []string{rewriteIn.Code}},
	{"ngx.location.capture_multi",
		plain + `location /open { content_by_lua_block { ngx.location.capture_multi{ { "/v1/secret" } } } }`,
		"GET", "/open", nil, "GET /v1/secret", []string{rewriteIn.Code}},
	{"ngx.location.capture in the access phase", plain + `location /open { access_by_lua_block { ` +
		`require("gatehouse.edge").access() ngx.location.capture("/v1/secret") } proxy_pass http://service; }`,
		"GET", "/open", nil, "GET /v1/secret", []string{rewriteIn.Code}},
	{"ngx.req.set_uri", plain + `location /open { rewrite_by_lua_block { ngx.req.set_uri("/v1/secret") } proxy_pass ` +
		`http://service; }`, "GET", "/open", nil, "GET /v1/secret", []string{rewriteIn.Code}},
	{"an identity by Lua", plain + `location /open { access_by_lua_block { require("gatehouse.edge").access() ` +
		`ngx.req.set_header("X-Gatehouse-Device", "root") } proxy_pass http://service; }`, "GET", "/open", nil,
		"device=root", []string{forgedIdentity.Code}},
	{"an identity that Lua clears", plain + `location /open { access_by_lua_block { require("gatehouse.edge").access() ` +
		`ngx.req.set_header("X-Gatehouse-Device", nil) ngx.req.set_header("X-A", "b") } proxy_pass http://service; }`,
		"GET", "/open", nil, "/open device=\n", nil},
	{"own access_by_lua with the call in a text",
		include + `location / { access_by_lua_block { local s = 'require("gatehouse.edge").access()' } proxy_pass ` +
			`http://service; }`, "GET", "/v1/secret", []string{forged}, "/v1/secret device=root", []string{ownAccess.Code}},
	{"own access_by_lua with the call in a long text",
		include + `location / { access_by_lua_block { local s = [==[ require("gatehouse.edge").access() ]==] } proxy_pass ` +
			`http://service; }`, "GET", "/v1/secret", []string{forged}, "/v1/secret device=root", []string{ownAccess.Code}},
	{"server without server.conf, by set_by_lua",
		`location / { set_by_lua_block $to { return "service" } proxy_pass http://$to; } location /judged { ` + include +
			" proxy_pass http://service; }", "GET", "/v1/secret", []string{forged}, "/v1/secret device=root",
		[]string{unjudged.Code}},
	{"server without server.conf, by a variable that Lua sets",
		`location / { set $to ""; rewrite_by_lua_block { ngx.var.to = "service" } proxy_pass http://$to; } location ` +
			"/judged { " + include + " proxy_pass http://service; }", "GET", "/v1/secret", []string{forged},
		"/v1/secret device=root", []string{unjudged.Code}},
	{"a host of the client's, by Lua", plain + `location /to { set_by_lua_block $to { return ngx.var.http_x_to } ` +
		`proxy_pass http://$to; }`, "GET", "/to", []string{"X-To: service"}, "/to device=\n", []string{clientsChoose.Code}},
	{"auth_request by an expression", include + "location = /open { auth_request /auth/x; proxy_pass http://service; } " +
		"location ~ ^/auth/ { internal; proxy_pass http://service; }", "GET", "/open", []string{forged},
		"/auth/x device=root", []string{authRequest.Code}},
	{"rewrite of all that a location captures",
		include + "location ~ ^/(?<seg>[a-z]+)/(?<rest>.*)$ { rewrite ^ /$rest break; proxy_pass http://service; }",
		"GET", "/open/v1/secret", nil, "GET /v1/secret", []string{rewriteIn.Code}},
	{"rewrite to a variable", include + "location / { set $to /v1/secret; rewrite ^/open$ $to break; proxy_pass " +
		"http://service; }", "GET", "/open", nil, "GET /v1/secret", []string{rewriteIn.Code}},
	{"rewrite by a map", include + "location /pub/ { rewrite ^ $inner break; proxy_pass http://service; }",
		"GET", "/pub/v1/secret", nil, "GET /v1/secret", []string{rewriteIn.Code}},
	{"proxy_pass with a path in a variable",
		include + "location /open { set $path /v1/secret; proxy_pass http://service$path; }", "GET", "/open", nil,
		"GET /v1/secret", []string{rewriteIn.Code}},
	{"proxy_pass with a named part", include + "location ~ ^/open/(?<all>.*)$ { proxy_pass http://service/$all; }",
		"GET", "/open/v1/secret", nil, "GET /v1/secret", []string{rewriteIn.Code}},
	{"proxy_pass with a part from anywhere",
		include + "location ~* /open/(.*) { proxy_pass http://service/$1$is_args$args; }", "GET", "/a/open/v1/secret", nil,
		"GET /v1/secret", []string{rewriteIn.Code}},
	{"a host of the client's", include + "location /open { proxy_pass http://$client_host/; }",
		"GET", "/open", []string{"X-To: service"}, "/ device=", []string{clientsChoose.Code}},
	{"any protocol by a map", include + "location / { proxy_pass http://service; proxy_set_header Upgrade " +
		"$any_protocol; proxy_set_header Connection upgrade; }", "GET", "/open", nil, "/open device=", []string{tunnel.Code}},
	{"return", include + "location / { return 200 returned; }", "GET", "/v1/secret", nil,
		"returned", []string{returnFirst.Code}},
	{"return in an if", plain + "if ($request_method = GET) { return 200 returned; }", "GET", "/v1/secret", nil,
		"returned", []string{returnFirst.Code}},
	{"return elsewhere", plain + "location = /health { return 200 returned; }", "GET", "/health", nil, "returned", nil},
	{"return of a redirect", plain + "location /v1/ { return 301 https://$host$request_uri; }",
		"GET", "/v1/secret", nil, "301 Moved", nil},
	{"return to a named location",
		include + "error_page 418 = @service; location / { return 418; } location @service { proxy_pass http://service; }",
		"GET", "/v1/secret", []string{forged}, "401 Unauthorized", nil},
	{"rewrite, last", plain + "location /open/ { rewrite ^/open/(.*)$ /v1/$1 last; }", "GET", "/open/secret", nil,
		"GET /v1/secret", []string{rewriteIn.Code}},
	{"rewrite, break", include + "location / { rewrite ^/open(/.*)$ /v1$1 break; proxy_pass http://service; }",
		"GET", "/open/secret", nil, "GET /v1/secret", []string{rewriteIn.Code}},
	{"rewrite of a path that is only cached", plain + "rewrite ^/v1/products/(.*)$ /v1/devices/$1 last;",
		"GET", "/v1/products/1", nil, "GET /v1/devices/1", []string{rewriteIn.Code}},
	{"rewrite to a fixed path", plain + "rewrite ^/latest$ /v1/secret last;", "GET", "/latest", nil,
		"GET /v1/secret", []string{rewriteIn.Code}},
	{"rewrite of the same prefix", plain + "rewrite ^/v1/(.*)$ /v1/$1 last;", "GET", "/v1/secret", nil,
		"401 Unauthorized", nil},
	{"rewrite to an open path", plain + "rewrite ^/old/(.*)$ /new/$1 last;", "GET", "/old/secret", nil,
		"GET /new/secret", nil},
	{"proxy_pass with a path", include + "location /open/ { proxy_pass http://service/v1/; }", "GET", "/open/secret", nil,
		"GET /v1/secret", []string{rewriteIn.Code}},
	{"proxy_pass with a captured path", include + "location ~ ^/open/(.*)$ { proxy_pass http://service/v1/$1; }",
		"GET", "/open/secret", nil, "GET /v1/secret", []string{rewriteIn.Code}},
	{"proxy_pass of one path", include + "location = /open { proxy_pass http://service/v1/secret; }",
		"GET", "/open", nil, "GET /v1/secret", []string{rewriteIn.Code}},
	{"proxy_pass with the same path", include + "location /v1/ { proxy_pass http://service/v1/; }",
		"GET", "/v1/secret", nil, "401 Unauthorized", nil},
	{"try_files", plain + "location /open { root DIR; try_files $uri /v1/secret; }", "GET", "/open", nil,
		"GET /v1/secret", []string{rewriteIn.Code}},
	{"error_page", plain + "location /open { root DIR; error_page 404 = /v1/secret; }", "GET", "/open", nil,
		"GET /v1/secret", []string{rewriteIn.Code}},
	{"error_page with a file", plain + "error_page 500 502 /page.html; location = /page.html { root DIR; }",
		"GET", "/page.html", nil, "a page", nil},
	{"files of a protected path", include + "location /v1/ { alias DIR/; }", "GET", "/v1/secret", nil,
		"401 Unauthorized", nil},
	{"mirror", include + "location / { mirror /copy; proxy_pass http://service; } location = /copy { internal; " +
		"proxy_pass http://service; }", "GET", "/open", []string{forged}, "/copy device=\n", nil},
	{"mirror of a protected path",
		include + "location / { proxy_pass http://service; } location = /open { mirror /v1/secret; proxy_pass " +
			"http://service; }", "GET", "/open", nil, "GET /v1/secret", []string{rewriteIn.Code}},
	{"a protected path at the end of an answer",
		include + "location / { proxy_pass http://service; } location = /open { add_after_body /v1/secret; addition_types " +
			"*; proxy_pass http://service; }", "GET", "/open", nil, "GET /v1/secret", []string{rewriteIn.Code}},
	{"auth_request by a protected path",
		include + "location / { proxy_pass http://service; } location = /v1/secret { proxy_set_header X-Gatehouse-Device " +
			"''; proxy_set_header X-Gatehouse-Permissions ''; proxy_pass http://service; } location = /open { auth_request " +
			"/v1/secret; proxy_pass http://service; }", "GET", "/open", nil, "GET /v1/secret", []string{rewriteIn.Code}},
	{"the sidecar", plain + "location /side/ { proxy_pass http://unix:DIR/api.sock:/; }", "GET", "/side/v1/fetch", nil,
		"HTTP/1.1 200 OK", []string{toPrivate.Code}},
	{"the push listener", plain + "location /side/ { proxy_pass http://unix:DIR/push.sock:/; }",
		"GET", "/side/v1/apply", nil, "HTTP/1.1 404", []string{toPrivate.Code}},
	{"post_action", include + "location / { post_action @after; proxy_pass http://service; } location @after { " +
		"proxy_pass http://service; }", "GET", "/v1/secret", []string{forged}, "401 Unauthorized", nil},

	// Headers to the upstream.
	{"identity of the client's choice",
		include + "location / { proxy_set_header X-Gatehouse-Device $arg_d; proxy_pass http://service; }",
		"GET", "/open?d=root", nil, "device=root", []string{forgedIdentity.Code}},
	{"identity for all", include + "location / { proxy_set_header X-Gatehouse-Device root; proxy_pass http://service; }",
		"GET", "/open", nil, "device=root", []string{forgedIdentity.Code}},
	{"identity that was read before",
		include + "if ($http_x_gatehouse_device = '') { set $none 1; }\nlocation / { proxy_set_header X-Gatehouse-Device " +
			"$http_x_gatehouse_device; proxy_pass http://service; }", "GET", "/open", []string{forged},
		"device=root", []string{forgedIdentity.Code}},
	{"decoded path in a header", include + "location / { proxy_set_header X-Path $uri; proxy_pass http://service; }",
		"GET", "/open%0d%0aX-Gatehouse-Device:%20root", nil, "device=root", []string{splitHeader.Code}},
	{"decoded path in another variable",
		include + "set $path $request_filename; location / { proxy_set_header X-Path $path; proxy_pass http://service; }",
		"GET", "/open%0d%0aX-Gatehouse-Device:%20root", nil, "device=root", []string{splitHeader.Code}},
	{"decoded path in proxy_pass", include + "location / { proxy_pass http://service$uri; }",
		"GET", "/open%20HTTP/1.1%0d%0aX-Gatehouse-Device:%20root%0d%0aX-Rest:%20", nil, "/open device=root",
		[]string{splitHeader.Code}},
	{"captured line end", include + "location ~ ^/api/([^/]*) { proxy_set_header X-Name $1; proxy_pass http://service; }",
		"GET", "/api/open%0d%0aX-Gatehouse-Device:%20root", nil, "device=root", []string{splitHeader.Code}},
	{"captured by a name", include + "location ~ ^/api/(?<name>[^/]*) { proxy_set_header X-Name $name; proxy_pass " +
		"http://service; }", "GET", "/api/open%0d%0aX-Gatehouse-Device:%20root", nil,
		"device=root", []string{splitHeader.Code}},
	{"captured without line ends",
		include + "location ~ ^/api/(.*) { proxy_set_header X-Name $1; proxy_pass http://service; }",
		"GET", "/api/open%0d%0aX-Gatehouse-Device:%20root", nil, "400 Bad Request", nil},
	{"path as the client sent it",
		include + "location / { proxy_set_header X-Path $request_uri; proxy_pass http://service$request_uri; }",
		"GET", "/open%0d%0aX-Gatehouse-Device:%20root", nil, "device=\n", nil},
	{"captured by a map", include + "location / { proxy_set_header X-Tenant $tenant; proxy_pass http://service; }",
		"GET", "/tn/a%0d%0aX-Gatehouse-Device:%20root", nil, "device=root", []string{splitHeader.Code}},
	{"captured by a rewrite", include + "location /tn/ { rewrite ^/tn/([^/]+)/(.*)$ /tenants/$2 break; proxy_set_header " +
		"X-Tenant $1; proxy_pass http://service; }", "GET", "/tn/a%0d%0aX-Gatehouse-Device:%20root/x",
		nil, "device=root", []string{splitHeader.Code}},
	{"names with underscores", "underscores_in_headers on; " + plain, "GET", "/open", []string{"X_Gatehouse_Device: root"},
		"/open device=\n", nil},
	{"invalid names", "ignore_invalid_headers off; " + plain, "GET", "/open", []string{"X.Gatehouse.Device: root"},
		"/open device=\n", nil},
	{"an identity by an invalid name", "ignore_invalid_headers off; " + plain, "GET", "/open",
		[]string{"X\xadGatehouse-Device: root"}, "\r\nbad request\n", nil},
	{"a secret by an invalid name", "ignore_invalid_headers off; " + plain, "GET", "/v1/secret",
		append(device("d1"), "X\xadDevice-Token: d1"), "\r\nbad request\n", nil},
	{"auth_request", include + "location / { auth_request /auth; proxy_pass http://service; } location = /auth { " +
		"internal; proxy_pass http://service; }", "GET", "/open", []string{forged}, "/auth device=root",
		[]string{authRequest.Code}},
	{"auth_request that clears the headers",
		include + "location / { auth_request /auth; proxy_pass http://service; } location = /auth { internal; " +
			"proxy_set_header X-Gatehouse-Device ''; proxy_set_header X-Gatehouse-Permissions ''; proxy_pass http://service; }",
		"GET", "/open", []string{forged}, "/auth device=\n", nil},
	{"address of the client's choice", "set_real_ip_from ANYONE; real_ip_header X-Forwarded-For; " + plain,
		"GET", "/v1/secret", append(device("d2"), "X-Forwarded-For: 192.0.2.7"), "sidecar: d2 from 192.0.2.7",
		[]string{anySource.Code}},

	// Answers.
	{"gzip", include + "location / { gzip on; gzip_min_length 1; gzip_types *; proxy_pass http://service; }",
		"GET", "/v1/products/1", []string{"Accept-Encoding: gzip"}, "Content-Encoding: gzip", []string{reencoded.Code}},
	{"sub_filter", include + "location / { sub_filter a b; sub_filter_types *; proxy_pass http://service; }",
		"GET", "/v1/products/1", nil, "HTTP/1.1 200", []string{changedBody.Code}},
	{"expires", include + "location / { expires 1h; proxy_pass http://service; }",
		"GET", "/v1/products/1", nil, "Expires: ", []string{changedHeader.Code}},
	{"as shipped, answers", plain, "GET", "/v1/secret", device("d1"), "Cache-Control: private", nil},
	{"own add_header", include + "location / { add_header X-A $upstream_status; add_header X-B end; proxy_pass " +
		"http://service; }", "GET", "/v1/secret", device("d1"), "X-A: 200\r\nX-B: end\r\n\r\n", []string{lostHeaders.Code}},
	{"own add_header in an if", include + "location / { if ($arg_x) { add_header X-A end; } proxy_pass http://service; }",
		"GET", "/v1/secret?x=1", device("d1"), "X-A: end\r\n\r\n", []string{lostHeaders.Code}},
	{"own add_header of files", plain + "location /static/ { alias DIR/; add_header X-A b; }",
		"GET", "/static/page.html", nil, "a page", nil},
}

// analyze analyses the configuration of a case, as if other machines reached the server.
func analyze(t *testing.T, server string) findings.Report {
	t.Helper()
	config := replaceOnce(t, edgeConfig, "SERVERS", "server { listen 8080; "+
		strings.ReplaceAll(server, "ANYONE", "0.0.0.0/0")+" }")
	return newEdge(t, config, nil).analyze()
}

// TestBypasses compares the analysis with a real nginx.
func TestBypasses(t *testing.T) {
	servers := []string{plain}
	for _, c := range bypasses {
		servers = append(servers, strings.ReplaceAll(c.server, "ANYONE", "unix:"))
	}
	e := newEdge(t, edgeConfig, servers)
	e.ready()
	for i, c := range bypasses {
		t.Run(c.name, func(t *testing.T) {
			if got := e.ask(i+1, c.method, c.target, c.headers...); !strings.Contains(got+"\n", c.got) {
				t.Errorf("nginx: got %q, want %q", got, c.got)
			}
			wantCodes(t, analyze(t, c.server), c.want)
		})
	}
}

const cached = "location / { proxy_cache answers; proxy_cache_valid 200 1m; proxy_pass http://service; "

// caches are servers with a cache of nginx, and the second device's answer.
var caches = []struct {
	name, server, second string
	want                 []string
}{
	{"unaware", include + cached + "}", "device=d1", []string{sharedCache.Code}},
	{"bypassed", include + cached + "proxy_cache_bypass $gatehouse_private; proxy_no_cache $gatehouse_private; }",
		"device=d2", nil},
	{"by device", include + cached + "proxy_cache_key $request_uri$http_x_gatehouse_device; }", "device=d2", nil},
	{"stored", include + "location / { root DIR; try_files /store$uri @service; } location @service { root DIR/store; " +
		"proxy_store on; proxy_pass http://service; }", "device=d1", []string{sharedCache.Code}},
	{"of open paths", plain + strings.Replace(cached, "/ {", "/open/ {", 1) + "}", "device=d2", nil},
	{"of a prefix without its slash", plain + strings.Replace(cached, "/ {", "= /v1/devices {", 1) + "}", "device=d1",
		[]string{sharedCache.Code}},
	{"of a path with a slash", include + "location /v1/ { proxy_pass http://service; } " +
		strings.Replace(cached, "/ {", "= /v1/secret/ {", 1) + "}", "device=d1", []string{sharedCache.Code}},
	{"of a path with a slash beside one without", include + "location = /v1/secret { proxy_pass http://service; } " +
		"location /v1/devices/ { proxy_pass http://service; } " + cached + "}", "device=d1", []string{sharedCache.Code}},
}

// cachedTargets are request targets of some caches.
var cachedTargets = map[string]string{
	"of a prefix without its slash": "/v1/devices", "of a path with a slash": "/v1/secret/",
	"of a path with a slash beside one without": "/v1/secret/?beside",
}

// TestSharedCache: a cache of nginx gives one device's answer to another, unless the cache distinguishes devices.
func TestSharedCache(t *testing.T) {
	servers := []string{plain}
	for _, c := range caches {
		servers = append(servers, c.server)
	}
	e := newEdge(t, edgeConfig, servers)
	e.ready()
	for i, c := range caches {
		t.Run(c.name, func(t *testing.T) {
			target := cmp.Or(cachedTargets[c.name], "/v1/devices/"+strings.ReplaceAll(c.name, " ", "-"))
			for _, ask := range [][2]string{{"d1", "device=d1"}, {"d2", c.second}} {
				if got := e.ask(i+1, "GET", target, device(ask[0])...); !strings.Contains(got, ask[1]) {
					t.Errorf("nginx: got %q, want %q", got, ask[1])
				}
			}
			wantCodes(t, analyze(t, c.server), c.want)
		})
	}
}

// setups lack a part that the plugin needs.
var setups = []struct {
	name, old, new string
	got            string // part of an answer, or of nginx's log
	want           []string
}{
	{"no init",
		`init_by_lua_block { require("gatehouse.edge").init{ rules = "DIR/rules.json", socket = "unix:DIR/api.sock", push = "unix:DIR/push.sock", memory = "DIR/memory", memory_mib = 256, library = "LIBRARY" } }`, "", "503 Service Temporarily Unavailable", []string{noInit.Code}},
	{"no start", "include PLUGIN/http.conf;", "include DIR/http.conf;", "503 Service Temporarily Unavailable",
		[]string{noStart.Code}},
	{"no dictionary", "include PLUGIN/http.conf;", "include DIR/no-dictionary.conf;",
		"lua_shared_dict gatehouse is missing", []string{noDict.Code}},
	{"no code cache", "access_log off;", "access_log off; lua_code_cache off;", "503 Service Temporarily Unavailable",
		[]string{noCodeCache.Code}},
	{"small pushes", "include PLUGIN/push.conf;",
		`location / { content_by_lua_block { require("gatehouse.push").apply() } }`, "a push of 2 MiB: 413",
		[]string{smallPush.Code}},
}

// TestSetup: nginx doesn't start, or gives wrong answers.
func TestSetup(t *testing.T) {
	httpConf, err := os.ReadFile("../../nginx/http.conf")
	require.NoError(t, err)
	for _, c := range setups {
		t.Run(c.name, func(t *testing.T) {
			e := newEdge(t, replaceOnce(t, edgeConfig, c.old, c.new), []string{plain})
			e.write("http.conf", replaceOnce(t, string(httpConf),
				`init_worker_by_lua_block { require("gatehouse.edge").start() }`, ""))
			e.write("no-dictionary.conf", replaceOnce(t, string(httpConf), "lua_shared_dict gatehouse 4m;", ""))
			e.start()
			if slices.Contains(c.want, smallPush.Code) { // other setups accept no push
				e.pushState()
			}
			await.Until(t, "nginx shows "+c.got, func() bool {
				log, _ := os.ReadFile(filepath.Join(e.dir, "error.log"))
				answer := e.ask(0, "GET", "/v1/secret", device("d1")...)
				largest := e.push(make([]byte, limits.MaxBatch))
				return strings.Contains(fmt.Sprintf("%s%s a push of 2 MiB: %d", answer, log, largest), c.got)
			})
			wantCodes(t, e.analyze(), c.want)
		})
	}
}

// TestDump analyses the configuration dump of a real nginx. The dump has all files but the rules.
func TestDump(t *testing.T) {
	e := newEdge(t, edgeConfig, []string{plain, bypasses[3].server})
	path, err := stack.FindNginx()
	require.NoError(t, err)
	dump, err := exec.Command(path, "-T", "-q", "-p", e.dir, "-c", filepath.Join(e.dir, "nginx.conf"),
		"-e", filepath.Join(e.dir, "error.log")).Output()
	require.NoError(t, err)
	if !Is(dump) {
		t.Error("isn't taken for nginx's")
	}
	require.NoError(t, os.Remove(filepath.Join(e.dir, "nginx.conf")))
	wantCodes(t, Analyze("-", dump, "rules", []byte(edgeRules)), []string{ownAccess.Code})
	wantCodes(t, Analyze("-", dump, "", nil), []string{ownAccess.Code, rulesUnread.Code})
}
