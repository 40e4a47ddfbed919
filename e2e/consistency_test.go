package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestTwoSidecars starts a second sidecar for the same Envoy: the second one wins; the first one logs a message, waits,
// and takes over again when the second one has exited.
func TestTwoSidecars(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	e := reuse(t, stack.Options{})
	e.put("/v1/products/42", "first")
	body := func(want string) func() error {
		return func() error {
			return e.sendFromAll([]*http.Client{shared}, hasBody(want), "GET /v1/products/42")
		}
	}
	await(t, "published", patience, body("first"))
	const overtaken = "another sidecar has taken over this edge"
	var second *exec.Cmd
	path := filepath.Join(t.TempDir(), "second.log")
	for second == nil {
		log, err := os.Create(path)
		require.NoError(t, err)
		second = exec.Command("../build/gatehouse-sidecar", "--redis.url", e.RedisURL(),
			"--push.socket", e.PushSocket(), "--api.socket", filepath.Join(t.TempDir(), "api.sock"),
			"--admin.address", "127.0.0.1:0")
		second.Stderr = log
		require.NoError(t, errors.Join(second.Start(), log.Close()))
		await(t, "one of the two logs that it was overtaken", patience, func() error {
			said, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if strings.Contains(string(said), overtaken) { // a heartbeat of the first one came between
				_ = second.Process.Kill()
				_ = second.Wait()
				second = nil
			} else if !strings.Contains(e.readLog("sidecar"), overtaken) {
				return fmt.Errorf("not yet; the second one's log: %s", said)
			}
			return nil
		})
	}
	t.Cleanup(func() {
		_ = second.Process.Kill()
		_ = second.Wait()
	})
	before := e.metric("gatehouse_epochs_total")
	if ready := e.fetch(e.SidecarAdminURL() + "/readyz"); !strings.Contains(ready, "another sidecar") {
		t.Errorf("/readyz of the first one: got %q, want the reason", ready)
	}
	e.put("/v1/products/42", "second")
	await(t, "the second one continues", patience, body("second"))
	if epochs := e.metric("gatehouse_epochs_total"); epochs != before {
		t.Errorf("the first one began %v epochs more, want none: the two fight", epochs-before)
	}
	require.NoError(t, second.Process.Kill())
	e.put("/v1/products/42", "third")
	took := await(t, "the first one takes over", patience, body("third"))
	t.Logf("the first one took over %s after the second was gone", took)
	await(t, "ready again", patience, func() error {
		if ready := e.fetch(e.SidecarAdminURL() + "/readyz"); strings.TrimSpace(ready) != "ok" {
			return fmt.Errorf("%s", ready)
		}
		return nil
	})
}

// TestRedisLosesItsData empties Redis: the edge removes the objects, too, and versions start again.
func TestRedisLosesItsData(t *testing.T) {
	t.Parallel()
	e := reuse(t, stack.Options{})
	for range 5 {
		e.put("/v1/products/kept", "old")
	}
	e.put("/v1/products/gone", "old")
	e.putDevice("dev", "secret", 4, "telemetry.write")
	await(t, "published", patience, func() error {
		if err := e.sendFromAll([]*http.Client{shared}, hasBody("old"), "GET /v1/products/gone"); err != nil {
			return err
		}
		return e.sendFromAll([]*http.Client{shared}, hasStatus(200), "POST /v1/telemetry", credential("dev", "secret")...)
	})
	require.NoError(t, e.redis.FlushAll(t.Context()).Err())
	if _, err := e.publisher.Put(t.Context(), publish.Object{Key: "/v1/products/kept", Body: []byte("new"),
		ContentType: "text/plain", Version: 1}); err != nil {
		t.Fatal(err)
	}
	took := await(t, "the edge follows", patience, func() error {
		if err := e.sendFromAll([]*http.Client{shared}, hasBody("new"), "GET /v1/products/kept"); err != nil {
			return err
		}
		if err := e.sendFromAll([]*http.Client{shared}, func(a answer) bool {
			return a.header.Get("Cache-Status") == "gatehouse; fwd=uri-miss"
		}, "GET /v1/products/gone"); err != nil {
			return err
		}
		return e.sendFromAll([]*http.Client{shared}, hasStatus(401), "POST /v1/telemetry", credential("dev", "secret")...)
	})
	t.Logf("the edge followed within %s", took)
	started, lost := e.metric(`gatehouse_full_resyncs_total{reason="start"}`),
		e.metric(`gatehouse_full_resyncs_total{reason="lost"}`)
	if started != 1 || lost != 1 || !strings.Contains(e.readLog("sidecar"), "redis has lost data") {
		t.Errorf("got %v full resyncs at start and %v after a loss, want 1 of each, and the loss logged", started, lost)
	}
}

