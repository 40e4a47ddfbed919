package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/operatorapi"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// agent is a sidecar with several edges.
type agent struct {
	t     *testing.T
	edges []*edge // the first runs the sidecar
}

// startAgent starts a sidecar with an edge of each kind, all at once.
func startAgent(t *testing.T, sidecarArgs []string, kinds ...stack.EdgeKind) *agent {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "edges") // the path of a socket must be short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	a := &agent{t: t, edges: make([]*edge, len(kinds))}
	a.edges[0] = start(t, stack.Options{Name: "edge0", EdgesDir: dir, EdgeKind: kinds[0], Concurrency: 1,
		SidecarArgs: append([]string{"--bcrypt.workers=1"}, sidecarArgs...)})
	var wg sync.WaitGroup
	limit := make(chan struct{}, 2) // Envoys that compile the module at once
	for i, kind := range kinds[1:] {
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			a.edges[i+1] = a.startEdge(fmt.Sprint("edge", i+1), kind)
		})
	}
	if wg.Wait(); slices.Contains(a.edges, nil) {
		t.FailNow()
	}
	return a
}

// startEdge starts one more edge of the sidecar, and returns nil after a failure.
func (a *agent) startEdge(name string, kind stack.EdgeKind) *edge {
	a.t.Helper()
	dir := filepath.Join(a.edges[0].Dir(), name)
	s, err := stack.Start(a.t.Context(), stack.Options{Name: name, Dir: dir, Agent: a.edges[0].Stack, EdgeKind: kind,
		Concurrency: 1})
	if err != nil {
		a.t.Error(err)
		return nil
	}
	a.t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			a.t.Error(err)
		}
		if a.t.Failed() {
			showLogs(a.t, dir)
		}
	})
	return &edge{Stack: s, t: a.t, redis: a.edges[0].redis, publisher: a.edges[0].publisher}
}

// awaitAll waits until each of the edges answers a request with a status and, unless "", an entity-tag.
func (a *agent) awaitAll(edges []*edge, status int, tag, first string, lines ...string) time.Duration {
	a.t.Helper()
	return await(a.t, fmt.Sprint(first, ": ", status), patience, func() error {
		for i, e := range edges {
			if got := e.send(first, lines...); got.status != status || tag != "" && got.header.Get("ETag") != tag {
				return fmt.Errorf("edge %d: got %d %s, want %d %s", i, got.status, got.header.Get("ETag"), status, tag)
			}
		}
		return nil
	})
}

// put publishes an object and returns its entity-tag.
func (a *agent) put(key, body string) string {
	a.t.Helper()
	a.edges[0].put(key, body)
	stored, err := a.edges[0].publisher.Get(a.t.Context(), key)
	require.NoError(a.t, err)
	return stored.ETag
}

// status returns the sidecar's status.
func (a *agent) status() (s operatorapi.Status) {
	a.t.Helper()
	require.NoError(a.t, json.Unmarshal([]byte(a.edges[0].fetch(a.edges[0].SidecarAdminURL()+"/v1/status")), &s))
	return s
}

// agentKinds are edges of this suite's kind.
func agentKinds(n int) []stack.EdgeKind {
	kind := stack.EnvoyEdge
	if chosen := os.Getenv("EDGE_KIND"); chosen != "" {
		kind = stack.EdgeKind(chosen)
	}
	return slices.Repeat([]stack.EdgeKind{kind}, n)
}

