package nginx_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/nginx"
	"github.com/gatehouse/gatehouse/testbed/proc"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// maxUnread is edge.MaxReplied.
const maxUnread = 64 << 20

const crowded = "gatehouse; fwd=bypass; detail=crowded"

const unreadConfig = configHead + initBlock + `
  include %[2]s/server.conf;
  server { listen unix:%[1]s/push.sock; include %[2]s/push.conf; }
  server { listen unix:%[1]s/edge.sock; location / { proxy_pass http://%[6]s; } }
  server { listen unix:%[1]s/impatient.sock; send_timeout 2s; location / { proxy_pass http://%[6]s; } }
}
`

const unreadRules = `
max_staleness: 10m
sidecar: {timeout: 10s}
rules:
- match: {prefix: /stored/}
  cache: {}
- match: {prefix: /fetched/}
  cache: {on_miss: fetch}
`

// unreadEdge is an nginx with one worker.
type unreadEdge struct {
	t       *testing.T
	dir     string
	process *stack.Child
	large   []byte
	fetch   chan struct{} // receives before each answer to a fetch
}

// newUnreadEdge starts an nginx with two objects in memory, /stored/large and /stored/small. Any other object is large,
// and the sidecar has it.
func newUnreadEdge(t *testing.T) *unreadEdge {
	e := &unreadEdge{t: t, dir: t.TempDir(), large: bytes.Repeat([]byte("0123456789abcdef"), limits.MaxBody/16),
		fetch: make(chan struct{})}
	nginxPath, err := stack.FindNginx()
	require.NoError(t, err)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "upstream")
	}))
	t.Cleanup(upstream.Close)
	e.serveFetches()
	rules, _, err := nginx.Render([]byte(unreadRules))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(e.path("rules.json"), rules, 0o600))
	config := configOf(t, unreadConfig, e.dir, strings.TrimPrefix(upstream.URL, "http://"))
	require.NoError(t, os.WriteFile(e.path("nginx.conf"), []byte(config), 0o600))
	e.process, err = stack.StartChild("nginx", nginxPath, []string{"-p", e.dir, "-c", e.path("nginx.conf"),
		"-e", e.path("error.log")}, nil, e.path("output"), func(err error) { t.Error(err) })
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, e.process.Stop())
		if log, err := os.ReadFile(e.path("error.log")); err == nil && t.Failed() {
			t.Logf("the end of error.log:\n%s", log[max(0, len(log)-4000):])
		}
	})
	e.push()
	return e
}

func (e *unreadEdge) path(name string) string { return filepath.Join(e.dir, name) }

// serveFetches answers fetches like a sidecar.
func (e *unreadEdge) serveFetches() {
	listener, err := net.Listen("unix", e.path("api.sock"))
	require.NoError(e.t, err)
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			key, err := io.ReadAll(r.Body)
			if err != nil || r.URL.Path != "/v1/fetch" {
				http.NotFound(w, r)
				return
			}
			<-e.fetch
			object, bodies := largeObject(string(key), len(e.large)), [][]byte{e.large}
			if strings.HasPrefix(string(key), "/fetched/encoded") {
				small := bytes.Repeat([]byte("gzip"), 256)
				object.AddVariant(wire.Variant{Encoding: wire.Gzip, Length: uint32(len(small)), Stamp: 1})
				bodies = append(bodies, small)
			}
			answer := wire.AppendFetchResponse(nil, 7, &object, bodies)
			w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
			_, _ = w.Write(answer)
		})}
	e.t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.Serve(listener) }()
}

func largeObject(key string, length int) wire.Object {
	o := wire.Object{Key: key, Version: 1, ETag: `"a"`, ContentType: "text/plain"}
	o.AddVariant(wire.Variant{Encoding: wire.Identity, Length: uint32(length), Stamp: 1})
	return o
}

