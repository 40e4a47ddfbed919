package nginxconfig

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/check/topology"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/nginx"
)

// analyzeShipped analyses the shipped nginx.conf with each old text replaced by the new text.
func analyzeShipped(t *testing.T, rules string, replace ...string) findings.Report {
	t.Helper()
	file, err := os.ReadFile("../../nginx/nginx.conf")
	require.NoError(t, err)
	text := string(file)
	for i := 0; i < len(replace); i += 2 {
		text = replaceOnce(t, text, replace[i], replace[i+1])
	}
	if !Is([]byte(text)) {
		t.Error("isn't taken for nginx's")
	}
	var given []byte
	if rules != "" {
		given, err = os.ReadFile(rules)
		require.NoError(t, err)
	}
	return Analyze("../../nginx/nginx.conf", []byte(text), rules, given)
}

const (
	shippedRules = "../../nginx/rules.yaml"
	anyServer    = "  # The push listener:"
	inServer     = "    location / {\n"
	rewritten    = "    location @x { rewrite ^/open/(.*)$ /v1/me/$1 break; proxy_pass http://service; }\n"
	pushListen   = "listen unix:/run/gatehouse/push.sock;"
)

// bothUnjudged are the findings for a server behind the plugin that local clients reach, and a second server to the
// same upstream.
var bothUnjudged = []string{unjudged.Code, unjudged.Code}

// ordinary is a part of many an nginx.conf that must have no findings.
const ordinary = `
  include mime.types*;
  gzip on;
  log_format main '$remote_addr "$request" $status';
  limit_req_zone $binary_remote_addr zone=clients:10m rate=50r/s;
  map $http_upgrade $websocket { websocket websocket; }
  map $websocket $connection_upgrade { default upgrade; '' close; }
  server {
    listen 80 default_server;
    server_name _;
    location /.well-known/acme-challenge/ { root /var/www; }
    location / { return 301 https://$host$request_uri; }
  }
  server {
    listen 443 ssl http2;
    server_name site.example.com;
    location /own/ { access_by_lua_block { } proxy_pass http://192.0.2.9; }
    location / { proxy_pass http://192.0.2.9; add_header X-A b; proxy_set_header X-Path $uri; }
    location ~ \.php$ { fastcgi_pass unix:/run/php.sock; fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; }
  }
`

const ordinaryInServer = `
    listen 443 ssl http2;
    ssl_certificate /etc/ssl/cert.pem;
    ssl_certificate_key /etc/ssl/key.pem;
    access_log /var/log/nginx/access.log main;
    set_real_ip_from 10.0.0.0/8;
    real_ip_header X-Forwarded-For;
    limit_req zone=clients burst=100 nodelay;
    add_header Strict-Transport-Security "max-age=63072000" always;
    error_page 500 502 503 504 /50x.html;
    if ($request_method = OPTIONS) { return 204; }
    location = /50x.html { root /usr/share/nginx/html; }
    location = /health { access_log off; return 200 "ok\n"; }
    location = /status { access_by_lua_block { } stub_status; }
    location /big/ { gzip on; proxy_pass http://service; add_header X-A b; }
    location = /favicon.ico { log_not_found off; return 404; }
    location /static/ { root /var/www; expires 1h; add_header X-A b; try_files $uri =404; }
    location /ws/ { proxy_pass http://service; proxy_http_version 1.1; proxy_set_header Upgrade $websocket; proxy_set_header Connection $connection_upgrade; }
    location ~* \.(js|css)$ { root /var/www; expires 1h; add_header X-A b; }
`

