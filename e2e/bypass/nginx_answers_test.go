package bypass

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestAnswersOnNginx is TestAnswersOnEnvoy for nginx, with a server for each setting.
func TestAnswersOnNginx(t *testing.T) {
	t.Parallel()
	w := startUpstreams(t)
	settings := append([]setting{{}}, nginxSettings()...)
	ports := reservePorts(t, len(settings))
	var err error
	w.Stack, err = stack.Start(t.Context(), stack.Options{
		Dir: filepath.Join(w.dir, "stack"), Concurrency: 1, Seed: publishAnswers, EdgeKind: stack.NginxEdge,
		Rules: answerRules,
		ModifyNginx: func(config string) string {
			servers := ""
			for i, s := range settings {
				directives, location, _ := strings.Cut(s.name, " | ")
				servers += fmt.Sprintf(`
  server {
    listen %s:%d;
    server_name s%d.example;
    include %s/nginx/server.conf;
    %s
    location / { proxy_pass http://service; proxy_set_header Host $gatehouse_host; %s }
    location = /open/page { access_by_lua_block { } return 200 "a page"; }
  }
`, networkAddress, ports[i], i, repositoryRoot(t), directives, location)
			}
			at := strings.LastIndexByte(config, '}')
			return config[:at] + servers + config[at:]
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Stop()) })
	found := map[string][]finding{}
	for _, f := range runCheck(t, filepath.Join(w.Dir(), "nginx.conf")) {
		var i int
		if _, err := fmt.Sscanf(f.Server, "s%d.example", &i); err == nil && strings.HasPrefix(f.Code, "GH14") &&
			f.Code != "GH1401" && f.Code != "GH1402" { // those are about answers of the upstream
			found[fmt.Sprint(i)] = append(found[fmt.Sprint(i)], f)
		}
	}
	var plain []reply
	for i, s := range settings {
		plain = w.judgeAnswer(s, ports[i], plain, found[fmt.Sprint(i)])
	}
	w.reportAnswers(len(settings) - 1)
}

func repositoryRoot(t *testing.T) string {
	t.Helper()
	dir, err := stack.Root()
	require.NoError(t, err)
	return dir
}

func nginxSettings() (all []setting) {
	for line := range strings.Lines(nginxDirectives) {
		all = append(all, setting{name: strings.TrimSuffix(line, "\n")})
	}
	return all
}

// nginxDirectives are directives of a server; behind a bar, of its location.
const nginxDirectives = ` | gzip on; gzip_types *; gzip_min_length 1; gzip_proxied any;
 | gzip on;
 | gzip off;
 | gzip on; gzip_vary on; gzip_types text/plain; gzip_http_version 1.0;
 | gzip_static on;
 | gunzip on;
sub_filter quick slow; sub_filter_types *;
 | sub_filter quick slow; sub_filter_once off;
 | sub_filter quick slow; sub_filter_types text/plain; sub_filter_last_modified on;
add_before_body /open/page; addition_types *;
 | add_after_body /open/page;
ssi on; ssi_types *;
 | ssi on;
 | ssi off;
charset utf-8; charset_types *;
 | charset utf-8; override_charset on;
 | charset off;
expires 1h;
 | expires epoch;
 | expires -1;
 | expires off;
 | expires max;
 | etag on;
 | etag off;
 | add_header X-A b;
add_header Strict-Transport-Security 1 always;
 | add_header ETag x;
 | add_header Cache-Control no-store always;
 | add_header Content-Language fr;
 | add_header Vary Origin;
 | add_header Last-Modified x;
 | add_header Cache-Control $upstream_http_cache_control;
 | add_trailer X-A b;
error_page 404 /open/page;
error_page 404 =200 /open/page; proxy_intercept_errors on;
error_page 401 403 /open/page;
error_page 308 410 416 /open/page;
error_page 500 502 503 504 /open/page;
error_page 404 @gone; location @gone { return 410; }
 | if_modified_since exact;
 | if_modified_since before;
 | if_modified_since off;
 | max_ranges 0;
 | max_ranges 1;
 | chunked_transfer_encoding off;
 | default_type text/x;
server_tokens off;
keepalive_timeout 0;
 | limit_rate 100m;
 | output_buffers 1 1k;
 | postpone_output 10;
absolute_redirect off;
server_name_in_redirect on;
port_in_redirect off;
 | proxy_hide_header ETag;
 | proxy_ignore_headers Cache-Control;
 | proxy_buffering off;
 | proxy_redirect / /x/;
 | header_filter_by_lua_block { ngx.header.etag = nil }
 | header_filter_by_lua_block { ngx.header['Cache-Control'] = 'no-store' }
 | header_filter_by_lua_block { ngx.header.x_frame_options = 'DENY' }
 | header_filter_by_lua_block { ngx.status = 500 }
 | body_filter_by_lua_block { ngx.arg[1] = 'x' }
 | body_filter_by_lua_block { local n = #ngx.arg[1] }
 | log_by_lua_block { local n = ngx.header.etag }
rewrite_by_lua_block { local n = 1 }
large_client_header_buffers 4 8k;
msie_padding off;
sendfile on;
tcp_nopush on;
reset_timedout_connection on;
`