// TestRedisComesBackEmpty kills a Redis without persistence and restarts Redis: edges go on as if Redis were
// unreachable, and no device is refused, even by a sidecar that starts meanwhile, until the loss is accepted.
func TestRedisComesBackEmpty(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	const bound, slack = 4 * time.Second, time.Second
	e := start(t, stack.Options{Concurrency: 1, SidecarArgs: []string{"--verdict.allow-ttl=10m"}, Rules: fmt.Sprintf(`{
		"sidecar": {"cluster": "gatehouse-sidecar", "timeout": "1s"}, "credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"},
		"max_staleness": %q, "max_auth_staleness": %q,
		"rules": [{"match": {"prefix": "/v1/products/"}, "cache": {}}, {"match": {"prefix": "/v1/telemetry"}, "auth": {}}]}`,
		bound, bound)})
	publish := func() {
		t.Helper()
		e.put("/v1/products/1", "body")
		e.putDevice("dev", "secret", 4)
		e.awaitAnswer("the object", hasBody("body"), "GET /v1/products/1")
		e.awaitAnswer("the device", hasStatus(200), "POST /v1/telemetry", credential("dev", "secret")...)
	}
	publish()
	require.NoError(t, errors.Join(e.KillRedis(), e.StartRedis(t.Context())))
	began := time.Now()
	unreachable := func() error {
		device, object := e.send("POST /v1/telemetry", credential("dev", "secret")...), e.send("GET /v1/products/1")
		since, hit := time.Since(began), object.header.Get("Cache-Status")
		if device.status == 401 || hit == "gatehouse; fwd=uri-miss" || since < bound-slack &&
			(device.status != 200 || object.body != "body") {
			t.Fatalf("%v after Redis was back, empty: got %d, and %s", since, device.status, hit)
		}
		if device.status != 503 || hit != "gatehouse; fwd=stale; detail=not-in-step" {
			return fmt.Errorf("got %d, and %s", device.status, hit)
		}
		return nil
	}
	await(t, "beyond the bounds", bound+slack, unreachable)
	if said, _ := gatehousectl(t, "status", "--sidecar", strings.TrimPrefix(e.SidecarAdminURL(),
		"http://")); !strings.Contains(said, "Redis is empty") {
		t.Errorf("gatehousectl status: %s; want that Redis is empty", said)
	}

	require.NoError(t, e.KillSidecar())
	started := make(chan error, 1)
	go func() { started <- e.StartSidecar(t.Context()) }()
	await(t, "the new sidecar says why it isn't ready", patience, func() error {
		said, err := gatehousectl(t, "ready", "--url", e.SidecarAdminURL()+"/readyz")
		if err == nil || !strings.Contains(said, "redis is empty") {
			return fmt.Errorf("%v: %s", err, said)
		}
		return unreachable()
	})

	if said := e.ctl("accept-loss", "--shards", "1"); !strings.Contains(said, "1 of 1 shards were empty") {
		t.Errorf("accept-loss: %s", said)
	}
	require.NoError(t, <-started)
	e.awaitAnswer("the object is gone", func(a answer) bool {
		return a.header.Get("Cache-Status") == "gatehouse; fwd=uri-miss"
	}, "GET /v1/products/1")
	e.awaitAnswer("the device is refused", hasStatus(401), "POST /v1/telemetry", credential("dev", "secret")...)
	publish()
}

