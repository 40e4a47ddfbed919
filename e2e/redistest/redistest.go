// Package redistest starts a real redis-server for a test.
package redistest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
)

// attempts bounds how often a port that was free a moment ago may be taken by another.
const attempts = 5

// Start runs an empty redis-server, without persistence, on a free loopback port until
// the test ends, and gives its URL. It fails the test if there is no redis-server.
func Start(t testing.TB) (url string) {
	t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("redis-server: %v; install it (apt-get install redis-server)", err)
	}
	for range attempts {
		address := freeAddress(t)
		output, ok := start(t, binary, address)
		if ok {
			return "redis://" + address
		}
		if !strings.Contains(output, "Address already in use") {
			t.Fatalf("redis-server on %s ended before it was ready:\n%s", address, output)
		}
	}
	t.Fatalf("redis-server: found no free port in %d attempts", attempts)
	return ""
}

// freeAddress is a loopback address that nothing listens on just now.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start waits until the server says that it is ready, or gives what it said instead.
func start(t testing.TB, binary, address string) (output string, ok bool) {
	t.Helper()
	host, port, _ := net.SplitHostPort(address)
	cmd := exec.Command(binary, "--bind", host, "--port", port, "--dir", t.TempDir(), "--save", "", "--appendonly", "no")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", binary, err)
	}
	var said strings.Builder
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		fmt.Fprintln(&said, lines.Text())
		if strings.Contains(lines.Text(), "Ready to accept connections") {
			drained := make(chan struct{})
			go func() { // a full pipe would stop the server
				defer close(drained)
				io.Copy(io.Discard, stdout)
			}()
			t.Cleanup(func() {
				cmd.Process.Kill()
				<-drained // Wait closes the pipe, so the reader has to be done first
				cmd.Wait()
			})
			return "", true
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	return said.String(), false
}
