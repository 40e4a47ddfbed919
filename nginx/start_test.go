package nginx_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/nginx"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestRender renders the shipped rules, and refuses what Envoy refuses or nginx can't do.
func TestRender(t *testing.T) {
	shipped, err := os.ReadFile("rules.yaml")
	require.NoError(t, err)
	file, n, err := nginx.Render(shipped)
	if err != nil || n != 4 || !bytes.Contains(file, []byte(`"permissions": [`)) {
		t.Errorf("the shipped rules: got %s, %d rules, %v", file, n, err)
	}
	envoy, err := os.ReadFile("../envoy/envoy.yaml")
	require.NoError(t, err)
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
		{"rules: [{match: {path: /a}, auth: {}}]", "credentials: is missing, for rules[0]"},
		{"1: 2", "has a field whose name is no text"},
		{"push_listener: true", "needs no rules"},
		{"source: {filter_state: x}", "source.filter_state: is Envoy's"},
	} {
		if _, _, err := nginx.Render([]byte(tt.rules)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: got %v, want %q", tt.rules, err, tt.want)
		}
	}
}

// TestStart starts nginx with files that are no rules, or without the library: nginx must not start.
func TestStart(t *testing.T) {
	path, err := stack.FindNginx()
	require.NoError(t, err)
	rendered, _, err := nginx.Render([]byte(edgeRules))
	require.NoError(t, err)
	good := string(rendered)
	for _, tt := range []struct{ name, rules, from, to, want string }{
		{"no file",
			"", "", "", "rules: DIR/rules.json: No such file or directory: write the file with gatehousectl nginx render"},
		{"no JSON", "rules: []", "", "", "has format none, want 3: write it with gatehousectl of the same release"},
		{"another format", `{"format": 2, "rules": []}`,
			"", "", "has format 2, want 3: write it with gatehousectl of the same release"},
		{"cut", good[:len(good)-5], "", "", "want 3: write it"},
		{"changed", strings.Replace(good, "/v1/products/", "/v2/products/", 1),
			"", "", "was changed by hand: change the rules, and write it with gatehousectl nginx render"},
		{"no library", good, `library = "` + builds, `library = "/nowhere`,
			"/nowhere/libgatehouse-nginx.so: No such file or directory: gatehousectl nginx install writes it"},
		{"no library beside lua", good, ", library =", ", other =",
			here(t) + "/libgatehouse-nginx.so: No such file or directory"},
		{"no dictionary", good, "lua_shared_dict gatehouse", "lua_shared_dict other",
			"lua_shared_dict gatehouse is missing: include http.conf"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.rules != "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, "rules.json"), []byte(tt.rules), 0o600))
			}
			http, err := os.ReadFile("http.conf")
			require.NoError(t, err)
			config := strings.Replace(configOf(t, configHead+initBlock+"}", dir), "include "+filepath.Join(here(t), "http.conf")+
				";", string(http), 1)
			if !strings.Contains(config, tt.from) {
				t.Fatalf("nginx.conf has no %q", tt.from)
			}
			file := filepath.Join(dir, "nginx.conf")
			require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(config, tt.from, tt.to)), 0o600))
			want := strings.ReplaceAll(tt.want, "DIR", dir)
			out, err := exec.CommandContext(t.Context(), path, "-p", dir, "-c", file, "-e", "stderr").CombinedOutput()
			log, _ := os.ReadFile(filepath.Join(dir, "error.log"))
			if err == nil || !strings.Contains(string(out)+string(log), want) {
				t.Errorf("got %v, %s %s; want %q", err, out, log, want)
			}
		})
	}
}

func here(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(".")
	require.NoError(t, err)
	return dir
}
