package redisurl

import (
	"bytes"
	"errors"
	"net"
	"strconv"
	"sync/atomic"
)

// loginConn keeps the arguments of a login out of all errors. A server or proxy without AUTH or HELLO may repeat the
// password in an error.
type loginConn struct {
	net.Conn
	password atomic.Pointer[string] // of the last command, if a login
}

// Write notes the password of a login. The client sends nothing more before the answer.
func (c *loginConn) Write(b []byte) (int, error) {
	c.password.Store(loginPassword(b))
	return c.Conn.Write(b)
}

// Read truncates the error that answers a login, from the login's arguments on.
func (c *loginConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	password := c.password.Load()
	if password == nil || n == 0 || b[0] != '-' {
		return n, err
	}
	for err == nil && n < len(b) && !bytes.Contains(b[:n], []byte("\r\n")) {
		var more int
		more, err = c.Conn.Read(b[n:])
		n += more
	}
	line, _, whole := bytes.Cut(b[:n], []byte("\r\n"))
	switch {
	case whole:
	case err == nil:
		return 0, errors.New("the server's answer to the login is an error that is too long")
	default:
		return 0, err
	}
	end := len(line)
	// Servers shorten the arguments in errors.
	for _, args := range []string{", with args", (*password)[:min(len(*password), 8)]} {
		if i := bytes.Index(line[:end], []byte(args)); i >= 0 {
			end = i
		}
	}
	return len(append(b[:end], b[len(line):n]...)), err
}

// loginPassword returns the password in HELLO 3 AUTH user password, AUTH user password or AUTH password, nil if b is
// something else.
func loginPassword(b []byte) *string {
	start := b[:min(len(b), len("*7\r\n$5\r\nhello\r\n"))]
	if !bytes.Contains(start, []byte("\r\n$5\r\nhello\r\n")) && !bytes.Contains(start, []byte("\r\n$4\r\nauth\r\n")) {
		return nil
	}
	var args []string
	_, rest, _ := bytes.Cut(b, []byte("\r\n"))
	for len(rest) > 0 {
		length, after, _ := bytes.Cut(rest[1:], []byte("\r\n"))
		n, err := strconv.Atoi(string(length))
		if err != nil || n < 0 || n+len("\r\n") > len(after) {
			return nil
		}
		args, rest = append(args, string(after[:n])), after[n+len("\r\n"):]
	}
	if args[0] == "auth" {
		return &args[len(args)-1]
	}
	if len(args) < 5 {
		return nil // without a password
	}
	return &args[4]
}