// push fills the edge's memory, once the push listener listens.
func (e *unreadEdge) push() {
	now := time.Now().UnixMilli()
	state := wire.State{Epoch: 7, InStepMS: now, HeartbeatMS: now, ObjectBuckets: 1 << 16, VerdictBuckets: 16}
	batch := wire.AppendOp(wire.BeginBatch(nil, 7, 0), wire.RegionState, 0, func(dst []byte) []byte {
		return wire.AppendState(dst, &state)
	})
	for slot, body := range [][]byte{e.large, []byte("small")} {
		o := wire.Object{Key: "/stored/" + []string{"large", "small"}[slot], Version: 1,
			ETag: `"a"`, ContentType: "text/plain"}
		o.AddVariant(wire.Variant{Encoding: wire.Identity, Slot: uint32(slot), Length: uint32(len(body)), Stamp: 1})
		bucket, tag := state.Keys.Place(o.Key, state.ObjectBuckets)
		batch = wire.AppendOp(bodyOp(batch, 7, uint32(slot), body), wire.RegionObjects, bucket, func(dst []byte) []byte {
			return wire.FinishRecord(wire.AppendObject(wire.AppendObjectsHeader(dst, 7, 1), tag, &o), len(dst))
		})
	}
	client := e.client("push.sock")
	e.await("the batch is applied", func() error {
		res, err := client.Post("http://push/v1/apply", "", bytes.NewReader(batch))
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if answer, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", res.Status, answer)
		}
		return nil
	})
}

func (e *unreadEdge) client(socket string) *http.Client {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", e.path(socket))
	}}
	e.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

// await calls check until it returns nil.
func (e *unreadEdge) await(what string, check func() error) {
	e.t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			e.t.Fatalf("%s: %v", what, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// rss returns the memory of nginx, bytes.
func (e *unreadEdge) rss() int {
	e.t.Helper()
	size, err := proc.RSS(e.process.PID())
	require.NoError(e.t, err)
	return int(size)
}

// holdsAbout fails the test if nginx has far more memory, bytes, than before.
func (e *unreadEdge) holdsAbout(more, before int) {
	e.t.Helper()
	grown := e.rss() - before
	if e.t.Logf("nginx has %d MiB more", grown>>20); grown > 2*more {
		e.t.Errorf("want about %d", more>>20)
	}
}

// files returns how many files and connections nginx has open.
func (e *unreadEdge) files() int {
	e.t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", e.process.PID()))
	require.NoError(e.t, err)
	return len(list)
}

// get sends a GET, and returns the status and what is said of the cache.
func (e *unreadEdge) get(client *http.Client, target string) (string, error) {
	res, err := client.Get("http://edge" + target)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return "", err
	}
	return res.Status + " " + res.Header.Get("Cache-Status"), nil
}

// slowReader is a client that reads little of the answer.
type slowReader struct {
	net.Conn
	reader *bufio.Reader
	answer *http.Response
}

// ask sends the requests of n slow readers.
func (e *unreadEdge) ask(socket, target string, n int) []*slowReader {
	e.t.Helper()
	readers := make([]*slowReader, n)
	for i := range readers {
		conn, err := net.Dial("unix", e.path(socket))
		require.NoError(e.t, err)
		e.t.Cleanup(func() { _ = conn.Close() })
		require.NoError(e.t, conn.SetDeadline(time.Now().Add(30*time.Second)))
		_, err = io.WriteString(conn, "GET "+target+" HTTP/1.1\r\nHost: edge\r\n\r\n")
		require.NoError(e.t, err)
		readers[i] = &slowReader{Conn: conn, reader: bufio.NewReaderSize(conn, 512)}
	}
	return readers
}

// heads reads the heads of all answers, and counts the answers by Cache-Status.
func (e *unreadEdge) heads(readers []*slowReader) map[string]int {
	e.t.Helper()
	got := map[string]int{}
	for _, r := range readers {
		var err error
		r.answer, err = http.ReadResponse(r.reader, nil)
		require.NoError(e.t, err)
		got[r.answer.Header.Get("Cache-Status")]++
	}
	return got
}

// full has as many slow readers as fit, and one more.
func (e *unreadEdge) full(socket string) []*slowReader {
	e.t.Helper()
	const room = maxUnread / limits.MaxBody
	readers := e.ask(socket, "/stored/large", room)
	readers = append(readers, e.ask(socket, "/stored/large", 1)...)
	if got, want := e.heads(readers), map[string]int{"gatehouse; hit": room, crowded: 1}; !maps.Equal(got, want) {
		e.t.Errorf("got %v, want %v", got, want)
	}
	return readers
}

// TestUnreadIsBounded has clients that don't read large bodies: a worker holds a bounded part of the bodies, other
// requests go upstream, and there is room again when the clients have read, or gone.
func TestUnreadIsBounded(t *testing.T) {
	e := newUnreadEdge(t)
	client := e.client("edge.sock")
	served := func(target string) {
		t.Helper()
		if got, err := e.get(client, target); err != nil || got != "200 OK gatehouse; hit" {
			t.Errorf("%s: got %s, %v", target, got, err)
		}
	}
	served("/stored/large")
	files, memory := e.files(), e.rss()
	for _, tt := range []struct {
		name, socket string
		end          func(*slowReader)
	}{
		{"they go", "edge.sock", func(r *slowReader) { _ = r.Close() }},
		{"they read", "edge.sock", func(r *slowReader) {
			body, err := io.ReadAll(r.answer.Body)
			if err != nil || !bytes.Equal(body, e.large) && string(body) != "upstream" {
				t.Errorf("got %d bytes, %v", len(body), err)
			}
			_ = r.Close()
		}},
		{"nginx has no patience", "impatient.sock", func(r *slowReader) {
			if r.answer.Header.Get("Cache-Status") == crowded {
				_ = r.Close()
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			readers := e.full(tt.socket)
			served("/stored/small")
			for _, r := range readers {
				tt.end(r)
			}
			e.await("nginx has closed their connections", func() error {
				if n := e.files(); n > files {
					return fmt.Errorf("it has %d files open, before %d", n, files)
				}
				return nil
			})
			served("/stored/large")
		})
	}
	e.full("edge.sock") // so all room was there again
	e.holdsAbout(maxUnread, memory)
}

// TestUnreadOfOneFetch has many clients wait for the same fetch of a large body, and not read it.
func TestUnreadOfOneFetch(t *testing.T) {
	const waiting, room = 300, maxUnread / limits.MaxBody
	e := newUnreadEdge(t)
	before := e.rss()
	readers := e.ask("edge.sock", "/fetched/large", waiting)
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case e.fetch <- struct{}{}:
			case <-done:
				return
			}
		}
	}()
	if got, want := e.heads(readers), map[string]int{"gatehouse; hit": room,
		crowded: waiting - room}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	e.holdsAbout(maxUnread, before)
	for _, r := range readers {
		_ = r.Close()
	}
	client := e.client("edge.sock")
	e.await("room", func() error {
		if got, err := e.get(client, "/fetched/large"); err != nil || got != "200 OK gatehouse; hit" {
			return fmt.Errorf("got %s, %v", got, err)
		}
		return nil
	})
}

