package stack

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/nginx"
)

// EdgeKind is the proxy of an edge.
type EdgeKind string

// The kinds of edges.
const (
	EnvoyEdge EdgeKind = "envoy"
	NginxEdge EdgeKind = "nginx"
)

// NginxModules is the directory of Debian's dynamic modules.
const NginxModules = "/usr/lib/nginx/modules"

// FindNginx returns the path of nginx, which is not on every user's path.
func FindNginx() (string, error) {
	path, err := exec.LookPath("nginx")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/nginx")
	}
	if err != nil {
		return "", fmt.Errorf("%w: no nginx; run: scripts/install-packages.sh lua-coverage", ErrUsage)
	}
	return path, nil
}

// EdgeKind returns the proxy of the edge.
func (s *Stack) EdgeKind() EdgeKind { return s.opts.EdgeKind }

// KillWorker ends a worker of nginx by SIGKILL. The master starts a new worker at once.
func (s *Stack) KillWorker() error {
	workers, err := NginxWorkers(s.EdgePID())
	if err != nil {
		return err
	}
	if len(workers) == 0 {
		return fmt.Errorf("nginx (pid %d) has no workers", s.EdgePID())
	}
	return syscall.Kill(workers[rand.IntN(len(workers))], syscall.SIGKILL)
}

// NginxWorkers returns the pids of nginx's workers. master is the master's pid.
func NginxWorkers(master int) (pids []int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", master))
	if err != nil {
		return nil, err
	}
	for _, field := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// awaitEndOfWorkers waits until no worker of a killed nginx listens any more. Workers end a little later than the
// master, and the next nginx removes a socket's file only if nobody listens on the socket.
func (s *Stack) awaitEndOfWorkers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.ReadyTimeout)
	defer cancel()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", s.PushSocket())
		if err != nil {
			return ctx.Err()
		}
		_ = conn.Close()
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: a worker of an earlier nginx still listens", s.PushSocket())
		case <-time.After(time.Millisecond):
		}
	}
}

func (s *Stack) nginxProgram() program {
	return program{
		name: nginxName, path: s.opts.NginxPath,
		args: []string{"-p", s.opts.Dir, "-c", s.path("nginx.conf"), "-e", "stderr", "-g", "daemon off;"},
		env:  s.opts.EnvoyEnv, log: s.path("nginx.log"), group: true,
	}
}

// nginxMemory returns the path of the memory of nginx's workers.
func (s *Stack) nginxMemory() string { return s.path("memory") }

// renderNginx writes the stack's nginx.conf and the rules for the plugin.
func (s *Stack) renderNginx() error {
	root, err := Root()
	if err != nil {
		return err
	}
	source := filepath.Join(root, "nginx")
	if err := s.renderNginxRules(filepath.Join(source, "rules.yaml")); err != nil {
		return err
	}
	text, err := os.ReadFile(s.opts.NginxConfigPath)
	if err != nil {
		return err
	}
	config := string(text)
	temporary := ""
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temporary += fmt.Sprintf("  %s_temp_path %s;\n", kind, s.path("nginx-"+kind))
	}
	for _, change := range [][2]string{
		// Their paths are relative to -p.
		{"include /etc/nginx/modules-enabled/*.conf;", "load_module " + NginxModules + "/ndk_http_module.so;\nload_module " +
			NginxModules + "/ngx_http_lua_module.so;"},
		{"user gatehouse;", "user root;"}, // of the sockets' directory; without effect for other users
		{"worker_processes 2;", "worker_processes " + strconv.Itoa(s.opts.Concurrency) + ";"},
		{"worker_rlimit_nofile 65536;\n", ""}, // not for every user
		{"/var/log/nginx/error.log", "stderr"},
		{"/run/nginx.pid", s.path("nginx.pid")},
		{"http {\n", "http {\n" + temporary},
		{"/var/log/nginx/access.log", "/dev/stdout"},
		{"/usr/share/gatehouse/nginx", source},
		{"/etc/gatehouse/rules.json", s.path("rules.json")},
		{`memory = "/run/gatehouse/memory"`, fmt.Sprintf("library = %q, memory = %q", s.opts.NginxLibrary, s.nginxMemory())},
		{productionPushSocket, s.PushSocket()},
		{productionAPISocket, s.APISocket()},
		{"127.0.0.1:8080", s.opts.Edge},
		{"127.0.0.1:8081", s.opts.Upstream},
		{"127.0.0.1:9901", s.opts.EnvoyAdmin},
	} {
		if !strings.Contains(config, change[0]) {
			return fmt.Errorf("%s has no %q to replace", s.opts.NginxConfigPath, change[0])
		}
		config = strings.ReplaceAll(config, change[0], change[1])
	}
	if s.opts.ModifyNginx != nil {
		config = s.opts.ModifyNginx(config)
	}
	return os.WriteFile(s.path("nginx.conf"), []byte(config), 0o600)
}

// renderNginxRules writes the rules for the plugin: from the stack's options, from the Envoy configuration in the
// options, or from a file.
func (s *Stack) renderNginxRules(path string) error {
	text, err := s.nginxRules(path)
	if err != nil {
		return err
	}
	rendered, _, err := nginx.Render(text)
	if err != nil {
		return fmt.Errorf("render rules: %w", err)
	}
	return os.WriteFile(s.path("rules.json"), rendered, 0o600)
}

func (s *Stack) nginxRules(path string) ([]byte, error) {
	if s.opts.Rules != "" {
		return []byte(s.opts.Rules), nil
	}
	if s.opts.ConfigPath == "" {
		return os.ReadFile(path)
	}
	config, err := LoadConfig(s.opts.ConfigPath)
	if err != nil {
		return nil, err
	}
	node, err := config.Find(rulesPath...)
	if err != nil {
		return nil, err
	}
	return yaml.Marshal(node)
}
