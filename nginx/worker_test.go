//go:build linux

package nginx_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// startWorkers starts an edge of a master and two workers. Both have the memory: if only one had the memory and was
// killed, the other worker couldn't trust the records until the sidecar confirms them.
func startWorkers(t *testing.T, changes ...string) *testEdge {
	t.Helper()
	e := startEdge(t, append(changes, "master_process off;", "user root; worker_processes 2;")...)
	e.awaitMemory(t)
	return e
}

// awaitMemory waits until two workers have the file that is at the memory's path.
func (e *testEdge) awaitMemory(t *testing.T) {
	t.Helper()
	await.Until(t, "two workers with the memory", func() bool {
		n := 0
		for _, pid := range e.workers(t) {
			maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
			if err == nil && strings.Contains(string(maps), e.socket("memory")+"\n") { // not "memory (deleted)"
				n++
			}
		}
		return n == 2
	})
}

// hit reports whether the edge answers from memory.
func (e *testEdge) hit(t *testing.T) bool {
	t.Helper()
	res, body := e.ask(t, "GET", "/v1/products/1")
	return res.StatusCode == http.StatusOK && body == "hello"
}

// workers returns the pids of nginx's workers.
func (e *testEdge) workers(t *testing.T) []int {
	t.Helper()
	pids, err := stack.NginxWorkers(e.running.Process.Pid)
	require.NoError(t, err)
	return pids
}

