package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// guides is the directory of the guides. Each guide has its configurations in a directory of its name.
const guides = "../docs/migrate"

// migration follows one guide in a copy of its directory, with a service, an auth service and Redis.
type migration struct {
	t       *testing.T
	dir     string
	service *migratedService
	auth    *authService
	redis   string // its address

	device []string // header lines of a good credential
	id     string   // of its device
}

func newMigration(t *testing.T, guide, devices string) *migration {
	t.Helper()
	m := &migration{t: t, dir: t.TempDir(), service: newMigratedService(t), auth: newAuthService(t),
		device: migratedDevice, id: "sensor-7"}
	require.NoError(t, os.CopyFS(m.dir, os.DirFS(filepath.Join(guides, guide))))
	m.writeFile("devices.csv", devices)
	m.redis = strings.TrimPrefix(redistest.Start(t), "redis://")
	return m
}

func (m *migration) writeFile(name, text string) {
	m.t.Helper()
	require.NoError(m.t, os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o600))
}

func (m *migration) readFile(name string) string {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.dir, name))
	require.NoError(m.t, err)
	return string(text)
}

// followPage runs the commands of a page, which are the indented lines, and returns their output.
func (m *migration) followPage(page string) string {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(guides, page))
	require.NoError(m.t, err)
	var script strings.Builder
	for line := range strings.Lines(string(text)) {
		if command, found := strings.CutPrefix(line, "    "); found {
			script.WriteString(command)
		}
	}
	build, err := filepath.Abs("../build")
	require.NoError(m.t, err)
	commands := exec.CommandContext(m.t.Context(), "bash", "-euo", "pipefail", "-c", strings.NewReplacer(
		"127.0.0.1:6379", m.redis, "127.0.0.1:8081", m.service.address).Replace(script.String()))
	commands.Dir = m.dir
	commands.Env = append(os.Environ(), "PATH="+build+":"+os.Getenv("PATH"))
	out, err := commands.CombinedOutput()
	if err != nil {
		m.t.Fatalf("the commands of %s: %v\n%s", page, err, out)
	}
	return string(out)
}

