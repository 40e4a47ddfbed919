package conformance

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

const secretBody = "the body of an answer to HEAD"

// bodyAfterHead answers HEAD with a body, as Django does behind waitress. If the edge may send another request on the
// connection, the body comes with the next answer: at the worst moment.
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

// headWithBody has an upstream answer HEAD with a body, against RFC 9110, section 9.3.2. The body may be for one device
// alone, so no second request may get the body.
func headWithBody(t *testing.T, s *server) {
	c, err := dial(s.address)
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	require.NoError(t, c.send("HEAD /head-with-body HTTP/1.1\r\nhost: edge\r\n\r\n"))
	if r, err := c.read("HEAD"); err != nil || r.status != 200 {
		t.Fatalf("got %v %v", r, err)
	}
	require.NoError(t, c.send("GET /u HTTP/1.1\r\nhost: edge\r\nconnection: close\r\n\r\n"))
	rest, err := io.ReadAll(c)
	if err != nil || strings.Contains(string(rest), secretBody) {
		t.Errorf("RFC 9110 9.3.2: the next request got the body of an answer to HEAD: %q %v", rest, err)
	}
}
