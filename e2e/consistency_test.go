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

	"github.com/gatehouse/gatehouse/sidecar/publish"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestTwoSidecars starts a second sidecar for the same Envoy: it wins; the first one logs that and waits, and takes
// over again when the second one has exited.
func TestTwoSidecars(t *testing.T) {
	t.Parallel()
	e := reuse(t, stack.Options{})
	e.put("/v1/products/42", "first")
	body := func(want string) func() error {
		return func() error {
			return e.everyone([]*http.Client{shared}, says(want), "GET /v1/products/42")
		}
	}
	await(t, "published", patience, body("first"))
	const overtaken = "another sidecar has taken over this edge"
	var second *exec.Cmd
	path := filepath.Join(t.TempDir(), "second.log")
	for second == nil {
		log, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		second = exec.Command("../build/gatehouse-sidecar", "--redis.url", e.RedisURL(),
			"--push.socket", e.PushSocket(), "--api.socket", filepath.Join(t.TempDir(), "api.sock"), "--admin.address", "127.0.0.1:0")
		second.Stderr = log
		if err := errors.Join(second.Start(), log.Close()); err != nil {
			t.Fatal(err)
		}
		await(t, "one of the two logs that it was overtaken", patience, func() error {
			said, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if strings.Contains(string(said), overtaken) { // a heartbeat of the first one came between
				_ = second.Process.Kill()
				_ = second.Wait()
				second = nil
			} else if !strings.Contains(e.log("sidecar"), overtaken) {
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
	if err := second.Process.Kill(); err != nil {
		t.Fatal(err)
	}
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
	e.device("dev", "secret", 4, "telemetry.write")
	await(t, "published", patience, func() error {
		if err := e.everyone([]*http.Client{shared}, says("old"), "GET /v1/products/gone"); err != nil {
			return err
		}
		return e.everyone([]*http.Client{shared}, status(200), "POST /v1/telemetry", credential("dev", "secret")...)
	})
	if err := e.redis.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := e.publisher.Put(t.Context(), publish.Object{Key: "/v1/products/kept", Body: []byte("new"), ContentType: "text/plain", Version: 1}); err != nil {
		t.Fatal(err)
	}
	took := await(t, "the edge follows", patience, func() error {
		if err := e.everyone([]*http.Client{shared}, says("new"), "GET /v1/products/kept"); err != nil {
			return err
		}
		if err := e.everyone([]*http.Client{shared}, func(a answer) bool { return a.header.Get("Cache-Status") == "gatehouse; fwd=uri-miss" }, "GET /v1/products/gone"); err != nil {
			return err
		}
		return e.everyone([]*http.Client{shared}, status(401), "POST /v1/telemetry", credential("dev", "secret")...)
	})
	t.Logf("the edge followed within %s", took)
	started, lost := e.metric(`gatehouse_full_resyncs_total{reason="start"}`), e.metric(`gatehouse_full_resyncs_total{reason="lost"}`)
	if started != 1 || lost != 1 || !strings.Contains(e.log("sidecar"), "redis has lost data") {
		t.Errorf("got %v full resyncs at start and %v after a loss, want 1 of each, and the loss logged", started, lost)
	}
}

// TestBoundedStaleness stops Redis: cached answers continue until max_staleness, then the rules decide; afterwards
// cached answers resume by themselves.
func TestBoundedStaleness(t *testing.T) {
	t.Parallel()
	const maxStaleness = 3 * time.Second
	rules := func(stale string) string {
		return fmt.Sprintf(`{"max_staleness": %q, "stale": %q, "rules": [{"match": {"prefix": "/v1/"}, "cache": {}}]}`, maxStaleness, stale)
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
	if err := e.SignalRedis(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	await(t, "beyond max_staleness", patience, both("gatehouse; fwd=stale; detail=not-in-step", "gatehouse; hit; detail=not-in-step"))
	if took := time.Since(stopped); took < maxStaleness-2*time.Second || took > maxStaleness+time.Second {
		t.Errorf("beyond max_staleness after %s, want about %s", took, maxStaleness)
	}
	if err := e.SignalRedis(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	await(t, "recovered", patience, both("gatehouse; hit", "gatehouse; hit"))
}

// TestEvictionFollowsUse reads some objects through the edge and publishes more than fit: the objects that are read
// stay.
func TestEvictionFollowsUse(t *testing.T) {
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
		if _, err := e.publisher.Put(t.Context(), publish.Object{Key: key, Body: body, ContentType: "image/png"}); err != nil {
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
