package routers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/freeport"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// insensitive is the router for which /V1 is /v1, behind an edge with default: deny.
const insensitive = "express-insensitive"

// routerNames are all routers. The first router gets each request first: see fuzzer.trySpelling.
var routerNames = []string{
	"servemux", "rewrite", "gorilla", "chi", "nginx", "express", insensitive, "fastapi", "flask", "django", "spring",
}

// apps are the running routers, each on its own address.
type apps struct {
	address  map[string]string
	died     chan error // the first unexpected exit of a program
	children []*stack.Child
	servers  []*http.Server
}

// startApps starts all routers; see awaitReady. dir gets their logs; build has the results of scripts/routers.sh. On an
// error, it leaves none running.
func startApps(root, build, dir string) (*apps, error) {
	a := &apps{address: map[string]string{}, died: make(chan error, 1)}
	if err := a.startAll(root, build, dir); err != nil {
		return nil, errors.Join(err, a.stop())
	}
	return a, nil
}

func (a *apps) startAll(root, build, dir string) error {
	for _, built := range []string{filepath.Join(build, "express", "app.js"), filepath.Join(build, "spring.jar")} {
		if _, err := os.Stat(built); err != nil {
			return fmt.Errorf("%w: %w; run: make routers", stack.ErrUsage, err)
		}
	}
	for name, handler := range newGoRouters() {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		server := &http.Server{Handler: handler, ReadHeaderTimeout: patience}
		a.address[name], a.servers = listener.Addr().String(), append(a.servers, server)
		go func() { _ = server.Serve(listener) }() // returns when stop closes listener
	}
	ports, err := freePorts(len(routerNames) - len(a.servers))
	if err != nil {
		return err
	}
	for _, name := range routerNames {
		if a.address[name] == "" {
			a.address[name], ports = "127.0.0.1:"+ports[0], ports[1:]
		}
	}
	source := filepath.Join(root, "e2e", "routers", "apps")
	if err := configureNginx(source, dir, a.portOf("nginx")); err != nil {
		return err
	}
	for _, p := range a.programs(root, build, dir) {
		path, err := exec.LookPath(p.command[0])
		if err != nil {
			return fmt.Errorf("%w: router %s: %w; run: make routers", stack.ErrUsage, p.name, err)
		}
		env := []string{"PYTHONPATH=" + filepath.Join(source, "python"), "PYTHONDONTWRITEBYTECODE=1", "NODE_ENV=production"}
		child, err := stack.StartChild(p.name, path, p.command[1:], env, filepath.Join(dir, p.name+".log"), func(err error) {
			select {
			case a.died <- err:
			default: // one is enough: the first is the cause
			}
		})
		if err != nil {
			return err
		}
		a.children = append(a.children, child)
	}
	return nil
}

func (a *apps) portOf(name string) string {
	_, port, _ := net.SplitHostPort(a.address[name])
	return port
}

type program struct {
	name    string
	command []string
}

// programs returns the routers that run as processes: as in production, but smaller.
func (a *apps) programs(root, build, dir string) []program {
	python := filepath.Join(root, ".venv", "bin", "python")
	return []program{
		{"nginx", []string{"nginx", "-p", dir, "-e", filepath.Join(dir, "nginx-error.log"),
			"-c", filepath.Join(dir, "nginx.conf")}},
		{"express", []string{"node", filepath.Join(build, "express", "app.js"), a.portOf("express"), a.portOf(insensitive)}},
		{"fastapi", []string{python, "-m", "uvicorn", "fastapi_app:app", "--port", a.portOf("fastapi"),
			"--log-level", "warning", "--no-access-log"}},
		{"flask", []string{python, "-m", "gunicorn", "flask_app:app", "--bind", a.address["flask"],
			"--threads", "8", "--keep-alive", "60", "--log-level", "error"}},
		{"django", []string{python, "-m", "waitress", "--listen", a.address["django"], "--threads", "8", "django_app:app"}},
		{"spring", []string{
			"java", "-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-jar", filepath.Join(build, "spring.jar"),
			"--server.port=" + a.portOf("spring"),
		}},
	}
}

// configureNginx writes nginx's configuration into dir.
func configureNginx(source, dir, port string) error {
	for _, name := range []string{"nginx.conf", "serve.conf"} {
		text, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return fmt.Errorf("configure nginx: %w", err)
		}
		filled := strings.NewReplacer("DIR", dir, "PORT", port).Replace(string(text))
		if err := os.WriteFile(filepath.Join(dir, name), []byte(filled), 0o600); err != nil {
			return fmt.Errorf("configure nginx: %w", err)
		}
	}
	return nil
}

// freePorts returns loopback ports without a listener.
func freePorts(n int) (ports []string, err error) {
	for range n {
		address, err := freeport.FindAddress()
		if err != nil {
			return nil, err
		}
		_, port, _ := net.SplitHostPort(address)
		ports = append(ports, port)
	}
	return ports, nil
}

// awaitReady waits until each router serves a resource, two minutes at most.
func (a *apps) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for _, name := range slices.Sorted(slices.Values(routerNames)) {
		c := &client{address: a.address[name]}
		s := spelling{protocol: http11, method: "GET", path: "/v1/products/42", authority: "edge.example", who: nobody}
		for {
			got, err := c.send(s, name)
			if err == nil && got.served == "products" {
				break
			}
			select {
			case died := <-a.died:
				return died
			case <-ctx.Done():
				return fmt.Errorf("router %s: not ready: got %d %q, %w", name, got.status, got.body, errors.Join(err, ctx.Err()))
			case <-time.After(20 * time.Millisecond):
			}
		}
		c.close()
	}
	return nil
}

func (a *apps) stop() error {
	var errs []error
	for _, child := range a.children {
		errs = append(errs, child.Stop())
	}
	for _, server := range a.servers {
		errs = append(errs, server.Close())
	}
	return errors.Join(errs...)
}
