package chaos

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
)

// relay is a way to Redis on which published messages get lost while everything else
// arrives: what happens to a subscriber whose client or server drops what is too much for
// it, without a connection that breaks.
type relay struct {
	upstream string
	listener net.Listener
	// perMille of the messages are lost.
	perMille atomic.Int64
	lost     atomic.Int64

	mu          sync.Mutex // protects connections
	connections map[net.Conn]bool
	running     sync.WaitGroup
}

// newRelay listens on a port of the loopback interface for connections to upstream.
func newRelay(upstream string) (*relay, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	r := &relay{upstream: upstream, listener: listener, connections: map[net.Conn]bool{}}
	r.running.Go(r.accept)
	return r, nil
}

func (r *relay) address() string { return r.listener.Addr().String() }

// close ends all connections and returns when nothing runs any more.
func (r *relay) close() {
	_ = r.listener.Close()
	r.mu.Lock()
	for conn := range r.connections {
		_ = conn.Close()
	}
	r.connections = nil
	r.mu.Unlock()
	r.running.Wait()
}

func (r *relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		r.running.Go(func() { r.serve(client) })
	}
}

// track reports whether conn may be used; close closes it.
func (r *relay) track(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.connections == nil {
		_ = conn.Close()
		return false
	}
	r.connections[conn] = true
	return true
}

func (r *relay) serve(client net.Conn) {
	server, err := net.Dial("tcp", r.upstream)
	if err != nil {
		_ = client.Close()
		return
	}
	if !r.track(client) || !r.track(server) {
		return
	}
	end := func() {
		_, _ = client.Close(), server.Close()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.connections, client)
		delete(r.connections, server)
	}
	r.running.Go(func() {
		defer end()
		_, _ = io.Copy(server, client)
	})
	defer end()
	_ = r.filter(client, server)
}

// filter copies replies and loses some of the messages among them.
func (r *relay) filter(dst io.Writer, src io.Reader) error {
	in := bufio.NewReaderSize(src, 64<<10)
	out := bufio.NewWriterSize(dst, 64<<10)
	var value []byte
	for {
		var err error
		if value, err = readReply(in, value[:0]); err != nil {
			return err
		}
		if isMessage(value) && rand.Int64N(1000) < r.perMille.Load() {
			r.lost.Add(1)
			continue
		}
		if _, err := out.Write(value); err != nil {
			return err
		}
		if in.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return err
			}
		}
	}
}

// isMessage reports whether a reply is a message of a subscription, in RESP2 or RESP3.
func isMessage(reply []byte) bool {
	for _, start := range []string{">3\r\n$7\r\nmessage\r\n", "*3\r\n$7\r\nmessage\r\n"} {
		if bytes.HasPrefix(reply, []byte(start)) {
			return true
		}
	}
	return false
}

// readReply appends the next whole reply, as it comes, to dst.
func readReply(r *bufio.Reader, dst []byte) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return dst, fmt.Errorf("read reply: %w", err)
	}
	dst = append(dst, line...)
	count := func() (int, error) {
		n, err := strconv.Atoi(string(bytes.TrimSpace(line[1:])))
		if err != nil {
			return 0, fmt.Errorf("read reply: %q: %w", line, err)
		}
		return n, nil
	}
	values := 0
	switch line[0] {
	case '$', '=', '!': // so many bytes, -1: null
		n, err := count()
		if err != nil || n < 0 {
			return dst, err
		}
		at := len(dst)
		dst = append(dst, make([]byte, n+2)...)
		if _, err := io.ReadFull(r, dst[at:]); err != nil {
			return dst, fmt.Errorf("read reply: %w", err)
		}
		return dst, nil
	case '*', '~', '>': // so many values
		values, err = count()
	case '%': // so many pairs
		values, err = count()
		values *= 2
	case '|': // so many pairs, and what they are said of
		values, err = count()
		values = 2*values + 1
	}
	for range values {
		if err != nil {
			break
		}
		dst, err = readReply(r, dst)
	}
	return dst, err
}
