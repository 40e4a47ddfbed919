package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/e2e/chaos"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestClockOfRedis steps the clock of Redis by an hour: ahead, an object is served for its ttl and not longer, also to
// a fetch; behind, it has ended before it comes. The sidecar tells the difference.
func TestClockOfRedis(t *testing.T) {
	anyEdge(t)
	t.Parallel()
	library := filepath.Join(t.TempDir(), "clock.so")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-O2", "-o", library,
		"chaos/testdata/clock/clock.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	clock, err := chaos.NewClock(filepath.Join(t.TempDir(), "clock"))
	if err != nil {
		t.Fatal(err)
	}
	e := reuse(t, stack.Options{RedisEnv: clock.Environment(library)})
	e.device("dev", "secret", 4, "config.read")
	fetched := func() answer { return e.send("GET /v1/fleet/config", credential("dev", "secret")...) }
	put := func(key string) {
		if _, err := e.publisher.Put(t.Context(), publish.Object{Key: key, Body: []byte("body"),
			ContentType: "text/plain", TTL: 3 * time.Second}); err != nil {
			t.Fatal(err)
		}
	}
	step := func(by time.Duration) {
		if err := clock.Step(by); err != nil {
			t.Fatal(err)
		}
		await(t, "the sidecar tells it", patience, func() error {
			if got := e.metric("gatehouse_redis_clock_ahead_seconds"); got < by.Seconds()-1 || got > by.Seconds()+1 {
				return fmt.Errorf("got %v s ahead, want %v", got, by)
			}
			return nil
		})
	}
	var state struct{ Problems []struct{ Text string } }
	problem := func(want string) {
		if e.operate(&state, "status"); len(state.Problems) != 1 || !strings.HasPrefix(state.Problems[0].Text, want) {
			t.Errorf("status: got %+v, want only %q", state.Problems, want)
		}
	}
	left := regexp.MustCompile(`^gatehouse; hit; ttl=(\d+)$`)
	step(time.Hour)
	problem("Redis's clock is 3600 s ahead")
	put("/v1/products/ahead")
	e.until("published", says("body"), "GET /v1/products/ahead")
	a := e.send("GET /v1/products/ahead")
	if ttl := left.FindStringSubmatch(a.header.Get("Cache-Status")); ttl == nil {
		t.Errorf("got Cache-Status %q, want a hit with a ttl", a.header.Get("Cache-Status"))
	} else if s, _ := strconv.Atoi(ttl[1]); s > 3 {
		t.Errorf("got %d s left, want at most 3", s)
	}
	put("/v1/fleet/config")
	await(t, "fetched", patience, func() error {
		if a := fetched(); a.body != "body" {
			return fmt.Errorf("got %d %q", a.status, a.body)
		}
		return nil
	})
	e.until("it ends", func(a answer) bool { return !says("body")(a) }, "GET /v1/products/ahead")
	await(t, "fetched ends", patience, func() error {
		if a := fetched(); a.body == "body" {
			return fmt.Errorf("got %d with %q", a.status, a.header.Get("Cache-Status"))
		}
		return nil
	})
	step(-time.Hour)
	problem("Redis's clock is 3600 s behind")
	put("/v1/products/behind")
	e.put("/v1/products/after", "after")
	e.until("what was written later", says("after"), "GET /v1/products/after")
	if a := e.send("GET /v1/products/behind"); says("body")(a) {
		t.Errorf("got %d with %q, want nothing of an object that had ended", a.status, a.header.Get("Cache-Status"))
	}
}