// TestRestart: the memory survives workers; after a restart of nginx the records count once the sidecar has confirmed
// them.
func TestRestart(t *testing.T) {
	e := startWorkers(t)
	e.push(t, testEpoch, 0, "/v1/products/1", false)
	await.Until(t, "answer from memory", func() bool { return e.hit(t) })

	for _, pid := range e.workers(t)[:1] {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	await.Until(t, "another worker runs", func() bool { return len(e.workers(t)) == 2 })
	await.Until(t, "all answer from memory", func() bool {
		for range 20 {
			if !e.hit(t) {
				return false
			}
		}
		return true
	})

	e.stop(syscall.SIGQUIT)
	e.start(t)
	for range 20 {
		if e.hit(t) {
			t.Fatal("an answer from memory that nobody has confirmed")
		}
	}
	e.push(t, testEpoch, testEpoch, "/v1/products/1", false)
	await.Until(t, "answer from memory again", func() bool { return e.hit(t) })
}

// TestMemoryFileRemoved removes the memory file while workers use it. All workers soon share a new file, whose records
// count once the sidecar has confirmed them; no worker goes on to answer from the old file.
func TestMemoryFileRemoved(t *testing.T) {
	e := startWorkers(t)
	hits := func() (n int) {
		for range 40 {
			if e.hit(t) {
				n++
			}
		}
		return n
	}
	e.push(t, testEpoch, 0, "/v1/products/1", false)
	await.Until(t, "answers from memory", func() bool { return hits() == 40 })

	require.NoError(t, os.Remove(e.socket("memory")))
	require.NoError(t, syscall.Kill(e.workers(t)[0], syscall.SIGKILL))
	e.awaitMemory(t)
	if n := hits(); n != 0 {
		t.Errorf("%d answers from a file that nobody has confirmed", n)
	}
	e.push(t, testEpoch, 0, "/v1/products/1", false)
	await.Until(t, "answers from the new file", func() bool { return hits() == 40 })

	require.NoError(t, os.Remove(e.socket("memory")))
	require.NoError(t, os.Mkdir(e.socket("memory"), 0o700)) // no file can be opened
	await.Until(t, "no answer without a file", func() bool { return hits() == 0 })
	require.NoError(t, os.Remove(e.socket("memory")))
	e.awaitMemory(t)
	e.push(t, testEpoch, 0, "/v1/products/1", false)
	await.Until(t, "answers from the third file", func() bool { return hits() == 40 })
}

// TestSignals sends nginx the signals of administration, with Go's handlers in the workers.
func TestSignals(t *testing.T) {
	e := startWorkers(t)
	e.push(t, testEpoch, 0, "/v1/products/1", false)
	await.Until(t, "answer from memory", func() bool { return e.hit(t) })
	log := e.socket("error.log")

	require.NoError(t, os.Rename(log, log+".1"))
	require.NoError(t, e.running.Process.Signal(syscall.SIGUSR1))
	await.Until(t, "the log is opened again", func() bool { _, err := os.Stat(log); return err == nil && e.hit(t) })

	before := e.workers(t)
	require.NoError(t, e.running.Process.Signal(syscall.SIGHUP))
	await.Until(t, "new workers have taken over", func() bool {
		for _, pid := range e.workers(t) {
			for _, old := range before {
				if pid == old {
					return false
				}
			}
		}
		return e.hit(t)
	})

	// A request waits for the sidecar while nginx ends.
	answered := make(chan int, 1)
	e.sidecar.slow.Store(true)
	go func() {
		res, _ := e.ask(t, "GET", "/v1/me", device("late", "good")...)
		answered <- res.StatusCode
	}()
	await.Until(t, "the call for it", func() bool { return e.sidecar.count("/v1/verify late") == 1 })
	go func() {
		<-time.After(300 * time.Millisecond)
		e.sidecar.slow.Store(false)
	}()
	e.stop(syscall.SIGQUIT)
	if got := <-answered; got != http.StatusOK {
		t.Errorf("the request that waited: got %d", got)
	}
	for _, name := range []string{log, log + ".1"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		if strings.Contains(string(text), "exited on signal") || strings.Contains(string(text), "[alert]") {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}

// TestPanics: a panic answers a request with 503, and the worker goes on; a fatal error of Go ends one worker.
func TestPanics(t *testing.T) {
	const judge = "	h := w.edge\n	target := viewText(q.target, q.target_length)\n"
	overlay := replaceIn(t, "nginx/host/request.go", judge, judge+`	switch target {
	case "/panic":
		panic("asked to")
	case "/fatal":
		var deep func(int) int
		deep = func(n int) int { return deep(n+1) + 1 }
		deep(0)
	}
`)
	planted, err := buildLibrary("planted.so", "-overlay", overlay)
	require.NoError(t, err)
	built, err := library()
	require.NoError(t, err)
	e := startWorkers(t, built, planted)
	e.push(t, testEpoch, 0, "/v1/products/1", false)
	await.Until(t, "answer from memory", func() bool { return e.hit(t) })
	before := e.workers(t)
	for range 10 {
		res := wantAnswer(t, e, http.StatusServiceUnavailable, "try again\n", "POST", "/panic", "Content-Length: 2\r\n\r\nhi")
		if res.Header.Get("Retry-After") == "" || res.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("got %v", res.Header)
		}
	}
	wantAnswer(t, e, http.StatusOK, "X-Gatehouse-Device: dev\n", "GET", "/v1/me", device("dev", "good")...)
	await.Until(t, "answer from memory after a panic", func() bool { return e.hit(t) })
	await.Until(t, "the panics are counted", func() bool {
		_, body := e.send(t, "admin.sock", "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
		return strings.Contains(body, "\ngatehouse_panics_total 10\n")
	})
	if got := e.workers(t); len(got) != 2 || got[0] != before[0] || got[1] != before[1] {
		t.Errorf("got workers %v, had %v", got, before)
	}
	if log, err := os.ReadFile(e.socket("error.log")); err != nil || strings.Count(string(log), "panic: asked to") > 2 ||
		!strings.Contains(string(log), "panic: asked to") {
		t.Errorf("want one panic in the log of each worker: %v %s", err, log)
	}

	conn, err := e.client("edge.sock").Get("http://edge/fatal")
	if err == nil {
		_ = conn.Body.Close()
		t.Errorf("got %s", conn.Status)
	}
	await.Until(t, "another worker has taken its place", func() bool {
		pids, same := e.workers(t), 0
		for _, pid := range pids {
			if pid == before[0] || pid == before[1] {
				same++
			}
		}
		return len(pids) == 2 && same == 1
	})
	await.Until(t, "answer from memory after a fatal error", func() bool { return e.hit(t) })
}

// TestNotLoaded: a worker without the policy lets nothing in, and isn't ready.
func TestNotLoaded(t *testing.T) {
	built, err := library()
	require.NoError(t, err)
	for _, tt := range []struct{ name, from, to, want string }{
		{"no library", built, filepath.Join(t.TempDir(), "library.so"), "invalid ELF header"},
		{"no directory for the memory", `/memory"`, `/nowhere/memory"`, "/nowhere/memory: no such file or directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if filepath.Ext(tt.to) == ".so" {
				require.NoError(t, os.WriteFile(tt.to, []byte(strings.Repeat("no library ", 100)), 0o600))
			}
			e := startEdge(t, tt.from, tt.to)
			for _, target := range []string{"/open", "/v1/me", "/v1/products/1"} {
				res := wantAnswer(t, e, http.StatusServiceUnavailable, "try again\n", "GET", target, device("dev", "good")...)
				if res.Header.Get("Retry-After") == "" || res.Header.Get("Cache-Control") != "no-store" {
					t.Errorf("got %v", res.Header)
				}
			}
			for socket, request := range map[string]string{"admin.sock": "GET /ready", "push.sock": "POST /v1/apply"} {
				if res, body := e.send(t, socket, request+" HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"); res.StatusCode !=
					http.StatusServiceUnavailable {
					t.Errorf("%s: got %s %q", request, res.Status, body)
				}
			}
			if log, err := os.ReadFile(e.socket("error.log")); err != nil || !strings.Contains(string(log), tt.want) {
				t.Errorf("want %q in the log: %v %s", tt.want, err, log)
			}
			const reason = `"reason":"gatehouse_unavailable_not_started"`
			if log, err := os.ReadFile(e.socket("access.log")); err != nil || strings.Count(string(log), reason) < 3 {
				t.Errorf("want %s of three requests in the log: %v %s", reason, err, log)
			}
		})
	}
}
