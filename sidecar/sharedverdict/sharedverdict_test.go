package sharedverdict

import (
	"log/slog"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/credential"
	"github.com/gatehouse/gatehouse/sidecar/internal/fleet"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/redisurl"
)

// TestSidecarsBelieveIt as they believe each other, and only for that secret and version.
func TestSidecarsBelieveIt(t *testing.T) {
	secret, until := []byte("0123456789abcdef0123456789abcdef"), time.Now().Add(time.Hour)
	for _, shards := range []contract.Shards{1, 4} {
		server := miniredis.RunT(t)
		client, err := redisurl.Settings{URL: "redis://" + server.Addr(), Deadlines: true}.Connect()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		var all []Verdict
		for _, device := range []string{"a", "b", "c"} {
			all = append(all, Verdict{Device: device, Secret: "s", Version: 3, Hash: "h", Until: until})
		}
		if err := Put(t.Context(), client, secret, shards, all); err != nil {
			t.Fatal(err)
		}
		sidecar := fleet.New(secret, client, shards, metrics.New(), slog.New(slog.DiscardHandler))
		for _, v := range all {
			right := credential.Question{Device: v.Device, Secret: "s", Version: 3, Hashes: []string{"h"}}
			if m := sidecar.Find(&right); m == nil || m.Hash != "h" || m.Until.UnixMilli() != until.UnixMilli() {
				t.Errorf("%d shards, %s: found %+v", shards, v.Device, m)
			}
			wrong, later := right, right
			wrong.Secret, later.Version = "t", 4
			for _, c := range []credential.Question{wrong, later} {
				if m := sidecar.Find(&c); m != nil {
					t.Errorf("%d shards, %+v: found %+v", shards, c, m)
				}
			}
		}
		for _, key := range server.Keys() {
			if ttl := server.TTL(key); ttl <= 0 || ttl > time.Hour {
				t.Errorf("%s expires after %v", key, ttl)
			}
		}
	}
}