// files are changes of the shipped nginx.conf without effect on requests.
var files = []struct {
	name    string
	replace []string
	want    []string
	at      string // part of the first finding's place and message
}{
	{"as shipped", nil, nil, ""},
	{"ordinary additions", []string{anyServer, ordinary + anyServer, inServer, ordinaryInServer + inServer}, nil, ""},
	{"no syntax", []string{"events {", "events {{"}, []string{unreadable.Code}, "unexpected '{'"},
	{"missing file", []string{"include /usr/share/gatehouse/nginx/http.conf;", "include /none/http.conf;"},
		[]string{unreadable.Code}, "include /none/http.conf: this machine has no such file"},
	{"no http block", []string{"http {", "stream {"}, []string{unreadable.Code}, "has no http block"},
	{"nothing is judged", []string{"include /usr/share/gatehouse/nginx/server.conf;", ""}, []string{noPlugin.Code}, ""},
	{"a small memory", []string{"memory_mib = 256", "memory_mib = 255"}, []string{smallMemory.Code},
		"init_by_lua: memory_mib is 255"},
	{"another way to the upstream",
		[]string{anyServer, "server { server_name b; listen 81; location /all { proxy_pass http://127.0.0.1:8081; } }" +
			anyServer}, []string{unjudged.Code}, "server b: location /all: proxy_pass: http"},
	{"another way for open paths that clears the headers",
		[]string{anyServer, "server { listen 81; location /open/ { proxy_set_header X-Gatehouse-Device ''; " +
			"proxy_set_header X-Gatehouse-Permissions ''; proxy_pass http://service; } }\n" +
			"server { listen 82; underscores_in_headers on; return 444; }\n" + anyServer}, nil, ""},
	{"another way for open paths that clears the headers in one spelling",
		[]string{anyServer, "server { listen 81; location /open/ { proxy_set_header X-Gatehouse-Device ''; " +
			"proxy_set_header X-Gatehouse-Permissions ''; proxy_pass http://service; } }\n" +
			"server { listen 0.0.0.0:81 default_server; underscores_in_headers on; return 444; }\n" + anyServer},
		[]string{unjudged.Code}, "server 81: location /open/: proxy_pass"},
	{"another way by another name",
		[]string{anyServer, "upstream other { server LOCALHOST:8081; } server { listen 81; location / { proxy_pass " +
			"http://other; } }" + anyServer}, []string{unjudged.Code}, "server 81: location /: proxy_pass"},
	{"another way from this machine",
		[]string{anyServer, "server { listen 127.0.0.1:81; location / { proxy_pass http://service; } }" + anyServer,
			"listen 127.0.0.1:8080 reuseport", "listen 8080 reuseport"}, nil, ""},
	{"another way from this machine, like the edge",
		[]string{anyServer, "server { listen 127.0.0.1:81; location / { proxy_pass http://service; } }" + anyServer},
		[]string{unjudged.Code}, "server 127.0.0.1:81"},
	{"another way by a socket",
		[]string{anyServer, "server { listen unix:/a.sock; location / { proxy_pass http://service; } }" + anyServer},
		nil, ""},
	{"another way by a server of this machine",
		[]string{anyServer, "server { listen 81; location / { proxy_pass http://[::1]:83; } } server { listen " +
			"127.0.0.1:83; location / { proxy_pass http://service; } }" + anyServer, "listen 127.0.0.1:8080 reuseport",
			"listen 8080 reuseport"}, []string{unjudged.Code}, "server 127.0.0.1:83"},
	{"another way by a stream",
		[]string{"http {", "stream { upstream s { server 127.0.0.1:8081; } server { listen 82; proxy_pass s; } }\nhttp {"},
		[]string{unjudged.Code}, "server 82: proxy_pass"},
	{"another way by a stream, in another case",
		[]string{"http {", "stream { upstream S { server 127.0.0.1:8081; } server { listen 82; proxy_pass s; } }\nhttp {"},
		[]string{unjudged.Code}, "server 82: proxy_pass: s"},
	{"an upstream in another case",
		[]string{"upstream service {", "upstream Service {", anyServer, "server { listen 81; location / { proxy_pass " +
			"http://127.0.0.1:8081; } }\n" + anyServer}, []string{unjudged.Code}, "server 81: location /: proxy_pass"},
	{"another way by a stream's map",
		[]string{"http {", "stream { map $ssl_preread_server_name $to { a.example s; default 192.0.2.1:1; } " +
			"upstream s { server 127.0.0.1:8081; } server { listen 82; proxy_pass $to; } }\nhttp {"},
		[]string{unjudged.Code}, "server 82: proxy_pass: $to"},
	{"another way by a stream's set",
		[]string{"http {", "stream { server { listen 82; set $to 127.0.0.1:8081; proxy_pass $to; } }\nhttp {"},
		[]string{unjudged.Code}, "server 82: proxy_pass: $to"},
	{"a stream's map of the same name as the other block's",
		[]string{"http {", "stream { server { listen 82; proxy_pass $to; } " +
			"map $remote_addr $to { default 192.0.2.1:1; } }\n" +
			"http { map $host $to { default 127.0.0.1:8081; }\n"}, nil, ""},
	{"a stream to what the client names",
		[]string{"http {", "stream { server { listen 82; proxy_pass $ssl_preread_server_name:443; } }\nhttp {"},
		[]string{clientsChoose.Code}, "server 82: proxy_pass: $ssl_preread_server_name:443"},
	{"a stream to a part of what the client names",
		[]string{"http {", "stream { map $ssl_preread_server_name $to { \"~^(.+)[.]example$\" $1:443; } " +
			"server { listen 82; proxy_pass $to; } }\nhttp {"},
		[]string{clientsChoose.Code}, "server 82: proxy_pass: $to"},
	{"another way by a stream to a server of this machine",
		[]string{anyServer, "server { listen 127.0.0.1:83; location / { proxy_pass http://service; } }" + anyServer,
			"listen 127.0.0.1:8080 reuseport", "listen 8080 reuseport",
			"http {", "stream { server { listen 82; proxy_pass 127.0.0.1:83; } }\nhttp {"},
		[]string{unjudged.Code}, "server 127.0.0.1:83"},
	{"a stream for some to a server of this machine",
		[]string{anyServer, "server { listen 127.0.0.1:83; location / { proxy_pass http://service; } }" + anyServer,
			"listen 127.0.0.1:8080 reuseport", "listen 8080 reuseport",
			"http {", "stream { server { listen 82; allow 192.0.2.1; deny all; proxy_pass 127.0.0.1:83; } }\nhttp {"},
		nil, ""},
	{"a stream to the sidecar",
		[]string{"http {", "stream { server { listen 82; proxy_pass unix:/run/gatehouse/api.sock; } }\nhttp {"},
		[]string{toPrivate.Code}, "server 82: proxy_pass"},
	{"a stream for some", []string{"http {", "stream { server { listen 82; allow 192.0.2.0/24; deny all; proxy_pass " +
		"127.0.0.1:8081; } }\nhttp {"}, nil, ""},
	{"a stream for most", []string{"http {", "stream { server { listen 82; deny 192.0.2.1; proxy_pass " +
		"127.0.0.1:8081; } }\nhttp {"}, []string{unjudged.Code}, "server 82: proxy_pass"},
	{"another way by a chain of streams", streams("server { listen 82; proxy_pass 127.0.0.1:83; } " +
		"server { listen 127.0.0.1:83; proxy_pass 127.0.0.1:8081; }"), []string{unjudged.Code},
		"server 127.0.0.1:83: proxy_pass"},
	{"another way by a chain of streams, by a socket", streams("upstream next { server unix:/a.sock; } " +
		"server { listen 82; proxy_pass next; } server { listen unix:/a.sock; proxy_pass [::1]:83; } " +
		"server { listen 127.0.0.1:83; proxy_pass 127.0.0.1:8081; }"), []string{unjudged.Code},
		"server 127.0.0.1:83: proxy_pass"},
	{"another way by a chain of streams with several ports", streams("server { listen 82; proxy_pass 127.0.0.1:85; } " +
		"server { listen 127.0.0.1:83-86; proxy_pass 127.0.0.1:8081; }"), []string{unjudged.Code},
		"server 127.0.0.1:83-86: proxy_pass"},
	{"another port than those of a stream", streams("server { listen 82; proxy_pass 127.0.0.1:87; } " +
		"server { listen 127.0.0.1:83-86; proxy_pass 127.0.0.1:8081; }"), nil, ""},
	{"a chain of streams elsewhere", streams("server { listen 82; proxy_pass 127.0.0.1:83; } " +
		"server { listen 127.0.0.1:83; proxy_pass 127.0.0.1:5432; }"), nil, ""},
	{"a chain of streams for some", streams("server { listen 82; deny all; proxy_pass 127.0.0.1:83; } " +
		"server { listen 127.0.0.1:83; proxy_pass 127.0.0.1:8081; }"), nil, ""},
	{"a chain of streams to the plugin", append(streams("server { listen 82; proxy_pass 127.0.0.1:83; } "+
		"server { listen 127.0.0.1:83; proxy_pass 127.0.0.1:84; }"), anyServer,
		"server { listen 127.0.0.1:84; include /usr/share/gatehouse/nginx/server.conf; location / { proxy_pass "+
			"http://service; } }\n"+anyServer), nil, ""},
	{"a server to a stream", append(streams("server { listen 127.0.0.1:83; proxy_pass 127.0.0.1:8081; }"), anyServer,
		"server { listen 81; location / { proxy_pass http://127.0.0.1:83; } }\n"+anyServer), []string{unjudged.Code},
		"server 127.0.0.1:83: proxy_pass"},
	{"a server for open paths to a stream", append(streams("server { listen 127.0.0.1:83; proxy_pass 127.0.0.1:8081; }"),
		anyServer, "server { listen 81; location /open/ { proxy_pass http://127.0.0.1:83; } }\n"+anyServer),
		[]string{unjudged.Code}, "server 127.0.0.1:83: proxy_pass"},
	{"a stream behind the plugin, and a way around both", append(streams(
		"server { listen 127.0.0.1:83; proxy_pass 127.0.0.1:8081; }"), "proxy_pass http://service;",
		"proxy_pass http://127.0.0.1:83;", anyServer,
		"server { listen 81; location / { proxy_pass http://127.0.0.1:8081; } }\n"+anyServer), []string{unjudged.Code},
		"server 81: location /: proxy_pass"},
	{"a server behind the plugin, and a way around both", append(streams(
		"server { listen 82; proxy_pass 127.0.0.1:8081; }"), "proxy_pass http://service;",
		"proxy_pass http://127.0.0.1:83;", anyServer,
		"server { listen 127.0.0.1:83; location / { proxy_pass http://127.0.0.1:8081; } }\n"+anyServer),
		[]string{unjudged.Code}, "server 82: proxy_pass"},
	{"another service behind the plugin's, and a way to it", append(streams(
		"server { listen 82; proxy_pass 127.0.0.1:8083; }"), "proxy_pass http://service;",
		"proxy_pass http://127.0.0.1:83;", anyServer, "server { listen 127.0.0.1:83; location / { proxy_pass "+
			"http://127.0.0.1:8081; } location /static/ { proxy_pass http://127.0.0.1:8083; } }\n"+anyServer), nil, ""},
	{"the sidecar by a chain of streams", streams("server { listen 82; proxy_pass 127.0.0.1:83; } " +
		"server { listen 127.0.0.1:83; proxy_pass unix:/run/gatehouse/api.sock; }"), []string{toPrivate.Code},
		"server 127.0.0.1:83: proxy_pass"},
	{"a location to a stream to the sidecar", append(streams(
		"server { listen 127.0.0.1:83; proxy_pass unix:/run/gatehouse/api.sock; }"), inServer,
		"    location /side/ { proxy_pass http://127.0.0.1:83/; }\n"+inServer), []string{toPrivate.Code, toPrivate.Code},
		"server 127.0.0.1:83: proxy_pass"},
	{"an upstream by a balancer in Lua",
		[]string{anyServer, "upstream by { server 0.0.0.1; balancer_by_lua_block { local host, port = \"127.0.0.1\", 8081 " +
			"require(\"ngx.balancer\").set_current_peer(host, port) } } server { listen 81; location / { proxy_pass " +
			"http://by; } }\n" + anyServer}, []string{unjudged.Code}, "server 81: location /: proxy_pass"},
	{"another upstream by a balancer in Lua",
		[]string{anyServer, "upstream by { server 0.0.0.1; balancer_by_lua_block { require(\"ngx.balancer\")." +
			"set_current_peer('127.0.0.1:8082') } } server { listen 81; location / { proxy_pass http://by; } }\n" + anyServer},
		nil, ""},
	{"another method by Lua", []string{inServer, "    location /v1/telemetry { access_by_lua_block { " +
		"require(\"gatehouse.edge\").access() ngx.req.set_method(ngx.HTTP_POST) } proxy_pass http://service; }\n" + inServer},
		[]string{otherMethod.Code}, "location /v1/telemetry: access_by_lua_block"},
	{"error_page of all servers", []string{"http {", "http { error_page 404 = /v1/me/config;"}, []string{rewriteIn.Code},
		"server 127.0.0.1:8080: error_page"},
	{"error_page of other servers", []string{"http {", "http { error_page 404 = /v1/me/config;", inServer,
		"    error_page 500 /page.html;\n" + inServer}, nil, ""},
	{"a location for all paths", []string{inServer, "    location ~ .* { proxy_pass http://service; }\n" + inServer},
		nil, ""},
	{"a location for all paths, without auth_request", []string{inServer,
		"    location ~ ^[^.]+$ { proxy_set_header X-A b; " +
			"proxy_pass http://service; } location /a/ { auth_request off; proxy_pass http://service; }\n" + inServer}, nil, ""},
	{"a rewrite behind error_page of all servers", []string{"http {", "http { error_page 404 = @x;", inServer,
		rewritten + inServer}, []string{rewriteIn.Code}, "location @x: rewrite"},
	{"a rewrite behind two named locations", []string{inServer, "    location /open/ { root /s; try_files $uri @a; } " +
		"location @a { root /t; error_page 404 = @x; try_files $uri =404; }\n" + rewritten + inServer},
		[]string{rewriteIn.Code}, "location @x: rewrite"},
	{"a rewrite of all behind two named locations", []string{inServer,
		"    location /open/ { root /s; try_files $uri @a; } " +
			"location @a { root /t; error_page 404 = @x; try_files $uri =404; } location @x { rewrite ^ /v1/me/config break; " +
			"proxy_pass http://service; }\n" + inServer}, []string{rewriteIn.Code}, "location @x: rewrite"},
	{"a rewrite behind Lua that can't be read", []string{inServer,
		"    location /open/ { content_by_lua_file /no/such.lua; " +
			"}\n" + rewritten + inServer}, []string{rewriteIn.Code}, "location @x: rewrite"},
	{"a rewrite behind Lua that joins its name", []string{inServer, "    location /open/ { content_by_lua_block { " +
		"local t = '@' .. 'x' ngx.exec(t) } }\n" + rewritten + inServer}, []string{rewriteIn.Code}, "location @x: rewrite"},
	{"set_uri of all servers", []string{"http {", "http { rewrite_by_lua_block { ngx.req.set_uri('/v1/me/config') }"},
		[]string{rewriteIn.Code}, "server 127.0.0.1:8080: rewrite_by_lua_block"},
	{"an upstream of Lua's choice", []string{inServer,
		"    location /to/ { set $up ''; set $trace ''; rewrite_by_lua_block { " +
			"local t = ngx.var.http_x_tenant ngx.var.trace = ngx.var.http_x_request_id if t == 'b' then " +
			"ngx.var.up = 'service' end } proxy_pass http://$up; }\n" + inServer}, nil, ""},
	{"an upstream of the client's choice by Lua", []string{inServer, "    location /to/ { set $up ''; " +
		"rewrite_by_lua_block { ngx.var.up = ngx.var.http_x_up } proxy_pass http://$up; }\n" + inServer},
		[]string{clientsChoose.Code}, "location /to/: proxy_pass"},
	{"an upstream of the client's choice by Lua that joins it", []string{inServer, "    location /to/ { set $up ''; " +
		"rewrite_by_lua_block { local t = ngx.var.http_x_up ngx.var.up = '' .. t } proxy_pass http://$up; }\n" + inServer},
		[]string{clientsChoose.Code}, "location /to/: proxy_pass"},
	{"exec of another object", []string{inServer, "    location /open/ { content_by_lua_block { local red = r() " +
		"red:set('/v1/me/config', 1) red:exec() } }\n" + inServer}, nil, ""},
	{"a path beside a call that names another", []string{inServer, "    location /open/ { content_by_lua_block { " +
		"ngx.location.capture('/ping') ngx.log(ngx.INFO, '/v1/me/config') } }\n" + inServer}, nil, ""},
	{"a local server for https beside one for http", []string{"proxy_pass http://service;",
		"proxy_pass https://127.0.0.1;", anyServer, "server { listen 80; location / { proxy_pass http://10.9.9.8; } }\n" +
			anyServer}, nil, ""},
	{"a local server for https, and a way around it", []string{"proxy_pass http://service;",
		"proxy_pass https://127.0.0.1;", anyServer, "server { listen 127.0.0.1:443 ssl; location / { proxy_pass " +
			"http://10.9.9.9; } } server { listen 8090; location / { proxy_pass http://10.9.9.9; } }\n" + anyServer},
		bothUnjudged, "server 127.0.0.1:443: location /: proxy_pass"},
	{"a server without listen, and a way around it", []string{"proxy_pass http://service;",
		"proxy_pass http://127.0.0.1;", anyServer, "server { server_name a; location / { proxy_pass http://10.9.9.9; } } " +
			"server { listen 8090; location / { proxy_pass http://10.9.9.9; } }\n" + anyServer},
		bothUnjudged, "server a: location /: proxy_pass"},
	{"a stream at a range of ports without an address", append(streams("server { listen 7000-7010; proxy_pass "+
		"10.9.9.9:80; }"), "proxy_pass http://service;", "proxy_pass http://127.0.0.1:7005;", anyServer,
		"server { listen 8090; location / { proxy_pass http://10.9.9.9; } }\n"+anyServer), bothUnjudged,
		"server 7000-7010: proxy_pass"},
	{"peers of a balancer in Lua", []string{anyServer,
		"upstream by { server 0.0.0.1; balancer_by_lua_block { local all = " +
			"{ { '127.0.0.1', 9000 }, { '10.0.0.7', 8081 } } b.set_timeouts(1, 8081, 5) b.set_current_peer('127.0.0.1', 9000) " +
			"} } server { listen 81; location / { proxy_pass http://by; } }\n" + anyServer}, nil, ""},
	{"a stream elsewhere", []string{"http {", "stream { server { listen 82; proxy_pass 127.0.0.1:5432; } }\nhttp {"},
		nil, ""},
	{"the server for operators", []string{inServer, "    location /ops/ { proxy_pass http://127.0.0.1:9901/; }\n" +
		inServer}, []string{toPrivate.Code}, "location /ops/: proxy_pass"},
	{"the server for operators by another name",
		[]string{inServer, "    location /ops/ { proxy_pass http://localhost:9901/; }\n" + inServer},
		[]string{toPrivate.Code}, "location /ops/: proxy_pass"},
	{"the sidecar by an upstream",
		[]string{"  upstream service {", "  upstream side { server unix:/run/gatehouse/api.sock; }\n  upstream service {",
			inServer, "    location /ops/ { proxy_pass http://side; }\n" + inServer}, []string{toPrivate.Code},
		"location /ops/: proxy_pass"},
	{"a probe of the edge",
		[]string{inServer, "    location = /readyz { proxy_pass http://unix:/run/gatehouse/api.sock:/readyz; }\n" + inServer},
		nil, ""},
	{"the sidecar's keys",
		[]string{inServer,
			"    location = /v1/session/jwks { proxy_pass http://unix:/run/gatehouse/api.sock:/v1/session/jwks; }\n" + inServer},
		nil, ""},
	{"an upstream of the client's choice",
		[]string{inServer, "    location /to/ { proxy_pass http://$http_x_backend; }\n" + inServer},
		[]string{clientsChoose.Code}, "location /to/: proxy_pass"},
	{"an upstream of the client's choice among some",
		[]string{"  upstream service {", "  map $http_x_backend $backend { default service; }\n  upstream service {",
			inServer, "    location /to/ { proxy_pass http://$backend; }\n" + inServer}, nil, ""},
	{"a path that asks for another permission",
		[]string{inServer, "    location = /v1/fleet/config { proxy_pass http://service/v1/telemetry; }\n" + inServer},
		[]string{rewriteIn.Code}, "location = /v1/fleet/config: proxy_pass"},
	{"a path that is protected for more methods",
		[]string{inServer, "    location = /v1/telemetry { proxy_pass http://service/v1/me/config; }\n" + inServer},
		[]string{rewriteIn.Code}, "location = /v1/telemetry: proxy_pass"},
	{"another method",
		[]string{inServer, "    location /v1/telemetry { proxy_method POST; proxy_pass http://service; }\n" + inServer},
		[]string{otherMethod.Code}, "location /v1/telemetry: proxy_method"},
	{"another method elsewhere",
		[]string{inServer, "    location /v1/fleet { proxy_method POST; proxy_pass http://service; }\n" + inServer}, nil, ""},
	{"any protocol",
		[]string{inServer, "    location /ws/ { proxy_pass http://service; proxy_set_header Upgrade $http_upgrade; " +
			"proxy_set_header Connection upgrade; }\n" + inServer}, []string{tunnel.Code}, "location /ws/: proxy_set_header"},
	{"another way for some",
		[]string{anyServer, "server { listen 81; allow 192.0.2.0/24; deny all; location / { proxy_pass http://service; } }" +
			anyServer}, nil, ""},
	{"variable upstreams", []string{"proxy_pass http://service;", "proxy_pass http://$backend;",
		anyServer, "server { listen 81; location / { proxy_pass http://$backend; } }" + anyServer}, nil, ""},
	{"access_by_lua that can't be read", []string{inServer, inServer + "      access_by_lua_file own.lua;\n"},
		[]string{ownAccess.Code}, "access_by_lua_file"},
	{"access of another module",
		[]string{inServer, inServer + "      access_by_lua_block { require(\"other\").access() }\n"},
		[]string{ownAccess.Code}, "access_by_lua_block"},
	{"cache of another place", []string{"http {", "http { proxy_cache answers;", inServer,
		inServer + "      proxy_cache off;\n"}, nil, ""},
	{"init of another module", []string{`require("gatehouse.edge").init{`, "print{"}, []string{noInit.Code}, "http"},
	{"init that can't be read", []string{"init_by_lua_block {", "init_by_lua_file init.lua; init_by_lua_block {",
		`require("gatehouse.edge").init{`, "print{"}, nil, ""},
	{"push listener with an if", []string{"include /usr/share/gatehouse/nginx/push.conf;",
		`location / { if ($request_method = PUT) { return 405; } content_by_lua_block { require("gatehouse.push").apply() } }`}, []string{smallPush.Code}, "location /: client_max_body_size"},
	{"no lines of server.conf", []string{"include /usr/share/gatehouse/nginx/server.conf;",
		`access_by_lua_block { require("gatehouse.edge").access() }`}, []string{lostHeaders.Code}, "location /: add_header"},
	{"IPv6 addresses of the client's choice", []string{inServer, "    set_real_ip_from ::/0;\n" + inServer},
		[]string{anySource.Code}, "server 127.0.0.1:8080: set_real_ip_from"},
	{"redirects of all", []string{inServer, "    rewrite (.*) /v1/me/config last;\n" + inServer},
		[]string{rewriteIn.Code}, "rewrite"},
	{"redirects to what is captured", []string{inServer, "    rewrite ^/x/(.*)/y$ /v1/me/$1 last;\n" + inServer},
		[]string{rewriteIn.Code}, "rewrite"},
	{"redirects that aren't simple", []string{inServer, `    rewrite ^old$ /v1/me/config last;
    location ~ ^/v1/me/config$ { root /a; try_files $uri /v1/me/config; }
` + inServer}, nil, ""},
	{"try_files with a variable", []string{inServer, "    location /b/ { root /a; try_files $uri /v1/telemetry$uri; }\n" +
		inServer}, []string{rewriteIn.Code}, "location /b/: try_files"},
	{"try_files of a preferred prefix",
		[]string{inServer, "    location ^~ /b/ { root /a; try_files $uri /v1/me/config; }\n" + inServer},
		[]string{rewriteIn.Code}, "location ^~ /b/: try_files"},
	{"no push listener", []string{"include /usr/share/gatehouse/nginx/push.conf;", ""}, []string{noPush.Code}, "http"},
	{"push by TCP", []string{pushListen, "listen 127.0.0.1:9902;"}, []string{openPush.Code},
		"server 127.0.0.1:9902: listen"},
	{"push on no socket", []string{pushListen, ""}, []string{openPush.Code}, "server *:80: listen"},
	{"push where all may go", []string{pushListen, "listen unix:/push.sock;"}, []string{openDir.Code},
		"server unix:/push.sock: listen"},
	{"drain from everywhere", []string{"listen 127.0.0.1:9901;", "listen 9901;"}, []string{openAdmin.Code},
		"server 9901: location = /healthcheck/fail"},
	{"drain for most", []string{"listen 127.0.0.1:9901;", "listen 9901; deny 192.0.2.1;"}, []string{openAdmin.Code},
		"server 9901: location = /healthcheck/fail"},
	{"drain for some", []string{"listen 127.0.0.1:9901;", "listen 9901; allow 192.0.2.0/24; deny all;"}, nil, ""},
	{"other compression", []string{"http {", "http { brotli on;"}, []string{reencoded.Code},
		"server 127.0.0.1:8080: brotli"},
	{"inherited lines", []string{inServer, inServer + "      add_header_inherit merge; add_header X-A b;\n"}, nil, ""},
	{"lost lines of FastCGI", []string{inServer, "    location /v1/me/ { add_header X-A b; fastcgi_pass unix:/run/a; }\n" +
		inServer}, []string{lostHeaders.Code}, "server 127.0.0.1:8080: location /v1/me/: add_header"},
	{"identity of FastCGI",
		[]string{inServer, "    location /x/ { fastcgi_param HTTP_X_GATEHOUSE_DEVICE $arg_d; fastcgi_pass unix:/run/a; }\n" +
			inServer}, []string{forgedIdentity.Code}, "location /x/: fastcgi_param"},
	{"path of FastCGI",
		[]string{inServer, "    location /x/ { fastcgi_param SCRIPT_NAME $uri; fastcgi_pass unix:/run/a; }\n" + inServer},
		nil, ""},
}

