package presence_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/presence"
)

// TestPresence: a sidecar is listed while running, each edge of a host by itself, and the entries of sidecars that
// ended long ago are removed.
func TestPresence(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	for id, age := range map[string]time.Duration{"old": 2 * time.Hour, "gone": time.Minute} {
		text, err := json.Marshal(presence.Edge{ID: id, Host: "other", Seen: time.Now().Add(-age)})
		require.NoError(t, err)
		server.HSet("{gatehouse:0}:edges", id, string(text))
	}
	future, err := json.Marshal(presence.Edge{ID: "gone", Host: "other", Seen: time.Now().Add(time.Hour)})
	require.NoError(t, err)
	// Neither may hide further entries, or stay: the first is unreadable, the second has a time in the future and the id
	// of a third.
	server.HSet("{gatehouse:0}:edges", "unreadable", "{", "future", string(future))
	if edges, err := presence.List(t.Context(), client, contract.Keyspace{}); err != nil || len(edges) != 4 {
		t.Fatalf("got %+v, %v, want 4", edges, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	for _, socket := range []string{"/a", "/b"} {
		p := presence.New(client, contract.Keyspace{}, socket, func() presence.Edge {
			return presence.Edge{Version: "v1", Seq: 7, Ready: true}
		}, slog.New(slog.DiscardHandler))
		go func() { done <- p.Run(ctx) }()
	}
	listed := func(want, wantRunning int) {
		t.Helper()
		await.Until(t, fmt.Sprint(want, " entries, running: ", wantRunning), func() bool {
			edges, err := presence.List(t.Context(), client, contract.Keyspace{})
			require.NoError(t, err)
			running := 0
			for _, e := range edges {
				if e.Version == "v1" && e.Seq == 7 && e.Ready && e.Host != "" && time.Since(e.Seen) < presence.Gone {
					running++
				}
			}
			return len(edges) == want && running == wantRunning
		})
	}
	listed(3, 2)
	cancel()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	listed(1, 0)
}
