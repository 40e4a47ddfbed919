package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/seed"
	"github.com/gatehouse/gatehouse/testbed/http2conn"
	"github.com/gatehouse/gatehouse/testbed/stack"
	"github.com/gatehouse/gatehouse/testbed/upstream"
	"github.com/gatehouse/gatehouse/testbed/vhosts"
)

// TestVirtualHostsAreApart sends random requests, by HTTP/1 and HTTP/2, to edges with random virtual hosts, and
// compares the answers with the documentation. Each object names its virtual host; another namespace of the same Redis
// has objects of the same keys, and devices of the same ids with all permissions. On Envoy, requests that go upstream
// also tell the virtual host that Envoy's own route configuration selects.
func TestVirtualHostsAreApart(t *testing.T) {
	t.Parallel()
	// Together a million in the whole suite, on three edges. Envoy compiles the Wasm module for each configuration.
	configs, cases := pickSize(34, 4), pickSize(10_000, 3_000)
	if !onNginx() && !onNative() {
		configs = pickSize(34, 1)
	}
	first := seed.Of(t)
	var all tally
	begin := time.Now()
	for i := range uint64(configs) {
		seed := first + i
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := startRandomHosts(t, seed, stack.Options{})
			if err := w.compareRequests(t.Context(), cases, &all); err != nil {
				t.Errorf("repeat: SEED=%d RUN='VirtualHostsAreApart/%d$': %s\n%v", seed, seed, w.config.Rules(), err)
			}
		})
	}
	t.Logf("%d configurations of %d requests in %.0f s: %v", configs, cases, time.Since(begin).Seconds(), all.counts)
	for _, outcome := range vhosts.AllOutcomes() {
		// Of few configurations, none may have an outcome. Proxies refuse many ambiguous hosts themselves.
		if n := all.counts[outcome]; configs > 30 && outcome != vhosts.AmbiguousHost && n < configs*cases/1000 {
			t.Errorf("%s: %d, the test shows little", outcome, n)
		}
	}
}

// TestApartFindsPlants builds the edge with each defect of testdata/plants, and fails unless random requests find it.
func TestApartFindsPlants(t *testing.T) {
	leaveToLongForm(t, "TestVirtualHostsAreApart")
	if !onNginx() && !onNative() {
		t.Skip("on the dynamic module and nginx, which start and build faster")
	}
	t.Parallel()
	kind := os.Getenv("EDGE_KIND")
	plants, err := filepath.Glob("testdata/plants/*")
	if err != nil || len(plants) == 0 {
		t.Fatalf("%d plants: %v", len(plants), err)
	}
	for _, plant := range plants {
		t.Run(filepath.Base(plant), func(t *testing.T) {
			library := filepath.Join(t.TempDir(), "library.so")
			build := exec.CommandContext(t.Context(), "bash", "-ec", `cd .. && source scripts/overlay.sh && source "e2e/$1" &&
				scripts/build-library.sh "$2" "$3" -overlay "$(write_overlay)"`, "plant", plant, kind, library)
			if text, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			for range 10 {
				w := startRandomHosts(t, rand.Uint64(), stack.Options{LibraryPath: library, NginxLibrary: library})
				if err := w.compareRequests(t.Context(), 2000, new(tally)); errors.Is(err, errDiffers) {
					t.Logf("found: %.300v", err)
					return
				} else if err != nil {
					t.Fatal(err)
				}
			}
			t.Error("found by no request")
		})
	}
}

type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *tally) add(outcome string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[outcome]++
}

// randomHostsEdge is an edge with a random configuration.
type randomHostsEdge struct {
	*edge
	seed       uint64
	config     *vhosts.Config
	namespaces [2]string // the edge's, and another one of the same Redis
	address    string
	address2   string // for HTTP/2
}

