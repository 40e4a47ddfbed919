package routers

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// serveAs runs a handler as if it were an edge with routers behind it, by HTTP/1 and HTTP/2.
func serveAs(t *testing.T, handler http.HandlerFunc) *edge {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	address := server.Listener.Addr().String()
	return &edge{fallback: "pass", address: address, address2: address, routers: []string{"servemux"}}
}

// run sends spellings to an edge and returns its report and its output.
func run(t *testing.T, spellings uint64, e *edge) (*report, string) {
	t.Helper()
	var out strings.Builder
	f := &fuzzer{Config: Config{Seed: 1, Spellings: spellings, Workers: 2, Out: &out}, edges: []*edge{e},
		report: newReport(&out, 1)}
	require.NoError(t, f.sendAll(t.Context()))
	return f.report, out.String()
}

// TestFindsWhatNobodyJudges runs the suite on a router without an edge.
func TestFindsWhatNobodyJudges(t *testing.T) {
	mux := newServeMux()
	report, out := run(t, 300, serveAs(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(upstreamHeader, "1")
		mux.ServeHTTP(w, r)
	}))
	for _, want := range []string{
		"servemux: telemetry served to nobody, which has no permission telemetry.write",
		"repeat:   make routers SEED=1 ONLY=", "an ordinary request was not served as 401",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("got no %q", want)
		}
	}
	if report.violations == 0 {
		t.Error("got no violation")
	}
}

// TestFindsWhatIsRefused runs the suite on an edge that refuses everything.
func TestFindsWhatIsRefused(t *testing.T) {
	report, out := run(t, 10, serveAs(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	}))
	requests := len(ordinaryRequests(1))
	if report.violations != 2*requests || !strings.Contains(out, "an ordinary request was not served as files") {
		t.Errorf("got %d violations, want one for each of twice %d ordinary requests: %s", report.violations, requests, out)
	}
}

// TestBytesAsTheyAre sends bytes that net/http would not send, and parses them like the edge. The resource also shows
// in incomplete answers: a body in HTTP/0.9, an answer without the router's header, an answer cut short.
func TestBytesAsTheyAre(t *testing.T) {
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nx-served: users\r\nx-envoy-upstream-service-time: 0\r\ncontent-length: 0\r\nconnection: " +
			"close\r\n\r\n",
		"served users\n",
		"HTTP/1.1 200 OK\r\ncontent-length: 13\r\nconnection: close\r\n\r\nserved users\n",
		"HTTP/1.1 200 OK\r\ncontent-length: 99\r\nconnection: close\r\n\r\nserved users\n",
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		lines := make(chan string, 1)
		go func() {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }()
			reader := bufio.NewReader(conn)
			line, _ := reader.ReadString('\n')
			lines <- line
			_, _ = http.ReadRequest(bufio.NewReader(io.MultiReader(strings.NewReader("GET / HTTP/1.1\r\n"), reader)))
			_, _ = conn.Write([]byte(text))
		}()
		c := &client{address: listener.Addr().String()}
		s := spelling{protocol: http11, method: "gEt", path: "/a\x00\xff b%zz", authority: "x", who: nobody}
		a, err := c.send(s, "servemux")
		if a.served != "users" || !a.byRouter || (err != nil) != strings.Contains(text, "99") {
			t.Errorf("%q: got %+v, %v, want users served by the router", text, a, err)
		}
		if got, want := <-lines, "gEt /a\x00\xff b%zz HTTP/1.1\r\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		c.close()
		_ = listener.Close()
	}
}

// TestFrames sends both protocols to one server, over reused connections.
func TestFrames(t *testing.T) {
	e := serveAs(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("x-saw", r.Proto+" "+r.Method+" "+r.RequestURI+" "+r.Header.Get("x-original-url"))
		w.Header().Set("etag", `W/"`+cachedTag+`me-config:reader"`)
	})
	c := &client{address: e.address, address2: e.address2}
	defer c.close()
	for _, version := range []protocol{http11, http2, http11, http2} {
		s := spelling{protocol: version, method: "GET", path: "/v1/a%0a;x", authority: "x",
			headers: []header{{"X-Original-URL", "/y"}}, who: nobody}
		a, err := c.send(s, "servemux")
		if err != nil || a.status != 200 || a.cached != "me-config:reader" ||
			!strings.HasSuffix(a.saw, " GET /v1/a%0a;x /y") {
			t.Errorf("%s: got %+v, %v", version, a, err)
		}
	}
}

// TestOrdinaryNames: no name contains an escape, also not for a seed that once drew escapes.
func TestOrdinaryNames(t *testing.T) {
	for _, r := range ordinaryRequests(3790758946) {
		if strings.Contains(r.path, "%250A") {
			t.Errorf("got %s", r.path)
		}
	}
}
