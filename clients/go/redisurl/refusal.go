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

// dialer returns a function that connects as the client itself would, by TLS if config isn't nil. Its connections keep
// passwords out of errors; those without TLS also keep why the server closes them.
func dialer(config *tls.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
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

// refusedConn adds to an error what a server says before it closes a new connection: that it has too many, or is in
// protected mode. The client takes that for the answer to its HELLO, which it ignores, and reports a broken pipe.
type refusedConn struct {
	net.Conn
	raw     syscall.Conn // of the connection under Conn
	begun   bool         // something was read; only for Read
	refusal atomic.Pointer[string]
}

// SyscallConn implements [syscall.Conn]: the client looks whether an idle connection was closed.
func (c *refusedConn) SyscallConn() (syscall.RawConn, error) { return c.raw.SyscallConn() }

// Read keeps a refusal that comes first.
func (c *refusedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.begun && n > 0 {
		c.begun = true
		line, _, _ := bytes.Cut(b[:n], []byte("\r\n"))
		if bytes.HasPrefix(line, []byte("-ERR max number of clients")) || bytes.HasPrefix(line, []byte("-DENIED")) {
			text := string(line[1:])
			c.refusal.Store(&text)
		}
	}
	return n, c.explain(err)
}

// Write names a refusal in its error.
func (c *refusedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, c.explain(err)
}

func (c *refusedConn) explain(err error) error {
	if text := c.refusal.Load(); err != nil && text != nil {
		return fmt.Errorf("%s: %w", *text, err)
	}
	return err
}
