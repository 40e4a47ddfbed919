package main

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/verify/credential"
	"github.com/gatehouse/gatehouse/verify/sharedverdict"
)

// TestSidecarsBelieveIt as they believe each other, and only for that secret and version.
func TestSidecarsBelieveIt(t *testing.T) {
	secret := []byte("0123456789abcdef0123456789abcdef")
	for _, k := range []contract.Keyspace{{}, {Namespace: "shop", Shards: 4}} {
		server := miniredis.RunT(t)
		client, err := redisurl.Settings{URL: "redis://" + server.Addr(), Deadlines: true}.Connect()
		require.NoError(t, err)
		t.Cleanup(func() { _ = client.Close() })
		require.NoError(t, shareVerdicts(t.Context(), client, secret, k, "h", strings.NewReader("a s\nb s\nc s\n")))
		sidecar := sharedverdict.New(secret, client, k, metrics.New(), slog.New(slog.DiscardHandler))
		for _, device := range []string{"a", "b", "c"} {
			right := credential.Question{Device: device, Secret: "s", Version: 1, Hashes: []string{"h"}}
			if m := sidecar.Find(t.Context(), &right); m == nil || m.Hash != "h" || time.Until(m.Until) < 23*time.Hour {
				t.Errorf("%+v, %s: found %+v", k, device, m)
			}
			wrong, later := right, right
			wrong.Secret, later.Version = "t", 2
			for _, c := range []credential.Question{wrong, later} {
				if m := sidecar.Find(t.Context(), &c); m != nil {
					t.Errorf("%+v, %+v: found %+v", k, c, m)
				}
			}
		}
		for _, key := range server.Keys() {
			if ttl := server.TTL(key); ttl <= 0 || ttl > 24*time.Hour {
				t.Errorf("%s expires after %v", key, ttl)
			}
		}
	}
}
