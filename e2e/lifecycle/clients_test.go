package lifecycle

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2"

	"github.com/gatehouse/gatehouse/testbed/http2conn"
)

// waiting bounds how long a client waits for answers: longer than the edge's stream_idle_timeout.
const waiting = 3 * time.Second

// runClient opens connections, one after the other, until ctx ends.
func (r *run) runClient(ctx context.Context, draw *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		if draw.IntN(3) == 0 {
			r.http1(ctx, draw)
		} else {
			r.http2Streams(ctx, draw)
		}
	}
}

func (r *run) drawRequest(draw *rand.Rand) *request {
	q := &request{method: "GET", id: fmt.Sprintf("%x", draw.Uint64())}
	switch draw.IntN(10) {
	case 0, 1:
		q.path = fmt.Sprintf("/fetched/%d", draw.IntN(2*objects)) // half of them don't exist
		return q
	case 2:
		q.path = fmt.Sprintf("/fetched/none-%s", q.id)
		return q
	case 3:
		q.method, q.path = "POST", "/session"
	case 4:
		q.path = fmt.Sprintf("/both/%d", draw.IntN(2*objects))
	default:
		q.path = "/who/" + q.id
	}
	i := draw.IntN(devices)
	q.device, q.secret, q.right = deviceName(i), secretOf(i), true
	if draw.IntN(3) > 0 {
		q.secret, q.right = fmt.Sprintf("wrong-%d", draw.IntN(1000)), false
	}
	return q
}

// dial connects from an address of its own, since the sidecar limits wrong secrets by address.
func (r *run) dial(address string, draw *rand.Rand) net.Conn {
	dialer := net.Dialer{Timeout: waiting,
		LocalAddr: &net.TCPAddr{IP: net.IPv4(127, byte(1+draw.IntN(250)), byte(draw.IntN(250)), byte(2+draw.IntN(250)))}}
	conn, err := dialer.Dial("tcp", address)
	if err != nil {
		return nil // the edge has ended, or is busy
	}
	return conn
}

// resetConn ends a connection by a RST.
func resetConn(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// countStream counts a stream, and judges the answer, if any.
func (r *run) countStream(q *request, status int, body string) {
	r.seen.streams.Add(1)
	r.seen.answer(status)
	if status != 0 {
		if err := q.judge(status, body); err != nil {
			r.t.Error(err)
		}
	}
}

// sent is a stream of HTTP/2.
type sent struct {
	*request
	id    uint32
	await bool
}

// http2Streams sends requests on one connection, and ends each stream in a random way.
func (r *run) http2Streams(ctx context.Context, draw *rand.Rand) {
	conn := r.dial(r.http2, draw)
	if conn == nil {
		pause(ctx, 10*time.Millisecond)
		return
	}
	defer func() { _ = conn.Close() }()
	var settings []http2.Setting
	closed := draw.IntN(8) == 0 // the window for answers, at first
	if closed {
		settings = []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}}
	}
	c, err := http2conn.NewConn(conn, waiting, settings...)
	if err != nil {
		return
	}
	var streams []sent
	for i := range uint32(1 + draw.IntN(40)) {
		s := sent{r.drawRequest(draw), 1 + 2*i, false}
		if err = r.http2Stream(c, &s, draw); err != nil {
			r.countStream(s.request, 0, "")
			break
		}
		streams = append(streams, s)
	}
	if closed && draw.IntN(2) == 0 {
		_ = c.Framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 16})
	}
	switch draw.IntN(8) {
	case 0:
		resetConn(conn)
	case 1:
		_ = conn.Close()
	case 2:
		_ = c.Framer.WriteGoAway(0, http2.ErrCodeNo, nil)
	case 3:
		_ = conn.(*net.TCPConn).CloseWrite()
	}
	for _, s := range streams {
		r.http2Answer(c, s)
	}
}

// http2Stream sends a request, and perhaps resets it.
func (r *run) http2Stream(c *http2conn.Conn, s *sent, draw *rand.Rand) error {
	end := draw.IntN(4)
	fields := append([][2]string{{":method", s.method}, {":scheme", "http"}, {":path", s.path},
		{":authority", "edge"}}, s.headers()...)
	err := c.SendHeaders(s.id, end > 0, fields...)
	if end == 0 && draw.IntN(3) > 0 { // a body
		err = errors.Join(err, c.Framer.WriteData(s.id, draw.IntN(2) == 0, make([]byte, draw.IntN(8192))))
	}
	switch draw.IntN(4) {
	case 0: // waits
		s.await = true
	case 1: // reset at once
		err = errors.Join(err, c.Framer.WriteRSTStream(s.id, http2.ErrCodeCancel))
	case 2: // when the answer may come
		time.Sleep(time.Duration(draw.IntN(6000)) * time.Microsecond)
		err = errors.Join(err, c.Framer.WriteRSTStream(s.id, http2.ErrCodeCancel))
	case 3:
		s.await = true
		time.Sleep(time.Duration(draw.IntN(1000)) * time.Microsecond)
	}
	if s.await && end == 0 && draw.IntN(20) > 0 { // few wait for the edge's timeout
		s.await = false
		err = errors.Join(err, c.Framer.WriteData(s.id, true, nil), c.Framer.WriteRSTStream(s.id, http2.ErrCodeNo))
	}
	return err
}

