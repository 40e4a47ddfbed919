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

	frames "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// patience bounds how long one request may take.
const patience = 10 * time.Second

// errNoAnswer says that the edge ended the connection, or the stream, without an answer.
var errNoAnswer = errors.New("no answer")

const (
	// routerHeader of a request says which router it is for: the edge's routes go by it.
	routerHeader = "x-router"
	// upstreamHeader is on what a router has answered, and on nothing that Envoy answers itself.
	upstreamHeader = "x-envoy-upstream-service-time"
)

// A client sends spellings to one edge, one after the other over connections that it keeps: one of
// HTTP/1, in raw bytes, and one of HTTP/2, in frames. What no library for HTTP would send, it does.
// It is not safe for concurrent use.
type client struct {
	address string // HOST:PORT
	one     *connection1
	two     *connection2
}

func (c *client) close() {
	c.drop(http11)
	c.drop(http2)
}

func (c *client) drop(p protocol) {
	switch {
	case p == http2 && c.two != nil:
		_ = c.two.Close()
		c.two = nil
	case p != http2 && c.one != nil:
		_ = c.one.Close()
		c.one = nil
	}
}

// send sends s for a router. A connection that was used before may have been closed by the edge
// meanwhile, so without an answer on such a one it tries once more. The error is errNoAnswer, or
// the edge can't be reached.
func (c *client) send(s spelling, router string) (answer, error) {
	for {
		fresh, err := c.connect(s.protocol)
		if err != nil {
			return answer{}, fmt.Errorf("connect to the edge: %w", err)
		}
		a, keep, err := c.exchange(s, router)
		if !keep || err != nil || s.splits() {
			c.drop(s.protocol)
		}
		if err == nil {
			return a, nil
		}
		if fresh || errors.Is(err, os.ErrDeadlineExceeded) {
			return answer{}, fmt.Errorf("%w: %w", errNoAnswer, err)
		}
	}
}

func (c *client) exchange(s spelling, router string) (a answer, keep bool, err error) {
	if s.protocol == http2 {
		return c.two.exchange(s, router)
	}
	return c.one.exchange(s, router)
}

// connect makes sure that there is a connection, and says whether it is a new one.
func (c *client) connect(p protocol) (fresh bool, err error) {
	if p == http2 && c.two != nil || p != http2 && c.one != nil {
		return false, nil
	}
	conn, err := net.DialTimeout("tcp", c.address, patience)
	if err != nil {
		return false, err
	}
	if p != http2 {
		c.one = &connection1{conn, bufio.NewReader(conn)}
		return true, nil
	}
	c.two, err = newConnection2(conn)
	return true, err
}

// connection1 is a connection of HTTP/1.
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
	response, err := http.ReadResponse(c.reader, &http.Request{Method: s.method})
	for err == nil && response.StatusCode == http.StatusContinue {
		response, err = http.ReadResponse(c.reader, &http.Request{Method: s.method})
	}
	if err != nil {
		return answer{}, false, err
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{}, false, err
	}
	upgraded := response.StatusCode == http.StatusSwitchingProtocols
	return newAnswer(response.StatusCode, response.Header.Get, body), !response.Close && !upgraded, nil
}

// http1 is the request's bytes.
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

// hasBody says whether servers expect to be told a body's length.
func hasBody(method string) bool {
	return slices.Contains([]string{"POST", "PUT", "PATCH"}, strings.ToUpper(method))
}

// connection2 is a connection of HTTP/2 with one stream at a time.
type connection2 struct {
	net.Conn
	framer  *frames.Framer
	block   bytes.Buffer
	encoder *hpack.Encoder
	stream  uint32
}

func newConnection2(conn net.Conn) (*connection2, error) {
	c := &connection2{Conn: conn, framer: frames.NewFramer(conn, bufio.NewReader(conn)), stream: 1}
	c.encoder = hpack.NewEncoder(&c.block)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := io.WriteString(conn, frames.ClientPreface); err != nil {
		return c, err
	}
	if err := c.framer.WriteSettings(frames.Setting{ID: frames.SettingEnablePush, Val: 0}); err != nil {
		return c, err
	}
	return c, c.framer.WriteWindowUpdate(0, 1<<30) // for all answers that this connection will see
}

func (c *connection2) exchange(s spelling, router string) (answer, bool, error) {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return answer{}, false, err
	}
	if err := c.request(s, router); err != nil {
		return answer{}, false, err
	}
	stream := c.stream
	c.stream += 2
	a, err := c.response(stream)
	return a, err == nil, err
}

func (c *connection2) request(s spelling, router string) error {
	fields := []header{{":method", s.method}, {":scheme", "http"}, {":path", s.path}, {":authority", s.authority}, {routerHeader, router}}
	c.block.Reset()
	for _, h := range append(fields, s.headers...) {
		if err := c.encoder.WriteField(hpack.HeaderField{Name: strings.ToLower(h.name), Value: h.value}); err != nil {
			return err
		}
	}
	return c.framer.WriteHeaders(frames.HeadersFrameParam{
		StreamID: c.stream, BlockFragment: c.block.Bytes(), EndStream: true, EndHeaders: true,
	})
}

// response reads frames until the stream has ended.
func (c *connection2) response(stream uint32) (answer, error) {
	var head *frames.MetaHeadersFrame
	var body []byte
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return answer{}, err
		}
		ended := false
		switch f := frame.(type) {
		case *frames.SettingsFrame:
			if !f.IsAck() {
				err = c.framer.WriteSettingsAck()
			}
		case *frames.PingFrame:
			if !f.IsAck() {
				err = c.framer.WritePing(true, f.Data)
			}
		case *frames.GoAwayFrame:
			err = fmt.Errorf("the connection was ended: %s", f.ErrCode)
		case *frames.RSTStreamFrame:
			err = fmt.Errorf("the stream was reset: %s", f.ErrCode)
		case *frames.MetaHeadersFrame:
			if f.PseudoValue("status") != "100" && head == nil {
				head = f
			}
			ended = f.StreamEnded()
		case *frames.DataFrame:
			body, ended = append(body, f.Data()...), f.StreamEnded()
		}
		if err != nil {
			return answer{}, err
		}
		if ended {
			return newAnswer2(head, body), nil
		}
	}
}

func newAnswer2(head *frames.MetaHeadersFrame, body []byte) answer {
	var status int
	_, _ = fmt.Sscan(head.PseudoValue("status"), &status)
	return newAnswer(status, func(name string) string {
		for _, field := range head.RegularFields() {
			if field.Name == name {
				return field.Value
			}
		}
		return ""
	}, body)
}

// newAnswer takes an answer apart. get returns the first value of a header, named in lower case.
func newAnswer(status int, get func(name string) string, body []byte) answer {
	a := answer{
		status: status, byRouter: get(upstreamHeader) != "", grpc: get("grpc-status") != "", served: get("x-served"), saw: get("x-saw"), sawDevice: get("x-saw-device"),
		body: string(body[:min(len(body), 200)]),
	}
	if tag, cached := strings.CutPrefix(strings.TrimPrefix(get("etag"), "W/"), `"`+cachedTag); cached {
		a.cached = strings.TrimSuffix(tag, `"`)
	}
	return a
}