// streams puts a stream block before http; the plugin's server listens to the network.
func streams(servers string) []string {
	return []string{"http {", "stream { " + servers + " }\nhttp {", "listen 127.0.0.1:8080 reuseport",
		"listen 8080 reuseport"}
}

func TestFiles(t *testing.T) {
	for _, c := range files {
		t.Run(c.name, func(t *testing.T) {
			report := analyzeShipped(t, shippedRules, c.replace...)
			if slices.Contains(c.want, openAdmin.Code) {
				report.Findings = report.Findings[:1] // one for each location
			}
			wantCodes(t, report, c.want)
			if len(report.Findings) > 0 &&
				!strings.Contains(report.Findings[0].Place.Text()+": "+report.Findings[0].Message, c.at) {
				t.Errorf("found %+v, want %q", report.Findings[0], c.at)
			}
			if report.Rules != 4 && !slices.Contains(c.want, unreadable.Code) && !slices.Contains(c.want, noPlugin.Code) {
				t.Errorf("got %d rules, want 4", report.Rules)
			}
		})
	}
}

// TestPushDirectory: nginx lets all users write to its sockets: the directory, or a parent, must keep users out.
func TestPushDirectory(t *testing.T) {
	root, err := os.MkdirTemp("/dev/shm", "gatehouse-") // all users may enter, unlike t.TempDir
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(root) })
	dir := filepath.Join(root, "a", "b")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	for _, c := range []struct {
		modes [3]os.FileMode // outermost first
		want  []string
	}{
		{[3]os.FileMode{0o755, 0o755, 0o755}, []string{openDir.Code}},
		{[3]os.FileMode{0o755, 0o711, 0o777}, []string{openDir.Code}},
		{[3]os.FileMode{0o755, 0o755, 0o700}, nil},
		{[3]os.FileMode{0o755, 0o755, 0o750}, nil}, // a common group of both users
		{[3]os.FileMode{0o755, 0o755, 0o744}, nil},
		{[3]os.FileMode{0o755, 0o700, 0o777}, nil},
		{[3]os.FileMode{0o750, 0o755, 0o755}, nil},
	} {
		for i, path := range []string{root, filepath.Dir(dir), dir} {
			require.NoError(t, os.Chmod(path, c.modes[i]))
		}
		report := analyzeShipped(t, shippedRules, pushListen, "listen unix:"+dir+"/push.sock;")
		if wantCodes(t, report, c.want); t.Failed() {
			t.Fatalf("with modes %o", c.modes)
		}
	}
	wantCodes(t, analyzeShipped(t, shippedRules, pushListen, "listen unix:/nowhere/push.sock;"), nil)
}

