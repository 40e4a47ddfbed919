package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// ended2 is a stream or a connection that the server ended with an error code of RFC 9113, section 7.
type ended2 struct {
	frame string // RST_STREAM or GOAWAY
	code  http2.ErrCode
}

func (e ended2) Error() string { return fmt.Sprintf("%s %s", e.frame, e.code) }

// conn2 is an HTTP/2 connection with prior knowledge (RFC 9113, section 3.3) whose every frame is the test's own.
type conn2 struct {
	net.Conn
	framer  *http2.Framer
	block   bytes.Buffer
	coder   *hpack.Encoder
	answers map[uint32]*response // by stream
	whole   map[uint32]bool      // streams that the server has ended
}

func dial2(address string) (*conn2, error) {
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	h := &conn2{Conn: c, framer: http2.NewFramer(c, c), answers: map[uint32]*response{}, whole: map[uint32]bool{}}
	h.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	h.framer.AllowIllegalWrites = true
	h.coder = hpack.NewEncoder(&h.block)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return nil, err
	}
	return h, h.framer.WriteSettings()
}

// headers sends a field section on a stream.
func (c *conn2) headers(stream uint32, end bool, fields ...field) error {
	c.block.Reset()
	for _, f := range fields {
		if err := c.coder.WriteField(hpack.HeaderField{Name: f.name, Value: f.value}); err != nil {
			return err
		}
	}
	return c.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: c.block.Bytes(), EndStream: end, EndHeaders: true,
	})
}

// read returns the answer on a stream. What comes on others is kept for them.
func (c *conn2) read(stream uint32) (*response, error) {
	for !c.whole[stream] {
		if err := c.frame(stream); err != nil {
			return c.answers[stream], err
		}
	}
	return c.answers[stream], nil
}

// frame reads one frame. The end of the connection is an error, and that of the stream by RST_STREAM.
func (c *conn2) frame(stream uint32) error {
	frame, err := c.framer.ReadFrame()
	if err != nil {
		return err
	}
	of := frame.Header().StreamID
	if c.answers[of] == nil {
		c.answers[of] = &response{version: "HTTP/2", framing: "stream"}
	}
	r := c.answers[of]
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return c.framer.WriteSettingsAck()
		}
	case *http2.GoAwayFrame:
		return ended2{"GOAWAY", f.ErrCode}
	case *http2.RSTStreamFrame:
		if of == stream {
			return ended2{"RST_STREAM", f.ErrCode}
		}
	case *http2.MetaHeadersFrame:
		c.whole[of] = f.StreamEnded()
		return r.take(f)
	case *http2.DataFrame:
		r.content = append(r.content, f.Data()...)
		c.whole[of] = f.StreamEnded()
	}
	return nil
}

// take adds a field section to the answer.
func (r *response) take(f *http2.MetaHeadersFrame) error {
	var fields []field
	for _, h := range f.RegularFields() {
		fields = append(fields, field{h.Name, h.Value})
	}
	if r.status >= 200 {
		r.trailers = fields
		return nil
	}
	if r.status != 0 {
		r.interim = append(r.interim, r.status)
	}
	pseudo := f.PseudoFields()
	if len(pseudo) != 1 || pseudo[0].Name != ":status" {
		return fmt.Errorf("pseudo-header fields %v", pseudo)
	}
	var err error
	r.status, err = strconv.Atoi(pseudo[0].Value)
	r.fields = fields
	return err
}

// section2 is the request's field section in HTTP/2; ok is false for what only HTTP/1 has.
func (q request) section2() (fields []field, ok bool) {
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

// exchange2 sends q on a connection of its own.
func exchange2(address string, q request) (*response, error) {
	fields, ok := q.section2()
	if !ok {
		return nil, errors.New("not a request of HTTP/2")
	}
	c, err := dial2(address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	if err := c.headers(1, q.content == "", fields...); err != nil {
		return nil, err
	}
	if q.content != "" {
		if err := c.framer.WriteData(1, true, []byte(q.content)); err != nil {
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
	if n := r.get("content-length"); n != "" && q.method != "HEAD" && r.status != 304 && n != strconv.Itoa(len(r.content)) {
		return r, fmt.Errorf("RFC 9113, 8.1.1: content-length %s, %d bytes", n, len(r.content))
	}
	if q.method == "HEAD" && len(r.content) > 0 {
		return r, fmt.Errorf("RFC 9110, 9.3.2: HEAD was answered with %d bytes", len(r.content))
	}
	return r, nil
}
