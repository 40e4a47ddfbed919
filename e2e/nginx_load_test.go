package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// onlyOnNginx skips a test about a feature of nginx alone.
func onlyOnNginx(t *testing.T) {
	t.Helper()
	if !onNginx() {
		t.Skip("on nginx alone: EDGE_KIND=nginx")
	}
}

// TestReload reloads nginx and kills workers under 2,000 requests a second, while the object changes: no request fails,
// each gets the object from memory, and after an answer no later request gets an older one. The client repeats a
// request when a reused connection is closed without an answer, as clients do (RFC 9110, section 9.2.2): nginx closes
// idle connections when it reloads.
func TestReload(t *testing.T) {
	onlyOnNginx(t)
	const (
		key     = "/v1/products/42"
		clients = 40
	)
	e := start(t, stack.Options{Concurrency: 2})
	e.put(key, "1")
	e.putDevice("dev", "secret", 4, "telemetry.write")
	e.awaitAnswer("the object is at the edge", hasBody("1"), "GET "+key)
	e.awaitAnswer("the device is known", hasStatus(200), "POST /v1/telemetry", credential("dev", "secret")...)

	ctx, stop := context.WithCancel(t.Context())
	var newest, sent, failed atomic.Int64
	fail := func(format string, args ...any) {
		if failed.Add(1) < 10 {
			t.Errorf(format, args...)
		}
	}
	var wg sync.WaitGroup
	for range clients { // one request each 20 ms
		wg.Go(func() {
			client := newClient()
			defer client.CloseIdleConnections()
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for n := 0; ctx.Err() == nil; n++ {
				sent.Add(1)
				if n%4 == 0 {
					if a, err := e.try(client, "GET /v1/fleet/config", credential("dev", "wrong")...); err != nil ||
						a.status != http.StatusUnauthorized {
						fail("a wrong secret: got %d, %v", a.status, err)
					}
				} else {
					before := newest.Load()
					a, err := e.try(client, "GET "+key)
					version, parseErr := strconv.ParseInt(a.body, 10, 64)
					if err != nil || parseErr != nil {
						fail("object: got %d %q, %v", a.status, a.body, err)
					} else if version < before {
						fail("object: got version %d after %d", version, before)
					} else {
						for seen := newest.Load(); version > seen && !newest.CompareAndSwap(seen, version); seen = newest.Load() {
						}
					}
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	begin, version := time.Now(), 1
	for i := range pickSize(20, 6) {
		version++
		e.put(key, strconv.Itoa(version))
		want := int64(version)
		await(t, "the new version", patience, func() error {
			if got := newest.Load(); got < want {
				return fmt.Errorf("got version %d, want %d", got, want)
			}
			return nil
		})
		// Each client has a persistent connection.
		soon := sent.Load() + 10*clients
		await(t, "more requests", patience, func() error {
			if sent.Load() < soon {
				return errors.New("too few")
			}
			return nil
		})
		var err error
		if i%2 == 0 {
			err = e.SignalEdge(syscall.SIGHUP)
		} else {
			err = e.KillWorker()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	await(t, "enough requests", patience, func() error {
		if n := sent.Load(); n < int64(pickSize(20_000, 4_000)) {
			return fmt.Errorf("sent %d", n)
		}
		return nil
	})
	stop()
	wg.Wait()
	t.Logf("%d requests in %.1f s, %d failed, %d versions", sent.Load(), time.Since(begin).Seconds(),
		failed.Load(), version)
}

// TestMemoryFile fills the sidecar's budget with bodies for which the memory file wastes most. With the size that
// follows from the settings, no batch is refused.
func TestMemoryFile(t *testing.T) {
	onlyOnNginx(t)
	const (
		budget  = 4 << 20
		objects = 4_000
	)
	for _, size := range []int{1000, 2030, 4070} { // just over 1, 2 and 4 KiB with what a record adds
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			e := start(t, stack.Options{
				SidecarArgs: []string{fmt.Sprintf("--memory.bytes=%d", budget), fmt.Sprintf("--memory.objects=%d", objects)},
				ModifyNginx: func(config string) string {
					return strings.Replace(config, "memory_mib = 256", fmt.Sprintf("memory_mib = %d, objects = %d",
						budget>>20, objects), 1)
				},
				Seed: func(ctx context.Context, url string) error {
					return seedMany(ctx, url, objects, size)
				},
			})
			await(t, "the budget is full or all objects are there", patience, func() error {
				if e.metric("gatehouse_edge_memory_dirty_buckets") != 0 {
					return fmt.Errorf("objects wait to be pushed")
				}
				return nil
			})
			t.Logf("%d bytes: %.0f objects in %.1f MiB of the budget", size, e.metric("gatehouse_edge_memory_objects"),
				e.metric("gatehouse_object_cache_bytes")/(1<<20))
			if log := e.readLog("sidecar") + e.readLog("nginx"); strings.Contains(log, "push failed") ||
				strings.Contains(log, "push refused") {
				t.Errorf("a batch was refused: %s", log)
			}
		})
	}
}

// seedMany publishes objects of a content type that the publisher doesn't compress.
func seedMany(ctx context.Context, url string, n, size int) error {
	client, err := redisurl.Connect(url)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	p := publish.New(client)
	for i := range n {
		object := publish.Object{Key: fmt.Sprintf("/v1/products/%d", i), Body: make([]byte, size), ContentType: "image/png"}
		if _, err := p.Put(ctx, object); err != nil {
			return err
		}
	}
	return nil
}
