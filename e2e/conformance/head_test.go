package conformance

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

const secretBody = "the body of an answer to HEAD"

// bodyAfterHead answers HEAD with a body, as Django does behind waitress. If the edge may send another request on the
// connection, the body comes with that one's answer: at the worst moment.
func bodyAfterHead(w http.ResponseWriter, r *http.Request) {
	conn, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return
	}
	const head = "HTTP/1.1 200 OK\r\nx-upstream: yes\r\ncontent-length: 29\r\n"
	if r.Close {
		_, _ = io.WriteString(conn, head+"connection: close\r\n\r\n"+secretBody)
		return
	}
	_, _ = io.WriteString(conn, head+"\r\n")
	if _, err := http.ReadRequest(buffered.Reader); err == nil {
		_, _ = io.WriteString(conn, secretBody+"HTTP/1.1 200 OK\r\nx-upstream: yes\r\ncontent-length: 0\r\n\r\n")
	}
}

// headWithBody has an upstream answer HEAD with a body, which it must not (RFC 9110, section 9.3.2). No other request
// may get it: it can be what a device alone may read.
func headWithBody(t *testing.T, s *server) {
	c, err := dial(s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := c.send("HEAD /head-with-body HTTP/1.1\r\nhost: edge\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if r, err := c.read("HEAD"); err != nil || r.status != 200 {
		t.Fatalf("got %v %v", r, err)
	}
	if err := c.send("GET /u HTTP/1.1\r\nhost: edge\r\nconnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(c)
	if err != nil || strings.Contains(string(rest), secretBody) {
		t.Errorf("RFC 9110 9.3.2: the next request got the body of an answer to HEAD: %q %v", rest, err)
	}
}