// startRandomHosts starts an edge with the configuration of a seed.
func startRandomHosts(t *testing.T, seed uint64, opts stack.Options) *randomHostsEdge {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 0))
	w := &randomHostsEdge{seed: seed, config: vhosts.NewConfig(r), namespaces: [2]string{"", "team"}}
	if r.IntN(2) == 0 {
		w.namespaces = [2]string{"team", ""}
	}
	opts.Rules, opts.Concurrency, opts.Seed = w.config.Rules(), 1, w.seedRedis
	opts.SidecarArgs = []string{"--redis.namespace=" + w.namespaces[0]}
	opts.ModifyConfig = w.addVirtualHosts
	opts.ModifyNginx = func(config string) string {
		return regexp.MustCompile(`listen 127\.0\.0\.1(:[0-9]+) reuseport;`).ReplaceAllString(config,
			"$0 listen 127.0.0.2$1 http2 reuseport; keepalive_requests 1000000;")
	}
	w.edge = start(t, opts)
	w.address = strings.TrimPrefix(w.EdgeURL(), "http://")
	if w.address2 = w.address; w.EdgeKind() == stack.NginxEdge {
		w.address2 = strings.Replace(w.address, "127.0.0.1:", "127.0.0.2:", 1)
	}
	return w
}

// published is the body of an object.
type published struct{ Key, Namespace string }

// seedRedis publishes the objects, and registers the devices. The second namespace also has objects that clients
// request and the first one lacks.
func (w *randomHostsEdge) seedRedis(ctx context.Context, url string) error {
	client, err := redisurl.Connect(url)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	keys := slices.Collect(maps.Keys(w.config.Objects))
	for i, namespace := range w.namespaces {
		p := publish.New(client, publish.Namespace(namespace))
		for id, permissions := range w.config.Devices {
			device := publish.Device{ID: id, Secret: vhosts.DeviceSecret(id), Permissions: permissions, Cost: 4}
			if i > 0 {
				device.Secret, device.Permissions = "another", vhosts.AllPermissions()
			}
			if _, err := p.PutDevice(ctx, device); err != nil {
				return err
			}
		}
		for _, key := range keys {
			body, err := json.Marshal(published{key, namespace})
			if err != nil {
				return err
			}
			if _, err := p.Put(ctx, publish.Object{Key: key, Body: body, ContentType: "application/json"}); err != nil {
				return err
			}
		}
		r := rand.New(rand.NewPCG(w.seed, 1))
		for range 200 {
			if key := w.config.JudgeRequest(w.config.RandomRequest(r)).Key; key != "" {
				keys = append(keys, key)
			}
		}
	}
	return nil
}

type dict = map[string]any

// ownHeader tells upstreams the virtual host of Envoy's route configuration.
const ownHeader = "x-virtual-host"

// addVirtualHosts gives Envoy's route configuration the same virtual hosts, and makes Envoy close connections at once.
func (w *randomHostsEdge) addVirtualHosts(c *stack.Config) error {
	var hosts []any
	for name, domains := range w.config.DomainsByHost() {
		name = "(" + name + ")"
		hosts = append(hosts, dict{"name": name, "domains": domains,
			"routes":                 []any{dict{"match": dict{"prefix": "/"}, "route": dict{"cluster": "upstream"}}},
			"request_headers_to_add": []any{dict{"header": dict{"key": ownHeader, "value": name}}}})
	}
	return errors.Join(c.Set(hosts, append(edgeManager, "route_config", "virtual_hosts")...),
		c.Set(true, append(edgeManager, "route_config", "ignore_port_in_host_matching")...),
		c.Set("0.02s", append(edgeManager, "delayed_close_timeout")...)) // no client here waits for it
}

