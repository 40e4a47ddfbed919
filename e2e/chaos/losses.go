package chaos

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"
)

// slowRate is how many bytes a second of an answer arrive while answers are slow: a catch-up with the bulky objects
// takes longer than the fault.
const slowRate = 256 << 10

// losses is for a link to Redis: it makes answers slow, or drops published messages without closing the connection, as
// a client or server does under load.
type losses struct {
	perMille atomic.Int64 // of the messages to drop
	lost     atomic.Int64
	slow     atomic.Bool // answers, not messages
}

// filterReplies copies replies and drops some of the messages.
func (l *losses) filterReplies(dst io.Writer, src io.Reader) error {
	in := bufio.NewReaderSize(src, 64<<10)
	out := bufio.NewWriterSize(dst, 64<<10)
	var value []byte
	for {
		var err error
		if value, err = readReply(in, value[:0]); err != nil {
			return err
		}
		message := isMessage(value)
		if message && rand.Int64N(1000) < l.perMille.Load() {
			l.lost.Add(1)
			value = value[:0]
		}
		for rest := value; len(rest) > 0; {
			n := len(rest)
			if !message && l.slow.Load() && n > slowRate/10 {
				n = slowRate / 10
				<-time.After(time.Second / 10)
			}
			if _, err := out.Write(rest[:n]); err != nil {
				return err
			}
			rest = rest[n:]
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

// readReply appends the next whole reply to dst, unchanged.
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
	case '$', '=', '!': // this many bytes, -1: null
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
	case '*', '~', '>': // this many values
		values, err = count()
	case '%': // this many pairs
		values, err = count()
		values *= 2
	case '|': // this many pairs, and the value that they describe
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
