package e2e

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"

	"context"
)

// seedCorrupt publishes a good object, and an object and a device that are corrupted afterwards, and stores an object
// at a key that isn't canonical.
func seedCorrupt(ctx context.Context, url string, keys contract.Keys) error {
	options, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	client := redis.NewClient(options)
	defer func() { _ = client.Close() }()
	p := publish.New(client)
	for _, name := range []string{"good", "bad"} {
		if _, err := p.Put(ctx, publish.Object{Key: "/v1/products/" + name, Body: []byte(name),
			ContentType: "text/plain"}); err != nil {
			return err
		}
	}
	if _, err := p.PutDevice(ctx, publish.Device{ID: "bad", Secret: "secret", Permissions: []string{"telemetry.write"},
		Cost: 4}); err != nil {
		return err
	}
	if err := client.Copy(ctx, keys.ObjectKey("/v1/products/good"), keys.ObjectKey("/v1/products/%c3"), 0,
		false).Err(); err != nil {
		return err
	}
	stray := redis.Z{Score: 1.5, Member: contract.ObjectMember("/v1/products/%c3").String()}
	if err := client.ZAdd(ctx, keys.LogKey(), stray).Err(); err != nil {
		return err
	}
	if err := client.HSet(ctx, keys.ObjectKey("/v1/products/bad"), "version", "minus one").Err(); err != nil {
		return err
	}
	return client.HSet(ctx, keys.CredentialKey("bad"), "hash", "$2y$99$nonsense").Err()
}

// TestUnknownLeavesNoTrace sends 50,000 unknown credentials and 50,000 unknown paths. Neither may add a key of shared
// data, because such a key can't be deleted.
func TestUnknownLeavesNoTrace(t *testing.T) {
	leaveToLongForm(t, "TestRefusedWithoutACall")
	const (
		requests = 50_000
		limit    = 20 << 20 // bytes
	)
	e := start(t, stack.Options{})
	e.put("/v1/products/42", "body")
	e.putDevice("dev", "secret", 4, "telemetry.write")
	await(t, "ready", patience, func() error {
		return e.sendFromAll(e.workerClients(), hasStatus(200), "POST /v1/telemetry", credential("dev", "secret")...)
	})
	flood := func(from, n int) {
		client := newClient()
		var wg sync.WaitGroup
		next := make(chan int)
		for range 16 {
			wg.Go(func() {
				for i := range next {
					a, err := e.try(client, "POST /v1/telemetry", credential(fmt.Sprintf("unknown-%d", i),
						fmt.Sprintf("secret-%d", i))...)
					if err != nil || a.status != http.StatusUnauthorized {
						t.Errorf("unknown credential: got %d, %v", a.status, err)
					}
					a, err = e.try(client, fmt.Sprintf("GET /v1/products/unknown-%d", i))
					if err != nil || a.header.Get("Cache-Status") != "gatehouse; fwd=uri-miss" {
						t.Errorf("unknown path: got %v, %v", a.header, err)
					}
				}
			})
		}
		for i := range n {
			next <- from + i
		}
		close(next)
		wg.Wait()
	}
	flood(0, requests/10) // garbage collectors, connection buffers and allocator caches reach their size
	keys, rss := e.placesWritten(), e.rss()
	flood(requests, requests)
	if now := e.placesWritten(); now != keys {
		t.Errorf("keys of shared data: got %d, want %d as before", now, keys)
	}
	after := e.rss()
	t.Logf("keys of shared data: %d before and after", keys)
	t.Logf("the edge's memory: %d KiB before, %d KiB after %d unknown credentials and paths", rss>>10, after>>10, requests)
	if after-rss > limit {
		t.Errorf("the edge's memory grew by %d KiB, want at most %d", (after-rss)>>10, limit>>10)
	}
}

// placesWritten returns how many keys of shared data the sidecar has ever written.
func (e *edge) placesWritten() int { return int(e.metric("gatehouse_edge_memory_places")) }

// rss returns the memory of the edge in bytes: Envoy's resident set, or the unshared memory of nginx's processes.
func (e *edge) rss() (sum int) {
	e.t.Helper()
	if !onNginx() {
		return e.processMemory(e.EdgePID(), "VmRSS:")
	}
	workers, err := stack.NginxWorkers(e.EdgePID())
	require.NoError(e.t, err)
	for _, pid := range workers {
		sum += e.processMemory(pid, "RssAnon:")
	}
	return sum
}

// processMemory returns a line of /proc/PID/status in bytes.
func (e *edge) processMemory(pid int, name string) int {
	e.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(e.t, err)
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			require.NoError(e.t, err)
			return kib << 10
		}
	}
	e.t.Fatal("no " + name + " in /proc")
	return 0
}
