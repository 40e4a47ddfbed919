package chaos

import (
	"context"
	"fmt"
	"strings"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// link is the sidecar's way to Redis, which can be cut, made to hang or delayed, and on
// which messages can be lost. Writers have a way of their own.
type link struct {
	proxy *toxiproxy.Proxy
	relay *relay
}

// newLink listens on address, which stays the link's while it is cut, for connections to
// the Redis at upstream, which needn't run yet.
func newLink(address, upstream string) (*link, error) {
	relay, err := newRelay(upstream)
	if err != nil {
		return nil, err
	}
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	l := &link{toxiproxy.NewProxy(server, "redis", address, relay.address()), relay}
	if err := l.proxy.Start(); err != nil {
		relay.close()
		return nil, fmt.Errorf("proxy on %s: %w", address, err)
	}
	return l, nil
}

func (l *link) close() {
	l.proxy.Stop()
	l.relay.close()
}

// cut closes all connections and refuses new ones, until mend.
func (l *link) cut() error {
	l.proxy.Stop()
	return nil
}

func (l *link) mend() error {
	if err := l.proxy.Start(); err != nil {
		return fmt.Errorf("mend the link to Redis: %w", err)
	}
	return nil
}

// hang lets connections stand and nothing through, until clear, which closes them: a
// partition that ends with a reset.
func (l *link) hang() error { return l.add("timeout", "downstream", `{"timeout": 0}`) }

// delay adds to each direction, until clear.
func (l *link) delay(by, jitter time.Duration) error {
	attributes := fmt.Sprintf(`{"latency": %d, "jitter": %d}`, by.Milliseconds(), jitter.Milliseconds())
	if err := l.add("latency", "upstream", attributes); err != nil {
		return err
	}
	return l.add("latency", "downstream", attributes)
}

// lose drops so many of thousand messages, 0 for none.
func (l *link) lose(perMille int64) error {
	l.relay.perMille.Store(perMille)
	return nil
}

func (l *link) add(kind, stream, attributes string) error {
	toxic := fmt.Sprintf(`{"type": %q, "stream": %q, "attributes": %s}`, kind, stream, attributes)
	if _, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
		return fmt.Errorf("add %s to the link to Redis: %w", kind, err)
	}
	return nil
}

// clear ends hang and delay.
func (l *link) clear() error {
	l.proxy.Toxics.ResetToxics(context.Background())
	return nil
}