// TestBoundedStaleness stops Redis: cached answers continue until max_staleness, then the rules decide; afterwards
// cached answers resume by themselves.
func TestBoundedStaleness(t *testing.T) {
	leaveToOtherEdges(t)
	t.Parallel()
	const maxStaleness = 3 * time.Second
	rules := func(stale string) string {
		return fmt.Sprintf(`{"max_staleness": %q, "stale": %q, "rules": [{"match": {"prefix": "/v1/"}, "cache": {}}]}`,
			maxStaleness, stale)
	}
	e, l := startTwo(t, stack.Options{}, rules("bypass"), rules("serve"))
	e.put("/v1/a", "body")
	both := func(bypass, serve string) func() error {
		return func() error {
			for url, want := range map[string]string{e.EdgeURL(): bypass, "http://" + l.second: serve} {
				response, err := shared.Get(url + "/v1/a")
				if err != nil {
					return err
				}
				_ = response.Body.Close()
				if got := response.Header.Get("Cache-Status"); got != want {
					return fmt.Errorf("got Cache-Status %q, want %q", got, want)
				}
			}
			return nil
		}
	}
	await(t, "published", patience, both("gatehouse; hit", "gatehouse; hit"))
	require.NoError(t, e.SignalRedis(syscall.SIGSTOP))
	stopped := time.Now()
	await(t, "beyond max_staleness", patience, both("gatehouse; fwd=stale; detail=not-in-step",
		"gatehouse; hit; detail=not-in-step"))
	if took := time.Since(stopped); took < maxStaleness-2*time.Second || took > maxStaleness+time.Second {
		t.Errorf("beyond max_staleness after %s, want about %s", took, maxStaleness)
	}
	require.NoError(t, e.SignalRedis(syscall.SIGCONT))
	await(t, "recovered", patience, both("gatehouse; hit", "gatehouse; hit"))
}

// TestEvictionFollowsUse reads some objects through the edge and publishes more than fit: the objects that are read
// stay.
func TestEvictionFollowsUse(t *testing.T) {
	leaveToOtherEdges(t)
	t.Parallel()
	const (
		size, hot = 20 << 10, 10
		cold      = 300
	)
	e := reuse(t, stack.Options{SidecarArgs: []string{"--memory.bytes=2MiB", "--memory.objects=1000"}})
	random := rand.NewChaCha8([32]byte{})
	put := func(key string) {
		body := make([]byte, size)
		if _, err := random.Read(body); err != nil {
			t.Fatal(err)
		}
		if _, err := e.publisher.Put(t.Context(), publish.Object{Key: key, Body: body,
			ContentType: "image/png"}); err != nil {
			t.Fatal(err)
		}
	}
	hits := func() (n int) {
		for i := range hot {
			if e.send(fmt.Sprint("GET /v1/products/hot-", i)).header.Get("Cache-Status") == "gatehouse; hit" {
				n++
			}
		}
		return n
	}
	for i := range hot {
		put(fmt.Sprint("/v1/products/hot-", i))
	}
	for i := range 60 { // the cache counts uses when it is more than half full
		put(fmt.Sprint("/v1/products/filler-", i))
	}
	await(t, "published", patience, func() error {
		if n := hits(); n != hot {
			return fmt.Errorf("%d of %d at the edge", n, hot)
		}
		return nil
	})
	before := e.metric("gatehouse_api_requests_total")
	await(t, "hits are reported", patience, func() error {
		hits()
		if e.metric("gatehouse_api_requests_total") < before+4 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	for i := range cold {
		put(fmt.Sprint("/v1/products/cold-", i))
	}
	await(t, "evictions", patience, func() error {
		if e.metric("gatehouse_evictions_total")+e.metric("gatehouse_objects_applied_total") < cold {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	if n := hits(); n < hot*8/10 {
		t.Errorf("%d of %d objects in use stayed at the edge, want nearly all", n, hot)
	}
	held, budget := e.metric("gatehouse_object_cache_bytes"), e.metric("gatehouse_object_cache_budget_bytes")
	if held > budget {
		t.Errorf("the edge holds %v bytes, the budget is %v", held, budget)
	}
}
