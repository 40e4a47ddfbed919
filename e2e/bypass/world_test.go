package bypass

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/freeport"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// askHeader numbers a prober's requests.
const askHeader = "X-Ask"

const (
	secret     = "a-good-secret"
	privateKey = "@d1/v1/me/config"
	// Texts by which an answer shows its source.
	privateText  = "private object of d1"
	sharedText   = "object of the service"
	deviceText   = "answered to d1"
	pushText     = "only POST /v1/apply is served here"
	adminText    = "hot_restart_version"
	operatorText = "# TYPE gatehouse_"
)

// seen is a request that an upstream got.
type seen struct {
	method, path string
	device       string // an identity header, in any spelling
}

// service is the protected upstream. It names its requests in its answers.
type service struct {
	mu   sync.Mutex
	seen map[string][]seen
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	got := seen{method: r.Method, path: r.URL.Path}
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		if plain := strings.ReplaceAll(strings.ToLower(name), "_", "-"); plain == "x-gatehouse-device" ||
			plain == "x-gatehouse-permissions" {
			got.device += strings.Join(r.Header[name], ",")
		}
	}
	s.noteRequest(r.Header.Get(askHeader), got)
	switch strings.ToLower(r.Header.Get("Upgrade")) {
	case "h2c":
		s.upgrade(w)
		return
	case "websocket":
		w.WriteHeader(http.StatusBadRequest) // what was asked counts
		return
	}
	if r.URL.Path == "/open/bounce" { // which a proxy may follow by itself
		http.Redirect(w, r, "http://"+r.Host+"/v1/me/config", http.StatusFound)
		return
	}
	w.Header().Set("Cache-Control", "public, max-age=60")
	if got.device != "" {
		_, _ = io.WriteString(w, "answered to "+got.device)
	}
}

// upgrade goes on in HTTP/2 (RFC 7540, section 3.2), and notes the requests there.
func (s *service) upgrade(w http.ResponseWriter) {
	conn, buffer, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
	if _, err := io.ReadFull(buffer, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	framer := http2.NewFramer(conn, buffer)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_ = framer.WriteSettings()
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		if headers, ok := frame.(*http2.MetaHeadersFrame); ok {
			ask := ""
			for _, f := range headers.RegularFields() {
				if f.Name == strings.ToLower(askHeader) {
					ask = f.Value
				}
			}
			s.noteRequest(ask, seen{method: headers.PseudoValue("method"), path: headers.PseudoValue("path")})
			_ = framer.WriteRSTStream(headers.StreamID, http2.ErrCodeNo)
		}
	}
}

func (s *service) noteRequest(ask string, got seen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[ask] = append(s.seen[ask], got)
}

// takeRequests returns the requests that the service received from a probe.
func (s *service) takeRequests(ask string) []seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer delete(s.seen, ask)
	return s.seen[ask]
}

// world is one Envoy for all configurations, with its upstreams and sidecar.
type world struct {
	*stack.Stack
	requests       *service
	t              *testing.T
	dir            string
	service, other string // HOST:PORT of the upstreams
	secret         string
	certificate    string // files of one for TLS, and its key
	key            string
	adminAddress   string
	apiSocket      string
	pushSocket     string

	edge, push, sidecar, admin, stats tree // as Gatehouse ships them

	asks   int
	differ int // settings that change answers
}

// startUpstreams returns the world without a proxy.
func startUpstreams(t *testing.T) *world {
	t.Helper()
	recorder := &service{seen: map[string][]seen{}}
	protected, other := httptest.NewServer(recorder),
		httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(protected.Close)
	t.Cleanup(other.Close)
	w := &world{requests: recorder, service: strings.TrimPrefix(protected.URL, "http://"),
		other: strings.TrimPrefix(other.URL, "http://"), t: t, secret: secret, dir: t.TempDir()}
	w.writeCertificate()
	return w
}

