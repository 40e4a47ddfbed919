package follow

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// inboxBytes bounds the payloads that wait in all shards' inboxes during catch-ups. Once the bound is exceeded, an
// inbox that holds more than its share overflows, so all inboxes hold at most twice inboxBytes. Redis would disconnect
// a client that does not read. inboxEach is added to a payload's size: every publisher can send any number of empty
// payloads.
const (
	inboxBytes = 64 << 20
	inboxEach  = 64
)

// maxSilence is how long the channel may be silent before the sidecar pings Redis, and how long the answer may take.
const maxSilence = 5 * time.Second

// inbox passes payloads from the goroutine that reads the connection to the goroutine that applies them.
type inbox struct {
	wake  chan struct{} // capacity 1
	share int           // bytes
	all   *atomic.Int64 // bytes of all shards' inboxes

	mu      sync.Mutex
	waiting // +checklocks:mu
}

// waiting has the payloads that were not taken yet.
type waiting struct {
	payloads []string
	seen     int // number of payloads that peekUnseen returned
	bytes    int
	lost     bool // payloads were dropped
	err      error
}

// newInbox returns the inbox of a shard; all counts the bytes of all shards' inboxes.
func newInbox(shards int, all *atomic.Int64) *inbox {
	return &inbox{wake: make(chan struct{}, 1), share: inboxBytes / shards, all: all}
}

func (b *inbox) put(payload string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addPayload(payload)
	if b.bytes > b.share && b.all.Load() > inboxBytes {
		b.dropOverflow()
	}
	b.notify()
}

// addPayload adds a payload.
// +checklocks:b.mu
func (b *inbox) addPayload(payload string) {
	size := len(payload) + inboxEach
	b.payloads, b.bytes = append(b.payloads, payload), b.bytes+size
	b.all.Add(int64(size))
}

// dropAll drops all payloads.
// +checklocks:b.mu
func (b *inbox) dropAll() {
	b.all.Add(-int64(b.bytes))
	b.payloads, b.seen, b.bytes = nil, 0, 0
}

// dropOverflow drops the payloads, except those of devices that peekUnseen has not returned yet: a revocation can't
// wait until the running catch-up is over and the next catch-up has read the log.
// +checklocks:b.mu
func (b *inbox) dropOverflow() {
	unseen := b.payloads[b.seen:]
	b.dropAll()
	b.lost = true
	for _, payload := range unseen {
		e, _ := contract.ParseEvent(payload)
		if e.Member.Kind == contract.KindCredential && b.bytes+len(payload) <= b.share/2 {
			b.addPayload(payload)
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
	b.dropAll()
	b.lost = false
	return payloads, lost, b.err
}

// peekUnseen returns the payloads that arrived since its last call, and leaves them for take.
func (b *inbox) peekUnseen() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	payloads := b.payloads[b.seen:len(b.payloads):len(b.payloads)]
	b.seen = len(b.payloads)
	return payloads
}

// resetSeen has peekUnseen return all payloads once more.
func (b *inbox) resetSeen() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen = 0
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

// readSubscription reads the subscription's connection until a failure. The client would reconnect and subscribe again
// by itself, and silently lose the messages published meanwhile. So readSubscription ends at the first error or second
// acknowledgement. Reads have no timeout: after a timeout, the rest of a slow message would be read as the next
// message.
func readSubscription(ctx context.Context, sub *redis.PubSub, in *inbox) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var asked atomic.Bool
	silent := time.NewTimer(maxSilence)
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
			silent.Reset(maxSilence)
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
		silent.Reset(maxSilence)
		switch m := message.(type) {
		case *redis.Message:
			in.put(m.Payload)
		case *redis.Subscription:
			return errResubscribed
		}
	}
}
