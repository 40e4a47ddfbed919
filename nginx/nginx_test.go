package nginx_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// configHead begins a configuration of one process: %[1]s is its directory, %[2]s this directory, and %[3]s the
// modules' directory.
const configHead = `
daemon off;
master_process off;
error_log %[1]s/error.log info;
pid %[1]s/nginx.pid;
load_module %[3]s/ndk_http_module.so;
load_module %[3]s/ngx_http_lua_module.so;
events { worker_connections 2048; }
http {
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  lua_package_path "%[2]s/lua/?.lua;%[2]s/testdata/?.lua;;";
`

// initBlock is the init of an edge with its files in a directory: %[1]s, after %[4]s, with the library %[5]s.
const initBlock = `
  init_by_lua_block { %[4]srequire("gatehouse.edge").init{ rules = "%[1]s/rules.json", socket = "unix:%[1]s/api.sock",
    push = "unix:%[1]s/push.sock", memory = "%[1]s/memory", memory_mib = 8, objects = 1000, verdicts = 1000, library = "%[5]s" } }
  include %[2]s/http.conf;
  access_log %[1]s/access.log gatehouse;
`

// builds has the directory of the libraries that tests have built.
var builds string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		var err error
		if builds, err = os.MkdirTemp("", "gatehouse-nginx-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(builds)
		coverageFile = filepath.Join(builds, "coverage")
		code := m.Run()
		if *coverage {
			if err := reportCoverage(os.Stdout); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		return code
	}())
}

var library = sync.OnceValues(func() (string, error) { return buildLibrary("libgatehouse-nginx.so") })

// buildLibrary builds the library with flags of go build.
func buildLibrary(name string, flags ...string) (path string, err error) {
	path = filepath.Join(builds, name)
	out, err := exec.Command("../scripts/build-library.sh", append([]string{"nginx", path}, flags...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build the library: %w: %s", err, out)
	}
	return path, err
}

// configOf returns a configuration with its parameters: see configHead and initBlock.
func configOf(t *testing.T, text, dir string, more ...any) string {
	t.Helper()
	here, err := filepath.Abs(".")
	require.NoError(t, err)
	built, err := library()
	require.NoError(t, err)
	return fmt.Sprintf(text, append([]any{dir, here, stack.NginxModules, startCoverage(), built}, more...)...)
}

// replaceIn returns the overlay of go build for a file of the repository in which a part is replaced.
func replaceIn(t *testing.T, file, from, to string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", file))
	require.NoError(t, err)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	if bytes.Count(text, []byte(from)) != 1 {
		t.Fatalf("%s has not one %q", file, from)
	}
	changed := filepath.Join(t.TempDir(), filepath.Base(file))
	require.NoError(t, os.WriteFile(changed, []byte(strings.Replace(string(text), from, to, 1)), 0o600))
	overlay := filepath.Join(t.TempDir(), "overlay.json")
	require.NoError(t, os.WriteFile(overlay, fmt.Appendf(nil, `{"Replace": {%q: %q}}`, path, changed), 0o600))
	return overlay
}
