package conformance

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/gatehouse/gatehouse/testbed/http2conn"
)

// conn2 is an HTTP/2 connection on which the test makes every frame.
type conn2 struct{ *http2conn.Conn }

func dialHTTP2(address string) (conn2, error) {
	c, err := http2conn.Dial(address, patience)
	return conn2{c}, err
}

func (c conn2) sendHeaders(stream uint32, end bool, fields ...field) error {
	var pairs [][2]string
	for _, f := range fields {
		pairs = append(pairs, [2]string{f.name, f.value})
	}
	return c.SendHeaders(stream, end, pairs...)
}

// read returns the answer on a stream.
func (c conn2) read(stream uint32) (*response, error) {
	a, err := c.ReadAnswer(stream)
	r := &response{version: "HTTP/2", framing: "stream", status: a.Status, content: a.Content, interim: a.Interim}
	for _, f := range a.Fields {
		r.fields = append(r.fields, field{f.Name, f.Value})
	}
	for _, f := range a.Trailers {
		r.trailers = append(r.trailers, field{f.Name, f.Value})
	}
	return r, err
}

// encodeHTTP2 returns the request's field section in HTTP/2; ok is false if only HTTP/1 can express the request.
func (q request) encodeHTTP2() (fields []field, ok bool) {
	host := "edge"
	var rest []field
	for _, f := range q.fields {
		switch name := strings.ToLower(f.name); name {
		case "connection", "keep-alive", "transfer-encoding", "upgrade":
			return nil, false
		case "host":
			host = f.value
		default:
			rest = append(rest, field{name, strings.Trim(f.value, " \t")}) // RFC 9113, section 8.2.1
		}
	}
	fields = []field{{":method", q.method}, {":scheme", "http"}, {":authority", host}, {":path", q.target}}
	return append(fields, rest...), strings.HasPrefix(q.target, "/")
}

// exchangeHTTP2 sends q on its own connection.
func exchangeHTTP2(address string, q request) (*response, error) {
	fields, ok := q.encodeHTTP2()
	if !ok {
		return nil, errors.New("not a request of HTTP/2")
	}
	c, err := dialHTTP2(address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	if err := c.sendHeaders(1, q.content == "", fields...); err != nil {
		return nil, err
	}
	for stream := range uint32(2) { // of the connection, too
		if err := c.Framer.WriteWindowUpdate(stream, 2<<20); err != nil {
			return nil, err
		}
	}
	if q.content != "" {
		if err := c.Framer.WriteData(1, true, []byte(q.content)); err != nil {
			return nil, err
		}
	}
	r, err := c.read(1)
	if err != nil {
		return r, err
	}
	for _, f := range r.fields {
		switch f.name {
		case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
			return r, fmt.Errorf("RFC 9113, 8.2.2: %s: %s", f.name, f.value)
		}
		if f.name != strings.ToLower(f.name) {
			return r, fmt.Errorf("RFC 9113, 8.2.1: name %q", f.name)
		}
	}
	if n := r.get("content-length"); n != "" && q.method != "HEAD" && r.status != 304 &&
		n != strconv.Itoa(len(r.content)) {
		return r, fmt.Errorf("RFC 9113, 8.1.1: content-length %s, %d bytes", n, len(r.content))
	}
	if q.method == "HEAD" && len(r.content) > 0 {
		return r, fmt.Errorf("RFC 9110, 9.3.2: HEAD was answered with %d bytes", len(r.content))
	}
	return r, nil
}