// startProxy runs a proxy with a file of the guide, which names the service on port 8081 and the auth service on 8082,
// and returns the proxy's URL. The proxy's output, or nginx's log, is in access.log.
func (m *migration) startProxy(file, service string) string {
	m.t.Helper()
	edge, admin := redistest.FreeAddress(m.t), redistest.FreeAddress(m.t)
	config, dir := m.readFile(file), m.t.TempDir()
	path := filepath.Join(dir, file)
	program, args := "", []string{"-p", dir, "-c", path, "-e", "stderr", "-g", "daemon off;"}
	var err error
	if strings.HasSuffix(file, ".yaml") {
		program, err = stack.FindEnvoy()
		args = []string{"-c", path, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warn",
			"--file-flush-interval-msec", "10"}
		port := func(address string) string { return "port_value: " + address[strings.LastIndexByte(address, ':')+1:] }
		config = strings.NewReplacer("port_value: 8080", port(edge), "port_value: 8081", port(service),
			"port_value: 8082", port(m.auth.address), "port_value: 9901", port(admin)).Replace(config)
	} else {
		program, err = stack.FindNginx()
		config = ownNginx(dir, strings.NewReplacer("127.0.0.1:8080", edge, "127.0.0.1:8081", service, "127.0.0.1:8082",
			m.auth.address, "/var/log/nginx", m.dir, "/run/nginx.pid", dir+"/nginx.pid").Replace(config))
	}
	require.NoError(m.t, err)
	require.NoError(m.t, os.WriteFile(path, []byte(config), 0o600))
	child, err := stack.StartChild(file, program, args, nil, filepath.Join(m.dir, "access.log"), func(err error) {
		m.t.Errorf("%s: %v", file, err)
	})
	require.NoError(m.t, err)
	m.t.Cleanup(func() {
		if err := child.Stop(); err != nil {
			m.t.Error(err)
		}
	})
	await(m.t, file+" listens", patience, func() error {
		conn, err := new(net.Dialer).DialContext(m.t.Context(), "tcp", edge)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	return "http://" + edge
}

// ownNginx returns nginx.conf with its files in dir.
func ownNginx(dir, config string) string {
	own := "user root;"
	temporary := "http {\n"
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temporary += fmt.Sprintf("  %s_temp_path %s/temp-%s;\n", kind, dir, kind)
	}
	if strings.Contains(config, "\nuser ") { // the stack's, which has these
		own, temporary = "", "http {\n"
	}
	return own + strings.NewReplacer("http {\n", temporary, "/var/cache/nginx/", dir+"/cache-", "/tmp/nginx/",
		dir+"/cache-").Replace(config)
}

// start runs Gatehouse with opts, which name what the guide's commands wrote to Redis. The upstream is the service.
func (m *migration) start(opts stack.Options) *edge {
	m.t.Helper()
	opts.RedisURL = "redis://" + m.redis
	opts.Concurrency = 1
	// The commands have written to Redis, so no loss needs to be accepted.
	opts.Seed = func(context.Context, string) error { return nil }
	opts.Upstream = redistest.FreeAddress(m.t)
	modify := opts.ModifyConfig
	opts.ModifyConfig = func(c *stack.Config) error {
		for cluster, address := range map[string]string{"upstream": m.service.address, "auth": m.auth.address} {
			at := []string{"static_resources", "clusters", cluster}
			if _, err := c.Find(at...); err != nil && cluster == "auth" {
				continue
			}
			if err := c.SetAddress(address, append(at, "load_assignment", "endpoints", "0", "lb_endpoints", "0",
				"endpoint")...); err != nil {
				return err
			}
		}
		if modify != nil {
			return modify(c)
		}
		return nil
	}
	dir := m.t.TempDir()
	opts.ModifyNginx = func(config string) string {
		return ownNginx(dir, strings.NewReplacer(opts.Upstream, m.service.address, "127.0.0.1:8082",
			m.auth.address).Replace(config))
	}
	e := start(m.t, opts)
	e.awaitPushed()
	return e
}

// migratedService is the service behind the proxies. It has products in languages, a configuration of the fleet, and
// takes telemetry.
type migratedService struct {
	address  string
	identity atomic.Value // name of the header from which it knows the device
	products atomic.Int64 // requests for products
	secrets  atomic.Int64 // requests with a device's secret
	version  atomic.Int64 // of products
}

func newMigratedService(t *testing.T) *migratedService {
	s := &migratedService{}
	s.identity.Store("X-Auth-Device")
	s.address = serve(t, s.answer)
	return s
}

// serve answers requests at the returned address until the test ends.
func serve(t *testing.T, answer http.HandlerFunc) (address string) {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func (s *migratedService) answer(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-Device-Token")+r.Header.Get("Apikey") != "" {
		s.secrets.Add(1)
	}
	var body any
	switch path := r.URL.Path; {
	case strings.HasPrefix(path, "/v1/products/") && r.Method != http.MethodPost:
		s.products.Add(1)
		body = map[string]any{"id": filepath.Base(path), "lang": r.URL.Query().Get("lang"), "version": s.version.Load()}
	case path == "/v1/fleet/config":
		w.Header().Set("Cache-Control", "private")
		body = map[string]any{"interval": 60}
	default:
		sent, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = map[string]any{"path": path, "device": r.Header.Get(s.identity.Load().(string)), "sent": string(sent)}
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("ETag", fmt.Sprintf(`"%x"`, text))
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(text)))
}

// authService judges requests for ext_authz, auth_request and auth-url: 200 with the device's id, 401 or 403.
type authService struct {
	address string
	calls   atomic.Int64
	down    atomic.Bool // it closes connections instead of answering

	mu      sync.Mutex
	devices map[string][]string // secret and permissions by id
}

func newAuthService(t *testing.T) *authService {
	s := &authService{devices: map[string][]string{
		"sensor-7": {"s3cret", "telemetry.write", "config.read"}, "gauge-1": {"pa55"}, "late-9": {"l8", "config.read"}}}
	s.address = serve(t, s.answer)
	return s
}

