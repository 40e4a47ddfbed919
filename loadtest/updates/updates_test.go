package updates

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/loadtest/workload"
)

func TestRateAndObjects(t *testing.T) {
	server := miniredis.RunT(t)
	url := "redis://" + server.Addr()
	client, err := redisurl.Connect(url)
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	begin, done := time.Now(), make(chan error, 1)
	go func() { done <- Command{Redis: url, Rate: 100, Objects: 7, Bytes: 1024}.Run(ctx) }()
	published := func() (sum uint64) {
		for i := range 7 {
			o, err := publish.New(client).Get(t.Context(), workload.ObjectPath(i))
			if err == nil && (len(o.Bodies) != 1 || len(o.Bodies[0].Bytes) != 1024) {
				t.Fatalf("object %d: %+v; want 1 KiB in one encoding", i, o)
			}
			sum += o.Version // 0 before publication
		}
		return sum
	}
	for published() < 100 {
		if time.Since(begin) > time.Minute {
			t.Fatalf("got %d updates in a minute, want 100 a second", published())
		}
	}
	cancel()
	require.NoError(t, <-done)
	if n, most := published(), 100*time.Since(begin).Seconds()+1; float64(n) > most {
		t.Errorf("got %d updates, want at most %.0f", n, most)
	}
	if n := len(server.Keys()); n > 7+5 {
		t.Errorf("got %d keys, want 7 objects, and five of the contract", n)
	}
}