// TestAgent runs three edges on one sidecar: all get what is published and revoked, a credential presented at all at
// once costs one run of bcrypt, one that stops delays no other, one leaves and another comes without a restart, and all
// serve on while the sidecar is away.
func TestAgent(t *testing.T) {
	t.Parallel()
	a := startAgent(t, nil, agentKinds(3)...)
	all := a.edges
	tag := a.put("/v1/products/1", `{"version":1}`)
	a.awaitAll(all, 200, tag, "GET /v1/products/1")
	a.edges[0].putDevice("d", "right", 10, "telemetry.write")
	a.edges[0].awaitRecords(1)
	a.presentAtAll(all, "d", "right")
	if runs := a.edges[0].metric("gatehouse_bcrypt_total"); runs != 1 {
		t.Errorf("one credential at %d edges at once: got %v runs of bcrypt, want 1", len(all), runs)
	}

	t.Run("an edge that stops", func(t *testing.T) {
		require.NoError(t, all[1].SignalEdge(syscall.SIGSTOP))
		defer all[1].SignalEdge(syscall.SIGCONT)
		others := []*edge{all[0], all[2]}
		for i := range 20 {
			tag = a.put("/v1/products/1", fmt.Sprintf(`{"version":%d}`, i+2))
			if took := a.awaitAll(others, 200, tag, "GET /v1/products/1"); took > 2*time.Second {
				t.Errorf("the other edges have an object after %v", took)
			}
		}
		require.NoError(t, all[1].SignalEdge(syscall.SIGCONT))
		a.awaitAll(all, 200, tag, "GET /v1/products/1")
	})

	t.Run("an edge leaves, another comes", func(t *testing.T) {
		require.NoError(t, all[2].Stop())
		await(t, "the edge is gone", patience, func() error {
			if s := a.status(); len(s.Edges) != 2 {
				return fmt.Errorf("got %+v", s.Edges)
			}
			return nil
		})
		pid := all[0].SidecarPID()
		if all[2] = a.startEdge("another", agentKinds(1)[0]); all[2] == nil {
			t.FailNow()
		}
		a.awaitAll(all, 200, tag, "GET /v1/products/1")
		before := a.edges[0].metric("gatehouse_bcrypt_total")
		a.awaitAll(all[2:], 200, "", "POST /v1/telemetry", credential("d", "right")...)
		if runs := a.edges[0].metric("gatehouse_bcrypt_total") - before; runs != 0 {
			t.Errorf("the new edge: got %v more runs of bcrypt for a known credential, want 0", runs)
		}
		if s := a.status(); len(s.Edges) != 3 || s.Edges[0].Name != "another" || s.Edges[0].Problem != "" ||
			s.Edges[0].Epoch == "" || all[0].SidecarPID() != pid {
			t.Errorf("got %+v", s.Edges)
		}
	})

	t.Run("the sidecar restarts", func(t *testing.T) {
		require.NoError(t, all[0].KillSidecar())
		for _, e := range all {
			if got := e.send("GET /v1/products/1"); got.status != 200 || got.header.Get("ETag") != tag {
				t.Errorf("without the sidecar: got %d", got.status)
			}
		}
		require.NoError(t, all[0].StartSidecar(t.Context()))
		a.put("/v1/products/2", `{}`)
		a.awaitAll(all, 200, "", "GET /v1/products/2")
	})

	_, err := a.edges[0].publisher.RevokeDevice(t.Context(), "d")
	require.NoError(t, err)
	if took := a.awaitAll(all, 401, "", "POST /v1/telemetry", credential("d", "right")...); took > 2*time.Second {
		t.Errorf("all edges refuse a revoked device after %v", took)
	}
}

// presentAtAll sends a device's credential to all edges at once, and, as a device does, once more after a 503.
func (a *agent) presentAtAll(edges []*edge, id, secret string) {
	a.t.Helper()
	var wg sync.WaitGroup
	for i, e := range edges {
		wg.Go(func() {
			for began := time.Now(); ; {
				got, err := e.try(shared, "POST /v1/telemetry", credential(id, secret)...)
				if err == nil && got.status == 503 && time.Since(began) < patience {
					continue
				}
				if err != nil || got.status != 200 {
					a.t.Errorf("edge %d: got %d, %v", i, got.status, err)
				}
				return
			}
		})
	}
	wg.Wait()
}

// TestManyEdges is the test of a node: 50 small Envoys and 10 nginx on one sidecar with 100,000 objects. AGENT_EDGES
// sets other numbers, "envoys nginx objects".
func TestManyEdges(t *testing.T) {
	leaveToLongForm(t, "TestAgent")
	if onNative() || onNginx() {
		t.Skip("it has edges of two kinds")
	}
	envoys, nginx, objects := 50, 10, 100_000
	if text := os.Getenv("AGENT_EDGES"); text != "" {
		if _, err := fmt.Sscan(text, &envoys, &nginx, &objects); err != nil {
			t.Fatalf("AGENT_EDGES: %v", err)
		}
	}
	a := startAgent(t, []string{fmt.Sprint("--memory.objects=", objects+objects/10)}, stack.EnvoyEdge)
	e := a.edges[0]
	body := strings.Repeat("x", 1<<10)
	var batch []publish.Object
	for i := range objects {
		batch = append(batch, publish.Object{Key: fmt.Sprint("/v1/products/", i), Body: []byte(body),
			ContentType: "text/plain"})
	}
	for chunk := range slices.Chunk(batch, 1000) {
		for _, result := range e.publisher.PutAll(t.Context(), chunk) {
			require.NoError(t, result.Err)
		}
	}
	await(t, "all objects are at the edge", 5*time.Minute, func() error {
		if n := a.status().Edge; n.Objects != objects || n.Waiting != 0 {
			return fmt.Errorf("got %d objects, %d buckets wait", n.Objects, n.Waiting)
		}
		return nil
	})
	require.NoError(t, e.KillSidecar())
	require.NoError(t, e.StartSidecar(t.Context()))
	alone := peakMemory(t, e.SidecarPID())

	kinds := append(slices.Repeat([]stack.EdgeKind{stack.EnvoyEdge}, envoys-1),
		slices.Repeat([]stack.EdgeKind{stack.NginxEdge}, nginx)...)
	var wg sync.WaitGroup
	limit := make(chan struct{}, 3)
	added := make([]*edge, len(kinds))
	for i, kind := range kinds {
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			added[i] = a.startEdge(fmt.Sprint("edge", i+1), kind)
		})
	}
	if wg.Wait(); slices.Contains(added, nil) {
		t.FailNow()
	}
	a.edges = append(a.edges, added...)
	require.NoError(t, e.KillSidecar())
	began := time.Now()
	require.NoError(t, e.StartSidecar(t.Context()))
	await(t, "all edges are full", 10*time.Minute, func() error {
		ready, err := e.Metric(t.Context(), "gatehouse_edge_ready")
		if err == nil && int(ready) != len(a.edges) {
			err = fmt.Errorf("%v edges are", ready)
		}
		return err
	})
	t.Logf("all edges are full %v after a start of the sidecar", time.Since(began).Round(time.Millisecond))
	all := peakMemory(t, e.SidecarPID())
	t.Logf("memory at its highest: %d KiB with one edge, %d KiB with %d, ratio %.3f", alone, all, len(a.edges),
		float64(all)/float64(alone))
	if float64(all) > 1.15*float64(alone) {
		t.Errorf("the memory with %d edges is more than 1.15 times that with one", len(a.edges))
	}

	e.putDevice("d", "right", 10, "telemetry.write")
	e.awaitRecords(1)
	a.presentAtAll(a.edges, "d", "right")
	if runs := e.metric("gatehouse_bcrypt_total"); runs != 1 {
		t.Errorf("one credential at %d edges at once: got %v runs of bcrypt, want 1", len(a.edges), runs)
	}
	mean := a.measureUpdates("all edges run", 10*time.Second, len(a.edges))
	stopped := a.edges[len(a.edges)/2]
	require.NoError(t, stopped.SignalEdge(syscall.SIGSTOP))
	defer stopped.SignalEdge(syscall.SIGCONT)
	if got := a.measureUpdates("one edge is stopped", time.Minute, len(a.edges)-1); got > 1.5*mean+2 {
		t.Errorf("while one edge is stopped, a write takes %.2f ms to the others, else %.2f ms", got, mean)
	}
	require.NoError(t, stopped.SignalEdge(syscall.SIGCONT))
	await(t, "the stopped edge is up to date", patience, func() error {
		for _, named := range a.status().Edges {
			if named.Problem != "" || named.InStepAge > 3 {
				return errors.New(named.Name + ": " + named.Problem)
			}
		}
		return nil
	})
}

