//go:build linux

package nginx_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// unit runs the commands of docs/systemd/nginx.service.d/gatehouse.conf, without systemd: with gatehousectl, nginx.conf
// and rules.yaml of this repository in a directory of the test.
type unit struct {
	dir, edge string
	nginx     []string // the command, as far as all uses have the same
	lines     map[string][]string
	master    *exec.Cmd
	ended     chan error
}

func newUnit(t *testing.T) *unit {
	t.Helper()
	path, err := stack.FindNginx()
	require.NoError(t, err)
	u := &unit{dir: t.TempDir(), lines: map[string][]string{}}
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", u.dir,
		"../ctl/cmd/gatehousectl").CombinedOutput()
	if err != nil {
		t.Fatalf("build gatehousectl: %v: %s", err, out)
	}
	built, err := library()
	require.NoError(t, err)
	out, err = exec.CommandContext(t.Context(), filepath.Join(u.dir, "gatehousectl"),
		"nginx", "install", "--library", built, filepath.Join(u.dir, "plugin")).CombinedOutput()
	if err != nil {
		t.Fatalf("gatehousectl nginx install: %v: %s", err, out)
	}
	u.writeConfig(t)
	rules, err := os.ReadFile("rules.yaml")
	require.NoError(t, err)
	u.write(t, "rules.yaml", string(rules))

	config := filepath.Join(u.dir, "nginx.conf")
	u.nginx = []string{path, "-p", u.dir, "-c", config, "-e", filepath.Join(u.dir, "error.log")}
	text, err := os.ReadFile("../docs/systemd/nginx.service.d/gatehouse.conf")
	require.NoError(t, err)
	place := strings.NewReplacer("/usr/local/bin/", u.dir+"/", "/etc/gatehouse/", u.dir+"/",
		"/etc/nginx/nginx.conf", config, "/usr/sbin/nginx", strings.Join(u.nginx, " "))
	for line := range strings.Lines(string(text)) {
		name, command, found := strings.Cut(strings.TrimSpace(line), "=")
		if !found || strings.HasPrefix(line, "#") {
			continue
		}
		if u.lines[name] = append(u.lines[name], place.Replace(command)); command == "" {
			u.lines[name] = nil // what Debian's unit says no longer counts
		}
	}
	t.Cleanup(func() {
		if u.master != nil {
			_ = syscall.Kill(-u.master.Process.Pid, syscall.SIGKILL) // it may have ended
		}
		if log, err := os.ReadFile(filepath.Join(u.dir, "error.log")); err == nil && t.Failed() {
			t.Logf("error.log:\n%s", log)
		}
	})
	return u
}

// writeConfig writes nginx.conf with paths and addresses of the test.
func (u *unit) writeConfig(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("nginx.conf")
	require.NoError(t, err)
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(upstream.Close)
	u.edge = freeAddress(t)
	config, temporary := string(text), ""
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temporary += fmt.Sprintf("  %s_temp_path %s/%s;\n", kind, u.dir, kind)
	}
	for _, change := range [][2]string{
		{"include /etc/nginx/modules-enabled/*.conf;", "load_module " + stack.NginxModules +
			"/ndk_http_module.so;\nload_module " + stack.NginxModules + "/ngx_http_lua_module.so;"},
		{"user gatehouse;", "user root;"}, // of the directory; without effect for others
		{"worker_rlimit_nofile 65536;\n", ""},
		{"http {\n", "http {\n" + temporary},
		{"/usr/share/gatehouse/nginx", filepath.Join(u.dir, "plugin")},
		{"/etc/gatehouse", u.dir},
		{"/run/gatehouse", u.dir},
		{"/run/nginx.pid", u.dir + "/nginx.pid"},
		{"/var/log/nginx", u.dir},
		{"127.0.0.1:8080", u.edge},
		{"127.0.0.1:8081", strings.TrimPrefix(upstream.URL, "http://")},
		{"127.0.0.1:9901", freeAddress(t)},
	} {
		if !strings.Contains(config, change[0]) {
			t.Fatalf("nginx.conf has no %q", change[0])
		}
		config = strings.ReplaceAll(config, change[0], change[1])
	}
	u.write(t, "nginx.conf", config)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener.Addr().String()
}

func (u *unit) write(t *testing.T, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(u.dir, name), []byte(text), 0o600))
}

// change replaces a part of a file.
func (u *unit) change(t *testing.T, name, from, to string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(u.dir, name))
	require.NoError(t, err)
	if !strings.Contains(string(text), from) {
		t.Fatalf("%s has no %q", name, from)
	}
	u.write(t, name, strings.ReplaceAll(string(text), from, to))
}