// revoke forgets a device until restore is called.
func (s *authService) revoke(id string) (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	device := s.devices[id]
	delete(s.devices, id)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.devices[id] = device
	}
}

func (s *authService) answer(w http.ResponseWriter, r *http.Request) {
	s.calls.Add(1)
	if s.down.Load() {
		panic(http.ErrAbortHandler)
	}
	target := r.URL // Envoy sends the request's own
	for _, header := range []string{"X-Original-Uri", "X-Original-Url"} {
		if value := r.Header.Get(header); value != "" {
			parsed, err := url.Parse(value)
			if err != nil {
				http.Error(w, err.Error(), http.StatusForbidden)
				return
			}
			target = parsed
		}
	}
	s.mu.Lock()
	device := s.devices[r.Header.Get("X-Device-Id")]
	s.mu.Unlock()
	needed := "config.read"
	if target.Path == "/v1/telemetry" {
		needed = "telemetry.write"
	}
	switch {
	case device == nil || r.Header.Get("X-Device-Token") != device[0]:
		http.Error(w, "who are you?", http.StatusUnauthorized)
	case !strings.Contains(strings.Join(device[1:], ","), needed):
		http.Error(w, "not you", http.StatusForbidden)
	default:
		w.Header().Set("X-Auth-Device", r.Header.Get("X-Device-Id"))
	}
}

// exchange is a request and its status, which may differ after the migration.
type exchange struct {
	first, body string
	lines       []string
	status      int
	after       int // 0: as before
}

const forgedDevice = "X-Auth-Device: forged"

// listExchanges returns exchanges of an API whose products are public, with the credentials of a device and of a device
// without permissions, and with a wrong credential.
func listExchanges(device, poor, wrong []string, differing ...exchange) []exchange {
	all := []exchange{
		{first: "GET /v1/products/42", status: 200},
		{first: "HEAD /v1/products/42", status: 200},
		{first: "GET /v1/products/42?lang=de", status: 200},
		{first: "GET /v1/products/42?utm=x&lang=de", status: 200},
		{first: "GET /v1/products/7", status: 200}, // isn't published
		{first: "GET /v1/fleet/config", lines: device, status: 200},
		{first: "GET /v1/fleet/config", lines: poor, status: 403},
		{first: "GET /v1/fleet/config", lines: wrong, status: 401},
		{first: "GET /v1/fleet/config", status: 401},
		{first: "POST /v1/telemetry", body: "20.5", lines: append(device[:len(device):len(device)], forgedDevice),
			status: 200},
		{first: "POST /v1/telemetry", body: "20.5", lines: poor, status: 403},
		{first: "POST /v1/telemetry", body: "20.5", lines: wrong, status: 401},
		{first: "POST /v1/telemetry", body: "20.5", status: 401},
		{first: "GET /v1/orders?x=1", status: 200},
		{first: "POST /v1/orders", body: "2 pieces", status: 200},
	}
	return append(all, differing...)
}

// sendRetrying sends a request, again while the answer is a 503, as a client would: bcrypt takes its time on a busy
// machine.
func (m *migration) sendRetrying(url, body, first string, lines ...string) (a answer) {
	m.t.Helper()
	await(m.t, first+": an answer", patience, func() (err error) {
		a, err = sendTo(m.t.Context(), shared, url, body, first, lines...)
		if err == nil && a.status == http.StatusServiceUnavailable {
			err = fmt.Errorf("got %d %s", a.status, a.body)
		}
		return err
	})
	return a
}

