package conformance

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// patience bounds each exchange and each wait.
const patience = 20 * time.Second

// field is one field line, as received.
type field struct{ name, value string }

// response is an answer, as received.
type response struct {
	version  string // HTTP/1.0, HTTP/1.1 or HTTP/2
	status   int
	fields   []field
	content  []byte
	trailers []field
	interim  []int // the 1xx before it
	framing  string
}

// get returns the values of a field, joined as in RFC 9110, section 5.3.
func (r *response) get(name string) string {
	return strings.Join(r.fieldLines(name), ", ")
}

// fieldLines returns the values of a field, one for each line.
func (r *response) fieldLines(name string) []string { return valuesOf(r.fields, name) }

func valuesOf(fields []field, name string) []string {
	var values []string
	for _, f := range fields {
		if strings.EqualFold(f.name, name) {
			values = append(values, f.value)
		}
	}
	return values
}

// conn is an HTTP/1 connection on which the test writes every octet.
type conn struct {
	net.Conn
	r *bufio.Reader
}

func dial(address string) (*conn, error) {
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	return &conn{c, bufio.NewReader(c)}, nil
}

func (c *conn) send(text string) error {
	_, err := io.WriteString(c, text)
	return err
}

var (
	statusLine = regexp.MustCompile(`^(HTTP/1\.[01]) ([1-5][0-9][0-9]) ([\t -~]*)$`)
	fieldLine  = regexp.MustCompile("^([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*((?:[^\\x00-\\x20\\x7f]|[ " +
		"\t]+[^\\x00-\\x20\\x7f])*)[ \t]*$")
)

// read parses the answer to a request with this method strictly by the grammar of RFC 9112. An interim answer is
// counted and skipped.
func (c *conn) read(method string) (*response, error) {
	var interim []int
	for {
		r, err := c.readOne(method)
		if err != nil {
			return r, err
		}
		if r.status >= 200 {
			r.interim = interim
			return r, nil
		}
		interim = append(interim, r.status)
	}
}

func (c *conn) readOne(method string) (*response, error) {
	line, err := c.readLine()
	if err != nil {
		return nil, err
	}
	parts := statusLine.FindStringSubmatch(line)
	if parts == nil {
		return nil, fmt.Errorf("status line %q", line)
	}
	r := &response{version: parts[1]}
	r.status, _ = strconv.Atoi(parts[2])
	if r.fields, err = c.readFields(); err != nil {
		return r, err
	}
	return r, c.readContent(r, method)
}

// readFields reads field lines up to the empty line.
func (c *conn) readFields() ([]field, error) {
	var fields []field
	for {
		line, err := c.readLine()
		if err != nil || line == "" {
			return fields, err
		}
		parts := fieldLine.FindStringSubmatch(line)
		if parts == nil {
			return nil, fmt.Errorf("field line %q", line)
		}
		fields = append(fields, field{parts[1], parts[2]})
	}
}

func (c *conn) readLine() (string, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("after %q: %w", line, err)
	}
	text, ok := strings.CutSuffix(line, "\r\n")
	if !ok {
		return "", fmt.Errorf("line %q doesn't end with CR LF", line)
	}
	return text, nil
}

// readContent implements RFC 9112, section 6.3.
func (c *conn) readContent(r *response, method string) error {
	codings, lengths := r.fieldLines("transfer-encoding"), r.fieldLines("content-length")
	var err error
	switch {
	case r.status < 200 || r.status == 204:
		if len(codings)+len(lengths) != 0 {
			return fmt.Errorf("a %d has %q %q", r.status, codings, lengths)
		}
		r.framing = "none"
	case method == "HEAD" || r.status == 304:
		r.framing = "none"
	case len(codings) > 0:
		if len(codings) != 1 || codings[0] != "chunked" || len(lengths) > 0 {
			return fmt.Errorf("transfer-encoding %q, content-length %q", codings, lengths)
		}
		r.framing = "chunked"
		err = c.readChunks(r)
	case len(lengths) > 0:
		n, bad := strconv.ParseUint(lengths[0], 10, 32)
		if bad != nil || len(lengths) != 1 {
			return fmt.Errorf("content-length %q", lengths)
		}
		r.framing = "length"
		r.content = make([]byte, n)
		_, err = io.ReadFull(c.r, r.content)
	default:
		r.framing = "close"
		r.content, err = io.ReadAll(c.r)
	}
	return err
}

