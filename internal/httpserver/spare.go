package httpserver

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

const (
	// spareFiles is how many connections are accepted at once without a free file descriptor.
	spareFiles = 4
	// spareEvery is the interval at which a listener without a free descriptor looks for connections.
	spareEvery = 20 * time.Millisecond
)

// spareListener accepts connections also when the process has no file descriptor left: the listener holds spare
// descriptors, and closes one for each connection.
type spareListener struct {
	net.Listener
	log  *slog.Logger
	seen rate.Sometimes // limits warnings

	mu     sync.Mutex // protects spares and closed
	spares []*os.File
	closed bool
}

// KeepAccepting returns a listener for requests that must be answered even when the process has no file descriptor
// left. Close of that listener also closes l.
func KeepAccepting(l net.Listener, log *slog.Logger) net.Listener {
	s := &spareListener{Listener: l, log: log, seen: rate.Sometimes{First: 1, Interval: warnEvery}}
	s.refillSpares()
	return s
}

// Accept waits for the next connection.
func (l *spareListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err == nil {
			return &sparingConn{Conn: conn, refillSpares: l.refillSpares}, nil
		}
		if !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE) {
			return nil, err
		}
		l.seen.Do(func() {
			l.log.Warn("no file descriptor is left: no connection can be made or accepted; raise the limit (LimitNOFILE=, "+
				"ulimit -n), and look for who has so many connections", "error", err)
		})
		l.refillSpares()
		// Any goroutine can take a free descriptor, so a spare is closed only when a connection waits.
		if l.hasWaiting() && l.closeSpare() {
			continue
		}
		time.Sleep(spareEvery)
	}
}

// hasWaiting reports whether a connection waits to be accepted, true if unknown.
func (l *spareListener) hasWaiting() (yes bool) {
	files, ok := l.Listener.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := files.SyscallConn()
	if err != nil {
		return true
	}
	yes = true
	raw.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		yes = n != 0 || err != nil
	})
	return yes
}

// closeSpare closes a spare descriptor; false: none is left.
func (l *spareListener) closeSpare() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.spares) - 1
	if last < 0 {
		return false
	}
	l.spares[last].Close()
	l.spares = l.spares[:last]
	return true
}

// refillSpares opens the missing spare descriptors, as far as possible.
func (l *spareListener) refillSpares() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closed && len(l.spares) < spareFiles {
		file, err := os.Open(os.DevNull)
		if err != nil {
			return
		}
		l.spares = append(l.spares, file)
	}
}

// Close closes the listener and the spare descriptors.
func (l *spareListener) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, file := range l.spares {
		file.Close()
	}
	l.spares = nil
	return err
}

// sparingConn is a connection that refills the spare descriptors when closed.
type sparingConn struct {
	net.Conn
	refillSpares func()
}

// Close closes the connection.
func (c *sparingConn) Close() error {
	err := c.Conn.Close()
	c.refillSpares()
	return err
}