// compareRequests sends random requests by several clients, and returns the first difference from the expected outcome.
func (w *randomHostsEdge) compareRequests(ctx context.Context, cases int, all *tally) error {
	const clients = 16
	group, ctx := errgroup.WithContext(ctx)
	for i := range clients {
		group.Go(func() error {
			r := rand.New(rand.NewPCG(w.seed, uint64(2+i)))
			c := &randomHostsClient{edge: w}
			defer c.close()
			for n := i; n < cases && ctx.Err() == nil; n += clients {
				q := w.config.RandomRequest(r)
				f := form(r.IntN(int(forms)))
				if f == absolute && (len(q.Hosts) == 0 || q.Hosts[0] == "" || strings.ContainsAny(q.Hosts[0], "/ \x01%")) {
					f = usual // there the host would be no part of the target
				}
				outcome, err := c.checkRequest(q, f)
				if err != nil {
					return fmt.Errorf("%s, hosts %q, %+v: %w", f, q.Hosts, q, err)
				}
				all.add(outcome)
			}
			return nil
		})
	}
	return group.Wait()
}

// form is how a request is sent.
type form int

const (
	usual    form = iota
	absolute      // an absolute target, in HTTP/1
	frames        // in HTTP/2
	hostLine      // in HTTP/2, by Host instead of :authority
	forms
)

func (f form) String() string {
	return [...]string{"HTTP/1", "HTTP/1 with an absolute target", "HTTP/2", "HTTP/2 with Host"}[f]
}

// lastDot is the dot at the end of a host, or before the port. nginx removes the dot.
var lastDot = regexp.MustCompile(`\.(:.*)?$`)

// readAsProxy returns a request as the proxy reads the request.
func (w *randomHostsEdge) readAsProxy(q vhosts.Request, f form) vhosts.Request {
	hosts := slices.Clone(q.Hosts)
	for i := range hosts {
		hosts[i] = strings.Trim(hosts[i], " ")
		if w.EdgeKind() == stack.NginxEdge {
			hosts[i] = lastDot.ReplaceAllString(hosts[i], "$1")
		}
	}
	switch onEnvoy := w.EdgeKind() != stack.NginxEdge; {
	case onEnvoy && f == usual && len(hosts) == 0: // HTTP/1.0
		hosts = []string{"upstream"} // default_host_for_http_10
	case onEnvoy && f == usual && len(hosts) > 1: // Envoy joins lines that aren't empty
		hosts = []string{strings.Trim(strings.Join(hosts, ","), ",")}
	case onEnvoy && f == absolute:
		hosts = []string{hosts[0][strings.LastIndexByte(hosts[0], '@')+1:]} // also if there is another Host
	case len(hosts) > 1 && (onEnvoy && f >= frames || f == absolute && strings.EqualFold(hosts[0], hosts[1])):
		hosts = hosts[:1]
	}
	q.Hosts = hosts
	return q
}

// randomHostsClient sends one request at a time over persistent connections.
type randomHostsClient struct {
	edge   *randomHostsEdge
	one    net.Conn
	reader *bufio.Reader
	two    *http2conn.Conn
	stream uint32
}

func (c *randomHostsClient) close() {
	if c.one != nil {
		_ = c.one.Close()
	}
	if c.two != nil {
		_ = c.two.Close()
	}
}

// errDiffers is the error for an unexpected answer of the edge.
var errDiffers = errors.New("the answer differs")

// checkRequest sends a request, and returns its outcome, or an error for an unexpected one.
func (c *randomHostsClient) checkRequest(q vhosts.Request, f form) (outcome string, err error) {
	w := c.edge
	want := w.config.JudgeRequest(w.readAsProxy(q, f))
	a, err := c.send(q, f)
	if err != nil {
		return "", err
	}
	got := vhosts.Verdict{}
	if got.Status = a.status; a.status == 200 {
		got.Status = 0
		var body struct {
			published
			upstream.Seen
		}
		if err := json.Unmarshal([]byte(a.body), &body); err != nil {
			return "", fmt.Errorf("got %q: %w", a.body, err)
		}
		own := strings.Join(body.Headers[ownHeader], ",")
		asEnvoy := w.EdgeKind() != stack.NginxEdge && !want.Ambiguous
		switch {
		case body.Key != "" && body.Namespace != w.namespaces[0]:
			return "", fmt.Errorf("%w: %s of namespace %q", errDiffers, body.Key, body.Namespace)
		case body.Key == "" && asEnvoy && own != "("+want.Virtual+")":
			return "", fmt.Errorf("Envoy takes %s for the virtual host, the oracle (%s)", own, want.Virtual)
		}
		got.Object = body.Key
		if device := body.Headers["x-gatehouse-device"]; len(device) > 0 {
			got.Device = device[0]
		}
	}
	// Proxies refuse some of these requests themselves, or end the connection.
	plain := !want.Ambiguous && (len(q.Hosts) == 1 || f == absolute) && q.Hosts[0] != "" &&
		!strings.ContainsAny(q.Hosts[0], " @") && !(f == absolute && strings.HasSuffix(q.Hosts[0], ":"))
	if refused := a.status == 0 || a.status == 400 || a.status == 403; refused && !plain {
		return "refused", nil
	}
	if why := w.config.FindDifference(want, got); why != "" {
		return "", fmt.Errorf("%w in %s: %d %s, %s; want %s", errDiffers, why, a.status, a.body, got, want)
	}
	return want.Outcome(), nil
}

