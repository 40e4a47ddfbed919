//go:build linux

// Package openloop sends requests at a constant rate, whatever becomes of them. A
// request's latency counts from the moment at which it was due, so that answers which are
// late, and keep the next requests waiting for a connection, count with all the time that
// a device would have waited (no "coordinated omission").
//
// One thread serves all connections by epoll(7): the client shares the machine with what
// it measures, and sees an answer without waiting for a scheduler. It is for Linux.
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

// drain is how long answers are awaited after the last request was due.
const drain = 2 * time.Second

// Load is how to ask.
type Load struct {
	Rate        float64 // requests a second
	Duration    time.Duration
	Connections int
}

// Result is what came of it.
type Result struct {
	// Asked is how many requests were due, Answered how many got an answer, of any status.
	Asked, Answered int64
	Seconds         float64
	// Latency is from when a request was due to the last byte of its answer; of those that
	// got none, to when they were given up.
	Latency stats.Histogram
	// Statuses counts answers by status code.
	Statuses map[int]int64
	// Errors counts requests without an answer by reason: closed, timeout, unsent.
	Errors map[string]int64
	Bytes  int64
	// Late is how late the client itself was at most, with a request that was due and a
	// connection free: that much of the longest latency may be its own.
	Late time.Duration
	// CPU is what the client's thread used, Busy the share of a core that this is.
	CPU  time.Duration
	Busy float64
}

// client is the state of a run; it belongs to one thread.
type client struct {
	address  unix.SockaddrInet4
	requests [][]byte
	interval float64 // between requests, ns
	epoll    int
	conns    map[int32]*conn
	idle     []*conn
	begin    time.Time
	next     int64 // number of the next request
	total    int64
	result   Result
}

// Run sends requests, in turn, to url until l.Duration has passed or ctx ends.
func Run(ctx context.Context, url string, requests [][]byte, l Load) (Result, error) {
	address, err := parse(url)
	if err != nil {
		return Result{}, err
	}
	if l.Rate <= 0 || l.Connections < 1 || len(requests) == 0 {
		return Result{}, fmt.Errorf("open loop of %v requests/s of %d kinds on %d connections: want at least one of each", l.Rate, len(requests), l.Connections)
	}
	c := &client{
		address: address, requests: requests, interval: float64(time.Second) / l.Rate, conns: map[int32]*conn{},
		total:  int64(l.Rate * l.Duration.Seconds()),
		result: Result{Statuses: map[int]int64{}, Errors: map[string]int64{}},
	}
	done := make(chan error, 1)
	go func() {
		// The thread's CPU is what is measured, and its timers are precise: it ends with the run.
		runtime.LockOSThread()
		done <- c.run(ctx, l.Connections)
	}()
	err = <-done
	return c.result, err
}

// parse is the address in http://IP:PORT.
func parse(url string) (unix.SockaddrInet4, error) {
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

func (c *client) run(ctx context.Context, connections int) (err error) {
	// Without this the kernel lets timers be 50 µs late.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("timer slack: %w", err)
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
	for range connections {
		if err := c.connect(); err != nil {
			return err
		}
	}
	before := threadCPU()
	c.begin = time.Now()
	if err := c.loop(ctx); err != nil {
		return err
	}
	c.result.Seconds = min(time.Since(c.begin), time.Duration(float64(c.total)*c.interval)).Seconds()
	c.result.CPU = threadCPU() - before
	c.result.Busy = c.result.CPU.Seconds() / time.Since(c.begin).Seconds()
	c.giveUp()
	return nil
}

// loop sends what is due and takes what comes, until everything is answered or the time
// is up.
func (c *client) loop(ctx context.Context) error {
	end := time.Duration(float64(c.total)*c.interval) + drain
	events := make([]unix.EpollEvent, 256)
	free := true // a connection was, when this last looked
	for ctx.Err() == nil {
		now := time.Since(c.begin)
		// When the last request is due nothing more is sent: what still waits for a connection then is unsent.
		over := now >= c.due(c.total)
		for !over && c.next < c.total && len(c.idle) > 0 && c.due(c.next) <= now {
			if free {
				c.result.Late = max(c.result.Late, now-c.due(c.next))
			}
			if err := c.send(); err != nil {
				return err
			}
		}
		if busy := len(c.conns) - len(c.idle); now >= end || busy == 0 && (c.next == c.total || over) {
			return nil
		}
		free = len(c.idle) > 0
		timeout := end - now
		if !over {
			timeout = c.due(c.total) - now
		}
		if !over && len(c.idle) > 0 && c.next < c.total {
			timeout = c.due(c.next) - time.Since(c.begin)
		}
		n, err := wait(c.epoll, events, timeout)
		if err != nil {
			return fmt.Errorf("epoll: %w", err)
		}
		for _, event := range events[:n] {
			if err := c.receive(c.conns[event.Fd]); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// due is when request i is due, from the beginning.
func (c *client) due(i int64) time.Duration { return time.Duration(float64(i) * c.interval) }

// giveUp counts the requests that have no answer.
func (c *client) giveUp() {
	now := time.Since(c.begin)
	for _, conn := range c.conns {
		if conn.busy {
			c.fail("timeout", conn.due, now)
		}
	}
	for ; c.next < c.total; c.next++ {
		c.fail("unsent", c.due(c.next), now)
	}
	c.result.Asked = c.total
}

func (c *client) fail(reason string, due, now time.Duration) {
	c.result.Errors[reason]++
	c.result.Latency.Add(max(now-due, 0))
}