// sendExchanges sends all exchanges, and each GET with an entity-tag again with If-None-Match, and returns the bodies
// of answers with 200, which come from the service.
func (m *migration) sendExchanges(url string, all []exchange, after bool) (bodies []string) {
	m.t.Helper()
	for _, x := range all {
		want := x.status
		if after && x.after != 0 {
			want = x.after
		}
		a := m.sendRetrying(url, x.body, x.first, x.lines...)
		if a.status != want {
			m.t.Errorf("%s, %q, after: %v: got %d %s, want %d", x.first, x.lines, after, a.status, a.body, want)
		}
		if a.status != http.StatusOK {
			a.body = ""
		}
		bodies = append(bodies, a.body)
		if tag := a.header.Get("ETag"); a.status == http.StatusOK && strings.HasPrefix(x.first, "GET ") {
			again := m.sendRetrying(url, "", x.first, append(x.lines[:len(x.lines):len(x.lines)], "If-None-Match: "+tag)...)
			if again.status != http.StatusNotModified || again.body != "" {
				m.t.Errorf("%s with the entity-tag, after: %v: got %d %s, want 304", x.first, after, again.status, again.body)
			}
		}
	}
	return bodies
}

// compareAnswers sends all exchanges to the proxy under test, and compares the bodies with the earlier proxy's.
func (m *migration) compareAnswers(url string, all []exchange, after bool, want []string) {
	m.t.Helper()
	for i, got := range m.sendExchanges(url, all, after) {
		if got != want[i] && !(after && all[i].after != 0) {
			m.t.Errorf("%s, %q, after: %v: got %s, want %s as before", all[i].first, all[i].lines, after, got, want[i])
		}
	}
}

func (m *migration) wantStatus(url string, want int, first string, lines ...string) answer {
	m.t.Helper()
	a := m.sendRetrying(url, "", first, lines...)
	if a.status != want {
		m.t.Errorf("%s, %q: got %d %s, want %d", first, lines, a.status, a.body, want)
	}
	return a
}

// callsOf returns how often ten requests of the device make the proxy ask the auth service.
func (m *migration) callsOf(url string) int64 {
	m.t.Helper()
	before := m.auth.calls.Load()
	for range 10 {
		m.wantStatus(url, 200, "GET /v1/fleet/config", m.device...)
	}
	return m.auth.calls.Load() - before
}

// checkRehearsal checks rehearse's report about the requests so far.
func checkRehearsal(t *testing.T, out string) {
	t.Helper()
	rows := strings.Join(strings.Fields(out), " ")
	for _, row := range []string{"becomes protected none telemetry /v1/telemetry",
		"becomes protected none fleet /v1/fleet", "becomes cached none products /v1/products"} {
		if !strings.Contains(rows, row) {
			t.Errorf("rehearse: got\n%s, want %q in it", out, row)
		}
	}
}

// checkTrial checks that a device which was forgotten in devices.csv is counted, and not refused.
func (m *migration) checkTrial(url string, e *edge) {
	m.t.Helper()
	m.wantStatus(url, 200, "GET /v1/fleet/config", credential("late-9", "l8")...)
	await(m.t, "the device is counted", patience, func() error {
		if n := e.edgeMetric("gatehouse_would_deny_requests_total", `rule="fleet"`, `outcome="deny"`); n == 0 {
			return fmt.Errorf("%d requests would be denied", n)
		}
		return nil
	})
}

// beginEnforcement begins the last step: from now on the auth service gets no call, and the service no secret.
func (m *migration) beginEnforcement() {
	m.t.Helper()
	if m.service.secrets.Swap(0) == 0 {
		m.t.Error("the service got no secret so far")
	}
	m.auth.calls.Store(0)
	m.auth.down.Store(true)
}

