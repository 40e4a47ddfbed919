package nginx_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/nginx"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestRender renders the shipped rules, and refuses what Envoy refuses or nginx can't do.
func TestRender(t *testing.T) {
	shipped, err := os.ReadFile("rules.yaml")
	mustBeNil(t, err)
	file, n, err := nginx.Render(shipped)
	if err != nil || n != 4 || !bytes.Contains(file, []byte(`"permissions": [`)) {
		t.Errorf("the shipped rules: got %s, %d rules, %v", file, n, err)
	}
	envoy, err := os.ReadFile("../envoy/envoy.yaml")
	mustBeNil(t, err)
	for line := range strings.Lines(string(shipped)) {
		rule := strings.TrimSpace(line)
		if strings.HasPrefix(rule, "#") || rule == "" || strings.HasPrefix(rule, "sidecar:") {
			continue
		}
		if !bytes.Contains(envoy, []byte(rule)) {
			t.Errorf("envoy.yaml has no %q: its rules and rules.yaml are the same", rule)
		}
	}
	for _, tt := range []struct{ rules, want string }{
		{"", "is missing, want an object"},
		{"rules: [", "did not find expected node"},
		{"{}\n---\n{}", "more than one YAML document"},
		{"rulez: []", "rulez: unknown field"},
		{"rules: [{match: {path: /a}, auth: {}}]", "rules[0].auth: needs credentials"},
		{"1: 2", "has a field whose name is no text"},
		{"push_listener: true", "needs no rules"},
		{"source: {filter_state: x}", "source.filter_state: is Envoy's"},
	} {
		if _, _, err := nginx.Render([]byte(tt.rules)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: got %v, want %q", tt.rules, err, tt.want)
		}
	}
}

// TestStart starts nginx with files that are no rules: it must not start.
func TestStart(t *testing.T) {
	path, err := stack.FindNginx()
	mustBeNil(t, err)
	here, err := filepath.Abs(".")
	mustBeNil(t, err)
	for _, tt := range []struct{ name, rules, want string }{
		{"no file", "", "rules: " + "%s/rules.json: No such file or directory: write the file with gatehousectl nginx render"},
		{"no JSON", "rules: []", "Expected value but found invalid token"},
		{"another format", `{"format": 1}`, "has format 1, want 2: write it with gatehousectl of the same release"},
		{"no object", `[]`, "has format nil, want 2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.rules != "" {
				mustBeNil(t, os.WriteFile(filepath.Join(dir, "rules.json"), []byte(tt.rules), 0o600))
			}
			config := fmt.Sprintf(`daemon off; master_process off; pid %[1]s/pid; error_log stderr;
load_module %[3]s/ndk_http_module.so; load_module %[3]s/ngx_http_lua_module.so;
events {}
http {
  access_log off; client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;
  lua_package_path "%[2]s/lua/?.lua;%[2]s/testdata/?.lua;;";
  init_by_lua_block { %[4]srequire("gatehouse.edge").init{ rules = "%[1]s/rules.json", socket = "unix:%[1]s/api.sock", push = "unix:%[1]s/push.sock" } }
  include %[2]s/http.conf;
  lua_shared_dict gatehouse_objects 1m; lua_shared_dict gatehouse_bodies 1m; lua_shared_dict gatehouse_verdicts 1m;
}
`, dir, here, stack.NginxModules, startCoverage())
			file := filepath.Join(dir, "nginx.conf")
			mustBeNil(t, os.WriteFile(file, []byte(config), 0o600))
			want := strings.ReplaceAll(tt.want, "%s", dir)
			out, err := exec.CommandContext(t.Context(), path, "-p", dir, "-c", file, "-e", "stderr").CombinedOutput()
			if err == nil || !strings.Contains(string(out), want) {
				t.Errorf("got %v, %s; want %q", err, out, want)
			}
		})
	}
}
