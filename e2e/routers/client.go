package routers

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/testbed/http2conn"
)

// patience bounds how long one request may take.
const patience = 10 * time.Second

// errNoAnswer reports that the edge ended the connection or the stream without an answer.
var errNoAnswer = errors.New("no answer")

const (
	// routerHeader names a request's router: the edge's routes match it.
	routerHeader = "x-router"
	// upstreamHeader is on every answer of a router, and on no answer of the edge itself. Envoy defines the name.
	upstreamHeader = "x-envoy-upstream-service-time"
	// servedBody begins the body of every answer that has a resource; the resource's name follows.
	servedBody = "served "
)

// A Client sends spellings to one edge, one at a time over two kept connections: HTTP/1 in raw bytes, HTTP/2 in frames.
// It sends requests that no HTTP library would. It is not safe for concurrent use.
type client struct {
	address  string // HOST:PORT
	address2 string // for HTTP/2, with prior knowledge
	one      *connection1
	two      *connection2
}

func (c *client) close() {
	c.dropConnection(http11)
	c.dropConnection(http2)
}

func (c *client) dropConnection(p protocol) {
	switch {
	case p == http2 && c.two != nil:
		_ = c.two.Close()
		c.two = nil
	case p != http2 && c.one != nil:
		_ = c.one.Close()
		c.one = nil
	}
}

// send sends s for a router. The edge may have closed a connection that was used before, so send repeats the request
// once if a used connection gives no answer. send returns errNoAnswer, with the received part of an answer, or an error
// if the edge can't be reached.
func (c *client) send(s spelling, router string) (answer, error) {
	for {
		fresh, err := c.connect(s.protocol)
		if err != nil {
			return answer{}, fmt.Errorf("connect to the edge: %w", err)
		}
		a, keep, err := c.exchange(s, router)
		if !keep || err != nil || s.maySplit() {
			c.dropConnection(s.protocol)
		}
		if err == nil {
			return a, nil
		}
		if fresh || errors.Is(err, os.ErrDeadlineExceeded) {
			return a, fmt.Errorf("%w: %w", errNoAnswer, err)
		}
	}
}

func (c *client) exchange(s spelling, router string) (a answer, keep bool, err error) {
	if s.protocol == http2 {
		return c.two.exchange(s, router)
	}
	return c.one.exchange(s, router)
}

// connect connects unless there is a connection, and reports whether the connection is new.
func (c *client) connect(p protocol) (fresh bool, err error) {
	if p == http2 && c.two != nil || p != http2 && c.one != nil {
		return false, nil
	}
	if p == http2 {
		conn, err := http2conn.Dial(c.address2, patience)
		if err == nil {
			c.two = &connection2{conn, 1}
		}
		return true, err
	}
	conn, err := net.DialTimeout("tcp", c.address, patience)
	if err == nil {
		c.one = &connection1{conn, bufio.NewReader(conn)}
	}
	return true, err
}

// connection1 is an HTTP/1 connection.
type connection1 struct {
	net.Conn
	reader *bufio.Reader
}

func (c *connection1) exchange(s spelling, router string) (answer, bool, error) {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return answer{}, false, err
	}
	if _, err := c.Write(s.http1(router)); err != nil {
		return answer{}, false, err
	}
	if begin, err := c.reader.Peek(5); err == nil && string(begin) != "HTTP/" {
		return c.readHTTP09()
	}
	response, err := http.ReadResponse(c.reader, &http.Request{Method: s.method})
	for err == nil && response.StatusCode == http.StatusContinue {
		response, err = http.ReadResponse(c.reader, &http.Request{Method: s.method})
	}
	if err != nil {
		return answer{}, false, err
	}
	body, err := io.ReadAll(response.Body)
	upgraded := response.StatusCode == http.StatusSwitchingProtocols
	return newAnswer(response.StatusCode, response.Header.Get, body), !response.Close && !upgraded, err
}

// readHTTP09 reads an answer in HTTP/0.9, a body alone: nginx gives it to a request line without a version. The body
// names the resource, and an HTTP/0.9 request has no credential.
func (c *connection1) readHTTP09() (answer, bool, error) {
	body, err := io.ReadAll(c.reader)
	a := newAnswer(0, func(string) string { return "" }, body)
	if name, cached := strings.CutPrefix(strings.TrimSuffix(a.body, "\n"), cachedTag); cached {
		a.cached = name
	}
	return a, false, err
}

// http1 returns the request's bytes in HTTP/1.
func (s spelling) http1(router string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s %s\r\nhost: %s\r\n%s: %s\r\n", s.method, s.path, s.protocol, s.authority, routerHeader, router)
	for _, h := range s.headers {
		fmt.Fprintf(&b, "%s: %s\r\n", h.name, h.value)
	}
	if hasBody(s.method) {
		b.WriteString("content-length: 0\r\n")
	}
	b.WriteString("\r\n")
	return b.Bytes()
}

// hasBody reports whether servers expect the length of a body.
func hasBody(method string) bool {
	return slices.Contains([]string{"POST", "PUT", "PATCH"}, strings.ToUpper(method))
}

// connection2 is an HTTP/2 connection with one stream at a time.
type connection2 struct {
	*http2conn.Conn
	stream uint32 // the next
}

func (c *connection2) exchange(s spelling, router string) (answer, bool, error) {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return answer{}, false, err
	}
	fields := [][2]string{{":method", s.method}, {":scheme", "http"}, {":path", s.path}, {":authority", s.authority},
		{routerHeader, router}}
	for _, h := range s.headers {
		fields = append(fields, [2]string{strings.ToLower(h.name), h.value})
	}
	stream := c.stream
	c.stream += 2
	if err := c.SendHeaders(stream, true, fields...); err != nil {
		return answer{}, false, err
	}
	a, err := c.ReadAnswer(stream)
	return newAnswer(a.Status, a.Get, a.Content), true, err
}

// newAnswer parses an answer. get returns the first value of a header, named in lower case.
func newAnswer(status int, get func(name string) string, body []byte) answer {
	a := answer{
		status: status, byRouter: get(upstreamHeader) != "", grpc: get("grpc-status") != "", served: get("x-served"),
		saw: get("x-saw"), sawDevice: get("x-saw-device"), body: string(body[:min(len(body), 200)]),
	}
	if name, found := strings.CutPrefix(a.body, servedBody); found && a.served == "" {
		// The rest of an earlier answer, which a router sent after that answer's end, or the edge in HTTP/0.9.
		a.byRouter, a.served = true, strings.TrimSuffix(name, "\n")
	}
	if tag, cached := strings.CutPrefix(strings.TrimPrefix(get("etag"), "W/"), `"`+cachedTag); cached {
		a.cached = strings.TrimSuffix(tag, `"`)
	}
	return a
}
