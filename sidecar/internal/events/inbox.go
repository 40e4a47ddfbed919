package events

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// inboxBytes bounds the payloads that wait while catch-ups of all shards run, and inboxLeast is what one
// shard may have in any case: some of the largest records. Redis would close the connection of a
// subscriber that does not read.
const (
	inboxBytes = 64 << 20
	inboxLeast = 16 << 20
)

// quiet is how long the channel may say nothing before we ask whether it is still there,
// and then how long the answer may take.
const quiet = 5 * time.Second

// inbox holds payloads between the goroutine that reads the connection and the one that
// applies them.
type inbox struct {
	wake chan struct{} // capacity 1
	most int           // bytes

	mu       sync.Mutex // protects all below
	payloads []string
	seen     int // of them
	bytes    int
	lost     bool // some were dropped
	err      error
}

// newInbox is the inbox of one of so many shards.
func newInbox(shards int) *inbox {
	return &inbox{wake: make(chan struct{}, 1), most: max(inboxBytes/shards, inboxLeast)}
}

func (b *inbox) put(payload string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bytes+len(payload) > b.most {
		b.payloads, b.seen, b.bytes, b.lost = nil, 0, 0, true
	} else {
		b.payloads, b.bytes = append(b.payloads, payload), b.bytes+len(payload)
	}
	b.notify()
}

// fail says that no more will come.
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

// take gives what has come in since the last time.
func (b *inbox) take() (payloads []string, lost bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	payloads, lost = b.payloads, b.lost
	b.payloads, b.seen, b.bytes, b.lost = nil, 0, 0, false
	return payloads, lost, b.err
}

// unseen gives what has come in since the last time, and leaves it to take.
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

// receive reads the subscription's connection until it fails. The client would connect
// and subscribe again by itself, and what was published meanwhile would be missing
// without a word; so the first error ends it, and so does a second acknowledgement.
func receive(ctx context.Context, sub *redis.PubSub, in *inbox) error {
	for asked := false; ; {
		message, err := sub.ReceiveTimeout(ctx, quiet)
		timeout, _ := errors.AsType[net.Error](err)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case timeout != nil && timeout.Timeout() && !asked:
			if err := sub.Ping(ctx); err != nil {
				return fmt.Errorf("ping the subscription: %w", err)
			}
			asked = true
			continue
		case err != nil:
			return fmt.Errorf("read the subscription: %w", err)
		}
		asked = false
		switch m := message.(type) {
		case *redis.Message:
			in.put(m.Payload)
		case *redis.Subscription:
			return errResubscribed
		}
	}
}
