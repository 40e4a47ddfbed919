package link_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/testbed/link"
)

func init() { logging.Disable() }

// TestLink breaks a link to a real Redis in every way.
func TestLink(t *testing.T) {
	address := strings.TrimPrefix(redistest.Start(t), "redis://")
	l, err := link.New("127.0.0.1:0", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	client := redis.NewClient(&redis.Options{Addr: l.Address(), MaxRetries: -1, DialerRetries: 1,
		ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	ping := func(within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return client.Ping(ctx).Err()
	}
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	must("ping", ping(await.Deadline))
	for _, tt := range []struct {
		name        string
		begin, heal func()
	}{
		{"cut", l.Cut, func() { must("heal", l.Heal()) }},
		{"hang", l.Hang, l.Clear},
		{"delay", func() { l.Delay(400*time.Millisecond, 0) }, l.Clear},
	} {
		tt.begin()
		if ping(300*time.Millisecond) == nil {
			t.Errorf("%s: Redis still answers", tt.name)
		}
		tt.heal()
		await.Until(t, tt.name+": Redis answers again", func() bool { return ping(await.Deadline) == nil })
	}
}
