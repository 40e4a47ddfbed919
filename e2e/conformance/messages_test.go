package conformance

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

// A message is the octets that a client of HTTP/1 sends, and the statuses that the section allows; 0 is an end of the
// connection without an answer. With several statuses, the section leaves the choice.
type message struct {
	section, name, text string
	statuses            []int
}

const tail = "\r\nhost: edge\r\n\r\n"

// messages are about the syntax of HTTP/1 (RFC 9112), mostly about messages that must be refused: a request that two
// recipients parse differently evades the checks of one recipient.
var messages = []message{
	{"9112 2.1", "a request", "GET /p/42 HTTP/1.1\r\nhost: edge\r\n\r\n", []int{200}},
	{"9112 2.2", "an empty line before it", "\r\nGET /p/42 HTTP/1.1" + tail, []int{200}},
	{"9112 2.2", "lines that end with LF alone", "GET /p/42 HTTP/1.1\nhost: edge\n\n", []int{200, 400}},
	{"9112 2.2", "a CR within a value, which Envoy takes out", "GET /p/42 HTTP/1.1\r\nhost: edge\r\nx: a\rb\r\n\r\n",
		[]int{200, 400, 505}},
	{"9112 2.2", "a space before the first field", "GET /p/42 HTTP/1.1\r\n host: edge\r\n\r\n", []int{400}},
	{"9112 2.3", "a minor version above ours", "GET /p/42 HTTP/1.2" + tail, []int{200, 400, 505}},
	{"9112 2.3", "a major version above ours", "GET /p/42 HTTP/2.0" + tail, []int{200, 400, 505}},
	{"9112 2.3", "a version in lower case", "GET /p/42 http/1.1" + tail, []int{400}},
	{"9112 2.3", "a version with spaces", "GET /p/42 HTTP / 1.1" + tail, []int{400}},
	{"9112 2.3", "a version without a minor", "GET /p/42 HTTP/1" + tail, []int{400}},
	{"9112 2.3", "a version of two digits", "GET /p/42 HTTP/1.10" + tail, []int{400}},
	{"9112 3", "no version: HTTP/0.9", "GET /p/42\r\n\r\n", []int{200, 400, 505}},
	{"9112 3", "two spaces before the target", "GET  /p/42 HTTP/1.1" + tail, []int{200, 400}},
	{"9112 3", "a space in the target", "GET /p/4 2 HTTP/1.1" + tail, []int{400}},
	{"9112 3", "a tab in the target", "GET /p/4\t2 HTTP/1.1" + tail, []int{400}},
	{"9112 3", "a space before the method", " GET /p/42 HTTP/1.1" + tail, []int{400}},
	{"9112 3", "no target", "GET HTTP/1.1" + tail, []int{400}},
	{"9112 3", "no method", "/p/42 HTTP/1.1" + tail, []int{400}},
	{"9112 3.1", "a method in lower case is another", "get /p/42 HTTP/1.1" + tail, []int{400, 501}},
	{"9112 3.1", "an auth rule's method in lower case", "post /w HTTP/1.1" + tail, []int{400, 401, 403, 501}},
	{"9112 3.1", "a method that nobody knows", "FROBNICATE /p/42 HTTP/1.1" + tail, []int{200, 400, 501}},
	{"9112 3.1", "a method that is no token", "G(T /p/42 HTTP/1.1" + tail, []int{400}},
	{"9112 3.2", "no Host", "GET /p/42 HTTP/1.1\r\n\r\n", []int{400}},
	// The section requires a 400. Envoy joins the Hosts with a comma and forwards the request. Neither rules nor keys
	// include the host.
	{"9112 3.2", "two Hosts", "GET /p/42 HTTP/1.1\r\nhost: edge\r\nhost: other\r\n\r\n", []int{200, 400}},
	{"9112 3.2", "a Host with a path", "GET /p/42 HTTP/1.1\r\nhost: edge/x\r\n\r\n", []int{400}},
	{"9112 3.2", "a Host with a space", "GET /p/42 HTTP/1.1\r\nhost: ed ge\r\n\r\n", []int{400}},
	{"9112 3.2.1", "a target without a slash", "GET p/42 HTTP/1.1" + tail, []int{400, 404}},
	{"9112 3.2.1", "a fragment", "GET /p/42#top HTTP/1.1" + tail, []int{400}},
	{"9112 3.2.2", "a target in absolute form", "GET http://edge/p/42 HTTP/1.1" + tail, []int{200}},
	{"9112 3.2.2", "in absolute form, Host is another",
		"GET http://edge/p/42 HTTP/1.1\r\nhost: other\r\n\r\n", []int{200, 400}},
	{"9112 3.2.2", "an auth rule's path in absolute form", "POST http://edge/w HTTP/1.1" + tail, []int{401}},
	{"9112 3.2.3", "CONNECT", "CONNECT edge:443 HTTP/1.1\r\nhost: edge:443\r\n\r\n", []int{400, 404, 405, 501, 0}},
	{"9112 3.2.4", "OPTIONS of the server", "OPTIONS * HTTP/1.1" + tail, []int{200, 400, 404}},
	{"9112 3.2.4", "GET of the server", "GET * HTTP/1.1" + tail, []int{400, 404}},
	{"9110 9.3.8", "TRACE", "TRACE /p/42 HTTP/1.1" + tail, []int{200, 400, 405, 501}},
	{"9112 3.2", "octets above 127 in the target", "GET /p/\xc3\xa9 HTTP/1.1" + tail, []int{200, 400}},
	{"3986 2.1", "an escape of no digits", "GET /p/%zz HTTP/1.1" + tail, []int{200, 400, 403}},
	{"3986 2.1", "an escape that is cut", "GET /p/4% HTTP/1.1" + tail, []int{200, 400, 403}},
	{"3986 2.1", "an escaped NUL", "GET /p/42%00 HTTP/1.1" + tail, []int{400, 403}},
	{"9112 5.1", "a space before the colon", "GET /p/42 HTTP/1.1\r\nhost: edge\r\nx : a\r\n\r\n", []int{400}},
	{"9112 5.1", "a field without a colon", "GET /p/42 HTTP/1.1\r\nhost: edge\r\nx\r\n\r\n", []int{400}},
	{"9112 5.1", "a field without a name", "GET /p/42 HTTP/1.1\r\nhost: edge\r\n: a\r\n\r\n", []int{400}},
	{"9112 5.1", "a name that is no token", "GET /p/42 HTTP/1.1\r\nhost: edge\r\nx(y): a\r\n\r\n", []int{400}},
	{"9112 5.1", "no space after the colon", "GET /p/42 HTTP/1.1\r\nhost:edge\r\nif-none-match:\"42\"\r\n\r\n",
		[]int{304}},
	{"9112 5.2", "a folded line", "GET /p/42 HTTP/1.1\r\nhost: edge\r\nif-none-match: \"a\",\r\n \"42\"\r\n\r\n",
		[]int{304, 400}},
	{"9110 5.5", "a NUL in a value", "GET /p/42 HTTP/1.1\r\nhost: edge\r\nx: a\x00b\r\n\r\n", []int{400}},
	{"9110 5.1", "a name with an underscore: upstreams take it for '-'",
		"GET /p/42 HTTP/1.1\r\nhost: edge\r\nx_y: a\r\n\r\n", []int{400}},
	{"9110 5.4", "a field that is too long", "GET /p/42 HTTP/1.1\r\nhost: edge\r\nx: " + longText(20000) +
		"\r\n\r\n", []int{431}},
	{"9110 5.4", "fields that are too many", "GET /p/42 HTTP/1.1\r\nhost: edge\r\n" + strings.Repeat("x: a\r\n", 200) +
		"\r\n", []int{431}},
	{"9110 15.5.15", "a target that is too long", "GET /p/" + longText(20000) + " HTTP/1.1" + tail, []int{400, 414, 431}},
	{"9112 6.1", "both framings",
		"POST /p/42 HTTP/1.1\r\nhost: edge\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", []int{400}},
	{"9112 6.1", "a coding that nobody knows", "POST /p/42 HTTP/1.1\r\nhost: edge\r\ntransfer-encoding: foo\r\n\r\n",
		[]int{400, 501}},
	{"9112 6.3", "chunked isn't the last coding",
		"POST /p/42 HTTP/1.1\r\nhost: edge\r\ntransfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n", []int{400, 501}},
	{"9112 6.3", "chunked twice",
		"POST /p/42 HTTP/1.1\r\nhost: edge\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
		[]int{400, 501}},
	{"9112 6.1", "chunked with a tab",
		"POST /p/42 HTTP/1.1\r\nhost: edge\r\ntransfer-encoding:\tchunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", []int{200, 400}},
	{"9112 6.1", "chunked with a sign before",
		"POST /p/42 HTTP/1.1\r\nhost: edge\r\ntransfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n", []int{400, 501}},
	{"9112 6.1", "chunked in HTTP/1.0", "POST /p/42 HTTP/1.0\r\nhost: edge\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
		[]int{200, 400}},
	{"9112 6.3", "two lengths", "POST /p/42 HTTP/1.1\r\nhost: edge\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
		[]int{400}},
	{"9112 6.3", "a list of lengths", "POST /p/42 HTTP/1.1\r\nhost: edge\r\ncontent-length: 3, 4\r\n\r\nabcd", []int{400}},
	{"9112 6.3", "a negative length", "POST /p/42 HTTP/1.1\r\nhost: edge\r\ncontent-length: -1\r\n\r\n", []int{400}},
	{"9112 6.3", "a length with a sign", "POST /p/42 HTTP/1.1\r\nhost: edge\r\ncontent-length: +3\r\n\r\nabc", []int{400}},
	{"9112 6.3", "a length in hex", "POST /p/42 HTTP/1.1\r\nhost: edge\r\ncontent-length: 0x3\r\n\r\nabc", []int{400}},
	{"9112 6.3", "a length beyond 64 bits",
		"POST /p/42 HTTP/1.1\r\nhost: edge\r\ncontent-length: 99999999999999999999\r\n\r\n", []int{400}},
	{"9112 7.1", "chunks", "POST /p/42 HTTP/1.1\r\nhost: edge\r\ntransfer-encoding: " +
		"chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", []int{200}},
	{"9112 7.1", "a chunk's size in upper case and with zeros",
		"POST /p/42 HTTP/1.1\r\nhost: edge\r\ntransfer-encoding: chunked\r\n\r\n000A\r\n0123456789\r\n0\r\n\r\n", []int{200}},
	{"9112 7.1", "a chunk's size that is no number",
		"POST /p/42 HTTP/1.1\r\nhost: edge\r\ntransfer-encoding: chunked\r\n\r\nx\r\nabc\r\n0\r\n\r\n", []int{400}},
	// Envoy omits the excess, and forwards the parsed part as a message of its own.
	{"9112 7.1", "a chunk longer than its size",
		"POST /p/42 HTTP/1.1\r\nhost: edge\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n", []int{200, 400}},
	{"9112 7.1", "a chunk's size beyond 64 bits",
		"POST /p/42 HTTP/1.1\r\nhost: edge\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc\r\n0\r\n\r\n",
		[]int{400}},
	{"9112 7.1.1", "a chunk with an extension",
		"POST /p/42 HTTP/1.1\r\nhost: edge\r\ntransfer-encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\n\r\n", []int{200, 400}},
	{"9112 7.1.2", "trailer fields",
		"POST /p/42 HTTP/1.1\r\nhost: edge\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-sum: 1\r\n\r\n",
		[]int{200}},
	{"9112 7.1.2", "an identity in trailer fields",
		"POST /p/42 HTTP/1.1\r\nhost: edge\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-gatehouse-device: " +
			"forged\r\n\r\n", []int{200}},
	{"9112 7.1.2", "a credential in trailer fields is none",
		"POST /w HTTP/1.1\r\nhost: edge\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx-device-id: " +
			"dev\r\nx-device-token: secret\r\n\r\n", []int{401}},
	{"9110 10.1.1", "an expectation that nobody knows",
		"GET /p/42 HTTP/1.1\r\nhost: edge\r\nexpect: coffee\r\n\r\n", []int{200, 417}},
	{"9112 9.3", "a request of TLS", "\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03", []int{400, 0}},
	{"9113 3.4", "a preface of HTTP/2 that is cut", "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", []int{400, 0}},
}

