//go:build linux

package chart

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

const (
	requestsPerSecond = 200
	connections       = 40
	interval          = time.Second * connections / requestsPerSecond // for a request of a connection
	// answerTimeout is when a request without an answer counts as failed.
	answerTimeout = 5 * time.Second
)

// ask is a request and the expected status. A header Host is the request's host.
type ask struct {
	path   string
	header http.Header
	want   int
}

// traffic sends requests at a fixed rate until stopped, and counts failures.
type traffic struct {
	address string
	asks    []ask

	mu       sync.Mutex // protects the fields below
	sent     int
	failures []string
}

// sendDuring sends requests while f runs. None may fail.
func sendDuring(t *testing.T, address string, asks []ask, f func()) {
	t.Helper()
	tr := &traffic{address: address, asks: asks}
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	begin := time.Now()
	for i := range connections {
		group.Go(func() { tr.send(ctx, i) })
	}
	f()
	stop()
	group.Wait()
	t.Logf("%d requests in %.1f s, %d failed", tr.sent, time.Since(begin).Seconds(), len(tr.failures))
	for _, failure := range tr.failures[:min(len(tr.failures), 10)] {
		t.Error(failure)
	}
	// Each connection waits its interval before the first request.
	if want := int((time.Since(begin) - interval).Seconds() * requestsPerSecond / 2); tr.sent < want {
		t.Errorf("sent %d requests, want %d at least: the rate was not kept", tr.sent, want)
	}
}

// send sends the requests of one connection. send implements HTTP over its own connection because net/http repeats a
// request after the connection was closed, which is a failure here.
func (tr *traffic) send(ctx context.Context, worker int) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var conn *connection
	defer func() { conn.close() }()
	for n := worker; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		ask := tr.asks[n%len(tr.asks)]
		var err error
		conn, err = conn.do(tr.address, ask)
		tr.mu.Lock()
		tr.sent++
		if err != nil {
			tr.failures = append(tr.failures, fmt.Sprintf("%s %s: %v", time.Now().Format("15:04:05.000"), ask.path, err))
		}
		tr.mu.Unlock()
	}
}

// connection is a connection to the edge; nil: none yet.
type connection struct {
	net.Conn
	reader *bufio.Reader
}

func (c *connection) close() {
	if c != nil {
		_ = c.Conn.Close()
	}
}

// do sends a request once, and returns the connection for the next request, or nil if the next one needs a new
// connection.
func (c *connection) do(address string, ask ask) (*connection, error) {
	if c == nil {
		conn, err := net.DialTimeout("tcp", address, answerTimeout)
		if err != nil {
			return nil, err
		}
		c = &connection{conn, bufio.NewReader(conn)}
	}
	again, err := c.exchange(address, ask)
	if !again {
		c.close()
		c = nil
	}
	return c, err
}

// exchange reports whether the connection can be reused.
func (c *connection) exchange(address string, ask ask) (again bool, err error) {
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return false, err
	}
	request, err := http.NewRequest(http.MethodGet, "http://"+address+ask.path, nil)
	if err != nil {
		return false, err
	}
	if ask.header != nil {
		request.Header, request.Host = ask.header, ask.header.Get("Host")
	}
	if err := request.Write(c); err != nil {
		return false, err
	}
	answer, err := http.ReadResponse(c.reader, request)
	if err != nil {
		return false, err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != ask.want {
		err = fmt.Errorf("status %d, want %d: %.200s", answer.StatusCode, ask.want, body)
	}
	return err == nil && !answer.Close, err
}
