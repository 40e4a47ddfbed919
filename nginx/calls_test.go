package nginx_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/wire"
)

// serveRaw answers each connection's first request with these bytes, and then closes it; it returns its socket.
func serveRaw(t *testing.T, answer string) string {
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
				_, _ = conn.Write([]byte(answer))
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
		{"chunks", ok + "Transfer-Encoding: chunked\r\n\r\n5\r\n" + allow[:5] + "\r\n13;x\r\n" + allow[5:] + "\r\n0\r\n\r\n", "allow"},
		{"closing", ok + "connection: Close\r\ncontent-length: 24\r\n\r\n" + allow, "allow"},
		{"another status", "HTTP/1.1 503 x\r\nContent-Length: 24\r\n\r\n" + allow, "unreachable"},
		{"short", ok + "Content-Length: 24\r\n\r\n" + allow[:20], "unreachable"},
		{"no length", ok + "\r\n" + allow, "unreachable"},
		{"negative length", ok + "Content-Length: -5\r\n\r\n" + allow, "unreachable"},
		{"no number", ok + "Content-Length: nan\r\n\r\n" + allow, "unreachable"},
		{"huge length", ok + "Content-Length: 99999999999999999999\r\n\r\n" + allow, "unreachable"},
		{"no chunk", ok + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "unreachable"},
		{"huge chunk", ok + "Transfer-Encoding: chunked\r\n\r\nffffffff\r\n", "unreachable"},
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
