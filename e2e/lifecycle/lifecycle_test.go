// Package lifecycle ends streams in every way while they wait for the sidecar, at a real edge, under faults, and judges
// the edge by its answers: the edge lives, each answer belongs to its request, a well-behaved client gets the right
// answers, and afterwards all places are free. `make lifecycle` runs the package.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/freeport"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/clients/go/testbed/seed"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

const (
	clients = 32
	// devices are known at the edge, objects are published.
	devices, objects = 64, 256
	// patience bounds every wait.
	patience = 30 * time.Second
	// slowest is the least number of streams in a second.
	slowest = 100
)

// unused are devices of freePlaces, without verdicts.
var unused = func() (names [64]string) {
	for i := range names {
		names[i] = fmt.Sprintf("unused-%d", i)
	}
	return names
}()

// rules returns the edge's rules. The version changes the configuration, and no answer.
func rules(version int) string {
	return fmt.Sprintf(
		`{"sidecar": {"cluster": "gatehouse-sidecar", "timeout": "4s"}, "credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"},
		"session": {"metadata": "gatehouse"}, "max_staleness": "%ds", "rules": [
		{"match": {"path": "/session", "methods": ["POST"]}, "session": "issue"},
		{"match": {"prefix": "/who/"}, "auth": {}},
		{"match": {"prefix": "/both/"}, "auth": {}, "cache": {"on_miss": "fetch"}},
		{"match": {"prefix": "/fetched/"}, "cache": {"on_miss": "fetch"}}]}`, 60+version)
}

type run struct {
	*stack.Stack
	t         *testing.T
	seed      uint64
	whole     context.Context // also of what outlives the load
	http2     string          // address
	publisher *publish.Publisher
	lds       *discovered // nil on nginx
	excuse    excuse
	seen      seen
}

// numberFrom returns the number in an environment variable.
func numberFrom(t *testing.T, name string, fallback uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%s: want a decimal number", name, text)
	}
	return n
}

// TestLifecycle runs until LIFECYCLE_STREAMS streams have ended. SEED repeats the actions of clients and faults, but
// not the edge's timing.
func TestLifecycle(t *testing.T) {
	streams := numberFrom(t, "LIFECYCLE_STREAMS", 20000)
	r := &run{t: t, seed: seed.Of(t)}
	workers := 1 + int(r.seed%2)
	t.Logf("LIFECYCLE_STREAMS=%d, %d workers", streams, workers)
	r.start(workers)

	slow, cancel := context.WithTimeoutCause(t.Context(), patience+time.Duration(streams/slowest)*time.Second,
		errors.New("too slow"))
	defer cancel()
	ctx, end := context.WithCancelCause(slow)
	r.whole = ctx
	var watching sync.WaitGroup
	watching.Go(func() {
		if err := r.Wait(ctx); err != nil {
			end(err)
		}
	})
	defer watching.Wait()
	defer end(nil)
	begin := time.Now()
	load, stop := context.WithCancel(ctx)
	defer stop()
	var loading, breaking sync.WaitGroup
	for i := range uint64(clients) {
		loading.Go(func() { r.runClient(load, rand.New(rand.NewPCG(r.seed, i))) })
	}
	breaking.Go(func() { r.runCanary(load) })
	breaking.Go(func() { r.keepWriting(load) })
	breaking.Go(func() { r.injectFaults(load, rand.New(rand.NewPCG(r.seed, clients))) })
	for r.seen.streams.Load() < streams && ctx.Err() == nil && !t.Failed() {
		time.Sleep(10 * time.Millisecond) // yields the processor
	}
	stop()
	breaking.Wait()
	loading.Wait()
	took := time.Since(begin)
	if err := context.Cause(ctx); err != nil {
		t.Fatalf("after %d streams in %v: %v", r.seen.streams.Load(), took, err)
	}
	r.freePlaces()
	r.checkLog()
	t.Logf("%d streams in %v; answers: %v; canary: %d answers, %d of them excused; faults: %v",
		r.seen.streams.Load(), took.Round(time.Second/10), r.seen.listStatuses(), r.seen.canary.Load(),
		r.seen.excused.Load(), r.seen.faults)
}

