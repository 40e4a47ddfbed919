package nginx_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/wire"
)

// serveRaw answers each connection's first request with these bytes, and then closes it; it returns its socket.
func serveRaw(t *testing.T, answer string) string {
	t.Helper()
	return serve(t, func(conn net.Conn) { _, _ = conn.Write([]byte(answer)) })
}

// serve calls answer after each connection's first request, and then closes it; it returns its socket.
func serve(t *testing.T, answer func(net.Conn)) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "api.sock")
	listener, err := net.Listen("unix", socket)
	mustBeNil(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				answer(conn)
			}
			_ = conn.Close()
		}
	}()
	return socket
}

// TestCalls gives answers that are right, and hostile ones: after each, nothing is left in flight.
func TestCalls(t *testing.T) {
	allow := string(wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Allow, Epoch: 1}))
	ok := "HTTP/1.1 200 OK\r\n"
	for _, tt := range []struct{ name, answer, want string }{
		{"length", ok + "Content-Length: 24\r\n\r\n" + allow, "allow"},
		{"closing", ok + "connection: Close\r\ncontent-length: 24\r\n\r\n" + allow, "allow"},
		{"another status", "HTTP/1.1 503 x\r\nContent-Length: 24\r\n\r\n" + allow, "unreachable"},
		{"short", ok + "Content-Length: 24\r\n\r\n" + allow[:20], "unreachable"},
		{"no length", ok + "\r\n" + allow, "unreachable"},
		{"negative length", ok + "Content-Length: -5\r\n\r\n" + allow, "unreachable"},
		{"no number", ok + "Content-Length: nan\r\n\r\n" + allow, "unreachable"},
		{"huge length", ok + "Content-Length: 99999999999999999999\r\n\r\n" + allow, "unreachable"},
		{"chunks", ok + "Transfer-Encoding: chunked\r\n\r\n18\r\n" + allow + "\r\n0\r\n\r\n", "unreachable"},
		{"longer", ok + "Content-Length: 23\r\n\r\n" + allow, "unreachable"},
		{"long head", ok + "x: " + strings.Repeat("x", 7000) + "\r\nContent-Length: 24\r\n\r\n" + allow, "allow"},
		{"too long head", ok + "x: " + strings.Repeat("x", 9000) + "\r\nContent-Length: 24\r\n\r\n" + allow, "unreachable"},
		{"other bytes", ok + "Content-Length: 24\r\n\r\n" + strings.Repeat("x", 24), "unreachable"},
		{"empty", ok + "Content-Length: 0\r\n\r\n", "unreachable"},
		{"no HTTP", "hello\r\n\r\n", "unreachable"},
		{"nothing", "", "unreachable"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []any
			call(t, &got, "calls_cases", "verify", serveRaw(t, tt.answer), 1000)
			if want := []any{tt.want, tt.want, 0.0, 0.0, 0.0, true}; !reflect.DeepEqual(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
	t.Run("client gone", func(t *testing.T) {
		var got []int
		if call(t, &got, "calls_cases", "abandoned", serveRaw(t, ""), 1000); got[0] != 0 || got[1] != 0 {
			t.Errorf("got %d calls in flight and %d requests that wait, want none", got[0], got[1])
		}
	})
}

// TestSlowAnswers: the time for a call is over while its answer still arrives, byte by byte.
func TestSlowAnswers(t *testing.T) {
	allow := string(wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Allow, Epoch: 1}))
	head := "HTTP/1.1 200 OK\r\nContent-Length: 24\r\n"
	for _, tt := range []struct{ name, fast, slow, want string }{
		{"soon enough", head + "\r\n" + allow[:23], allow[23:], "allow"},
		{"head", head[:17], head[17:] + "\r\n" + allow, "unreachable"},
		{"body", head + "\r\n", allow, "unreachable"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ended := make(chan bool, 1) // whether the call ended before the answer
			socket := serve(t, func(conn net.Conn) {
				_, err := conn.Write([]byte(tt.fast))
				for i := 0; i < len(tt.slow) && err == nil; i++ {
					<-time.After(100 * time.Millisecond)
					_, err = conn.Write([]byte{tt.slow[i]})
				}
				ended <- err != nil
			})
			var got []any
			call(t, &got, "calls_cases", "verify", socket, 500)
			if want := []any{tt.want, tt.want, 0.0, 0.0, 0.0, true}; !reflect.DeepEqual(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			if early, want := <-ended, tt.want != "allow"; early != want {
				t.Errorf("the call ended before the answer: %v, want %v", early, want)
			}
		})
	}
}

// TestEndlessAnswers: the plugin takes a part of a line or a body that doesn't end.
func TestEndlessAnswers(t *testing.T) {
	const far = 16 << 20
	for name, head := range map[string]string{"line": "x: ", "body": "Content-Length: 99999999\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			sent := make(chan int, 1)
			socket := serve(t, func(conn net.Conn) {
				n, err := conn.Write([]byte("HTTP/1.1 200 OK\r\n" + head))
				for part := bytes.Repeat([]byte("x"), 64<<10); err == nil && n < far; {
					var more int
					more, err = conn.Write(part)
					n += more
				}
				sent <- n
			})
			var got []any
			if call(t, &got, "calls_cases", "verify", socket, 10_000); got[0] != "unreachable" {
				t.Errorf("got %v", got)
			}
			if n := <-sent; n >= far { // less fits into the socket's buffer
				t.Errorf("the plugin took %d bytes", n)
			}
		})
	}
}

// TestSource reads the last address of a header, in linear time.
func TestSource(t *testing.T) {
	for _, tt := range []struct{ value, want string }{
		{"1.2.3.4", "1.2.3.4"},
		{"6.6.6.6, 1.2.3.4:80", "1.2.3.4"},
		{"6.6.6.6,", ""},
		{strings.Repeat("a", 30_000) + ", 1.2.3.4", "1.2.3.4"},
		{strings.Repeat("a", 30_000), ""},
	} {
		var got []any
		call(t, &got, "calls_cases", "source", tt.value)
		if got[0] != tt.want || got[1].(float64) > 0.05 {
			t.Errorf("%.20s: got %v in %v s, want %s", tt.value, got[0], got[1], tt.want)
		}
	}
}

// TestKeys gives key sets that have no usable key.
func TestKeys(t *testing.T) {
	const key = `{"kty":"OKP","crv":"Ed25519","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`
	for set, want := range map[string]bool{
		"": false, "1": false, "{}": false, `{"keys":1}`: false, `{"keys":[1,null,true,"x",[]]}`: false,
		`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":1,"x":"AA"}]}`: false,
		fmt.Sprintf(`{"keys":[%s]}`, key):                           true,
		fmt.Sprintf(`{"keys":[1,%s]}`, key):                         true,
	} {
		var got []bool
		if call(t, &got, "calls_cases", "set_keys", set); got[0] != want {
			t.Errorf("%s: got %v, want %v", set, got[0], want)
		}
	}
}
