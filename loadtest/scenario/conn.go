//go:build linux

package scenario

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// conn is one keep-alive HTTP/1.1 connection that sends what a device would, at a small
// cost: the client shares the machine with what it measures.
type conn struct {
	net.Conn
	reader *bufio.Reader
	host   string
	buf    []byte
}

func dial(ctx context.Context, url string) (*conn, error) {
	host := strings.TrimPrefix(url, "http://")
	c, err := new(net.Dialer).DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, reader: bufio.NewReaderSize(c, 16<<10), host: host}, nil
}

// get is the body of the answer to GET path, valid until the next call.
func (c *conn) get(path string) ([]byte, error) {
	c.buf = fmt.Appendf(c.buf[:0], "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: device/1.0\r\nAccept: */*\r\n\r\n", path, c.host)
	if _, err := c.Write(c.buf); err != nil {
		return nil, err
	}
	response, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s", path, response.Status)
	}
	if response.ContentLength < 0 {
		return io.ReadAll(response.Body)
	}
	if n := int(response.ContentLength); cap(c.buf) < n {
		c.buf = make([]byte, n)
	}
	body := c.buf[:response.ContentLength]
	_, err = io.ReadFull(response.Body, body)
	return body, err
}

// send sends a request as it is and returns the status of the answer, whose body it drops.
func (c *conn) send(request []byte) (int, error) {
	if _, err := c.Write(request); err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

func (c *conn) close() { _ = c.Conn.Close() }