// send returns the answer; a status of 0 means that the edge ended the connection or stream.
func (c *randomHostsClient) send(q vhosts.Request, f form) (answer, error) {
	for {
		fresh, err := c.connect(f)
		if err != nil {
			return answer{}, err
		}
		a, keep, err := c.exchange(q, f)
		if !keep {
			c.close()
			c.one, c.two = nil, nil
		}
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			return a, err
		}
		if fresh { // otherwise the edge may have closed it before
			return answer{}, nil
		}
	}
}

// connect opens a connection unless one is open, and reports whether the connection is new.
func (c *randomHostsClient) connect(f form) (fresh bool, err error) {
	switch {
	case f < frames && c.one == nil:
		if c.one, err = net.Dial("tcp", c.edge.address); err == nil {
			c.reader = bufio.NewReader(c.one)
		}
		return true, err
	case f >= frames && c.two == nil:
		c.stream = 1
		c.two, err = http2conn.Dial(c.edge.address2, patience)
		return true, err
	}
	return false, nil
}

// exchange sends a request once, and reports whether the connection can be used again.
func (c *randomHostsClient) exchange(q vhosts.Request, f form) (a answer, keep bool, err error) {
	if f >= frames {
		return c.exchangeHTTP2(q, f)
	}
	if err := c.one.SetDeadline(time.Now().Add(patience)); err != nil {
		return a, false, err
	}
	var b bytes.Buffer
	target, hosts, version := q.Target, q.Hosts, "1.1"
	if f == absolute {
		target, hosts = "http://"+hosts[0]+target, hosts[len(hosts)-1:]
	}
	if len(hosts) == 0 {
		version = "1.0"
	}
	fmt.Fprintf(&b, "GET %s HTTP/%s\r\n", target, version)
	for _, host := range hosts {
		fmt.Fprintf(&b, "Host: %s\r\n", host)
	}
	for _, h := range q.Headers {
		fmt.Fprintf(&b, "%s: %s\r\n", h[0], h[1])
	}
	b.WriteString("\r\n")
	if _, err := c.one.Write(b.Bytes()); err != nil {
		return a, false, err
	}
	response, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return a, false, err
	}
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(body)}, err == nil && !response.Close, err
}

func (c *randomHostsClient) exchangeHTTP2(q vhosts.Request, f form) (a answer, keep bool, err error) {
	if err := c.two.SetDeadline(time.Now().Add(patience)); err != nil {
		return a, false, err
	}
	fields := [][2]string{{":method", "GET"}, {":scheme", "http"}, {":path", q.Target}}
	for i, host := range q.Hosts {
		name := "host"
		if i == 0 && f == frames {
			name = ":authority"
		}
		fields = append(fields, [2]string{name, host})
	}
	if err := c.two.SendHeaders(c.stream, true, append(fields, q.Headers...)...); err != nil {
		return a, false, err
	}
	got, err := c.two.ReadAnswer(c.stream)
	c.stream += 2
	return answer{status: got.Status, body: string(got.Content)}, err == nil, err
}
