// Package e2e tests Gatehouse as its users run it: the compiled module in a real Envoy, the built sidecar and
// gatehousectl, a real redis-server.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
	"github.com/gatehouse/gatehouse/testbed/upstream"
)

// patience bounds every wait.
const patience = 20 * time.Second

// leaveToLongForm skips a test in the short form of the suite, which make test runs; make test-all runs all tests.
// Tests of the short form, named in others, must cover the subject.
func leaveToLongForm(t *testing.T, others string) {
	t.Helper()
	if testing.Short() {
		t.Skip("long; in short: ", others)
	}
}

// leaveToOtherEdges skips, in the whole suite's short form on Wasm, a test about no edge in particular: each start of
// Envoy takes 8 s of a processor there. The short forms on the dynamic module and on nginx have the test.
func leaveToOtherEdges(t *testing.T) {
	t.Helper()
	if wholeShortSuite() && !onNative() && !onNginx() {
		t.Skip("not about this edge; in short on the dynamic module and nginx; or by its name, or LONG=1")
	}
}

// leaveToNative skips, in the whole suite's short form, a test of the sidecar, of Redis or of gatehousectl, except on
// the dynamic module, which starts at once.
func leaveToNative(t *testing.T) {
	t.Helper()
	if wholeShortSuite() && !onNative() {
		t.Skip("not about the edge; in short on the dynamic module; or by its name, or LONG=1")
	}
}

func wholeShortSuite() bool { return testing.Short() && flag.Lookup("test.run").Value.String() == "" }

// pickSize returns whole in the long form of the suite, and short in the short form.
func pickSize(whole, short int) int {
	if testing.Short() {
		return short
	}
	return whole
}

// edge is a running stack with helpers for tests.
type edge struct {
	*stack.Stack
	t         *testing.T
	redis     redis.UniversalClient
	publisher *publish.Publisher
}

// withRedis returns opts with the stack's own redis-server, unless opts name a running one.
func withRedis(t *testing.T, opts stack.Options) stack.Options {
	t.Helper()
	if opts.RedisURL == "" && opts.RedisServerPath == "" {
		path, err := exec.LookPath("redis-server")
		if err != nil {
			t.Fatalf("%v: these tests run against a real Redis; see scripts/install-packages.sh", err)
		}
		opts.RedisServerPath = path
	}
	return opts
}

// start runs a stack with its own redis-server until the test ends.
func start(t *testing.T, opts stack.Options) *edge {
	t.Helper()
	skipOnThisEdge(t)
	opts = withRedis(t, opts)
	opts.Dir = t.TempDir()
	s, err := stack.Start(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			showLogs(t, s.Dir())
		}
	})
	return edgeOf(t, s)
}

func edgeOf(t *testing.T, s *stack.Stack) *edge {
	t.Helper()
	client, err := redisurl.Connect(s.RedisURL())
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return &edge{Stack: s, t: t, redis: client, publisher: publish.New(client)}
}

// showLogs prints the end of each part's log.
func showLogs(t *testing.T, dir string) {
	logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
	for _, path := range logs {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		t.Logf("the end of %s:\n%s", filepath.Base(path), text[max(0, len(text)-4000):])
	}
}

// readLog returns the log of "envoy" or "sidecar" so far.
func (e *edge) readLog(part string) string {
	e.t.Helper()
	text, err := os.ReadFile(filepath.Join(e.Dir(), part+".log"))
	require.NoError(e.t, err)
	return string(text)
}

func (e *edge) put(key, body string) {
	e.t.Helper()
	if _, err := e.publisher.Put(e.t.Context(), publish.Object{Key: key, Body: []byte(body),
		ContentType: "application/json"}); err != nil {
		e.t.Fatal(err)
	}
}

// putDevice registers a device. Cost 4 keeps tests fast where bcrypt is not their subject.
func (e *edge) putDevice(id, secret string, cost int, permissions ...string) {
	e.t.Helper()
	if _, err := e.publisher.PutDevice(e.t.Context(), publish.Device{ID: id, Secret: secret, Permissions: permissions,
		Cost: cost}); err != nil {
		e.t.Fatal(err)
	}
}

// ctl runs gatehousectl and returns its output.
func (e *edge) ctl(args ...string) string {
	e.t.Helper()
	out, err := gatehousectl(e.t, append(args, "--redis", e.RedisURL())...)
	if err != nil {
		e.t.Fatalf("gatehousectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

func gatehousectl(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "../build/gatehousectl", args...).CombinedOutput()
	return string(out), err
}

// readSection returns the text of a page under a heading, such as "## Limits", with the headings below it.
func readSection(t *testing.T, page, heading string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", page, heading)
	}
	level := strings.Index(heading, " ")
	if end := regexp.MustCompile(fmt.Sprintf(`(?m)^#{2,%d} `, level)).FindStringIndex(section); end != nil {
		section = section[:end[0]]
	}
	return section
}

// indentedBlocks returns the blocks of code that a section has by four or more blanks, without the first four.
func indentedBlocks(section string) []string {
	blocks := regexp.MustCompile(`(?m)(^    .*\n)+`).FindAllString(section, -1)
	for i, block := range blocks {
		blocks[i] = regexp.MustCompile(`(?m)^    `).ReplaceAllString(block, "")
	}
	return blocks
}

// answer is a complete response.
type answer struct {
	status int
	header http.Header
	body   string
}

// seenByUpstream returns the request as the upstream received it; the test fails unless the upstream answered.
func (a answer) seenByUpstream(t *testing.T) upstream.Seen {
	t.Helper()
	var s upstream.Seen
	if err := json.Unmarshal([]byte(a.body), &s); err != nil || s.Method == "" {
		t.Fatalf("got %d %q, want the upstream's answer", a.status, a.body)
	}
	return s
}

// newClient returns a client with its own connections, which adds nothing to a request.
func newClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 1024},
		Timeout:   patience,
	}
}