// TestClosed: a server that excludes some clients is a bypass for the admitted ones.
func TestClosed(t *testing.T) {
	const pass, none = "proxy_pass http://service;", "location / { proxy_pass http://service; }"
	for server, closed := range map[string]bool{
		"deny all; " + none:                                     true,
		"allow 192.0.2.0/24; deny all; " + none:                 true,
		"allow unix:; allow 10.0.0.0/8; deny all; " + none:      true,
		"allow fd00::/8; allow fc00::/7; deny all; " + none:     true,
		"allow 2001:db8::/32; deny all; " + none:                true,
		"deny 192.0.2.1; allow 192.0.2.0/24; deny all; " + none: true,
		"deny all; allow all; " + none:                          true, // the first matching line counts
		"location / { deny all; " + pass + " }":                 true,
		"deny all; location / { location /a { " + pass + " } }": true,

		"deny 192.0.2.1; " + none:                                               false,
		"allow 192.0.2.1; " + none:                                              false,
		"deny 192.0.2.1; allow all; " + none:                                    false,
		"deny 0.0.0.0/0; " + none:                                               false, // IPv6 is not denied
		"allow all; deny all; " + none:                                          false,
		"allow 192.0.2.1; allow 0.0.0.0/0; deny all; " + none:                   false,
		"allow 00.0.0.0/00; deny all; " + none:                                  false,
		"allow 0.0.0.0/1; allow 128.0.0.0/1; deny all; " + none:                 false,
		"allow ::/0; deny all; " + none:                                         false,
		"allow 2000::/3; deny all; " + none:                                     false,
		"allow f000::/4; deny all; " + none:                                     false,
		"deny all; location / { allow all; " + pass + " }":                      false,
		"deny all; location / { deny 192.0.2.1; " + pass + " }":                 false,
		"deny all; satisfy ANY; auth_basic a; " + none:                          false,
		"allow 192.0.2.1; deny all; set_real_ip_from 0.0.0.0/0; " + none:        false,
		"deny all; location / { limit_except GET { allow all; } " + pass + " }": false,
	} {
		var want []string
		if !closed {
			want = []string{unjudged.Code}
		}
		t.Run(server, func(t *testing.T) {
			wantCodes(t, analyzeShipped(t, shippedRules, anyServer, "server { listen 81; "+server+" }"+anyServer), want)
		})
	}
}

