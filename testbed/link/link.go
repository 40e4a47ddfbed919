// Package link is a TCP proxy for a server. The link can be cut, made to hang, and delayed.
package link

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Link forwards connections to a server, and is safe for concurrent use.
type Link struct {
	server  string
	address string

	delay   atomic.Int64 // ns
	jitter  atomic.Int64 // ns
	hanging atomic.Bool

	running sync.WaitGroup

	mu          sync.Mutex
	filter      func(dst io.Writer, src io.Reader) error // +checklocks:mu
	listener    net.Listener                             // +checklocks:mu
	connections map[net.Conn]bool                        // +checklocks:mu
}

// New returns a link to server, which needn't run yet. The link listens on address, and keeps address while cut.
func New(address, server string) (*Link, error) {
	l := &Link{server: server, address: address, connections: map[net.Conn]bool{}}
	if err := l.Heal(); err != nil {
		return nil, err
	}
	l.address = l.listener.Addr().String()
	return l, nil
}

// SetFilter sets the function that copies the server's data in later connections; nil: io.Copy.
func (l *Link) SetFilter(filter func(dst io.Writer, src io.Reader) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.filter = filter
}

// Address returns the listening address.
func (l *Link) Address() string { return l.address }

// Cut closes all connections and refuses new connections until Heal.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener != nil {
		_ = l.listener.Close()
		l.listener = nil
	}
	l.closeConnections()
}

// closeConnections closes both ends of all connections.
// +checklocks:l.mu
func (l *Link) closeConnections() {
	for c := range l.connections {
		_ = c.Close()
	}
	clear(l.connections)
}

// Heal ends Cut.
func (l *Link) Heal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener != nil {
		return nil
	}
	listener, err := net.Listen("tcp", l.address)
	if err != nil {
		return fmt.Errorf("link to %s: %w", l.server, err)
	}
	l.listener = listener
	l.running.Go(func() { l.acceptConnections(listener) })
	return nil
}

// Hang drops all data of existing and new connections until Clear. Clear closes the connections: a partition that ends
// with a reset.
func (l *Link) Hang() { l.hanging.Store(true) }

// Delay delays data in each direction by by, plus or minus jitter, until Clear. Data stay in order.
func (l *Link) Delay(by, jitter time.Duration) {
	l.jitter.Store(int64(jitter))
	l.delay.Store(int64(by))
}

// Clear ends Hang and Delay.
func (l *Link) Clear() {
	l.Delay(0, 0)
	if l.hanging.Swap(false) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.closeConnections()
	}
}

// Close cuts the link and returns when all goroutines have ended.
func (l *Link) Close() {
	l.Cut()
	l.running.Wait()
}

func (l *Link) acceptConnections(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return // cut
		}
		l.running.Go(func() { l.serveConnection(listener, client) })
	}
}

func (l *Link) serveConnection(listener net.Listener, client net.Conn) {
	server, err := net.Dial("tcp", l.server)
	if err != nil {
		_ = client.Close()
		return
	}
	end := func() {
		_, _ = client.Close(), server.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.connections, client)
		delete(l.connections, server)
	}
	l.mu.Lock()
	isCut, filter := l.listener != listener, l.filter
	if !isCut {
		l.connections[client], l.connections[server] = true, true
	}
	l.mu.Unlock()
	if isCut {
		end()
		return
	}
	if filter == nil {
		filter = copyAll
	}
	l.copyDelayed(server, client, copyAll, end)
	l.copyDelayed(client, server, filter, end)
}

func copyAll(dst io.Writer, src io.Reader) error {
	_, err := io.Copy(dst, src)
	return err
}

// chunk is data in transit.
type chunk struct {
	bytes []byte
	due   time.Time
}

// copyDelayed copies from src to dst in the background with the link's delay, and then calls end.
func (l *Link) copyDelayed(dst io.Writer, src io.Reader, filter func(io.Writer, io.Reader) error, end func()) {
	way := make(chan chunk, 1<<14)
	l.running.Go(func() {
		defer close(way)
		_ = filter(writer(func(b []byte) { l.queueChunk(way, b) }), src)
	})
	l.running.Go(func() {
		defer end()
		for c := range way {
			if wait := time.Until(c.due); wait > 0 {
				<-time.After(wait)
			}
			if _, err := dst.Write(c.bytes); err != nil {
				end() // ends src, and thereby the loop
			}
		}
	})
}

// queueChunk queues a copy of b, or drops b.
func (l *Link) queueChunk(way chan<- chunk, b []byte) {
	if l.hanging.Load() {
		return
	}
	c := chunk{bytes: append([]byte(nil), b...)}
	if by := l.delay.Load(); by > 0 {
		if jitter := l.jitter.Load(); jitter > 0 {
			by += rand.Int64N(2*jitter+1) - jitter
		}
		c.due = time.Now().Add(time.Duration(by))
	}
	way <- c
}

// writer is an io.Writer that calls a function.
type writer func(b []byte)

func (w writer) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}
