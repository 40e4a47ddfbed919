//go:build linux

package scenario

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
)

// conn is a keep-alive HTTP/1.1 connection for a device's requests, at a small cost: the client shares the machine with
// the measured servers.
type conn struct {
	net.Conn
	reader *bufio.Reader
	host   string
	buf    []byte
}

func dialEdge(ctx context.Context, url string) (*conn, error) {
	host := strings.TrimPrefix(url, "http://")
	c, err := new(net.Dialer).DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, reader: bufio.NewReaderSize(c, 16<<10), host: host}, nil
}

// send sends a complete request, and returns status and body of the response.
func (c *conn) send(request []byte) (int, []byte, error) {
	if _, err := c.Write(request); err != nil {
		return 0, nil, err
	}
	response, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

func (c *conn) close() { _ = c.Conn.Close() }
