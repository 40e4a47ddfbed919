package publisher

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestStrangersConnectionEnds: without a team's token no connection stays open between requests.
func TestStrangersConnectionEnds(t *testing.T) {
	s := start(t)
	for _, line := range []string{"", "Authorization: Bearer none\r\n"} {
		conn, err := net.Dial("tcp", s.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(headerTimeout))
		fmt.Fprintf(conn, "GET /v1/objects/a HTTP/1.1\r\nHost: a\r\n%s\r\n", line)
		in := bufio.NewReader(conn)
		got, err := http.ReadResponse(in, nil)
		if err != nil || got.StatusCode != http.StatusUnauthorized {
			t.Fatalf("%q: %v, %v, want 401", line, got, err)
		}
		io.Copy(io.Discard, got.Body)
		if rest, err := io.ReadAll(in); len(rest) > 0 || err != nil {
			t.Errorf("%q: %q and %v behind the answer, want the end", line, rest, err)
		}
	}
}