func (w *world) writeCertificate() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	require.NoError(w.t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"*.example"},
		NotAfter: time.Now().Add(24 * time.Hour)}
	certificate, err := x509.CreateCertificate(crand.Reader, template, template, &key.PublicKey, key)
	require.NoError(w.t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(w.t, err)
	w.certificate, w.key = filepath.Join(w.dir, "cert.pem"), filepath.Join(w.dir, "key.pem")
	for path, block := range map[string]*pem.Block{w.certificate: {Type: "CERTIFICATE", Bytes: certificate},
		w.key: {Type: "PRIVATE KEY", Bytes: private}} {
		require.NoError(w.t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	}
}

// newWorld starts the world, with the objects that seed publishes.
func newWorld(t *testing.T, kind stack.EdgeKind, seed func(ctx context.Context, redisURL string) error) *world {
	t.Helper()
	w := startUpstreams(t)
	for _, name := range []string{"lds", "cds"} {
		w.writeResources(name, 0, nil)
	}
	var err error
	w.Stack, err = stack.Start(t.Context(), stack.Options{
		Dir: filepath.Join(w.dir, "stack"), Concurrency: 1, Seed: seed, EdgeKind: kind,
		EnvoyArgs: []string{"--drain-time-s", "1", "--drain-strategy", "immediate"},
		ModifyConfig: func(c *stack.Config) error {
			source := func(name string) map[string]any {
				return map[string]any{"resource_api_version": "V3",
					"path_config_source": map[string]any{"path": filepath.Join(w.dir, name+".json")}}
			}
			if err := c.Set(map[string]any{"id": "bypass", "cluster": "bypass"}, "node"); err != nil {
				return err
			}
			if err := c.Set([]any{map[string]any{"name": "internal", "typed_config": map[string]any{"@type": "type.googleapis." +
				"com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener"}}}, "bootstrap_extensions"); err != nil {
				return err
			}
			return c.Set(map[string]any{"lds_config": source("lds"), "cds_config": source("cds")}, "dynamic_resources")
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Stop()) })
	w.readConfig()
	return w
}

// onEnvoy is the form of the filter in Envoy that EDGE_KIND names.
func onEnvoy() stack.EdgeKind {
	if os.Getenv("EDGE_KIND") == string(stack.NativeEdge) {
		return stack.NativeEdge
	}
	return stack.EnvoyEdge
}

// seedRedis registers the devices and publishes the objects.
func seedRedis(ctx context.Context, redisURL string) error {
	client, err := redisurl.Connect(redisURL)
	if err != nil {
		return err
	}
	defer client.Close()
	p := publish.New(client)
	for _, d := range []publish.Device{{ID: "d1", Secret: secret, Cost: 4, Permissions: []string{"admin"}},
		{ID: "d2", Secret: secret, Cost: 4}} {
		if _, err := p.PutDevice(ctx, d); err != nil {
			return err
		}
	}
	for key, text := range map[string]string{privateKey: privateText, "/shared": sharedText} {
		if _, err := p.Put(ctx, publish.Object{Key: key, Body: []byte(text), ContentType: "text/plain"}); err != nil {
			return err
		}
	}
	return nil
}

// readConfig reads the parts of the shipped configuration.
func (w *world) readConfig() {
	text, err := os.ReadFile(w.ConfigPath())
	require.NoError(w.t, err)
	var whole map[string]any
	require.NoError(w.t, yaml.Unmarshal(text, &whole))
	file := parse("%s", marshal(whole))
	list := func(kind, name string) tree {
		for _, item := range at(file, "static_resources", kind).([]any) {
			if at(item, "name") == name {
				return item.(tree)
			}
		}
		w.t.Fatalf("envoy.yaml has no %s", name)
		return nil
	}
	w.edge, w.push, w.sidecar = list("listeners", "edge"), list("listeners", "gatehouse-push"),
		list("clusters", "gatehouse-sidecar")
	w.admin, w.stats = file["admin"].(tree), file["stats_config"].(tree)
	w.adminAddress = strings.TrimPrefix(w.EnvoyAdminURL(), "http://")
	w.apiSocket, w.pushSocket = w.APISocket(), w.PushSocket()
}

// writeResources replaces the resources of a kind in one step.
func (w *world) writeResources(name string, version int, resources []any) {
	if resources == nil {
		resources = []any{}
	}
	path := filepath.Join(w.dir, name+".json")
	require.NoError(w.t,
		os.WriteFile(path+".new", []byte(marshal(tree{"version_info": strconv.Itoa(version), "resources": resources})),
			0o600))
	require.NoError(w.t, os.Rename(path+".new", path))
}

// deploy makes Envoy serve these configurations only.
func (w *world) deploy(version int, configs []*config) {
	var listeners, clusters []any
	for _, c := range configs {
		for _, l := range c.file {
			l := parse("%s", strings.ReplaceAll(marshal(l), `"0.0.0.0"`, `"`+networkAddress+`"`))
			l["@type"] = "type.googleapis.com/envoy.config.listener.v3.Listener"
			listeners = append(listeners, l)
		}
		for _, cluster := range c.clusters {
			cluster := cloneTree(cluster.(tree))
			cluster["@type"] = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
			clusters = append(clusters, cluster)
		}
	}
	w.updateResources("cds", "cluster_manager.cds", "cluster_manager.warming_clusters", version, clusters)
	w.updateResources("lds", "listener_manager.lds", "listener_manager.total_listeners_warming", version, listeners)
}

// networkAddress stands for an address of another machine's network, like 127.0.0.1 for the machine itself.
const networkAddress = "127.0.0.2"

// updateResources writes resources, and waits until Envoy has read the resources.
func (w *world) updateResources(file, prefix, warming string, version int, resources []any) {
	attempts := func() int {
		n := 0
		for _, name := range []string{"update_success", "update_rejected"} {
			v, err := w.Stat(w.t.Context(), prefix+"."+name)
			require.NoError(w.t, err)
			n += v
		}
		return n
	}
	begin := attempts()
	w.writeResources(file, version, resources)
	deadline := time.Now().Add(2 * time.Minute)
	for {
		busy, err := w.Stat(w.t.Context(), warming)
		require.NoError(w.t, err)
		if busy == 0 && attempts() > begin {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("Envoy doesn't take %s", file)
		}
		time.Sleep(5 * time.Millisecond) // yields the processor; nothing depends on the duration
	}
}

// isListening reports whether something accepts connections at a port of the network.
func isListening(port int) bool {
	conn, err := net.DialTimeout("tcp", fmt.Sprintf("%s:%d", networkAddress, port), time.Second)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func reservePorts(t *testing.T, n int) (ports []int) {
	t.Helper()
	for range n {
		address, err := freeport.FindAddress()
		require.NoError(t, err)
		_, text, err := net.SplitHostPort(address)
		require.NoError(t, err)
		port, err := strconv.Atoi(text)
		require.NoError(t, err)
		ports = append(ports, port)
	}
	return ports
}
