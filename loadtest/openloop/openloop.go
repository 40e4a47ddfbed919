//go:build linux

// Package openloop sends requests at a constant rate, independent of the latency of responses. Latency counts from the
// time at which a request was due. If late responses keep a request waiting for a connection, the wait is part of the
// latency, as for a device (no "coordinated omission").
//
// One thread serves all connections by epoll(7): the client shares the machine with the measured servers, and sees a
// response without waiting for a scheduler. Linux only.
package openloop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gatehouse/gatehouse/loadtest/stats"
)

// drainTime is how long the client waits for responses after the last request was due.
const drainTime = 2 * time.Second

// Load describes the requests.
type Load struct {
	Rate        float64 // requests a second
	Duration    time.Duration
	Connections int
	// From is the local address of each connection; nil leaves it to the system.
	From func(connection int) [4]byte
	// Nice is the niceness of the loop's thread, 0 or more.
	Nice int
	// OwnConnections sends request i on connection i modulo Connections, as devices do: a request is skipped while the
	// previous request of the connection is outstanding. Without OwnConnections, requests use any idle connection.
	OwnConnections bool
	// Answered, unless nil, is called with each response. The loop waits for the call to return.
	Answered func(a Answer)
}

// Answer is one response.
type Answer struct {
	Request int64
	Due     time.Time
	Took    time.Duration // from Due to the last byte of the response
	Status  int
}

// Requests appends request i to dst and returns the result, or returns a request from other memory. The client sends
// the request before the next call.
type Requests func(dst []byte, i int64) []byte

// RepeatRequests repeats requests in order.
func RepeatRequests(requests [][]byte) Requests {
	return func(_ []byte, i int64) []byte { return requests[i%int64(len(requests))] }
}

// Result is the result of a run.
type Result struct {
	// Asked counts the requests that were due, Answered the responses of any status.
	Asked, Answered int64
	Seconds         float64
	// Latency is the time from when a request was due to the last byte of the response; without a response, to when the
	// client gave up.
	Latency stats.Histogram
	// Statuses counts answers by status code.
	Statuses map[int]int64
	// Errors counts requests without a response by reason: closed, timeout, unsent.
	Errors map[string]int64
	// Late is the longest delay caused by the client: a request was due and a connection was free. The longest latency
	// may include Late.
	Late time.Duration
	// CPU is the CPU time of the client's thread, Busy the thread's share of a core.
	CPU  time.Duration
	Busy float64
}

// client is the state of a run, used by one thread only.
type client struct {
	address  unix.SockaddrInet4
	load     Load
	requests Requests
	interval float64 // between requests, ns
	buf      []byte  // the last request
	epoll    int
	conns    map[int32]*conn
	byNumber []*conn // by number
	idle     []*conn
	busy     int // busy connections
	begin    time.Time
	next     int64 // number of the next request
	total    int64
	result   Result
}

// Run sends requests to url until l.Duration has passed or ctx ends. If ctx ends, Run returns the result so far.
func Run(ctx context.Context, url string, requests Requests, l Load) (Result, error) {
	address, err := parseURL(url)
	if err != nil {
		return Result{}, err
	}
	if l.Rate <= 0 || l.Connections < 1 {
		return Result{}, fmt.Errorf("open loop of %v requests/s on %d connections: want at least one of each",
			l.Rate, l.Connections)
	}
	c := &client{
		address: address, load: l, requests: requests, interval: float64(time.Second) / l.Rate, conns: map[int32]*conn{},
		byNumber: make([]*conn, l.Connections),
		total:    int64(l.Rate * l.Duration.Seconds()),
		result:   Result{Statuses: map[int]int64{}, Errors: map[string]int64{}},
	}
	done := make(chan error, 1)
	go func() {
		// The thread's CPU is measured and the timers are precise, so no other goroutine may use the thread. The thread
		// ends with the run.
		runtime.LockOSThread()
		done <- c.run(ctx)
	}()
	err = <-done
	return c.result, err
}

