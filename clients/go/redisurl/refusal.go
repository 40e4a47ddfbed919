package redisurl

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// newDialer returns a function that connects as the client itself would, by TLS if config isn't nil. All connections
// keep passwords out of errors; connections without TLS also keep the server's reason for closing.
func newDialer(config *tls.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	tcp := &net.Dialer{Timeout: dialTimeout, KeepAlive: 5 * time.Minute}
	if config != nil {
		secure := &tls.Dialer{NetDialer: tcp, Config: config}
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout) // for the handshake, too
			defer cancel()
			conn, err := secure.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &loginConn{Conn: conn}, nil
		}
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := tcp.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		login := &loginConn{Conn: conn}
		raw, ok := conn.(syscall.Conn)
		if !ok {
			return login, nil
		}
		return &refusedConn{Conn: login, raw: raw}, nil
	}
}

// refusedConn adds to errors the server's reason for closing a new connection: too many clients, or protected mode. The
// client mistakes the reason for the answer to HELLO, ignores the text, and reports a broken pipe.
type refusedConn struct {
	net.Conn
	raw     syscall.Conn // of the connection under Conn
	hasRead bool         // whether Read has returned data; only for Read
	refusal atomic.Pointer[string]
}

// SyscallConn implements [syscall.Conn]: the client looks whether an idle connection was closed.
func (c *refusedConn) SyscallConn() (syscall.RawConn, error) { return c.raw.SyscallConn() }

// Read stores a refusal in the first bytes of the connection.
func (c *refusedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.hasRead && n > 0 {
		c.hasRead = true
		line, _, _ := bytes.Cut(b[:n], []byte("\r\n"))
		if bytes.HasPrefix(line, []byte("-ERR max number of clients")) || bytes.HasPrefix(line, []byte("-DENIED")) {
			text := string(line[1:])
			c.refusal.Store(&text)
		}
	}
	return n, c.explainError(err)
}

// Write adds a stored refusal to its error.
func (c *refusedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, c.explainError(err)
}

func (c *refusedConn) explainError(err error) error {
	if text := c.refusal.Load(); err != nil && text != nil {
		return fmt.Errorf("%s: %w", *text, err)
	}
	return err
}