// measureUpdates publishes 100 objects of 1 KiB per second, and returns the mean time from a write to an edge's
// acknowledgement, ms. At most one write in a hundred may take 25 ms to the last edge: the histogram has each edge's
// acknowledgements, so at most a hundredth of the writes' number may be later than the bound before. The edges and the
// test share the processors, so the bound counts only while these aren't the bottleneck.
func (a *agent) measureUpdates(when string, long time.Duration, edges int) (meanMS float64) {
	a.t.Helper()
	e := a.edges[0]
	const rate = 100
	count := func(suffix string) float64 { return e.metric("gatehouse_propagation_seconds" + suffix) }
	total, early := count("_count"), count(`_bucket{le="0.02"}`)
	sum := count("_sum")
	busyBefore, allBefore := processorTime(a.t)
	ctx, cancel := context.WithTimeout(a.t.Context(), long)
	defer cancel()
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	writes := 0
	for ctx.Err() == nil {
		<-tick.C
		e.put(fmt.Sprint("/v1/products/", writes%1000), fmt.Sprintf("%1024d", writes))
		writes++
	}
	busy, all := processorTime(a.t)
	await(a.t, "all writes are acknowledged", patience, func() error {
		if got := count("_count") - total; got < float64(writes*edges) {
			return fmt.Errorf("got %v acknowledgements of %d", got, writes*edges)
		}
		return nil
	})
	total, early, sum = count("_count")-total, count(`_bucket{le="0.02"}`)-early, count("_sum")-sum
	late, meanMS, used := total-early, 1000*sum/total, (busy-busyBefore)/(all-allBefore)
	a.t.Logf("%s: %d writes in %v, %v acknowledgements, mean %.2f ms, %v later than 20 ms; processors busy for %.0f %%",
		when, writes, long, total, meanMS, late, 100*used)
	if late > float64(writes)/100 && used < 0.85 {
		a.t.Errorf("%s: the last of %d edges may have got more than one write in a hundred later than 20 ms", when, edges)
	}
	return meanMS
}

// processorTime returns how long the machine's processors have run programs, and how long there were processors, in the
// unit of /proc/stat.
func processorTime(t *testing.T) (busy, all float64) {
	t.Helper()
	stat, err := os.ReadFile("/proc/stat")
	require.NoError(t, err)
	line, _, _ := strings.Cut(string(stat), "\n")
	for i, field := range strings.Fields(line)[1:9] {
		n, err := strconv.ParseFloat(field, 64)
		require.NoError(t, err)
		if all += n; i != 3 && i != 4 { // idle, or waiting for a disk
			busy += n
		}
	}
	return busy, all
}

// peakMemory returns the highest resident memory of a process so far, KiB.
func peakMemory(t *testing.T, pid int) (kib int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(status), "\nVmHWM:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}