// checkEnforced checks what is true only with Gatehouse: no auth service, one bcrypt run for the credential, and writes
// that take effect at once.
func (m *migration) checkEnforced(url string, e *edge) {
	m.t.Helper()
	if calls := m.auth.calls.Load(); calls != 0 {
		m.t.Errorf("the auth service was asked %d times", calls)
	}
	m.callsOf(url)
	if runs := e.metric(`gatehouse_verifications_total{outcome="allow",reason="bcrypt"}`); runs != 2 {
		m.t.Errorf("two good credentials in many requests: %v runs of bcrypt", runs)
	}
	const product = "GET /v1/products/42?lang=de"
	tag := m.wantStatus("http://"+m.service.address, 200, product).header.Get("ETag")
	asked := m.service.products.Load()
	m.wantStatus(url, 200, product, "If-None-Match: "+tag)
	m.wantStatus(url, 200, product+"&utm=x")
	if got := m.service.products.Load() - asked; got != 0 {
		m.t.Errorf("the service was asked %d times for what is published", got)
	}
	if got := m.service.secrets.Load(); got != 0 {
		m.t.Errorf("the service got %d secrets", got)
	}
	e.put("/v1/products/42", `{"id":"42","lang":"","version":1}`)
	m.awaitAnswer("the new product", url, func(a answer) bool { return strings.Contains(a.body, `"version":1`) },
		"GET /v1/products/42")
	e.ctl("device", "revoke", m.id)
	m.awaitAnswer("a 401 for the revoked device", url, hasStatus(401), "GET /v1/fleet/config", m.device...)
}

// awaitAnswer waits until a request gets an answer that ok accepts. No cached answer expires meanwhile.
func (m *migration) awaitAnswer(what, url string, ok func(answer) bool, first string, lines ...string) {
	m.t.Helper()
	await(m.t, what, patience, func() error {
		a, err := sendTo(m.t.Context(), shared, url, "", first, lines...)
		if err == nil && !ok(a) {
			err = fmt.Errorf("got %d %s", a.status, a.body)
		}
		return err
	})
}

var (
	migratedDevice = credential("sensor-7", "s3cret")
	poorDevice     = credential("gauge-1", "pa55")
	wrongSecret    = credential("sensor-7", "guess")
)

// migratedDevices is a CSV as a spreadsheet saves it; gauge-1 has the secret pa55, hashed by Werkzeug.
const migratedDevices = "\ufeffID;Secret;Hash;Permissions\r\nsensor-7;s3cret;;telemetry.write,config.read\r\n" +
	"gauge-1;;pbkdf2:sha256:1000$PsqSxUyR7Jw4MVvX$" +
	"81d1d28750189e9e65aaa2ee8222fa19f8d6ed7e336dbbe38c1d6789ff249fc2;\r\n"

// TestMigrateExtAuthz follows the guide for Envoy's ext_authz.
func TestMigrateExtAuthz(t *testing.T) {
	t.Parallel()
	leaveToOtherEdges(t)
	skipOnThisEdge(t)
	m := newMigration(t, "envoy-ext-authz", migratedDevices)
	all := listExchanges(migratedDevice, poorDevice, wrongSecret,
		exchange{first: "GET /v1/%66leet/config", status: 200, after: 401}, // another route, without normalize_path
		exchange{first: "GET /v1/products/42", lines: []string{forgedDevice}, status: 200})
	before := m.startProxy("before.yaml", m.service.address)
	want := m.sendExchanges(before, all, false)
	if calls := m.callsOf(before); calls != 10 {
		t.Errorf("before: ten requests make %d calls of the auth service", calls)
	}
	m.auth.down.Store(true)
	m.wantStatus(before, 403, "GET /v1/fleet/config", m.device...)
	m.auth.down.Store(false)
	restore := m.auth.revoke("sensor-7")
	m.wantStatus(before, 401, "GET /v1/fleet/config", m.device...)
	restore()
	m.followPage("README.md")
	checkRehearsal(t, m.followPage("envoy-ext-authz.md"))

	options := func(config string) stack.Options {
		return stack.Options{ConfigPath: filepath.Join(m.dir, config)}
	}
	trial := m.start(options("trial.yaml"))
	m.compareAnswers(trial.EdgeURL(), all, true, want)
	m.checkTrial(trial.EdgeURL(), trial)

	m.beginEnforcement()
	after := m.start(options("after.yaml"))
	m.compareAnswers(after.EdgeURL(), all, true, want)
	m.checkEnforced(after.EdgeURL(), after)
}

