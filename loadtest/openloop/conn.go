//go:build linux

package openloop

import (
	"bytes"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// conn is a connection with at most one outstanding request.
type conn struct {
	fd     int
	number int // index in Load.From
	busy   bool
	due    time.Duration // of the outstanding request
	sent   int64         // the request's number
	buf    []byte        // the received part of the response's head
	status int           // of the response, 0 until the head is complete
	left   int           // bytes of the body still to come
}

// addConn adds an idle connection.
func (c *client) addConn(number int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if c.load.From != nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: c.load.From(number)})
	}
	if err == nil {
		err = connectSocket(fd, &c.address)
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err == nil {
		err = unix.EpollCtl(c.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	}
	if err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("connect to %v:%d: %w", c.address.Addr, c.address.Port, err)
	}
	conn := &conn{fd: fd, number: number, buf: make([]byte, 0, 64<<10)}
	c.conns[int32(fd)] = conn
	if c.byNumber[number] = conn; !c.load.OwnConnections {
		c.idle = append(c.idle, conn)
	}
	return nil
}

// connectSocket calls connect(2), and repeats the call if a signal interrupts it.
func connectSocket(fd int, address *unix.SockaddrInet4) error {
	for {
		if err := unix.Connect(fd, address); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// sendNext sends the next request on an idle connection. With Load.OwnConnections, sendNext skips a request whose
// connection is busy.
func (c *client) sendNext() error {
	i := c.next
	c.next++
	conn := c.byNumber[i%int64(len(c.byNumber))]
	if !c.load.OwnConnections {
		last := len(c.idle) - 1
		conn = c.idle[last]
		c.idle = c.idle[:last]
	} else if conn.busy {
		return nil
	}
	conn.busy, conn.due, conn.sent = true, c.dueTime(i), i
	c.busy++
	request := c.requests(c.buf[:0], i)
	c.buf = request
	for {
		n, err := unix.Write(conn.fd, request)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n < len(request) { // the send buffer of an idle connection has room for any request
			return c.replaceLost(conn)
		}
		return nil
	}
}

// readResponse reads from a connection, and finishes a complete response.
func (c *client) readResponse(conn *conn) error {
	if conn == nil {
		return nil // lost while earlier events were handled
	}
	for {
		n, err := unix.Read(conn.fd, conn.buf[len(conn.buf):cap(conn.buf)])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil || n == 0 || !conn.busy:
			return c.replaceLost(conn)
		}
		conn.buf = conn.buf[:len(conn.buf)+n]
		done, err := conn.parseResponse()
		if err != nil {
			return err
		}
		if done {
			c.finishResponse(conn)
			return nil
		}
	}
}

// finishResponse counts a response and makes the connection idle.
func (c *client) finishResponse(conn *conn) {
	took := time.Since(c.begin) - conn.due
	c.result.Latency.Add(took)
	c.result.Statuses[conn.status]++
	c.result.Answered++
	if c.load.Answered != nil {
		c.load.Answered(Answer{conn.sent, c.begin.Add(conn.due), took, conn.status})
	}
	conn.busy, conn.status, conn.buf = false, 0, conn.buf[:0]
	c.busy--
	if !c.load.OwnConnections {
		c.idle = append(c.idle, conn)
	}
}

// replaceLost counts the request of a lost connection as failed, and reconnects.
func (c *client) replaceLost(lost *conn) error {
	if lost.busy {
		c.busy--
		c.countError("closed", lost.due, time.Since(c.begin))
	} else {
		for i, conn := range c.idle {
			if conn == lost {
				c.idle = append(c.idle[:i], c.idle[i+1:]...)
				break
			}
		}
	}
	delete(c.conns, int32(lost.fd))
	if err := unix.Close(lost.fd); err != nil {
		return err
	}
	return c.addConn(lost.number)
}

var (
	headEnd = []byte("\r\n\r\n")
	length  = []byte("\r\ncontent-length:")
)

// parseResponse parses the received part of a response, and reports whether the response is complete. Only responses of
// this program's servers are supported: HTTP/1.1, with a content-length unless the response has no body.
func (conn *conn) parseResponse() (done bool, err error) {
	if conn.status == 0 {
		head, body, found := bytes.Cut(conn.buf, headEnd)
		if !found {
			if len(conn.buf) == cap(conn.buf) {
				return false, fmt.Errorf("open loop: a head of more than %d bytes", cap(conn.buf))
			}
			return false, nil
		}
		if conn.status, conn.left, err = parseHead(head); err != nil {
			return false, err
		}
		conn.left -= len(body)
	} else {
		conn.left -= len(conn.buf)
	}
	conn.buf = conn.buf[:0]
	if conn.left < 0 {
		return false, fmt.Errorf("open loop: %d bytes after an answer of status %d", -conn.left, conn.status)
	}
	return conn.left == 0, nil
}

// parseHead returns the status of a response and the length of its body.
func parseHead(head []byte) (status, left int, err error) {
	if len(head) < len("HTTP/1.1 200") || !bytes.HasPrefix(head, []byte("HTTP/1.")) {
		return 0, 0, fmt.Errorf("open loop: an answer that begins with %.40q", head)
	}
	status = leadingNumber(head[len("HTTP/1.1 "):])
	if status < 200 {
		return 0, 0, fmt.Errorf("open loop: an answer of status %d", status)
	}
	if status == 204 || status == 304 {
		return status, 0, nil
	}
	for rest := head; ; {
		i := bytes.IndexByte(rest, '\n')
		if i < 1 {
			return 0, 0, fmt.Errorf("open loop: an answer of status %d without content-length", status)
		}
		if line := rest[i-1:]; len(line) > len(length) && bytes.EqualFold(line[:len(length)], length) {
			return status, leadingNumber(bytes.TrimLeft(line[len(length):], " ")), nil
		}
		rest = rest[i+1:]
	}
}

// leadingNumber returns the number at the beginning of b.
func leadingNumber(b []byte) int {
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + int(c-'0')
	}
	return n
}

// waitEvents calls epoll_pwait2(2), for a timeout as precise as the timer: epoll_wait counts milliseconds.
func waitEvents(epoll int, events []unix.EpollEvent, timeout time.Duration) (int, error) {
	ts := unix.NsecToTimespec(max(timeout, 0).Nanoseconds())
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(epoll), uintptr(unsafe.Pointer(&events[0])),
		uintptr(len(events)), uintptr(unsafe.Pointer(&ts)), 0, 0)
	if errno == unix.EINTR {
		return 0, nil
	}
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// threadCPU returns the CPU time of the calling thread.
func threadCPU() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
