// Package http2conn is an HTTP/2 client for tests with frames that no library would send: the test makes every frame.
package http2conn

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Ended is the error of a stream or connection ended by the server with an error code of RFC 9113, section 7.
type Ended struct {
	Frame string // RST_STREAM or GOAWAY
	Code  http2.ErrCode
}

// Error names the frame and the code.
func (e Ended) Error() string { return fmt.Sprintf("%s %s", e.Frame, e.Code) }

// Answer is the response on a stream.
type Answer struct {
	Status           int
	Fields, Trailers []hpack.HeaderField
	Content          []byte
	Interim          []int // earlier 1xx statuses
}

// Get returns the first value of a field. name is in lower case.
func (a *Answer) Get(name string) string {
	for _, f := range a.Fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// Conn is a connection with prior knowledge (RFC 9113, section 3.3). Conn is not safe for concurrent use.
type Conn struct {
	net.Conn
	Framer  *http2.Framer
	block   bytes.Buffer
	coder   *hpack.Encoder
	answers map[uint32]*Answer // by stream
	ended   map[uint32]bool    // streams ended by the server
}

// Dial connects. patience bounds all use of the connection, unless the caller sets another deadline.
func Dial(address string, patience time.Duration) (*Conn, error) {
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return nil, err
	}
	return NewConn(conn, patience)
}

// NewConn is Dial for an existing connection, with settings.
func NewConn(conn net.Conn, patience time.Duration, settings ...http2.Setting) (*Conn, error) {
	c := &Conn{Conn: conn, Framer: http2.NewFramer(conn, conn), answers: map[uint32]*Answer{}, ended: map[uint32]bool{}}
	c.Framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.Framer.AllowIllegalWrites = true
	c.coder = hpack.NewEncoder(&c.block)
	err := conn.SetDeadline(time.Now().Add(patience))
	if err == nil {
		_, err = io.WriteString(conn, http2.ClientPreface)
	}
	if err == nil {
		err = c.Framer.WriteSettings(append(settings, http2.Setting{ID: http2.SettingEnablePush, Val: 0})...)
	}
	if err == nil {
		err = c.Framer.WriteWindowUpdate(0, 1<<30) // for all answers on the connection
	}
	return c, err
}

// SendHeaders sends a field section, given as names and values, on a stream.
func (c *Conn) SendHeaders(stream uint32, end bool, fields ...[2]string) error {
	c.block.Reset()
	for _, f := range fields {
		if err := c.coder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return err
		}
	}
	return c.Framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: c.block.Bytes(), EndStream: end, EndHeaders: true,
	})
}

// ReadAnswer returns the answer on a stream, once. With an error, ReadAnswer returns the part received. Frames of other
// streams are kept for later calls.
func (c *Conn) ReadAnswer(stream uint32) (*Answer, error) {
	var err error
	for err == nil && !c.ended[stream] {
		err = c.readFrame(stream)
	}
	a := c.answers[stream]
	if a == nil {
		a = &Answer{}
	}
	delete(c.answers, stream)
	delete(c.ended, stream)
	return a, err
}

// readFrame reads one frame. An error is returned if the connection ends, or the stream by RST_STREAM.
func (c *Conn) readFrame(stream uint32) error {
	frame, err := c.Framer.ReadFrame()
	if err != nil {
		return err
	}
	of := frame.Header().StreamID
	if c.answers[of] == nil {
		c.answers[of] = &Answer{}
	}
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return c.Framer.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return c.Framer.WritePing(true, f.Data)
		}
	case *http2.GoAwayFrame:
		return Ended{"GOAWAY", f.ErrCode}
	case *http2.RSTStreamFrame:
		if of == stream {
			return Ended{"RST_STREAM", f.ErrCode}
		}
	case *http2.MetaHeadersFrame:
		c.ended[of] = f.StreamEnded()
		return c.answers[of].addFields(f)
	case *http2.DataFrame:
		c.answers[of].Content = append(c.answers[of].Content, f.Data()...)
		c.ended[of] = f.StreamEnded()
	}
	return nil
}

// addFields adds a field section to the answer.
func (a *Answer) addFields(f *http2.MetaHeadersFrame) error {
	if a.Status >= 200 {
		a.Trailers = f.RegularFields()
		return nil
	}
	if a.Status != 0 {
		a.Interim = append(a.Interim, a.Status)
	}
	pseudo := f.PseudoFields()
	if len(pseudo) != 1 || pseudo[0].Name != ":status" {
		return fmt.Errorf("pseudo-header fields %v", pseudo)
	}
	var err error
	a.Status, err = strconv.Atoi(pseudo[0].Value)
	a.Fields = f.RegularFields()
	return err
}