func (m message) run(t *testing.T, s *server) {
	t.Parallel() // some wait for Envoy's delayed close of a connection
	if instead, found := nginxStatuses[m.name]; found && onNginx() {
		m.statuses = instead.statuses
	}
	status, err := s.sendMessage(t, m)
	if err != nil || !slices.Contains(m.statuses, status) {
		t.Errorf("RFC %s: got %d %v, want one of %v", m.section, status, err, m.statuses)
	}
}

// sendMessage sends m followed by the sentinel on one connection, and expects one answer to m and, unless m's answer
// closes the connection, one to the sentinel.
func (s *server) sendMessage(t *testing.T, m message) (status int, err error) {
	c, err := dial(s.address)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	method, _, _ := strings.Cut(m.text, " ")
	if err := c.send(m.text + sentinel.encodeHTTP1("HTTP/1.1")); err != nil {
		return 0, err
	}
	r, err := c.read(method)
	if errors.Is(err, io.EOF) && r == nil {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	s.checkStrictly(t, "HTTP/1.1", request{method: method}, r)
	if r.get("connection") == "close" {
		return r.status, c.awaitEnd()
	}
	next, err := c.read("GET")
	if err != nil || string(next.content) != "sentinel" {
		return r.status, fmt.Errorf("the next answer: %v %w", next, err)
	}
	return r.status, c.awaitEnd()
}
