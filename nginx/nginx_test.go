package nginx_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// configHead begins a configuration of one process: of a directory, this one, and that of the modules.
const configHead = `
daemon off;
master_process off;
error_log %[1]s/error.log info;
pid %[1]s/nginx.pid;
load_module %[3]s/ndk_http_module.so;
load_module %[3]s/ngx_http_lua_module.so;
events { worker_connections 2048; }
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  lua_package_path "%[2]s/lua/?.lua;%[2]s/testdata/?.lua;;";
`

// The plugin's modules are tested in the LuaJIT of a real nginx: testdata/call.lua calls a function of theirs with
// arguments that a test posts as JSON.
const testConfig = configHead + `
  init_by_lua_block { %[4]s}
  lua_shared_dict test 32m;
  lua_shared_dict gatehouse_state 64k;
  lua_shared_dict gatehouse_objects 8m;
  lua_shared_dict gatehouse_bodies 4m;
  lua_shared_dict gatehouse_verdicts 8m;
  lua_shared_dict gatehouse_counters 64k;
  server {
    listen unix:%[1]s/call.sock;
    client_max_body_size 64m;
    client_body_buffer_size 64m;
    location / { content_by_lua_block { require("call").answer() } }
  }
  server {
    listen unix:%[1]s/push.sock;
    include %[2]s/push.conf;
  }
}
`

var client *http.Client

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		stop, err := start()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer stop()
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

// start starts nginx and waits until it answers.
func start() (stop func(), err error) {
	path, err := stack.FindNginx()
	if err != nil {
		return nil, err
	}
	here, err := filepath.Abs(".")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "gatehouse-nginx-")
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "nginx.conf")
	coverageFile = filepath.Join(dir, "coverage")
	if err := os.WriteFile(config, fmt.Appendf(nil, testConfig, dir, here, stack.NginxModules, startCoverage()), 0o600); err != nil {
		return nil, err
	}
	logFile := filepath.Join(dir, "error.log")
	ended := make(chan error, 1)
	child, err := stack.StartChild("nginx", path, []string{"-p", dir, "-c", config, "-e", logFile}, nil, logFile, func(err error) { ended <- err })
	if err != nil {
		return nil, err
	}
	stop = func() {
		if err := child.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		if log, err := os.ReadFile(logFile); err == nil && testing.Verbose() {
			_, _ = os.Stderr.Write(log)
		}
		_ = os.RemoveAll(dir)
	}
	client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		socket := "call.sock"
		if address == "push:80" {
			socket = "push.sock"
		}
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, socket))
	}}}
	for deadline := time.Now().Add(10 * time.Second); ; {
		res, err := client.Get("http://nginx/")
		if err == nil {
			return stop, res.Body.Close()
		}
		select {
		case err := <-ended:
			return nil, err
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			stop()
			return nil, errors.New("nginx doesn't answer")
		}
	}
}

// call calls a function of a module in nginx with args, and stores what it returns in result, an array. Bytes in
// either are base64.
func call(t testing.TB, result any, module, function string, args ...any) {
	t.Helper()
	if err := callLua(result, module, function, args...); err != nil {
		t.Fatal(err)
	}
}

func callLua(result any, module, function string, args ...any) error {
	body, err := json.Marshal(append([]any{}, args...)) // an array also of none
	if err != nil {
		return err
	}
	res, err := client.Post("http://nginx/"+module+"/"+function, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s.%s%s: %s %s %w", module, function, body, res.Status, text, err)
	}
	if err := json.Unmarshal(text, result); err != nil {
		return fmt.Errorf("%s.%s: %w in %.500s", module, function, err, text)
	}
	return nil
}

// caseCount returns how many random cases a test has, and their source: usual, or as many as GATEHOUSE_CASES says, of a
// random seed.
func caseCount(t testing.TB, usual int) (n int, r *rand.Rand) {
	t.Helper()
	n, seed := usual, uint64(1)
	if *coverage {
		n /= 20 // each costs ten times as much; few run all lines
	}
	if asked := os.Getenv("GATEHOUSE_CASES"); asked != "" {
		var err error
		if n, err = strconv.Atoi(asked); err != nil {
			t.Fatalf("GATEHOUSE_CASES: %v", err)
		}
		seed = rand.Uint64()
	}
	t.Logf("%d cases of seed %d", n, seed)
	return n, rand.New(rand.NewPCG(seed, 0))
}
