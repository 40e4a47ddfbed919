//go:build linux

package scenario

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/freeport"
	"github.com/gatehouse/gatehouse/loadtest/peers"
	"github.com/gatehouse/gatehouse/loadtest/service"
	"github.com/gatehouse/gatehouse/loadtest/workload"
	"github.com/gatehouse/gatehouse/testbed/proc"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// worldRules are the edge's rules for every workload.
const worldRules = `{credentials: {id_header: x-device-id, secret_header: x-device-token}, rules: [
	{match: {prefix: /v1/telemetry, methods: [POST]}, auth: {permissions: [telemetry.write]}},
	{match: {prefix: /v1/private/}, auth: {permissions: [read]}, cache: {}},
	{match: {prefix: /v1/}, cache: {}}]}`

// world is a stack with a Go service in its own process as upstream, and with all alternatives that a scenario
// compares.
type world struct {
	*bench
	services map[string]*peers.Running // by kind
	// listeners are listeners of the same Envoy or nginx without Gatehouse, by name.
	listeners map[string]peers.Listener
	others    []*peers.Running // nginx, varnish
	nginx     *bench           // Gatehouse in nginx, nil unless started
	logs      string           // directory of the services' logs
}

// worldOptions are a scenario's options for its world.
type worldOptions struct {
	name        string
	workers     int      // of the edge, 0 for the run's
	binding     string   // of the module, or native; "" for the environment's
	sidecarArgs []string // arguments
	capacity    capacity
	services    []string // kinds, in addition to the origin
	direct      bool     // a direct_response answers requests that match no rule
	floor       bool     // a listener like the edge, with the module of loadtest/floor
	// listeners are added to Envoy: names, and the kinds of services behind them.
	listeners []worldListener
	modify    func(c *stack.Config) error // after everything else, may be nil
	seed      func(ctx context.Context, p *publish.Publisher) error
}

type worldListener struct{ name, upstream, auth string }

// startWorld starts a world. If a part fails, the parts started before are stopped.
func startWorld(ctx context.Context, o *Options, wo worldOptions) (w *world, err error) {
	w = &world{services: map[string]*peers.Running{}, listeners: map[string]peers.Listener{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.stop())
		}
	}()
	if w.logs, err = os.MkdirTemp("", "gatehouse-loadtest-"); err != nil {
		return w, err
	}
	for _, kind := range append([]string{service.Origin}, wo.services...) {
		if w.services[kind], err = peers.StartGo(ctx, w.logs, kind); err != nil {
			delete(w.services, kind)
			return w, err
		}
	}
	var listeners []peers.Listener
	for _, l := range append([]worldListener{{name: "direct"}}, wo.listeners...) {
		listener, err := w.newListener(l)
		if err != nil {
			return w, err
		}
		w.listeners[l.name] = listener
		listeners = append(listeners, listener)
	}
	kind, binding := stack.EdgeKind(os.Getenv("EDGE_KIND")), wo.binding
	if binding == string(stack.NativeEdge) {
		kind, binding = stack.NativeEdge, ""
	} else if binding != "" {
		kind = stack.EnvoyEdge
	}
	if kind == stack.NginxEdge && wo.needsEnvoy() {
		return w, fmt.Errorf("%w: EDGE_KIND=nginx: this scenario changes Envoy's configuration", stack.ErrUsage)
	}
	w.bench, err = startBench(ctx, stack.Options{
		Name: wo.name, Concurrency: cmp.Or(wo.workers, o.Workers), Rules: worldRules,
		SidecarArgs:  append(wo.capacity.sidecarArgs(), wo.sidecarArgs...),
		ReadyTimeout: time.Minute, EdgeKind: kind, Binding: binding,
		ModifyConfig: func(c *stack.Config) error { return w.modifyEnvoy(c, listeners, wo) },
		ModifyNginx: func(config string) string {
			return strings.Replace(wo.capacity.limitNginx(w.modifyNginx(config)), "http {\n", w.returnListener(), 1)
		},
	}, func(ctx context.Context, p *publish.Publisher) error {
		if err := seedSingles(ctx, p); err != nil || wo.seed == nil {
			return err
		}
		return wo.seed(ctx, p)
	})
	return w, err
}

// needsEnvoy reports whether only Envoy can be the edge.
func (wo worldOptions) needsEnvoy() bool {
	return wo.direct || wo.floor || len(wo.listeners) > 0 || wo.modify != nil
}

func (w *world) newListener(l worldListener) (peers.Listener, error) {
	address, err := freeport.FindAddress()
	if err != nil {
		return peers.Listener{}, err
	}
	listener := peers.Listener{Name: l.name, Address: address}
	if l.upstream != "" {
		listener.Upstream = w.services[l.upstream].Address
	}
	if l.auth != "" {
		listener.Auth = w.services[l.auth].Address
	}
	return listener, nil
}

func (w *world) modifyEnvoy(c *stack.Config, listeners []peers.Listener, wo worldOptions) error {
	err := c.SetAddress(w.services[service.Origin].Address, "static_resources", "clusters", "upstream",
		"load_assignment", "endpoints", "0", "lb_endpoints", "0", "endpoint")
	if err != nil {
		return err
	}
	if wo.direct {
		if err := peers.AnswerUnmatchedDirectly(c); err != nil {
			return err
		}
	}
	if wo.floor {
		if err := w.addFloor(c); err != nil {
			return err
		}
	}
	if err := peers.AddListeners(c, listeners); err != nil || wo.modify == nil {
		return err
	}
	return wo.modify(c)
}