// http2Answer reads the answer to a stream that waits for one.
func (r *run) http2Answer(c *http2conn.Conn, s sent) {
	if !s.await {
		r.countStream(s.request, 0, "")
		return
	}
	var a *http2conn.Answer
	err := error(http2conn.Ended{Frame: "GOAWAY"})
	for ended := (http2conn.Ended{}); errors.As(err, &ended) && ended.Frame == "GOAWAY"; { // earlier streams go on
		a, err = c.ReadAnswer(s.id)
	}
	if err != nil {
		r.countStream(s.request, 0, "")
		return
	}
	r.countStream(s.request, a.Status, string(a.Content))
}

// http1 sends requests on one connection, sequentially or at once.
func (r *run) http1(ctx context.Context, draw *rand.Rand) {
	conn := r.dial(r.address(), draw)
	if conn == nil {
		pause(ctx, 10*time.Millisecond)
		return
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(waiting))
	in := bufio.NewReader(conn)
	var unanswered []*request
	for range 1 + draw.IntN(5) {
		q := r.drawRequest(draw)
		lines, more := "", ""
		switch draw.IntN(8) {
		case 0: // a body, a few of which are never whole
			size := 1000 - max(0, draw.IntN(1000)-950)
			lines, more = "Content-Length: 1000\r\n", strings.Repeat("x", size)
		case 1:
			lines, more = "Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n"
		case 2:
			lines = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " +
				"dGhlIHNhbXBsZSBub25jZQ==\r\n"
		case 3:
			lines, more = "Expect: 100-continue\r\nContent-Length: 3\r\n", "abc"
		}
		for _, h := range q.headers() {
			lines += h[0] + ": " + h[1] + "\r\n"
		}
		if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: edge\r\n%s\r\n%s", q.method, q.path,
			lines, more); err != nil {
			break
		}
		unanswered = append(unanswered, q)
		if draw.IntN(2) == 0 {
			continue // the next one is pipelined
		}
		if draw.IntN(4) == 0 {
			break
		}
		if unanswered = r.http1Answers(in, unanswered); len(unanswered) > 0 {
			break
		}
	}
	time.Sleep(time.Duration(draw.IntN(6000)) * time.Microsecond)
	switch draw.IntN(4) {
	case 0:
		resetConn(conn)
	case 1:
		_ = conn.Close()
	case 2:
		_ = conn.(*net.TCPConn).CloseWrite()
		fallthrough
	default:
		unanswered = r.http1Answers(in, unanswered)
	}
	for _, q := range unanswered {
		r.countStream(q, 0, "")
	}
}

// http1Answers reads the answers, and returns the unanswered requests.
func (r *run) http1Answers(in *bufio.Reader, to []*request) []*request {
	for i, q := range to {
		status := 100
		var body []byte
		for status == 100 {
			response, err := http.ReadResponse(in, &http.Request{Method: q.method})
			if err != nil {
				return to[i:]
			}
			status = response.StatusCode
			if body, err = io.ReadAll(response.Body); err != nil {
				return to[i:]
			}
		}
		r.countStream(q, status, string(body))
	}
	return nil
}

// runCanary behaves well: it must get the right answers, unless a fault excuses a refusal.
func (r *run) runCanary(ctx context.Context) {
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}, Timeout: patience}
	defer client.CloseIdleConnections()
	for n := 0; ctx.Err() == nil; n++ {
		q := &request{method: "GET", path: "/fetched/0", id: fmt.Sprint("canary-", n)}
		if n%2 == 1 {
			q.path, q.device, q.secret, q.right = "/who/canary-"+fmt.Sprint(n), "canary", "the right one", true
		}
		began := time.Now()
		status, body, err := q.send(client, r.EdgeURL())
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && status == 200:
			err = q.judge(status, body)
		case r.excuse.covers(began) && (err != nil || status >= 500 || status == 408):
			r.seen.excused.Add(1)
			err = nil
		case err == nil:
			err = fmt.Errorf("got %d %.100q", status, body)
		}
		if err != nil {
			r.t.Errorf("the canary's %s: %v, after %v", q.path, err, time.Since(began))
		}
		r.seen.canary.Add(1)
		pause(ctx, 5*time.Millisecond)
	}
}

// send sends the request by an ordinary client.
func (q *request) send(client *http.Client, url string) (status int, body string, err error) {
	request, err := http.NewRequest(q.method, url+q.path, nil)
	if err != nil {
		return 0, "", err
	}
	for _, h := range q.headers() {
		request.Header.Set(h[0], h[1])
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

func (r *run) address() string { return strings.TrimPrefix(r.EdgeURL(), "http://") }