// TestSources: beyond a bound of the prefix length, clients choose their address.
func TestSources(t *testing.T) {
	for source, anyone := range map[string]bool{
		"10.0.0.0/8": false, "192.0.2.1": false, "fc00::/7": false, "2400:cb00::/32": false, "2001:db8::1": false,
		"2600::/16": false, "unix:": false, "proxy.example": false,
		"0.0.0.0/0": true, "128.0.0.0/1": true, "10.0.0.0/7": true, "10.0.0.0/07": true, "::/0": true, "2000::/3": true,
		"2600::/15": true,
	} {
		var want []string
		if anyone {
			want = []string{anySource.Code}
		}
		t.Run(source, func(t *testing.T) {
			wantCodes(t, analyzeShipped(t, shippedRules, inServer, "    set_real_ip_from "+source+";\n"+inServer), want)
		})
	}
}

func TestAddress(t *testing.T) {
	for text, want := range map[string]string{
		"localhost:81": "localhost:81", "Localhost:81": "localhost:81", "127.0.0.2:81": "localhost:81",
		"[::1]:81": "localhost:81", "[::ffff:127.0.0.1]:81": "localhost:81", "0.0.0.0:81": "localhost:81",
		"[::]:81": "localhost:81", "*:81": "localhost:81", "81": "localhost:81", "127.0.0.1": "localhost:80",
		"[::1]": "localhost:80", "A.example": "a.example:80", "192.0.2.1:81": "192.0.2.1:81",
		"unix:/A.sock": "unix:/A.sock",
	} {
		if got := normalizeAddress(text); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

// TestRules reads rules in both forms, and refuses invalid rules.
func TestRules(t *testing.T) {
	yaml, err := os.ReadFile(shippedRules)
	require.NoError(t, err)
	rendered, _, err := nginx.Render(yaml)
	require.NoError(t, err)
	dir := t.TempDir()
	for _, c := range []struct {
		name, text string
		rules      int
		want       []string
		message    string
	}{
		{"YAML", string(yaml), 4, nil, ""},
		{"rendered", string(rendered), 4, nil, ""},
		{"another format", `{"format": 1}`, 0, []string{badRules.Code}, "has format 1, want 3"},
		{"methods", "credentials: {basic: true}\nrules: [{match: {prefix: /a/b/}, cache: {}}, {match: {prefix: /a/, " +
			"methods: [GET, PSOT]}}, {match: {path: /a/c}, auth: {}}, {match: {prefix: /a/}, auth: {}}]", 4,
			[]string{unknownMethod.Code, openPart.Code, openMethod.Code}, "takes GET, PSOT from rules[2]"},
		{"trials", "credentials: {basic: true}\ndefault: would_deny\nrules: [{match: {prefix: /a}, auth: " +
			"{enforce: false}}]", 1,
			[]string{notEnforced.Code, notEnforced.Code}, "rules[0].auth.enforce"},
		{"wildcards", "rules: [{match: {prefix: /a/*}}, {match: {path: '/b/{id}'}}]", 2,
			[]string{wildcard.Code, wildcard.Code}, "rules know no wildcards"},
		{"no YAML", "rules:\n- match: {prefix: /}\n\tcache: {}\n", 0, []string{badRules.Code}, "indent with blanks"},
		{"two mistakes", "rulez: []\nrules: []\ndefault: maybe", 0, []string{badRules.Code, badRules.Code},
			"unknown field"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(dir, "rules")
			require.NoError(t, os.WriteFile(file, []byte(c.text), 0o600))
			for _, report := range []findings.Report{analyzeShipped(t, file),
				analyzeShipped(t, "", `"/etc/gatehouse/rules.json"`, `"`+file+`"`)} {
				wantCodes(t, report, c.want)
				if report.Rules != c.rules || c.message != "" && !strings.Contains(fmt.Sprint(report.Findings), c.message) {
					t.Errorf("got %+v, want %d rules, %q", report, c.rules, c.message)
				}
			}
		})
	}
	const anyAddress = "    set_real_ip_from 0.0.0.0/0;\n"
	for _, text := range []string{"rules: [{match: {prefix: /}, cache: {}}]",
		"source: {header: x-source}\n" + string(yaml)} {
		file := filepath.Join(dir, "rules")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		wantCodes(t, analyzeShipped(t, file, inServer, anyAddress+inServer), nil)
	}
	wantCodes(t, analyzeShipped(t, "", "init_by_lua_block {", "init_by_lua_file init.lua; init_by_lua_block {",
		`require("gatehouse.edge").init{`, "print{"), []string{rulesUnread.Code})
	// The analysis doesn't compare a named path with unknown rules.
	for _, unknown := range []string{`"` + dir + `/none"`, `"rules.json"`, "file"} {
		wantCodes(t, analyzeShipped(t, "", `"/etc/gatehouse/rules.json"`, unknown, "http://service;", "http://service/v1/;"),
			[]string{rulesUnread.Code})
	}
}

// TestFound: a case finds each kind.
func TestFound(t *testing.T) {
	found := []string{badRules.Code, rulesUnread.Code, openMethod.Code, openPart.Code, unknownMethod.Code,
		notEnforced.Code, wildcard.Code} // found in TestRules
	for _, c := range bypasses {
		found = append(found, c.want...)
	}
	for _, c := range caches {
		found = append(found, c.want...)
	}
	for _, c := range setups {
		found = append(found, c.want...)
	}
	for _, c := range hostCases {
		found = append(found, c.want...)
	}
	for _, c := range files {
		found = append(found, c.want...)
	}
	kinds := Kinds()
	for _, idea := range topology.Ideas() {
		kinds = append(kinds, idea[findings.Nginx])
	}
	for _, kind := range kinds {
		if !slices.Contains(found, kind.Code) {
			t.Errorf("no case finds %s", kind.Code)
		}
	}
}