// addFloor adds the listener "floor", the edge with the module of loadtest/floor instead of Gatehouse's.
func (w *world) addFloor(c *stack.Config) error {
	root, err := stack.Root()
	if err != nil {
		return err
	}
	l, err := w.newListener(worldListener{name: "floor"})
	if err != nil {
		return err
	}
	w.listeners[l.Name] = l
	return errors.Join(
		copyEdge(c, l.Name, l.Address),
		c.Set(stack.DynamicModule(filepath.Join(root, "build", "libfloor.so")),
			managerPath(l.Name, "http_filters", "gatehouse", "typed_config")...),
	)
}

// copyEdge adds a copy of the edge listener, with another name and address.
func copyEdge(c *stack.Config, name, address string) error {
	listeners := []string{"static_resources", "listeners"}
	return errors.Join(c.Copy("edge", name, listeners...), c.SetAddress(address, append(listeners, name)...))
}

// managerPath returns the path of a part of a listener's connection manager.
func managerPath(listener string, part ...string) []string {
	return append([]string{"static_resources", "listeners", listener, "filter_chains", "0", "filters",
		"0", "typed_config"}, part...)
}

// stop ends all parts.
func (w *world) stop() error {
	var errs []error
	if w.bench != nil {
		errs = append(errs, w.bench.stop())
	}
	if w.nginx != nil {
		errs = append(errs, w.nginx.stop())
	}
	for _, r := range w.services {
		errs = append(errs, r.Stop())
	}
	for _, r := range w.others {
		errs = append(errs, r.Stop())
	}
	errs = append(errs, os.RemoveAll(w.logs))
	return errors.Join(errs...)
}

// edgeWithUpstream returns Gatehouse with its upstream as a target.
func (w *world) edgeWithUpstream() target { return w.edgeTarget(w.services[service.Origin].Server()) }

// pinWorker gives the worker of a one-worker edge its own core, and restricts all other processes of the load test to
// the other cores, until unpin is called.
func (w *world) pinWorker() (unpin func() error, err error) {
	if w.workers > 1 {
		return func() error { return nil }, nil
	}
	rest := []int{os.Getpid(), w.SidecarPID(), w.RedisPID()}
	for _, r := range w.services {
		rest = append(rest, r.Server().PID)
	}
	return proc.PinServingThreads(w.proxy(), rest...)
}

// besideTarget returns a listener of the same Envoy or nginx as a target, with the services behind it.
func (w *world) besideTarget(name, listener string, kinds ...string) target {
	servers := []proc.Server{w.proxy()}
	for _, kind := range kinds {
		servers = append(servers, w.services[kind].Server())
	}
	return target{name: name, url: w.listeners[listener].URL(), servers: servers}
}

// aloneTarget returns a program as a target, with the programs that it calls.
func aloneTarget(name string, r *peers.Running, more ...*peers.Running) target {
	servers := []proc.Server{r.Server()}
	for _, m := range more {
		servers = append(servers, m.Server())
	}
	return target{name: name, url: r.URL(), servers: servers}
}

// startNginx starts Gatehouse in nginx, with the same rules, objects and device, in front of the same upstream.
func (w *world) startNginx(ctx context.Context, o *Options) (*bench, error) {
	return startBench(ctx, stack.Options{
		Name: "nginx", EdgeKind: stack.NginxEdge, Concurrency: o.Workers, Rules: worldRules,
		ModifyNginx: w.modifyNginx,
	}, seedSingles)
}

// modifyNginx returns nginx.conf with the world's upstream.
func (w *world) modifyNginx(config string) string {
	return upstreamServer.ReplaceAllString(config, "server "+w.services[service.Origin].Address+";")
}

var upstreamServer = regexp.MustCompile(`server 127[0-9.:]*;`)

// returnListener returns a server of nginx without Gatehouse, which answers everything with 1 KiB.
func (w *world) returnListener() string {
	return fmt.Sprintf("http {\n  server {\n    listen %s reuseport;\n    location / { return 200 %s; }\n  }\n",
		w.listeners["direct"].Address, strings.Repeat("x", 1<<10))
}

// seedSingles publishes the objects and the device of the workloads of one request.
func seedSingles(ctx context.Context, p *publish.Publisher) error {
	if err := seedObjects(ctx, p, func(path string) string { return path }); err != nil {
		return err
	}
	_, err := p.PutDevice(ctx, publish.Device{ID: workload.Device, Secret: workload.Secret,
		Permissions: []string{"read", "telemetry.write"}, Cost: bcrypt.MinCost})
	return err
}

// seedObjects publishes an object for each path of [workload.Sizes].
func seedObjects(ctx context.Context, p *publish.Publisher, key func(path string) string) error {
	for path, size := range workload.Sizes {
		if _, err := p.Put(ctx, publish.Object{Key: key(path), Body: workload.JSONBody(size),
			ContentType: workload.ContentType}); err != nil {
			return err
		}
	}
	return nil
}

// gzippedSizes asks the edge for the length of each object's gzip encoding, made by the publisher.
func (w *world) gzippedSizes(ctx context.Context) (map[string]int, error) {
	sizes := map[string]int{}
	for path := range workload.Sizes {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.EdgeURL()+path, nil)
		if err != nil {
			return nil, err
		}
		request.Header = http.Header{"Accept-Encoding": {"gzip"}, "X-Device-Id": {workload.Device},
			"X-Device-Token": {workload.Secret}}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil, err
		}
		body, err := io.ReadAll(response.Body)
		if err = errors.Join(err, response.Body.Close()); err != nil {
			return nil, err
		}
		plain, err := decompressGzip(body)
		if err != nil || !bytes.Equal(plain, workload.JSONBody(workload.Sizes[path])) {
			return nil, fmt.Errorf("gzip form of %s: status %d, %d bytes that are not the object's (%v)",
				path, response.StatusCode, len(body), err)
		}
		sizes[path] = len(body)
	}
	return sizes, nil
}

func decompressGzip(body []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}