// TestMigrateNginx follows the guide for nginx's proxy_cache and auth_request.
func TestMigrateNginx(t *testing.T) {
	t.Parallel()
	if !onNginx() {
		t.Skip("the edge of this guide is nginx")
	}
	m := newMigration(t, "nginx", migratedDevices)
	all := listExchanges(migratedDevice, poorDevice, wrongSecret, exchange{first: "GET /v1/%66leet/config", status: 401})
	before := m.startProxy("before.conf", m.service.address)
	want := m.sendExchanges(before, all, false)
	m.checkCachedVerdict(before)
	m.service.version.Store(1)
	if a := m.wantStatus(before, 200, "GET /v1/products/42"); !strings.Contains(a.body, `"version":0`) {
		t.Errorf("a changed product, before: got %s", a.body)
	}
	m.service.version.Store(0)
	m.followPage("README.md")
	checkRehearsal(t, m.followPage("nginx.md"))

	options := func(config, rules string) stack.Options {
		return stack.Options{NginxConfigPath: filepath.Join(m.dir, config), Rules: m.readFile(rules)}
	}
	trial := m.start(options("trial.conf", "trial.yaml"))
	m.compareAnswers(trial.EdgeURL(), all, false, want)
	m.checkTrial(trial.EdgeURL(), trial)

	m.beginEnforcement()
	after := m.start(options("after.conf", "rules.yaml"))
	m.compareAnswers(after.EdgeURL(), all, true, want)
	asked := m.service.products.Load()
	if a := m.wantStatus(after.EdgeURL(), 200, "GET /v1/products/7"); m.service.products.Load() != asked {
		t.Errorf("nginx doesn't cache what isn't published: %v", a.header)
	}
	m.checkEnforced(after.EdgeURL(), after)
}

// checkCachedVerdict checks that nginx asks the auth service once, and then gives a revoked device the old answer.
func (m *migration) checkCachedVerdict(url string) {
	m.t.Helper()
	if calls := m.callsOf(url); calls != 0 {
		m.t.Errorf("ten requests that were judged make %d calls of the auth service", calls)
	}
	m.wantStatus(url, 200, "GET /v1/fleet/config", credential("late-9", "l8")...)
	restore := m.auth.revoke("late-9")
	m.wantStatus(url, 200, "GET /v1/fleet/config", credential("late-9", "l8")...)
	m.wantStatus(url, 401, "GET /v1/fleet/config?new", credential("late-9", "l8")...)
	restore()
}

// TestMigrateIngressNginx follows the guide for ingress-nginx: nginx has the configurations that the controller
// renders, and is before Gatehouse on any edge.
func TestMigrateIngressNginx(t *testing.T) {
	t.Parallel()
	leaveToOtherEdges(t)
	m := newMigration(t, "ingress-nginx", migratedDevices)
	all := listExchanges(migratedDevice, poorDevice, wrongSecret, exchange{first: "GET /v1/%66leet/config", status: 401})
	var ingress struct {
		Metadata struct{ Annotations map[string]string }
	}
	require.NoError(t, yaml.Unmarshal([]byte(m.readFile("before.yaml")), &ingress))
	key := ingress.Metadata.Annotations["nginx.ingress.kubernetes.io/auth-cache-key"]
	if n := strings.Count(m.readFile("before.conf"), key+"';"); key == "" || n != 3 {
		t.Errorf("before.conf has %d keys of before.yaml, %q", n, key)
	}
	before := m.startProxy("before.conf", m.service.address)
	want := m.sendExchanges(before, all, false)
	m.checkCachedVerdict(before)
	m.followPage("README.md")
	checkRehearsal(t, m.followPage("ingress-nginx.md"))

	// The service of Kubernetes is the edge, whose rules are the chart's values.
	trial := m.start(stack.Options{Rules: m.readFile("trial.yaml")})
	url := m.startProxy("before.conf", strings.TrimPrefix(trial.EdgeURL(), "http://"))
	m.compareAnswers(url, all, false, want)
	m.checkTrial(url, trial)

	m.beginEnforcement()
	m.service.identity.Store("X-Gatehouse-Device")
	after := m.start(stack.Options{Rules: m.readFile("rules.yaml")})
	url = m.startProxy("after.conf", strings.TrimPrefix(after.EdgeURL(), "http://"))
	m.compareAnswers(url, all, true, want)
	m.checkEnforced(url, after)
}