// parseURL returns the address in http://IP:PORT.
func parseURL(url string) (unix.SockaddrInet4, error) {
	var address unix.SockaddrInet4
	host, port, err := net.SplitHostPort(strings.TrimPrefix(url, "http://"))
	if err != nil {
		return address, err
	}
	ip := net.ParseIP(host).To4()
	if ip == nil {
		return address, fmt.Errorf("open loop: host of %q: want an IPv4 address", url)
	}
	copy(address.Addr[:], ip)
	address.Port, err = strconv.Atoi(port)
	return address, err
}

func (c *client) run(ctx context.Context) (err error) {
	// The default slack would let timers be 50 µs late.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	if c.load.Nice > 0 { // of this thread, as on Linux
		if err := unix.Setpriority(unix.PRIO_PROCESS, 0, c.load.Nice); err != nil {
			return fmt.Errorf("niceness of %d: %w", c.load.Nice, err)
		}
	}
	if c.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	defer func() {
		for _, conn := range c.conns {
			_ = unix.Close(conn.fd)
		}
		err = errors.Join(err, unix.Close(c.epoll))
	}()
	for i := range c.load.Connections {
		if err := c.addConn(i); err != nil {
			return err
		}
	}
	before := threadCPU()
	c.begin = time.Now()
	err = c.sendAndReceive(ctx)
	c.result.Seconds = min(time.Since(c.begin), time.Duration(float64(c.total)*c.interval)).Seconds()
	c.result.CPU = threadCPU() - before
	c.result.Busy = c.result.CPU.Seconds() / time.Since(c.begin).Seconds()
	if err == nil {
		c.countUnanswered()
	}
	return err
}

// sendAndReceive sends the requests that are due and reads responses, until all are answered or the time is up.
func (c *client) sendAndReceive(ctx context.Context) error {
	end := time.Duration(float64(c.total)*c.interval) + drainTime
	events := make([]unix.EpollEvent, 256)
	free := true // a connection was free at the last check
	for ctx.Err() == nil {
		now := time.Since(c.begin)
		// Nothing is sent after the last request is due: requests still waiting for a connection count as unsent.
		over := now >= c.dueTime(c.total)
		for !over && c.next < c.total && c.hasFreeConn() && c.dueTime(c.next) <= now {
			if free {
				c.result.Late = max(c.result.Late, now-c.dueTime(c.next))
			}
			if err := c.sendNext(); err != nil {
				return err
			}
		}
		if now >= end || c.busy == 0 && (c.next == c.total || over) {
			return nil
		}
		free = c.hasFreeConn()
		timeout := end - now
		if !over {
			timeout = c.dueTime(c.total) - now
		}
		if !over && free && c.next < c.total {
			timeout = c.dueTime(c.next) - time.Since(c.begin)
		}
		n, err := waitEvents(c.epoll, events, timeout)
		if err != nil {
			return fmt.Errorf("epoll: %w", err)
		}
		for _, event := range events[:n] {
			if err := c.readResponse(c.conns[event.Fd]); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// hasFreeConn reports whether the next request can be sent without waiting for a connection.
func (c *client) hasFreeConn() bool { return c.load.OwnConnections || len(c.idle) > 0 }

// dueTime returns when request i is due, since the beginning.
func (c *client) dueTime(i int64) time.Duration { return time.Duration(float64(i) * c.interval) }

// countUnanswered counts the requests without a response.
func (c *client) countUnanswered() {
	now := time.Since(c.begin)
	for _, conn := range c.conns {
		if conn.busy {
			c.countError("timeout", conn.due, now)
		}
	}
	for ; c.next < c.total; c.next++ {
		c.countError("unsent", c.dueTime(c.next), now)
	}
	c.result.Asked = c.total
}

func (c *client) countError(reason string, due, now time.Duration) {
	c.result.Errors[reason]++
	c.result.Latency.Add(max(now-due, 0))
}