func (r *run) start(workers int) {
	r.t.Helper()
	server, err := exec.LookPath("redis-server")
	require.NoError(r.t, err)
	root, err := stack.Root()
	require.NoError(r.t, err)
	dir := r.t.TempDir()
	secret := filepath.Join(dir, "secret")
	require.NoError(r.t, os.WriteFile(secret, []byte("a secret of thirty-two bytes or more\n"), 0o600))
	opts := stack.Options{
		Name: "lifecycle", Dir: filepath.Join(dir, "stack"), Concurrency: workers, RedisServerPath: server,
		Rules: rules(0), Seed: r.seedRedis, WasmPath: filepath.Join(root, "build", "chaos", "gatehouse.wasm"),
		LibraryPath: filepath.Join(root, "build", "chaos", "libgatehouse.so"),
		EnvoyArgs:   []string{"--drain-time-s", "1"},
		// Verdicts that end soon are refreshed, and asked for again, all the time.
		SidecarArgs: []string{"--session.secret-file", secret, "--verdict.allow-ttl=2s", "--verdict.deny-ttl=1s"},
	}
	if path := os.Getenv("LIFECYCLE_WASM"); path != "" {
		opts.WasmPath = path
	}
	address, err := freeport.FindAddress()
	require.NoError(r.t, err)
	r.lds = &discovered{file: filepath.Join(dir, "listeners.yaml"), library: opts.LibraryPath}
	opts.ModifyConfig = r.lds.moveListener
	opts.ModifyNginx = func(config string) string { return withHTTP2(config, address) }
	if r.Stack, err = stack.Start(r.t.Context(), opts); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := r.Stop(); err != nil && !r.t.Failed() {
			r.t.Error(err)
		}
	})
	r.http2 = r.address()
	if r.EdgeKind() == stack.NginxEdge {
		r.http2, r.lds = address, nil
	}
}

func secretOf(device int) string { return fmt.Sprintf("secret-%d", device) }

// seedRedis registers the devices and publishes the objects.
func (r *run) seedRedis(ctx context.Context, url string) error {
	client, err := redisurl.Connect(url)
	if err != nil {
		return err
	}
	r.t.Cleanup(func() { _ = client.Close() })
	r.publisher = publish.New(client)
	for i := range devices {
		if _, err := r.publisher.PutDevice(ctx, publish.Device{ID: deviceName(i), Secret: secretOf(i), Cost: 4}); err != nil {
			return err
		}
	}
	for _, id := range append(slices.Clone(unused[:]), "canary") {
		if _, err := r.publisher.PutDevice(ctx, publish.Device{ID: id, Secret: "the right one", Cost: 4}); err != nil {
			return err
		}
	}
	for i := range objects {
		if err := r.put(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// put publishes an object with a constant body.
func (r *run) put(ctx context.Context, i int) error {
	for _, key := range []string{fmt.Sprintf("/fetched/%d", i), fmt.Sprintf("/both/%d", i)} {
		if _, err := r.publisher.Put(ctx, publish.Object{Key: key, Body: []byte(bodyOf(key)),
			ContentType: "text/plain"}); err != nil {
			return err
		}
	}
	return nil
}

// keepWriting publishes and deletes objects, so that pushes never end and requests miss.
func (r *run) keepWriting(ctx context.Context) {
	draw := rand.New(rand.NewPCG(r.seed, clients+1))
	for ctx.Err() == nil {
		i := 1 + draw.IntN(objects-1) // the canary's stays
		var err error
		if draw.IntN(2) == 0 {
			err = r.put(ctx, i)
		} else {
			_, err = r.publisher.Delete(ctx, fmt.Sprintf("/fetched/%d", i), 0)
		}
		if err != nil && ctx.Err() == nil {
			r.t.Errorf("write: %v", err)
			return
		}
		pause(ctx, time.Duration(draw.IntN(4))*time.Millisecond)
	}
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// broken are parts of lines in the edge's log that show a defect of the edge, not one of the injected traps.
var broken = []string{"assert failure", "envoy bug", "segmentation fault", "exited on signal", "[alert]", "[emerg]",
	"lua entry thread aborted"}

func (r *run) log() string {
	name := "envoy.log"
	if r.EdgeKind() == stack.NginxEdge {
		name = "nginx.log"
	}
	text, err := os.ReadFile(filepath.Join(r.Dir(), name))
	if err != nil {
		r.t.Error(err)
	}
	return string(text)
}

func (r *run) checkLog() {
	for line := range strings.Lines(r.log()) {
		lower := strings.ToLower(line) // a regular expression takes half a minute
		if slices.ContainsFunc(broken, func(part string) bool { return strings.Contains(lower, part) }) {
			r.t.Errorf("the edge's log has %q: see %s", line, r.Dir())
			return
		}
	}
}
