package conformance

import (
	"errors"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/http2conn"
)

// A message2 is a field section that an HTTP/2 client sends, and the statuses that the RFC's section allows; 0 is an
// end of the stream or of the connection by an error.
type message2 struct {
	section, name string
	fields        []field
	statuses      []int
}

// getSection returns the field section of a GET of /p/42 with additional fields.
func getSection(more ...field) []field { return requestSection("GET", "/p/42", more...) }

func requestSection(method, path string, more ...field) []field {
	return append([]field{{":method", method}, {":scheme", "http"}, {":authority", "edge"}, {":path", path}}, more...)
}

// messages2 are about the syntax of HTTP/2 requests (RFC 9113, section 8).
var messages2 = []message2{
	{"9113 8.3.1", "a request", getSection(), []int{200}},
	{"9113 8.3.1", "Host instead of :authority", []field{{":method", "GET"}, {":scheme", "http"},
		{":path", "/p/42"}, {"host", "edge"}}, []int{200}},
	{"9113 8.3.1", "no :method", []field{{":scheme", "http"}, {":authority", "edge"}, {":path", "/p/42"}}, []int{0, 400}},
	{"9113 8.3.1", "no :scheme", []field{{":method", "GET"}, {":authority", "edge"}, {":path", "/p/42"}}, []int{0, 400}},
	{"9113 8.3.1", "no :path", []field{{":method", "GET"}, {":scheme", "http"}, {":authority", "edge"}}, []int{0, 400}},
	{"9113 8.3.1", "an empty :path", requestSection("GET", ""), []int{0, 400}},
	{"9113 8.3.1", "a :path without a slash", requestSection("GET", "p/42"), []int{0, 400, 404}},
	{"9113 8.3.1", "a :path with a space", requestSection("GET", "/p/4 2"), []int{0, 400}},
	{"9113 8.3.1", "a :path with a fragment", requestSection("GET", "/p/42#top"), []int{0, 400}},
	{"9113 8.3.1", "OPTIONS of the server", requestSection("OPTIONS", "*"), []int{0, 200, 400, 404}},
	{"9113 8.3", "two :path", getSection(field{":path", "/w"}), []int{0, 400}},
	{"9113 8.3", "two :method", getSection(field{":method", "POST"}), []int{0, 400}},
	{"9113 8.3", "a pseudo-header field after others", append([]field{{":method", "GET"}, {":scheme", "http"}, {"x", "y"}},
		field{":path", "/p/42"}, field{":authority", "edge"}), []int{0, 400}},
	{"9113 8.3", "a pseudo-header field that nobody knows", getSection(field{":x", "y"}), []int{0, 400}},
	{"9113 8.3", "a pseudo-header field of answers", getSection(field{":status", "200"}), []int{0, 400}},
	{"9113 8.2.1", "a name in upper case", getSection(field{"If-None-Match", "*"}), []int{0, 400}},
	{"9113 8.2.1", "a name with a space", getSection(field{"x y", "a"}), []int{0, 400}},
	{"9113 8.2.1", "an empty name", getSection(field{"", "a"}), []int{0, 400}},
	{"9113 8.2.1", "a name with a colon", getSection(field{"x:y", "a"}), []int{0, 400}},
	{"9113 8.2.1", "a name with an underscore", getSection(field{"x_y", "a"}), []int{0, 400}},
	{"9113 8.2.1", "a value with a line end", getSection(field{"x", "a\r\nb: c"}), []int{0, 400}},
	{"9113 8.2.1", "a value with a NUL", getSection(field{"x", "a\x00b"}), []int{0, 400}},
	{"9113 8.2.2", "Connection", getSection(field{"connection", "close"}), []int{0, 400}},
	{"9113 8.2.2", "Transfer-Encoding", getSection(field{"transfer-encoding", "chunked"}), []int{0, 400}},
	{"9113 8.2.2", "Upgrade", getSection(field{"upgrade", "h2c"}), []int{0, 200, 400}},
	{"9113 8.2.2", "Keep-Alive", getSection(field{"keep-alive", "timeout=1"}), []int{0, 200, 400}},
	{"9113 8.2.2", "TE: trailers", getSection(field{"te", "trailers"}), []int{200}},
	{"9113 8.2.2", "TE of anything else", getSection(field{"te", "gzip"}), []int{0, 200, 400}},
	{"9113 8.2.3", "cookies in crumbs", getSection(field{"cookie", "a=1"}, field{"cookie", "b=2"}), []int{200}},
	{"9113 8.1.1", "a length of a request without content", getSection(field{"content-length", "5"}), []int{0, 400}},
	{"9113 8.1.1", "a length that is no number", getSection(field{"content-length", "x"}), []int{0, 400}},
	{"9113 8.5", "CONNECT", []field{{":method", "CONNECT"}, {":authority", "edge:443"}},
		[]int{0, 400, 403, 404, 405, 501}},
	{"9110 9.1", "an auth rule's method in lower case", requestSection("post", "/w"), []int{0, 400, 401, 403}},
	{"9110 9.1", "an auth rule's method, mixed", requestSection("pOsT", "/w"), []int{0, 400, 401, 403}},
	{"9110 9.1", "GET in lower case is another method", requestSection("get", "/a/doc"), []int{0, 400, 401, 403}},
	{"9110 5.4", "a field that is longer than allowed",
		getSection(field{"x", strings.Repeat("\x7f~", 8000)}), []int{0, 431}},
	{"9110 5.4", "fields that are too many", getSection(slices.Repeat([]field{{"x", "a"}}, 200)...), []int{0, 431}},
	{"9110 13.1.2", "a precondition", getSection(field{"if-none-match", `"42"`}), []int{304}},
	{"9110 5.3", "a precondition on two lines", getSection(field{"if-none-match", `"a"`}, field{"if-none-match", `"42"`}),
		[]int{304}},
}

