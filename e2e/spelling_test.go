package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/publish"
	"github.com/gatehouse/gatehouse/testbed/redistest"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestSpellings has another writer than publish store keys with lower-case escapes, by the script as the contract's
// page describes. Both spellings are one key for clients; of two records the later counts, until it is deleted.
func TestSpellings(t *testing.T) {
	t.Parallel()
	const shards = contract.Shards(8)
	const upper, lower = "/v1/products/caf%C3%A9?lang=%C3%A9", "/v1/products/caf%c3%a9?lang=%c3%a9"
	if shards.Of(upper) == shards.Of(lower) {
		t.Fatal("want the spellings in two shards")
	}
	e := reuse(t, stack.Options{SidecarArgs: []string{fmt.Sprint("--redis.shards=", shards)},
		Seed: stack.AcceptLoss(shards)})
	e.publisher = publish.New(e.redis, publish.Shards(int(shards)))
	write := redistest.ObjectWriter(t, e.redis, "../sidecar/publish/write.lua", shards)
	answered := func(when, body, status string) {
		t.Helper()
		await(t, when, patience, func() error {
			for _, target := range []string{upper, lower, strings.ReplaceAll(lower, "?", "?a=1&")} {
				a := e.send("GET " + target)
				if got := a.header.Get("Cache-Status"); got != status || body != "" && a.body != body {
					return fmt.Errorf("%s: got %d %q %s, want %q %s", target, a.status, a.body, got, body, status)
				}
			}
			return nil
		})
	}
	const hit, miss = "gatehouse; hit", "gatehouse; fwd=uri-miss"
	write(lower, "0", "etag", `"1"`, "content-type", "text/plain", "body", "another writer's")
	answered("stored in lower case", "another writer's", hit)
	e.put(upper, "ours")
	answered("a later one in upper case", "ours", hit)
	write(lower, "0", "etag", `"2"`, "content-type", "text/plain", "body", "another writer's second")
	answered("a later one in lower case", "another writer's second", hit)
	if got := e.metric("gatehouse_key_collisions_total"); got != 2 {
		t.Errorf("%v collisions counted, want 2", got)
	}
	if log := e.log("sidecar"); !strings.Contains(log, "two stored keys are the same key") {
		t.Error("nothing is logged of the collision")
	}
	write(lower, "86400000", "deleted", "1")
	answered("deleted in lower case", "ours", hit)
	if _, err := e.publisher.Delete(t.Context(), upper, 0); err != nil {
		t.Fatal(err)
	}
	answered("deleted in upper case", "", miss)
}