// TestMigrateKong follows the guide for Kong, which no registry has: only the steps after Kong run. Clients don't
// change: they send their key.
func TestMigrateKong(t *testing.T) {
	t.Parallel()
	leaveToOtherEdges(t)
	skipOnThisEdge(t)
	m := newMigration(t, "kong", "")
	var before struct {
		Consumers []struct {
			Username string                   `yaml:"username"`
			Keys     []struct{ Key string }   `yaml:"keyauth_credentials"`
			Groups   []struct{ Group string } `yaml:"acls"`
		} `yaml:"consumers"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(m.readFile("before.yaml")), &before))
	var keys strings.Builder
	header := map[string][]string{}
	for _, c := range before.Consumers {
		var groups []string
		for _, g := range c.Groups {
			groups = append(groups, g.Group)
		}
		fmt.Fprintln(&keys, c.Keys[0].Key, strings.Join(groups, ","))
		header[c.Username] = []string{"apikey: " + c.Keys[0].Key}
	}
	m.writeFile("keys.txt", keys.String())
	m.writeFile("access.log", `::1 - - [27/Nov/2026:10:08:06 +0000] "GET /v1/products/42 HTTP/1.1" 200 6 "-" "-" kong_request_id: "1"
::1 - - [27/Nov/2026:10:08:06 +0000] "GET /v1/fleet/config HTTP/1.1" 200 6 "-" "-" kong_request_id: "2"
::1 - - [27/Nov/2026:10:08:06 +0000] "POST /v1/telemetry HTTP/1.1" 200 6 "-" "-" kong_request_id: "3"
`)
	checkRehearsal(t, m.followPage("kong.md"))
	m.followPage("README.md")

	var filter yaml.Node
	require.NoError(t, yaml.Unmarshal([]byte(m.readFile("filter.yaml")), &filter))
	options := func(rules string) stack.Options {
		return stack.Options{Rules: m.readFile(rules),
			ModifyConfig: func(c *stack.Config) error {
				filters, err := c.Find(append(edgeManager, "http_filters")...)
				if err == nil {
					filters.Content = append(filter.Content[:1:1], filters.Content...)
				}
				return err
			}}
	}
	sensor, poor := header["sensor-7"], header["gauge-1"]
	wrong := []string{sensor[0][:len("apikey: ")+8] + "not the rest of it"}
	m.service.identity.Store("X-Gatehouse-Device")
	all := listExchanges(sensor, poor, wrong, exchange{first: "GET /v1/%66leet/config", status: 401},
		// The id is the key's, whatever the client says.
		exchange{first: "GET /v1/fleet/config", lines: append(poor[:1:1], "x-device-id: "+sensor[0][8:16]), status: 403},
		exchange{first: "GET /v1/fleet/config", lines: []string{"x-device-id: " + sensor[0][8:16]}, status: 401},
		exchange{first: "GET /v1/fleet/config", lines: append(sensor[:1:1], poor...), status: 401})
	m.device, m.id = sensor, sensor[0][8:16]
	trial := m.start(options("trial.yaml"))
	m.wantStatus(trial.EdgeURL(), 200, "POST /v1/telemetry", wrong...)

	m.beginEnforcement()
	after := m.start(options("rules.yaml"))
	if out, err := gatehousectl(t, "check", after.ConfigPath()); err != nil {
		t.Errorf("check: %v\n%s", err, out)
	}
	bodies := m.sendExchanges(after.EdgeURL(), all, true)
	if !slices.ContainsFunc(bodies, func(b string) bool { return strings.Contains(b, `"device":"`+m.id+`"`) }) {
		t.Errorf("the service sees %q, want device %s in them", bodies, m.id)
	}
	m.checkEnforced(after.EdgeURL(), after)
}
