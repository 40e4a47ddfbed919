package chaos

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestReadReply(t *testing.T) {
	for _, tt := range []struct {
		name, reply string
		message     bool
	}{
		{"simple", "+OK\r\n", false},
		{"error", "-ERR no\r\n", false},
		{"integer", ":1\r\n", false},
		{"bulk", "$5\r\na\r\nbc\r\n", false},
		{"empty bulk", "$0\r\n\r\n", false},
		{"null bulk", "$-1\r\n", false},
		{"null array", "*-1\r\n", false},
		{"nested array", "*2\r\n*1\r\n:1\r\n$1\r\nx\r\n", false},
		{"map", "%1\r\n+a\r\n*1\r\n:2\r\n", false},
		{"attribute", "|1\r\n+a\r\n:1\r\n+OK\r\n", false},
		{"subscription", ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", false},
		{"message", ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$3\r\n\r\n\n\r\n", true},
		{"message, RESP2", "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := bufio.NewReader(strings.NewReader(tt.reply + "+next\r\n"))
			got, err := readReply(in, nil)
			if err != nil || string(got) != tt.reply {
				t.Fatalf("got %q, %v; want %q", got, err, tt.reply)
			}
			if isMessage(got) != tt.message {
				t.Errorf("is a message: got %v, want %v", !tt.message, tt.message)
			}
			if next, err := readReply(in, nil); err != nil || string(next) != "+next\r\n" {
				t.Errorf("the next one: got %q, %v", next, err)
			}
			if _, err := readReply(bufio.NewReader(strings.NewReader(tt.reply[:len(tt.reply)-1])), nil); err == nil {
				t.Error("a truncated reply was taken for one")
			}
		})
	}
}

func TestFilterLosesMessagesOnly(t *testing.T) {
	const message = ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n"
	for _, tt := range []struct {
		rate          int64
		replies, want string
	}{
		{0, "+OK\r\n" + message + ":1\r\n", "+OK\r\n" + message + ":1\r\n"},
		{1000, "+OK\r\n" + message + ":1\r\n", "+OK\r\n:1\r\n"},
		{1000, "+OK\r\n" + message, "+OK\r\n"}, // which must not wait for the next reply
	} {
		var l losses
		l.perMille.Store(tt.rate)
		var out bytes.Buffer
		if err := l.filterReplies(&out, strings.NewReader(tt.replies)); err == nil ||
			!strings.Contains(err.Error(), io.EOF.Error()) {
			t.Errorf("got %v, want the end", err)
		}
		if out.String() != tt.want {
			t.Errorf("%d of thousand of %q: got %q, want %q", tt.rate, tt.replies, out.String(), tt.want)
		}
	}
}

func TestFilterSlowsAnswersOnly(t *testing.T) {
	body := strings.Repeat("x", slowRate/5)
	message := fmt.Sprintf(">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$%d\r\n%s\r\n", len(body), body)
	answer := fmt.Sprintf("$%d\r\n%s\r\n", len(body), body)
	synctest.Test(t, func(t *testing.T) {
		for reply, most := range map[string]time.Duration{message: 0, answer: 200 * time.Millisecond, "+OK\r\n": 0} {
			var l losses
			l.slow.Store(true)
			var out bytes.Buffer
			begun := time.Now()
			_ = l.filterReplies(&out, strings.NewReader(reply))
			if took := time.Since(begun); out.String() != reply || took != most {
				t.Errorf("%.20q: %d bytes after %v, want %d after %v", reply, out.Len(), took, len(reply), most)
			}
		}
	})
}