func (m message2) run(t *testing.T, s *server) {
	t.Parallel() // Envoy needs a second to end a connection
	if instead, found := nginxStatuses[m.name]; found && onNginx() {
		m.statuses = instead.statuses
	}
	status, err := s.sendMessage2(t, m)
	if err != nil || !slices.Contains(m.statuses, status) {
		t.Errorf("RFC %s: got %d %v, want one of %v", m.section, status, err, m.statuses)
	}
}

func (s *server) sendMessage2(t *testing.T, m message2) (status int, err error) {
	c, err := dialHTTP2(s.address2)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	if err := c.sendHeaders(1, true, m.fields...); err != nil {
		return 0, err
	}
	r, err := c.read(1)
	var end http2conn.Ended
	if errors.As(err, &end) || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	s.checkStrictly(t, "HTTP/2", request{method: m.fields[0].value}, r)
	return r.status, nil
}

// checkStreams sends many requests at once on one connection (RFC 9113, section 5): each stream gets its own answer.
func checkStreams(t *testing.T, s *server) {
	c, err := dialHTTP2(s.address2)
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	requests := []struct {
		fields []field
		status int
		text   string
	}{
		{requestSection("GET", "/p/plain"), 200, "plain"},
		{requestSection("GET", "/p/plain", field{"if-none-match", "*"}), 304, ""},
		{requestSection("HEAD", "/p/plain"), 200, ""},
		{requestSection("GET", "/p/none"), 200, "GET /p/none "},
		{requestSection("GET", "/a/doc"), 401, "unauthorized\n"},
		{requestSection("GET", "/d/me", field{"x-device-id", "dev"}, field{"x-device-token", "secret"}), 200, "own"},
	}
	const rounds = 15 // 90 streams; Envoy allows 100
	for i := range rounds * len(requests) {
		require.NoError(t, c.sendHeaders(uint32(2*i+1), true, requests[i%len(requests)].fields...))
	}
	for i := range rounds * len(requests) {
		want := requests[i%len(requests)]
		r, err := c.read(uint32(2*i + 1))
		if err != nil {
			t.Fatalf("RFC 9113 5.1: stream %d: %v", 2*i+1, err)
		}
		if r.status != want.status || string(r.content) != want.text {
			t.Errorf("RFC 9113 5.1: stream %d: got %d %q, want %d %q", 2*i+1, r.status, r.content, want.status, want.text)
		}
	}
}
