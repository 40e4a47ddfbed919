package nginx_test

import (
	"bufio"
	"bytes"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// answerCalls replaces the edge's sidecar by a server that answers each connection's first call by a function, and then
// closes the connection.
func (e *testEdge) answerCalls(t *testing.T, answer func(net.Conn)) {
	t.Helper()
	_ = e.servers["api.sock"].Close() // its connections, too
	_ = os.Remove(e.socket("api.sock"))
	listener, err := net.Listen("unix", e.socket("api.sock"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil && strings.HasPrefix(r.URL.Path, "/v1/verify") {
					answer(conn)
				}
			}()
		}
	}()
}

// statusOf returns the status of the answer to a request whose credential the sidecar must judge.
func (e *testEdge) statusOf(t *testing.T, id string) int {
	t.Helper()
	res, _ := e.ask(t, "GET", "/v1/me", device(id, "good")...)
	return res.StatusCode
}

// statusAndOutcome is statusOf, with the call's outcome from the sidecar. A worker of a busy machine may not send the
// call in time; then the call is made again.
func statusAndOutcome[T any](t *testing.T, e *testEdge, id string, outcomes <-chan T) (status int, outcome T) {
	t.Helper()
	for range 10 {
		status = e.statusOf(t, id)
		select {
		case outcome = <-outcomes:
			return status, outcome
		case <-time.After(5 * time.Second):
		}
	}
	t.Fatal("no call reached the sidecar")
	return status, outcome
}

var allowed = string(wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Allow, Epoch: testEpoch,
	Permissions: "read"}))

// TestCalls gives right answers, and hostile answers.
func TestCalls(t *testing.T) {
	e := startEdge(t)
	e.push(t, testEpoch, 0, "/v1/products/1", false)
	var answer atomic.Value
	e.answerCalls(t, func(conn net.Conn) { _, _ = conn.Write([]byte(answer.Load().(string))) })
	ok := "HTTP/1.1 200 OK\r\n"
	for _, tt := range []struct {
		name, answer string
		want         int
	}{
		{"length", ok + "Content-Length: 24\r\n\r\n" + allowed, 200},
		{"closing", ok + "connection: Close\r\ncontent-length: 24\r\n\r\n" + allowed, 200},
		{"another status", "HTTP/1.1 503 x\r\nContent-Length: 24\r\n\r\n" + allowed, 503},
		{"short", ok + "Content-Length: 24\r\n\r\n" + allowed[:20], 503},
		{"no length", ok + "\r\n" + allowed, 503},
		{"negative length", ok + "Content-Length: -5\r\n\r\n" + allowed, 503},
		{"no number", ok + "Content-Length: nan\r\n\r\n" + allowed, 503},
		{"huge length", ok + "Content-Length: 99999999999999999999\r\n\r\n" + allowed, 503},
		{"chunks", ok + "Transfer-Encoding: chunked\r\n\r\n18\r\n" + allowed + "\r\n0\r\n\r\n", 503},
		{"longer", ok + "Content-Length: 23\r\n\r\n" + allowed, 503},
		{"long head", ok + "x: " + strings.Repeat("x", 7000) + "\r\nContent-Length: 24\r\n\r\n" + allowed, 200},
		{"too long head", ok + "x: " + strings.Repeat("x", 9000) + "\r\nContent-Length: 24\r\n\r\n" + allowed, 503},
		{"other bytes", ok + "Content-Length: 24\r\n\r\n" + strings.Repeat("x", 24), 503},
		{"empty", ok + "Content-Length: 0\r\n\r\n", 503},
		{"no HTTP", "hello\r\n\r\n", 503},
		{"nothing", "", 503},
	} {
		t.Run(tt.name, func(t *testing.T) {
			answer.Store(tt.answer)
			if got := e.statusOf(t, strings.ReplaceAll(tt.name, " ", "-")); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

// TestSlowAnswers: the time for a call is over while its answer still arrives, byte by byte.
func TestSlowAnswers(t *testing.T) {
	e := startEdge(t)
	e.push(t, testEpoch, 0, "/v1/products/1", false)
	var current atomic.Value
	type parts struct{ fast, slow string }
	ended := make(chan bool, 10) // whether the call ended before the answer
	e.answerCalls(t, func(conn net.Conn) {
		p := current.Load().(parts)
		_, err := conn.Write([]byte(p.fast))
		for i := 0; i < len(p.slow) && err == nil; i++ {
			<-time.After(100 * time.Millisecond)
			_, err = conn.Write([]byte{p.slow[i]})
		}
		ended <- err != nil
	})
	head := "HTTP/1.1 200 OK\r\nContent-Length: 24\r\n"
	for _, tt := range []struct {
		name, fast, slow string
		want             int
	}{
		{"soon", head + "\r\n" + allowed[:23], allowed[23:], 200},
		{"head", head[:17], head[17:] + "\r\n" + allowed, 503},
		{"body", head + "\r\n", allowed, 503},
	} {
		t.Run(tt.name, func(t *testing.T) {
			current.Store(parts{tt.fast, tt.slow})
			got, early := statusAndOutcome(t, e, tt.name, ended)
			if want := tt.want != 200; got != tt.want || early != want {
				t.Errorf("got %d, the call ended before the answer: %v; want %d, %v", got, early, tt.want, want)
			}
		})
	}
}

// TestEndlessAnswers: the edge takes a part of a line or a body that doesn't end.
func TestEndlessAnswers(t *testing.T) {
	const far = 16 << 20
	e := startEdge(t)
	e.push(t, testEpoch, 0, "/v1/products/1", false)
	for name, head := range map[string]string{"line": "x: ", "body": "Content-Length: 99999999\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			sent := make(chan int, 10)
			e.answerCalls(t, func(conn net.Conn) {
				n, err := conn.Write([]byte("HTTP/1.1 200 OK\r\n" + head))
				for part := bytes.Repeat([]byte("x"), 64<<10); err == nil && n < far; {
					var more int
					more, err = conn.Write(part)
					n += more
				}
				sent <- n
			})
			// Less fits into the socket's buffer.
			if got, n := statusAndOutcome(t, e, name, sent); got != 503 || n >= far {
				t.Errorf("got %d, the edge took %d bytes", got, n)
			}
		})
	}
}
