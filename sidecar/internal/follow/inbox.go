package follow

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)

// inboxBytes bounds the payloads that wait in all shards' inboxes during catch-ups; inboxLeast is the minimum for one
// shard, some of the largest records. Redis would disconnect a client that does not read. Each payload takes inboxEach
// more: whoever can publish can send any number of empty ones.
const (
	inboxBytes = 64 << 20
	inboxLeast = 16 << 20
	inboxEach  = 64
)

// quiet is how long the channel may be silent before the sidecar pings Redis, and how long the answer may take. A test
// shortens it.
var quiet = 5 * time.Second

// inbox passes payloads from the goroutine that reads the connection to the one that applies them.
type inbox struct {
	wake chan struct{} // capacity 1
	most int           // bytes

	mu       sync.Mutex // protects all below
	payloads []string
	seen     int // number of payloads that unseen returned
	bytes    int
	lost     bool // payloads were dropped
	err      error
}

// newInbox returns the inbox of one of shards shards.
func newInbox(shards int) *inbox {
	return &inbox{wake: make(chan struct{}, 1), most: max(inboxBytes/shards, inboxLeast)}
}

func (b *inbox) put(payload string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.payloads, b.bytes = append(b.payloads, payload), b.bytes+len(payload)+inboxEach
	if b.bytes > b.most {
		b.overflow()
	}
	b.notify()
}

// overflow drops the payloads, but not those of devices that unseen has not returned yet: a revocation can't wait until
// a catch-up is over and another one has read the log.
func (b *inbox) overflow() {
	unseen := b.payloads[b.seen:]
	b.payloads, b.seen, b.bytes, b.lost = nil, 0, 0, true
	for _, payload := range unseen {
		e, _ := contract.ParseEvent(payload)
		if e.Member.Kind == contract.KindCredential && b.bytes+len(payload) <= b.most/2 {
			b.payloads, b.bytes = append(b.payloads, payload), b.bytes+len(payload)+inboxEach
		}
	}
}

// fail records the error that ended the subscription.
func (b *inbox) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
	b.notify()
}

func (b *inbox) notify() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns and removes the payloads.
func (b *inbox) take() (payloads []string, lost bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	payloads, lost = b.payloads, b.lost
	b.payloads, b.seen, b.bytes, b.lost = nil, 0, 0, false
	return payloads, lost, b.err
}

// unseen returns the payloads that arrived since its last call, and leaves them for take.
func (b *inbox) unseen() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	payloads := b.payloads[b.seen:len(b.payloads):len(b.payloads)]
	b.seen = len(b.payloads)
	return payloads
}

func awaitSubscription(ctx context.Context, sub *redis.PubSub, channel string) error {
	message, err := sub.ReceiveTimeout(ctx, callTimeout)
	if err != nil {
		return fmt.Errorf("subscribe %q: %w", channel, err)
	}
	if _, ok := message.(*redis.Subscription); !ok {
		return fmt.Errorf("subscribe %q: redis answered %T, want an acknowledgement", channel, message)
	}
	return nil
}

var errSilence = errors.New("the subscription is silent, and redis doesn't answer a ping on it")

// receive reads the subscription's connection until it fails. The client would reconnect and subscribe again by itself,
// and silently lose what was published meanwhile. So the first error ends receive, and so does a second
// acknowledgement. A read has no timeout, after which the rest of a slow message would be read as the next one.
func receive(ctx context.Context, sub *redis.PubSub, in *inbox) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var asked atomic.Bool
	silent := time.NewTimer(quiet)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-silent.C:
			}
			if asked.Swap(true) || sub.Ping(ctx) != nil {
				cancel(errSilence)
				sub.Close() // ends the read
				return
			}
			silent.Reset(quiet)
		}
	}()
	for {
		message, err := sub.ReceiveTimeout(ctx, 0)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("read the subscription: %w", err)
		}
		asked.Store(false)
		silent.Reset(quiet)
		switch m := message.(type) {
		case *redis.Message:
			in.put(m.Payload)
		case *redis.Subscription:
			return errResubscribed
		}
	}
}