// run runs lines of the unit until a line fails, as systemd does, and returns the number of successful lines.
func (u *unit) run(t *testing.T, name string) (done int, err error) {
	t.Helper()
	if len(u.lines[name]) == 0 {
		t.Fatalf("the unit has no %s", name)
	}
	for i, line := range u.lines[name] {
		command := strings.Fields(line)
		if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
			return i, fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	return len(u.lines[name]), nil
}

// start runs the lines before nginx, then nginx, and waits until nginx answers with this status.
func (u *unit) start(t *testing.T, status int) {
	t.Helper()
	_, err := u.run(t, "ExecStartPre")
	require.NoError(t, err)
	// Debian's ExecStart has "daemon on", which would outlive a killed test.
	u.master = exec.Command(u.nginx[0], append(u.nginx[1:], "-g", "daemon off; master_process on;")...)
	u.master.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	require.NoError(t, u.master.Start())
	u.ended = make(chan error, 1)
	go func(master *exec.Cmd, ended chan<- error) { ended <- master.Wait() }(u.master, u.ended)
	u.awaitStatus(t, status)
}

// workers returns the pids of nginx's workers.
func (u *unit) workers(t *testing.T) []int {
	t.Helper()
	pids, err := stack.NginxWorkers(u.master.Process.Pid)
	require.NoError(t, err)
	return pids
}

// kill ends the master and its workers by SIGKILL, and returns when nobody listens any more.
func (u *unit) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, syscall.Kill(-u.master.Process.Pid, syscall.SIGKILL))
	<-u.ended
	u.master = nil
	await.Until(t, "nobody listens", func() bool {
		conn, err := net.Dial("tcp", u.edge)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
}

// status returns the status of the answer, on a new connection, to a request under "default" only; 0 without an answer.
func (u *unit) status(t *testing.T) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+u.edge+"/elsewhere", nil)
	require.NoError(t, err)
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	return response.StatusCode
}

func (u *unit) awaitStatus(t *testing.T, want int) {
	t.Helper()
	await.Until(t, fmt.Sprintf("an answer %d", want), func() bool {
		select {
		case err := <-u.ended:
			u.ended <- err
			t.Fatalf("nginx ended: %v", err)
		default:
		}
		return u.status(t) == want
	})
}

// TestUnit runs the lines of nginx's unit: at a start, at reloads with and without mistakes, and after a kill, which
// leaves the push socket and the file with the pid.
func TestUnit(t *testing.T) {
	const passed, denied = http.StatusOK, http.StatusForbidden
	u := newUnit(t)
	u.start(t, passed)

	u.change(t, "rules.yaml", "default: pass", "default: deny")
	if got := u.status(t); got != passed {
		t.Errorf("before the reload: got %d", got)
	}
	old := u.workers(t)
	_, err := u.run(t, "ExecReload")
	require.NoError(t, err)
	await.Until(t, "the old workers are gone", func() bool {
		now := u.workers(t)
		return len(now) > 0 && !slices.ContainsFunc(now, func(pid int) bool { return slices.Contains(old, pid) })
	})
	u.awaitStatus(t, denied)

	rendered, err := os.ReadFile(filepath.Join(u.dir, "rules.json"))
	require.NoError(t, err)
	u.change(t, "rules.yaml", "default: deny", "defualt: pass")
	if done, err := u.run(t, "ExecReload"); done != 0 || err == nil ||
		!strings.Contains(err.Error(), "defualt: unknown field") {
		t.Errorf("a mistake in the rules: got %d lines without an error, then %v", done, err)
	}
	if now, err := os.ReadFile(filepath.Join(u.dir, "rules.json")); err != nil || string(now) != string(rendered) {
		t.Errorf("a mistake in the rules changed the file that nginx reads: %v", err)
	}
	u.change(t, "rules.yaml", "defualt: pass", "default: pass")
	u.change(t, "nginx.conf", "events {", "events { nonsense;")
	if done, err := u.run(t, "ExecReload"); done == 0 || done >= len(u.lines["ExecReload"])-1 { // the last one reloads
		t.Errorf("a mistake in nginx.conf: got %d lines without an error, then %v", done, err)
	}
	if got := u.status(t); got != denied {
		t.Errorf("after two mistakes: got %d, want %d by the old rules", got, denied)
	}
	u.change(t, "nginx.conf", "events { nonsense;", "events {")

	u.kill(t)
	push := filepath.Join(u.dir, "push.sock")
	if _, err := os.Lstat(push); err != nil {
		t.Errorf("a killed nginx leaves its socket: %v", err)
	}
	u.start(t, passed)
	conn, err := net.Dial("unix", push)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}
