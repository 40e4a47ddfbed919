package conformance

import (
	"errors"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gatehouse/gatehouse/testbed/http2conn"
)

// A message2 is a field section that an HTTP/2 client sends, and the statuses that its RFC section allows; 0 is an end
// of the stream or of the connection by an error.
type message2 struct {
	section, name string
	fields        []field
	statuses      []int
}

// ask returns the field section of a GET of /p/42 with additional fields.
func ask(more ...field) []field { return askFor("GET", "/p/42", more...) }

func askFor(method, path string, more ...field) []field {
	return append([]field{{":method", method}, {":scheme", "http"}, {":authority", "edge"}, {":path", path}}, more...)
}

// messages2 are about the syntax of HTTP/2 requests (RFC 9113, section 8).
var messages2 = []message2{
	{"9113 8.3.1", "a request", ask(), []int{200}},
	{"9113 8.3.1", "Host instead of :authority", []field{{":method", "GET"}, {":scheme", "http"},
		{":path", "/p/42"}, {"host", "edge"}}, []int{200}},
	{"9113 8.3.1", "no :method", []field{{":scheme", "http"}, {":authority", "edge"}, {":path", "/p/42"}}, []int{0, 400}},
	{"9113 8.3.1", "no :scheme", []field{{":method", "GET"}, {":authority", "edge"}, {":path", "/p/42"}}, []int{0, 400}},
	{"9113 8.3.1", "no :path", []field{{":method", "GET"}, {":scheme", "http"}, {":authority", "edge"}}, []int{0, 400}},
	{"9113 8.3.1", "an empty :path", askFor("GET", ""), []int{0, 400}},
	{"9113 8.3.1", "a :path without a slash", askFor("GET", "p/42"), []int{0, 400, 404}},
	{"9113 8.3.1", "a :path with a space", askFor("GET", "/p/4 2"), []int{0, 400}},
	{"9113 8.3.1", "a :path with a fragment", askFor("GET", "/p/42#top"), []int{0, 400}},
	{"9113 8.3.1", "OPTIONS of the server", askFor("OPTIONS", "*"), []int{0, 200, 400, 404}},
	{"9113 8.3", "two :path", ask(field{":path", "/w"}), []int{0, 400}},
	{"9113 8.3", "two :method", ask(field{":method", "POST"}), []int{0, 400}},
	{"9113 8.3", "a pseudo-header field after others", append([]field{{":method", "GET"}, {":scheme", "http"}, {"x", "y"}},
		field{":path", "/p/42"}, field{":authority", "edge"}), []int{0, 400}},
	{"9113 8.3", "a pseudo-header field that nobody knows", ask(field{":x", "y"}), []int{0, 400}},
	{"9113 8.3", "a pseudo-header field of answers", ask(field{":status", "200"}), []int{0, 400}},
	{"9113 8.2.1", "a name in upper case", ask(field{"If-None-Match", "*"}), []int{0, 400}},
	{"9113 8.2.1", "a name with a space", ask(field{"x y", "a"}), []int{0, 400}},
	{"9113 8.2.1", "an empty name", ask(field{"", "a"}), []int{0, 400}},
	{"9113 8.2.1", "a name with a colon", ask(field{"x:y", "a"}), []int{0, 400}},
	{"9113 8.2.1", "a name with an underscore", ask(field{"x_y", "a"}), []int{0, 400}},
	{"9113 8.2.1", "a value with a line end", ask(field{"x", "a\r\nb: c"}), []int{0, 400}},
	{"9113 8.2.1", "a value with a NUL", ask(field{"x", "a\x00b"}), []int{0, 400}},
	{"9113 8.2.2", "Connection", ask(field{"connection", "close"}), []int{0, 400}},
	{"9113 8.2.2", "Transfer-Encoding", ask(field{"transfer-encoding", "chunked"}), []int{0, 400}},
	{"9113 8.2.2", "Upgrade", ask(field{"upgrade", "h2c"}), []int{0, 200, 400}},
	{"9113 8.2.2", "Keep-Alive", ask(field{"keep-alive", "timeout=1"}), []int{0, 200, 400}},
	{"9113 8.2.2", "TE: trailers", ask(field{"te", "trailers"}), []int{200}},
	{"9113 8.2.2", "TE of anything else", ask(field{"te", "gzip"}), []int{0, 200, 400}},
	{"9113 8.2.3", "cookies in crumbs", ask(field{"cookie", "a=1"}, field{"cookie", "b=2"}), []int{200}},
	{"9113 8.1.1", "a length of a request without content", ask(field{"content-length", "5"}), []int{0, 400}},
	{"9113 8.1.1", "a length that is no number", ask(field{"content-length", "x"}), []int{0, 400}},
	{"9113 8.5", "CONNECT", []field{{":method", "CONNECT"}, {":authority", "edge:443"}},
		[]int{0, 400, 403, 404, 405, 501}},
	{"9110 9.1", "an auth rule's method in lower case", askFor("post", "/w"), []int{0, 400, 401, 403}},
	{"9110 9.1", "an auth rule's method, mixed", askFor("pOsT", "/w"), []int{0, 400, 401, 403}},
	{"9110 9.1", "GET in lower case is another method", askFor("get", "/a/doc"), []int{0, 400, 401, 403}},
	{"9110 5.4", "a field that is longer than allowed", ask(field{"x", strings.Repeat("\x7f~", 8000)}), []int{0, 431}},
	{"9110 5.4", "fields that are too many", ask(slices.Repeat([]field{{"x", "a"}}, 200)...), []int{0, 431}},
	{"9110 13.1.2", "a precondition", ask(field{"if-none-match", `"42"`}), []int{304}},
	{"9110 5.3", "a precondition on two lines", ask(field{"if-none-match", `"a"`}, field{"if-none-match", `"42"`}),
		[]int{304}},
}

func (m message2) run(t *testing.T, s *server) {
	t.Parallel() // Envoy needs a second to end a connection
	if instead, found := nginxStatuses[m.name]; found && onNginx() {
		m.statuses = instead.statuses
	}
	status, err := s.message2(t, m)
	if err != nil || !slices.Contains(m.statuses, status) {
		t.Errorf("RFC %s: got %d %v, want one of %v", m.section, status, err, m.statuses)
	}
}

func (s *server) message2(t *testing.T, m message2) (status int, err error) {
	c, err := dial2(s.address2)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	if err := c.headers(1, true, m.fields...); err != nil {
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
	s.strict(t, "HTTP/2", request{method: m.fields[0].value}, r)
	return r.status, nil
}

// streams sends many requests at once on one connection (RFC 9113, section 5): each stream gets its own answer.
func streams(t *testing.T, s *server) {
	c, err := dial2(s.address2)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	requests := []struct {
		fields []field
		status int
		text   string
	}{
		{askFor("GET", "/p/plain"), 200, "plain"},
		{askFor("GET", "/p/plain", field{"if-none-match", "*"}), 304, ""},
		{askFor("HEAD", "/p/plain"), 200, ""},
		{askFor("GET", "/p/none"), 200, "GET /p/none "},
		{askFor("GET", "/a/doc"), 401, "unauthorized\n"},
		{askFor("GET", "/d/me", field{"x-device-id", "dev"}, field{"x-device-token", "secret"}), 200, "own"},
	}
	const rounds = 15 // 90 streams; Envoy allows 100
	for i := range rounds * len(requests) {
		if err := c.headers(uint32(2*i+1), true, requests[i%len(requests)].fields...); err != nil {
			t.Fatal(err)
		}
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
