package follow

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// othersFull returns the bytes of all inboxes when the other shards' inboxes hold as much as may wait.
func othersFull() *atomic.Int64 {
	all := new(atomic.Int64)
	all.Store(inboxBytes)
	return all
}

// TestOverflow: devices' events since the last look survive an overflow.
func TestOverflow(t *testing.T) {
	all := othersFull()
	in := newInbox(64, all)
	event := func(m contract.Member, size int) string {
		fields := map[string]string{contract.FieldBody: strings.Repeat("x", size)}
		e := contract.Event{DataEpoch: "beef", Seq: 1, Digest: strings.Repeat("0", 40), Member: m, Fields: fields}
		return string(contract.AppendEvent(nil, e))
	}
	in.put(event(contract.CredentialMember("seen"), 1))
	in.peekUnseen()
	late := event(contract.CredentialMember("late"), 1)
	in.put(late)
	for !in.lost {
		in.put(event(contract.ObjectMember("/a"), 1<<20))
	}
	if got := in.peekUnseen(); len(got) != 1 || got[0] != late {
		t.Errorf("got %d events after an overflow, want that of the device", len(got))
	}
	for range 30 {
		in.put(event(contract.CredentialMember("late"), 1<<18))
	}
	if in.bytes > 2*in.share {
		t.Errorf("got %d bytes, want at most %d", in.bytes, 2*in.share)
	}
	if in.take(); all.Load() != inboxBytes {
		t.Errorf("got %d bytes of an empty inbox, want 0", all.Load()-inboxBytes)
	}
}

// TestInboxesAreBounded fills all shards' inboxes at the same time; an inbox within its share loses nothing.
func TestInboxesAreBounded(t *testing.T) {
	all := new(atomic.Int64)
	var inboxes []*inbox
	for range 64 {
		inboxes = append(inboxes, newInbox(64, all))
	}
	inboxes[0].put("small")
	payload := strings.Repeat("x", inboxBytes/64-2*inboxEach)
	for range 16 {
		for _, in := range inboxes[1:] {
			if in.put(payload); all.Load() > 2*inboxBytes {
				t.Fatalf("%d bytes wait, want at most %d", all.Load(), 2*inboxBytes)
			}
		}
	}
	if got, lost, _ := inboxes[0].take(); len(got) != 1 || lost {
		t.Errorf("got %q, lost %t; want the payload", got, lost)
	}
}

// TestEmptyPayloadsAreBounded: empty payloads take memory, too.
func TestEmptyPayloadsAreBounded(t *testing.T) {
	in := newInbox(64, othersFull())
	for range in.share {
		if in.put(""); in.lost {
			return
		}
	}
	t.Errorf("%d empty payloads wait, want a bound", len(in.payloads))
}

// TestSlowMessage stalls in the middle of a message for longer than the channel may be silent: the rest isn't read as
// another message. A server that doesn't answer a ping any more ends the subscription.
func TestSlowMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		var got []byte // the server's unfinished command
		await := func(command string) {
			for buf := make([]byte, 512); !strings.Contains(strings.ToLower(string(got)), command); {
				n, err := server.Read(buf)
				if err != nil {
					t.Errorf("waiting for %s: %v", command, err)
					return
				}
				got = append(got, buf[:n]...)
			}
			got = nil
		}
		pinged := make(chan struct{})
		go func() {
			await("hello")
			io.WriteString(server, "-ERR unknown command\r\n")
			await("subscribe")
			io.WriteString(server, "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$8\r\nhalf")
			await("ping")
			<-time.After(maxSilence / 2)
			io.WriteString(server, "half\r\n*2\r\n$4\r\npong\r\n$0\r\n\r\n")
			await("ping")
			close(pinged)
		}()
		redis := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DisableIdentity: true,
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				return client, nil
			}})
		defer redis.Close()
		sub, in := redis.Subscribe(t.Context(), "c"), newInbox(1, new(atomic.Int64))
		defer sub.Close()
		if err := awaitSubscription(t.Context(), sub, "c"); err != nil {
			t.Fatal(err)
		}
		err := readSubscription(t.Context(), sub, in)
		if payloads, _, _ := in.take(); len(payloads) != 1 || payloads[0] != "halfhalf" || !errors.Is(err, errSilence) {
			t.Errorf("got %q, %v, want the message, and then silence", payloads, err)
		}
		<-pinged
	})
}
