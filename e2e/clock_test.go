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
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/e2e/chaos"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestClockOfRedis moves the clock of Redis by an hour: if ahead, an object is served until its ttl ends, also to a
// fetch; if behind, the object has expired on arrival. The sidecar reports the difference.
func TestClockOfRedis(t *testing.T) {
	leaveToOtherEdges(t)
	t.Parallel()
	library := filepath.Join(t.TempDir(), "clock.so")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-O2", "-o", library,
		"chaos/testdata/clock/clock.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	clock, err := chaos.NewClock(filepath.Join(t.TempDir(), "clock"))
	require.NoError(t, err)
	e := reuse(t, stack.Options{RedisEnv: clock.Environment(library)})
	e.putDevice("dev", "secret", 4, "config.read")
	fetched := func() answer { return e.send("GET /v1/fleet/config", credential("dev", "secret")...) }
	put := func(key string) {
		if _, err := e.publisher.Put(t.Context(), publish.Object{Key: key, Body: []byte("body"),
			ContentType: "text/plain", TTL: 3 * time.Second}); err != nil {
			t.Fatal(err)
		}
	}
	step := func(by time.Duration) {
		require.NoError(t, clock.Step(by))
		await(t, "the sidecar tells it", patience, func() error {
			if got := e.metric("gatehouse_redis_clock_ahead_seconds"); got < by.Seconds()-1 || got > by.Seconds()+1 {
				return fmt.Errorf("got %v s ahead, want %v", got, by)
			}
			return nil
		})
	}
	var state struct{ Problems []struct{ Text string } }
	problem := func(want string) {
		if e.decodeCtl(&state, "status"); len(state.Problems) != 1 || !strings.HasPrefix(state.Problems[0].Text, want) {
			t.Errorf("status: got %+v, want only %q", state.Problems, want)
		}
	}
	left := regexp.MustCompile(`^gatehouse; hit; ttl=(\d+)$`)
	step(time.Hour)
	problem("Redis's clock is 3600 s ahead")
	put("/v1/products/ahead")
	e.awaitAnswer("published", hasBody("body"), "GET /v1/products/ahead")
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
	e.awaitAnswer("it ends", func(a answer) bool { return !hasBody("body")(a) }, "GET /v1/products/ahead")
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
	e.awaitAnswer("what was written later", hasBody("after"), "GET /v1/products/after")
	if a := e.send("GET /v1/products/behind"); hasBody("body")(a) {
		t.Errorf("got %d with %q, want nothing of an object that had ended", a.status, a.header.Get("Cache-Status"))
	}
}
