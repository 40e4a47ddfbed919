package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestChangeShards runs the commands of docs/redis.md that lead an edge to a namespace with more shards, under traffic:
// no request fails, and the edge then follows the new namespace alone.
func TestChangeShards(t *testing.T) {
	t.Parallel()
	blocks := indentedBlocks(readSection(t, "../docs/redis.md", "### Change the number of shards"))
	if len(blocks) != 2 {
		t.Fatalf("docs/redis.md: want two blocks of commands, got %q", blocks)
	}
	server := redistest.StartServer(t)
	url := "redis://" + server.Address
	build, err := filepath.Abs("../build")
	require.NoError(t, err)
	dir := t.TempDir()
	run := func(block string) {
		t.Helper()
		block = strings.ReplaceAll(block, " URL ", " "+url+" ")
		command := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", block)
		command.Dir = dir
		command.Env = append(os.Environ(), "PATH="+build+":"+os.Getenv("PATH"), "GATEHOUSE_REDIS="+url)
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", block, err, out)
		}
	}

	opts := stack.Options{RedisURL: url, Seed: stack.AcceptLoss(contract.Keyspace{}), Concurrency: 1,
		SidecarArgs: []string{"--bcrypt.wait", "15s"}}
	e := reuse(t, opts)
	const products = 20
	key := func(n int) string { return fmt.Sprint("/v1/products/", n%products) }
	for n := range products {
		e.put(key(n), "of one shard")
	}
	for n := range 4 {
		e.putDevice(fmt.Sprint("dev-", n), "s", 4, "telemetry.write")
	}
	for n := range 4 {
		e.awaitAnswer("a device", hasStatus(200), "POST /v1/telemetry", credential(fmt.Sprint("dev-", n), "s")...)
	}
	tr := traffic{done: make(chan struct{})}
	tr.repeatRequests(e, func(n int) (string, []string, int) { return "GET " + key(n), nil, 200 })
	tr.repeatRequests(e, func(n int) (string, []string, int) {
		return "POST /v1/telemetry", credential(fmt.Sprint("dev-", n%4), "s"), 200
	})

	run(blocks[0])
	client := server.Client(t)
	next := publish.New(client, publish.Namespace("v2"), publish.Shards(8))
	put := func(n int, body string) {
		t.Helper()
		_, err := next.Put(t.Context(), publish.Object{Key: key(n), Body: []byte(body), ContentType: "text/plain"})
		require.NoError(t, err)
	}
	for n := range products {
		put(n, "of eight shards")
	}
	before := tr.requests.Load()
	require.NoError(t, e.Rest())
	opts.Seed, opts.SidecarArgs = nil, append(opts.SidecarArgs, "--redis.namespace=v2", "--redis.shards=8")
	require.NoError(t, e.Renew(t.Context(), opts))
	for n := range products {
		e.awaitAnswer("the new namespace's object", hasBody("of eight shards"), "GET "+key(n))
	}
	out, err := gatehousectl(t, "edges", "--redis", url)
	if err != nil || strings.Contains(out, "ready") {
		t.Errorf("edges of the old namespace: %v: %s, want none", err, out)
	}
	run(blocks[1])
	if left := client.Keys(t.Context(), "{gatehouse:*").Val(); len(left) != 0 {
		t.Errorf("the old namespace has the keys %q, want none", left)
	}
	put(0, "after the change")
	e.awaitAnswer("a write after the change", hasBody("after the change"), "GET "+key(0))
	close(tr.done)
	tr.group.Wait()
	tr.failures.Range(func(text, _ any) bool { t.Error(text); return true })
	if after := tr.requests.Load(); after == before {
		t.Errorf("no request was made during the change, %d before", before)
	}
	_, err = next.RevokeDevice(t.Context(), "dev-1")
	require.NoError(t, err)
	e.awaitAnswer("a device that was revoked in the new namespace", hasStatus(401), "POST /v1/telemetry",
		credential("dev-1", "s")...)
}
