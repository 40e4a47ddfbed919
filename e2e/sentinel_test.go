package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// written are keys of a continuous load, each with one writer.
type written struct {
	*edge
	keys   []string
	acked  []atomic.Uint64 // version of each key's last acknowledged write
	writes atomic.Int64
	stop   func()
}

// startWriting starts writing at about 500 a second, and continues after errors.
func (e *edge) startWriting(url string) *written {
	e.t.Helper()
	const keys, writers, interval = 40, 4, 8 * time.Millisecond
	w := &written{edge: e, acked: make([]atomic.Uint64, keys)}
	for i := range keys {
		w.keys = append(w.keys, fmt.Sprint("/v1/products/", i))
	}
	client, err := redisurl.Settings{URL: url, Once: true}.Connect()
	require.NoError(e.t, err)
	ctx, cancel := context.WithCancel(e.t.Context())
	var running sync.WaitGroup
	w.stop = sync.OnceFunc(func() { cancel(); running.Wait(); _ = client.Close() })
	e.t.Cleanup(w.stop)
	publisher := publish.New(client)
	for writer := range writers {
		running.Go(func() {
			tick := time.NewTicker(interval)
			defer tick.Stop()
			for i := writer; ; i = (i + writers) % keys {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				n := w.writes.Add(1)
				receipt, err := publisher.Put(ctx, publish.Object{Key: w.keys[i], Body: fmt.Append(nil, "write ", n),
					ContentType: "text/plain"})
				if err == nil {
					w.acked[i].Store(receipt.Version)
				}
			}
		})
	}
	return w
}

// inStep waits until the edge has the master's version of every key, and so all acknowledged writes.
func (w *written) inStep(when string) {
	w.t.Helper()
	took := await(w.t, when, patience, func() error {
		for i, key := range w.keys {
			o, err := w.publisher.Get(w.t.Context(), key)
			if err != nil {
				return err
			}
			if o.Version < w.acked[i].Load() {
				return fmt.Errorf("%s: the master has version %d, and acknowledged %d", key, o.Version, w.acked[i].Load())
			}
			if a := w.send("GET " + key); a.body != string(o.Bodies[0].Bytes) {
				return fmt.Errorf("%s: got %q, the master has version %d, %q", key, a.body, o.Version, o.Bodies[0].Bytes)
			}
		}
		return nil
	})
	w.t.Logf("%s: within %s, after %d writes", when, took, w.writes.Load())
}

// TestSentinel kills a master whose replica is behind: the edge removes records that only the old master had, although
// the new master's numbers have passed the numbers that the edge knew.
func TestSentinel(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	deployment := redistest.StartSentinels(t)
	e := reuse(t, stack.Options{RedisURL: deployment.URL})
	refusesReplica(t, deployment.Replica)
	e.ctl("put", "/v1/products/kept", "--file", writeFile(t, "kept.txt", "kept"))
	if got := e.ctl("get", "/v1/products/kept"); got != "kept" {
		t.Errorf("gatehousectl get: %q", got)
	}
	w := e.startWriting(deployment.URL)
	await(t, "writes", patience, func() error {
		if n := w.writes.Load(); n < 300 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})

	w.loseWrites(deployment)
	w.stop()
	w.inStep("after the failover")
	if a := e.send("GET /v1/products/kept"); a.body != "kept" {
		t.Errorf("got %d %q, want what the replica had", a.status, a.body)
	}
	e.ctl("put", "/v1/products/kept", "--file", writeFile(t, "kept.txt", "by the new master"))
	await(t, "an update", patience, func() error {
		if a := e.send("GET /v1/products/kept"); a.body != "by the new master" {
			return fmt.Errorf("got %q", a.body)
		}
		return nil
	})
}

// loseWrites kills the master after writes that its replica does not have, and waits until the edge has removed the
// lost records.
func (w *written) loseWrites(deployment *redistest.Sentinels) {
	w.t.Helper()
	t, e := w.t, w.edge
	old, replica := deployment.Master.Client(t), deployment.Replica.Client(t)
	await(t, "the replica has it", patience, func() error {
		return replica.HGet(t.Context(), contract.Keys{}.ObjectKey("/v1/products/kept"), "version").Err()
	})
	// From now on the replica receives nothing: the replica connects to an address without a master.
	require.NoError(t, replica.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err())
	e.put("/v1/products/lost", "lost")
	await(t, "the edge has it", patience, func() error {
		if a := e.send("GET /v1/products/lost"); a.body != "lost" {
			return fmt.Errorf("got %d %q", a.status, a.body)
		}
		return nil
	})
	lostFrom := w.writes.Load()
	await(t, "more writes that will be lost", patience, func() error {
		if n := w.writes.Load() - lostFrom; n < 200 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	if err := e.SignalSidecar(syscall.SIGSTOP); err != nil { // it must not reconnect before it is too late
		t.Fatal(err)
	}
	seq, err := old.Get(t.Context(), contract.Keys{}.SeqKey()).Uint64()
	require.NoError(t, err)
	deployment.Master.Kill()
	for i := range w.acked {
		w.acked[i].Store(0) // the lost write was acknowledged
	}
	began := time.Now()
	await(t, "the new master's numbers pass the old one's", patience, func() error {
		now, err := replica.Get(t.Context(), contract.Keys{}.SeqKey()).Uint64()
		if err != nil || now < seq+50 {
			return fmt.Errorf("%d of %d, %v", now, seq+50, err)
		}
		return nil
	})
	t.Logf("the new master passed number %d after %s", seq, time.Since(began))
	require.NoError(t, e.SignalSidecar(syscall.SIGCONT))
	await(t, "the edge removes the lost objects", patience, func() error {
		if got := e.send("GET /v1/products/lost").header.Get("Cache-Status"); got != "gatehouse; fwd=uri-miss" {
			return fmt.Errorf("got %s", got)
		}
		return nil
	})
}

// refusesReplica configures a sidecar with the address of a replica.
func refusesReplica(t *testing.T, replica *redistest.Server) {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var log logbuffer.Buffer
	sidecar := exec.CommandContext(ctx, "../build/gatehouse-sidecar", "--redis.url=redis://"+replica.Address,
		"--push.socket="+filepath.Join(dir, "push.sock"), "--api.socket="+filepath.Join(dir, "api.sock"),
		"--admin.address=127.0.0.1:0")
	sidecar.Stderr = &log
	require.NoError(t, sidecar.Start())
	defer func() { _ = sidecar.Process.Kill(); _ = sidecar.Wait() }()
	await(t, "a replica is refused", patience, func() error {
		for _, want := range []string{replica.Address + " is a replica (role slave", "redis+sentinel://"} {
			if !strings.Contains(log.String(), want) {
				return fmt.Errorf("no %s in %s", want, log.String())
			}
		}
		return nil
	})
	if strings.Contains(log.String(), "caught up with redis") {
		t.Errorf("the sidecar read from a replica:\n%s", log.String())
	}
}
