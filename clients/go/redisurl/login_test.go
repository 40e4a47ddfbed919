package redisurl

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
)

// startRefusing starts a server that answers all commands with an error, and returns the port.
func startRefusing(t *testing.T, config *tls.Config, refusal string) (port string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	_, port, _ = net.SplitHostPort(listener.Addr().String())
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					if !strings.HasPrefix(lines.Text(), "*") {
						continue
					}
					for _, part := range []string{"-", refusal[:len(refusal)/2], refusal[len(refusal)/2:], "\r\n"} {
						fmt.Fprint(conn, part)
					}
				}
			}()
		}
	}()
	return port
}

// TestLoginIsNotRepeated: whatever a server answers to a login, no error of any kind of client has the password.
func TestLoginIsNotRepeated(t *testing.T) {
	t.Parallel()
	https := httptest.NewTLSServer(nil) // for its certificate
	defer https.Close()
	ca := write(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: https.Certificate().Raw})))
	const secret = "hunter2hunter2"
	password := write(t, secret)
	real := redistest.StartServer(t, "--rename-command", "HELLO", "", "--rename-command", "AUTH", "").Port()

	type test struct {
		name     string
		settings Settings
		want     string
	}
	tests := []test{
		{"Redis", Settings{URL: "redis://u:" + secret + "@127.0.0.1:" + real}, "unknown command 'auth'"},
		{"Redis without a user", Settings{URL: "redis://127.0.0.1:" + real, PasswordFile: password},
			"unknown command 'auth'"},
		{"Redis Cluster", Settings{URL: "redis+cluster://u:" + secret + "@127.0.0.1:" + real}, "unknown command 'auth'"},
	}
	for _, refusal := range []struct{ text, want string }{
		{"ERR unknown command `AUTH`, with args beginning with: `u`, `" + secret + "`, ", "ERR unknown command `AUTH`"},
		{"ERR unsupported: AUTH u " + secret[:10], "ERR unsupported: AUTH u "},
		{"WRONGPASS invalid password '" + secret + "' of u", "WRONGPASS invalid password '"},
		{"WRONGPASS invalid username-password pair or user is disabled.",
			"WRONGPASS invalid username-password pair or user is disabled."},
	} {
		plain, secure := startRefusing(t, nil, refusal.text), startRefusing(t, https.TLS, refusal.text)
		login := "://u:" + secret + "@127.0.0.1:"
		tests = append(tests,
			test{"server: " + refusal.text, Settings{URL: "redis" + login + plain}, refusal.want},
			test{"sentinel: " + refusal.text, Settings{URL: "redis+sentinel://127.0.0.1:" + plain + "/main",
				SentinelUsername: "u", SentinelPasswordFile: password}, refusal.want},
			test{"TLS: " + refusal.text, Settings{URL: "rediss" + login + secure, TLSCAFile: ca}, refusal.want})
	}
	for _, test := range tests {
		client, err := test.settings.Connect()
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, subscribed := Subscribe(ctx, client, "c").Receive(ctx)
		_, pipelined := client.Pipelined(ctx, func(p redis.Pipeliner) error { return p.Get(ctx, "k").Err() })
		for call, err := range map[string]error{
			"GET": client.Get(ctx, "k").Err(), "SUBSCRIBE": subscribed, "pipeline": pipelined,
		} {
			if text := fmt.Sprint(err); !strings.Contains(text, test.want) || strings.Contains(text, "hunter") {
				t.Errorf("%s: %s: %q, want %q", test.name, call, text, test.want)
			}
		}
	}
}

// replies is a connection that reads the given text.
type replies struct {
	net.Conn
	text *strings.Reader
}

func (r replies) Write(b []byte) (int, error) { return len(b), nil }
func (r replies) Read(b []byte) (int, error)  { return iotest.OneByteReader(r.text).Read(b) }

// TestLoginConn: only errors that answer a login are cut, and later replies are read.
func TestLoginConn(t *testing.T) {
	const unknown = "-ERR unknown command 'X', with args beginning with: 'hunter2'\r\n"
	const auth = "*2\r\n$4\r\nauth\r\n$7\r\nhunter2\r\n"
	for _, test := range []struct{ sent, answer, want string }{
		{auth, unknown + "+OK\r\n", "-ERR unknown command 'X'\r\n+OK\r\n"},
		{"*3\r\n$4\r\nauth\r\n$1\r\nu\r\n$7\r\nhunter2\r\n", "-ERR u hunter2\r\n", "-ERR u \r\n"},
		{"*5\r\n$5\r\nhello\r\n$1\r\n3\r\n$4\r\nauth\r\n$1\r\nu\r\n$7\r\nhunter2\r\n", "-ERR u hunter2\r\n", "-ERR u \r\n"},
		{"*3\r\n$4\r\nauth\r\n$1\r\nu\r\n$7\r\na\r\nbcde\r\n", "-ERR a\\r\\nbcde, with args\r\n", "-ERR a\\r\\nbcde\r\n"},
		{auth, "+hunter2\r\n", "+hunter2\r\n"},
		{auth, "-ERR hunter2", ""}, // the connection ends
		{"*2\r\n$5\r\nhello\r\n$1\r\n3\r\n", unknown, unknown},
		{"*2\r\n$3\r\nget\r\n$7\r\nhunter2\r\n", unknown, unknown},
		{"*2\r\n$4\r\nauth\r\n$9\r\nhunter2\r\n", unknown, unknown}, // no command
		{"*2\r\n$4\r\nauth\r\n\r\n", unknown, unknown},
	} {
		conn := &loginConn{Conn: replies{text: strings.NewReader(test.answer)}}
		fmt.Fprint(conn, test.sent)
		var got strings.Builder
		for b := make([]byte, 100); ; {
			n, err := conn.Read(b)
			got.Write(b[:n])
			if err != nil {
				break
			}
		}
		if got.String() != test.want {
			t.Errorf("%q, answer %q: got %q, want %q", test.sent, test.answer, got.String(), test.want)
		}
	}
	conn := &loginConn{Conn: replies{text: strings.NewReader("-ERR " + strings.Repeat("x", 100) + "hunter2")}}
	fmt.Fprint(conn, auth)
	if n, err := conn.Read(make([]byte, 100)); n != 0 || err == nil {
		t.Errorf("an answer that is too long: got %d bytes, %v, want an error", n, err)
	}
}