// TestFetchedIsReleased fetches again and again an object of which a small encoding is sent: no answer to a fetch,
// which has all encodings, stays in memory.
func TestFetchedIsReleased(t *testing.T) {
	const fetches = 3 * maxUnread / limits.MaxBody
	e := newUnreadEdge(t)
	client, before := e.client("edge.sock"), e.rss()
	go func() {
		for range fetches {
			e.fetch <- struct{}{}
		}
	}()
	for range fetches {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://edge/fetched/encoded", nil)
		require.NoError(t, err)
		req.Header.Set("Accept-Encoding", "gzip")
		res, err := client.Do(req)
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		if res.Header.Get("Content-Encoding") != "gzip" || len(body) != 1024 {
			t.Fatalf("got %s %v, %d bytes", res.Status, res.Header, len(body))
		}
	}
	e.holdsAbout(maxUnread, before)
}

// TestHeadOfLargeBody: a HEAD needs no room, and its connection is used again.
func TestHeadOfLargeBody(t *testing.T) {
	e := newUnreadEdge(t)
	conn := e.ask("edge.sock", "/stored/small", 1)[0]
	e.heads([]*slowReader{conn})
	_, err := io.Copy(io.Discard, conn.answer.Body)
	require.NoError(t, err)
	for range 2 {
		_, err := io.WriteString(conn, "HEAD /stored/large HTTP/1.1\r\nHost: edge\r\n\r\n")
		require.NoError(t, err)
		res, err := http.ReadResponse(conn.reader, &http.Request{Method: http.MethodHead})
		if err != nil || res.StatusCode != http.StatusOK || res.ContentLength != limits.MaxBody || res.Close {
			t.Fatalf("got %+v, %v", res, err)
		}
	}
}
