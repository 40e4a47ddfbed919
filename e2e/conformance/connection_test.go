package conformance

import (
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// A dialogue is a client's octets on one HTTP/1 connection before the client reads, and the statuses of the answers.
// Each answer is parsed by the method of its request. Bytes after the last answer show whether the connection stays
// open.
type dialogue struct {
	section, name string
	sends         []string
	statuses      []int
	stays         bool
}

const get42, post = "GET /p/42 HTTP/1.1\r\nhost: edge\r\n", "POST /w HTTP/1.1\r\nhost: edge\r\n"

// Requests whose content is a request, or the beginning of a request.
const (
	contentOfHit     = get42 + "content-length: 32\r\n\r\nGET /a/doc HTTP/1.1\r\nhost: e\r\n\r\n"
	chunksOfHit      = get42 + "transfer-encoding: chunked\r\n\r\n5\r\nGET /\r\n0\r\n\r\n"
	contentOfRefusal = post + "content-length: 32\r\n\r\nGET /p/42 HTTP/1.1\r\nhost: ed\r\n\r\n"
)

var good = "x-device-id: dev\r\nx-device-token: secret\r\n"

// dialogues are about connections (RFC 9112, section 9).
var dialogues = []dialogue{
	{"9112 9.3", "a connection stays", []string{get42 + "\r\n", get42 + "\r\n"}, []int{200, 200}, true},
	{"9112 9.3", "after a 304, too", []string{get42 + "if-none-match: *\r\n\r\n", get42 + "\r\n"}, []int{304, 200}, true},
	{"9112 9.3", "after HEAD, too", []string{"HEAD /p/42 HTTP/1.1\r\nhost: edge\r\n\r\n", get42 + "\r\n"},
		[]int{200, 200}, true},
	{"9112 9.3", "after a 401, too", []string{"GET /a/doc HTTP/1.1\r\nhost: edge\r\n\r\n", get42 + "\r\n"},
		[]int{401, 200}, true},
	{"9112 9.3", "after a miss, too", []string{"GET /p/none HTTP/1.1\r\nhost: edge\r\n\r\n", get42 + "\r\n"},
		[]int{200, 200}, true},
	{"9112 9.3", "of HTTP/1.0 it ends", []string{"GET /p/42 HTTP/1.0\r\nhost: edge\r\n\r\n"}, []int{200}, false},
	{"9112 9.3", "of HTTP/1.0 it stays where both want it",
		[]string{"GET /p/42 HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
			"GET /p/42 HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"}, []int{200, 200}, true},
	{"9112 3.2", "HTTP/1.0 needs no Host", []string{"GET /p/42 HTTP/1.0\r\n\r\n"}, []int{200}, false},
	{"9112 3.2", "nor with a precondition", []string{"GET /p/42 HTTP/1.0\r\nif-none-match: \"42\"\r\n\r\n"},
		[]int{304}, false},
	{"9112 9.6", "the client ends it", []string{get42 + "connection: close\r\n\r\n"}, []int{200}, false},
	{"9112 9.6", "the client ends it, in upper case", []string{get42 + "Connection: CLOSE\r\n\r\n"}, []int{200}, false},
	{"9112 9.6", "the client ends it with a 304", []string{get42 + "if-none-match: *\r\nconnection: close\r\n\r\n"},
		[]int{304}, false},
	{"9112 9.6", "the client ends it with HEAD",
		[]string{"HEAD /p/42 HTTP/1.1\r\nhost: edge\r\nconnection: close\r\n\r\n"}, []int{200}, false},
	{"9112 9.6", "the client ends it with a 401",
		[]string{"GET /a/doc HTTP/1.1\r\nhost: edge\r\nconnection: close\r\n\r\n"}, []int{401}, false},
	{"9112 9.3.2", "two at once", []string{get42 + "\r\n" + get42 + "if-none-match: *\r\n\r\n"}, []int{200, 304}, true},
	{"9112 9.3.2", "two at once, the first HEAD", []string{"HEAD /p/42 HTTP/1.1\r\nhost: edge\r\n\r\n" + get42 + "\r\n"},
		[]int{200, 200}, true},
	{"9112 9.3.2", "ten at once that the upstream answers",
		[]string{strings.Repeat("GET /u HTTP/1.1\r\nhost: edge\r\n\r\n", 10)},
		[]int{200, 200, 200, 200, 200, 200, 200, 200, 200, 200}, true},
	// The edge answers before the content is read, says that the connection ends, and reads no further request.
	{"9112 9.6", "content of a hit is not the next request", []string{contentOfHit}, []int{200}, false},
	{"9112 9.6", "chunks of a hit are not the next request", []string{chunksOfHit}, []int{200}, false},
	{"9112 9.6", "content of a refusal is not the next request", []string{contentOfRefusal}, []int{401}, false},
	{"9112 6.3", "content that was let in", []string{post + good + "content-length: 3\r\n\r\nabc", get42 + "\r\n"},
		[]int{200, 200}, true},
	{"9112 7.1", "chunks that were let in",
		[]string{post + good + "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", get42 + "\r\n"},
		[]int{200, 200}, true},
	{"9110 10.1.1", "100 Continue of an upstream's request",
		[]string{post + good + "content-length: 3\r\nexpect: 100-continue\r\n\r\n", "abc"}, []int{100, 200}, true},
	{"9110 10.1.1", "100 Continue, in upper case",
		[]string{post + good + "content-length: 3\r\nexpect: 100-CONTINUE\r\n\r\n", "abc"}, []int{100, 200}, true},
	{"9110 10.1.1", "a refusal after 100 Continue", []string{post + "content-length: 3\r\nexpect: 100-continue\r\n\r\n",
		""}, []int{100, 401}, false},
	{"9110 15.2", "100 Continue before a hit without content",
		[]string{get42 + "expect: 100-continue\r\n\r\n", "", get42 + "\r\n"}, []int{100, 200, 200}, true},
	{"9110 15.2", "100 Continue before a 304 without content",
		[]string{get42 + "if-none-match: *\r\nexpect: 100-continue\r\n\r\n", "", get42 + "\r\n"}, []int{100, 304, 200}, true},
	// The section says that a server must not. Envoy does for a client of HTTP/1.0 that asks for a feature of HTTP/1.1.
	{"9110 15.2", "100 Continue of HTTP/1.0",
		[]string{"POST /w HTTP/1.0\r\n" + good + "content-length: 3\r\nexpect: 100-continue\r\n\r\n", "abc"},
		[]int{100, 200}, false},
}

func (d dialogue) run(t *testing.T, s *server) {
	if instead, found := nginxDialogues[d.name]; found && onNginx() {
		d.sends, d.statuses, d.stays = instead.sends, instead.statuses, instead.stays
	}
	c, err := dial(s.address)
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	for i, want := range d.statuses {
		text := d.sends[min(i, len(d.sends)-1)]
		if i < len(d.sends) && text != "" {
			require.NoError(t, c.send(text))
		}
		method, _, _ := strings.Cut(text, " ")
		if len(d.sends) < len(d.statuses) && i > 0 {
			method = "GET" // among requests sent at once, only the first has another method
		}
		r, err := c.readOne(method)
		if err != nil || r.status != want {
			t.Fatalf("RFC %s: answer %d: got %v %v, want %d", d.section, i+1, r, err, want)
		}
		if last := i == len(d.statuses)-1; last && (r.get("connection") == "close" || r.framing == "close") == d.stays {
			t.Errorf("RFC %s: got connection: %q, want that it stays: %t", d.section, r.get("connection"), d.stays)
		}
	}
	if !d.stays {
		if err := c.awaitEnd(); err != nil {
			t.Errorf("RFC %s: %v", d.section, err)
		}
		return
	}
	require.NoError(t, c.send(sentinel.encodeHTTP1("HTTP/1.1")))
	if r, err := c.read("GET"); err != nil || string(r.content) != "sentinel" {
		t.Errorf("RFC %s: the next answer: got %v %v, want the sentinel", d.section, r, err)
	}
}

// pipelinedHits: Envoy closes a connection on which more than two of Envoy's own answers wait to be written, as after
// requests that arrive together (a protection from clients that don't read; statistic http1.response_flood). The client
// gets complete answers or none, and repeats the remaining requests (RFC 9112, section 9.3.2). docs/rules.md documents
// the limit.
func pipelinedHits(t *testing.T, s *server) {
	c, err := dial(s.address)
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	require.NoError(t, c.send(strings.Repeat(get42+"\r\n", 6)))
	whole := 0
	for ; whole < 6; whole++ {
		if r, err := c.read("GET"); err != nil || r.status != 200 {
			break
		}
	}
	if whole < 2 {
		t.Errorf("RFC 9112 9.3.2: got %d whole answers to 6 requests at once, want 2 at least", whole)
	}
	t.Logf("%d whole answers to 6 requests at once", whole)
}