var shared = newClient()

// try sends a request: "METHOD path" and "name: value" lines, in which a name may repeat. The path is sent as written.
func (e *edge) try(client *http.Client, first string, lines ...string) (answer, error) {
	return sendTo(e.t.Context(), client, e.EdgeURL(), "", first, lines...)
}

// sendTo sends a request as [edge.try] does, with a body, to the server at url.
func sendTo(ctx context.Context, client *http.Client, url, body, first string, lines ...string) (answer, error) {
	method, path, _ := strings.Cut(first, " ")
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	request.URL.Opaque = "//" + request.URL.Host + path
	request.Header.Set("User-Agent", "")
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		request.Header.Add(name, value)
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }()
	got, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(got)}, err
}

// send calls try with the shared client, and fails the test without an answer.
func (e *edge) send(first string, lines ...string) answer {
	e.t.Helper()
	a, err := e.try(shared, first, lines...)
	if err != nil {
		e.t.Fatalf("%s: %v", first, err)
	}
	return a
}

// credential returns the header lines of a device.
func credential(id, secret string) []string {
	return []string{"x-device-id: " + id, "x-device-token: " + secret}
}

// await waits until check returns nil.
func await(t *testing.T, what string, limit time.Duration, check func() error) time.Duration {
	t.Helper()
	begin := time.Now()
	for {
		err := check()
		if err == nil {
			return time.Since(begin)
		}
		if time.Since(begin) > limit {
			t.Fatalf("%s: not within %s: %v", what, limit, err)
		}
		// Yields the processor between two checks of a condition; nothing depends on the duration.
		time.Sleep(time.Millisecond)
	}
}

// metric returns a metric of the sidecar, see [stack.Stack.Metric].
func (e *edge) metric(name string) float64 {
	e.t.Helper()
	v, err := e.Metric(e.t.Context(), name)
	require.NoError(e.t, err)
	return v
}

// stat returns a counter or gauge of Envoy, see [stack.Stack.Stat].
func (e *edge) stat(name string) int {
	e.t.Helper()
	v, err := e.Stat(e.t.Context(), name)
	require.NoError(e.t, err)
	return v
}

// edgeMetric returns a metric of the edge, see [stack.Stack.EdgeMetric].
func (e *edge) edgeMetric(name string, labels ...string) int {
	e.t.Helper()
	v, err := e.EdgeMetric(e.t.Context(), name, labels...)
	require.NoError(e.t, err)
	return v
}

func (e *edge) fetch(url string) string {
	e.t.Helper()
	v, err := stack.Fetch(e.t.Context(), url)
	require.NoError(e.t, err)
	return v
}

// workerClients returns clients with one connection each, enough that every worker of Envoy serves some.
func (e *edge) workerClients() []*http.Client {
	e.t.Helper()
	clients := make([]*http.Client, 16)
	for i := range clients {
		clients[i] = newClient()
		if _, err := e.try(clients[i], "GET /warm"); err != nil {
			e.t.Fatal(err)
		}
	}
	if onNginx() {
		return clients // it doesn't tell which worker serves a connection; each accepts its share
	}
	for worker := range 2 {
		pattern := fmt.Sprintf("listener.127.0.0.1_%s.worker_%d.downstream_cx_active",
			e.EdgeURL()[strings.LastIndexByte(e.EdgeURL(), ':')+1:], worker)
		if e.stat(pattern) == 0 {
			e.t.Fatalf("worker %d has none of %d connections", worker, len(clients))
		}
	}
	return clients
}

// sendFromAll sends the request from all clients and returns an error unless ok accepts each answer.
func (e *edge) sendFromAll(clients []*http.Client, ok func(answer) bool, first string, lines ...string) error {
	for i, client := range clients {
		a, err := e.try(client, first, lines...)
		if err != nil {
			return err
		}
		if !ok(a) {
			return fmt.Errorf("connection %d: %s: got %d %s %.200q", i, first, a.status, a.header, a.body)
		}
	}
	return nil
}

// keepCalling calls f repeatedly until f fails, the test ends, or stop is called. stop returns f's error.
func keepCalling(t *testing.T, f func() error) (stop func() error) {
	t.Helper()
	done, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-done:
				ended <- nil
				return
			default:
			}
			if err := f(); err != nil {
				ended <- err
				return
			}
		}
	}()
	stop = sync.OnceValue(func() error {
		close(done)
		return <-ended
	})
	t.Cleanup(func() { _ = stop() }) // before the stack's cleanup
	return stop
}

// awaitAnswer waits until a request, in the format of send, gets an answer that ok accepts.
func (e *edge) awaitAnswer(what string, ok func(answer) bool, first string, lines ...string) {
	e.t.Helper()
	await(e.t, what, patience, func() error { return e.sendFromAll([]*http.Client{shared}, ok, first, lines...) })
}

func hasStatus(want int) func(answer) bool { return func(a answer) bool { return a.status == want } }

func hasBody(body string) func(answer) bool { return func(a answer) bool { return a.body == body } }

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// prettyJSON returns about n bytes of JSON that compress well.
func prettyJSON(n int, mark string) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"mark":%q,"text":"`, mark)
	for b.Len() < n {
		b.WriteString("the quick brown fox jumps over the lazy dog; ")
	}
	b.WriteString(`"}`)
	return b.String()
}