func (c *conn) readChunks(r *response) error {
	for {
		line, err := c.readLine()
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(line, 16, 32)
		if err != nil {
			return fmt.Errorf("chunk size %q", line)
		}
		if n == 0 {
			r.trailers, err = c.readFields()
			return err
		}
		chunk := make([]byte, n+2)
		if _, err := io.ReadFull(c.r, chunk); err != nil {
			return err
		}
		if !bytes.HasSuffix(chunk, []byte("\r\n")) {
			return fmt.Errorf("chunk ends with %q", chunk[n:])
		}
		r.content = append(r.content, chunk[:n]...)
	}
}

// awaitEnd closes the client's side of the connection, and returns an error unless the server then closes, too, without
// sending anything more. A server that closes first may wait for the client (RFC 9112, section 9.6).
func (c *conn) awaitEnd() error {
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		return nil // it has ended already
	}
	rest, err := io.ReadAll(c.r)
	if len(rest) > 0 {
		return fmt.Errorf("%d bytes more: %.200q", len(rest), rest)
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return errors.New("the connection stays open")
	}
	return nil // a reset also ends it
}

// request is the request of a case, without a version of HTTP.
type request struct {
	method, target string
	fields         []field
	content        string
}

// parseRequest parses a case's notation: request line without a version, field lines, and after an empty line the
// content.
func parseRequest(text string) request {
	head, content, _ := strings.Cut(text, "\n\n")
	lines := strings.Split(head, "\n")
	method, target, _ := strings.Cut(lines[0], " ")
	q := request{method: method, target: target, content: content}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ": ")
		q.fields = append(q.fields, field{strings.TrimSuffix(name, ":"), value})
	}
	return q
}

func (q request) hasField(name string) bool { return len(valuesOf(q.fields, name)) > 0 }

// withoutFields returns the request without the fields of these names.
func (q request) withoutFields(names ...string) request {
	var fields []field
	for _, f := range q.fields {
		drop := false
		for _, name := range names {
			drop = drop || strings.EqualFold(f.name, name)
		}
		if !drop {
			fields = append(fields, f)
		}
	}
	q.fields = fields
	return q
}

// encodeHTTP1 returns the request as a message of this version.
func (q request) encodeHTTP1(version string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s\r\n", q.method, q.target, version)
	if !q.hasField("host") {
		b.WriteString("host: edge\r\n")
	}
	if q.content != "" && !q.hasField("content-length") && !q.hasField("transfer-encoding") {
		fmt.Fprintf(&b, "content-length: %d\r\n", len(q.content))
	}
	for _, f := range q.fields {
		fmt.Fprintf(&b, "%s: %s\r\n", f.name, f.value)
	}
	return b.String() + "\r\n" + q.content
}

// sentinel is a request whose answer shows that the previous request was read to its end, and no further. No rule
// matches the sentinel, so the upstream answers in every state of the edge.
var sentinel = request{method: "GET", target: "/sentinel", fields: []field{{"connection", "close"}}}

// exchangeHTTP1 sends q on its own connection, followed by the sentinel unless the server closes.
func exchangeHTTP1(address, version string, q request) (*response, error) {
	c, err := dial(address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	if err := c.send(q.encodeHTTP1(version)); err != nil {
		return nil, err
	}
	r, err := c.read(q.method)
	if err != nil {
		return r, err
	}
	if r.framing == "close" || strings.EqualFold(r.get("connection"), "close") || version == "HTTP/1.0" {
		return r, c.awaitEnd()
	}
	if err := c.send(sentinel.encodeHTTP1("HTTP/1.1")); err != nil {
		return r, err
	}
	next, err := c.read(sentinel.method)
	if err != nil {
		return r, fmt.Errorf("the next answer on the connection: %w", err)
	}
	if string(next.content) != "sentinel" {
		return r, fmt.Errorf("the next answer on the connection: got %d %.200q, want the sentinel", next.status, next.content)
	}
	return r, c.awaitEnd()
}
