package upgrade

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
	"github.com/gatehouse/gatehouse/verify/credential"
)

type fixture struct {
	*Upgrader
	t      *testing.T
	server *redistest.Server
	log    *logbuffer.Buffer
}

// start returns an Upgrader of a real Redis, not yet running; its Redis user may differ from the writers' user.
func start(t *testing.T, user ...string) fixture {
	t.Helper()
	pepper, err := contract.NewPepper([]byte(strings.Repeat("p", 32)))
	require.NoError(t, err)
	server := redistest.StartServer(t)
	options := &redis.Options{Addr: server.Address}
	if len(user) > 0 {
		rules := []any{"ACL", "SETUSER"}
		for _, rule := range user {
			rules = append(rules, rule)
		}
		require.NoError(t, server.Client(t).Do(t.Context(), rules...).Err())
		options.Username, options.Password = user[0], "p"
	}
	client := redis.NewClient(options)
	t.Cleanup(func() { client.Close() })
	log := new(logbuffer.Buffer)
	u := New(publish.New(client), &pepper, metrics.New(), slog.New(slog.NewTextHandler(log, nil)))
	return fixture{u, t, server, log}
}

// put registers a device, and returns the upgrade that the device's verification would offer.
func (f fixture) put(p *publish.Publisher, id, secret string) credential.Upgrade {
	f.t.Helper()
	receipt, err := p.PutDevice(f.t.Context(), publish.Device{ID: id, Secret: secret, Cost: 4,
		Permissions: []string{"a"}, Labels: map[string]string{"fleet": "eu"}})
	require.NoError(f.t, err)
	return credential.Upgrade{Device: id, Secret: secret, Hash: f.record(p, id).Hashes[0], Version: receipt.Version}
}

func (f fixture) record(p *publish.Publisher, id string) contract.Credential {
	f.t.Helper()
	c, err := p.GetDevice(f.t.Context(), id)
	require.NoError(f.t, err)
	return c
}

func (f fixture) run() {
	ctx, stop := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	f.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
	})
}

func (f fixture) counted(result string, want float64) {
	f.t.Helper()
	await.Until(f.t, result, func() bool {
		return metricstest.Value(f.t, f.metrics, "gatehouse_credential_upgrades_total", "result", result) == want
	})
}

// TestUpgrade replaces only the hash; a stale offer changes nothing; beyond the queue offers are dropped.
func TestUpgrade(t *testing.T) {
	f := start(t)
	secret := contract.NewSecret()
	offer := f.put(f.writer, "d", secret)
	before := f.record(f.writer, "d")
	for range maxQueue + 1 {
		f.Offer(offer)
	}
	f.counted("dropped", 1)
	f.run()
	f.counted("upgraded", 1)
	f.counted("stale", maxQueue-1)
	got := f.record(f.writer, "d")
	if got.Version != before.Version+1 || len(got.Hashes) != 1 || !f.pepper.Matches(got.Hashes[0], secret) ||
		contract.FormatLabels(got.Labels) != "fleet=eu" || len(got.Permissions) != 1 {
		t.Errorf("got %+v", got)
	}
	offer = f.put(f.writer, "d", secret)
	if _, err := f.writer.ChangeDevice(t.Context(), "d", 0, func(c *contract.Credential) error {
		c.Labels["fleet"] = "us"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	f.Offer(offer)
	f.counted("stale", maxQueue)
	if got := f.record(f.writer, "d"); got.Hashes[0] != offer.Hash {
		t.Errorf("another version was upgraded: %+v", got)
	}
	gone := offer
	gone.Device = "gone"
	f.Offer(gone)
	f.counted("stale", maxQueue+1)
}

// TestRotationWins rotates or revokes devices while they are upgraded: no rotation or revocation is lost.
func TestRotationWins(t *testing.T) {
	f := start(t)
	const rounds = 150
	upgraded, stale := 0, 0
	for i := range rounds {
		offer := f.put(f.writer, "d", contract.NewSecret())
		next := contract.NewSecret()
		var wg sync.WaitGroup
		wg.Go(func() {
			var err error
			switch i % 3 {
			case 0:
				_, err = f.writer.RotateDevice(t.Context(), publish.Rotation{ID: "d", Secret: next, Pepper: f.pepper})
			case 1:
				_, err = f.writer.RotateDevice(t.Context(), publish.Rotation{ID: "d", Secret: next, Pepper: f.pepper,
					Overlap: time.Hour})
			default:
				_, err = f.writer.RevokeDevice(t.Context(), "d")
			}
			if err != nil {
				t.Error(err)
			}
		})
		switch err := f.upgradeHash(t.Context(), offer); {
		case err == nil:
			upgraded++
		case errors.Is(err, publish.ErrStale):
			stale++
		default:
			t.Fatal(err)
		}
		wg.Wait()
		got := f.record(f.writer, "d")
		if i%3 == 2 && !got.Disabled {
			t.Fatalf("round %d: the upgrade undid a revocation", i)
		}
		if i%3 < 2 && (len(got.Hashes) != 1+i%3 || !f.pepper.Matches(got.Hashes[0], next)) {
			t.Fatalf("round %d: the upgrade undid a rotation: %d hashes", i, len(got.Hashes))
		}
	}
	t.Logf("%d upgraded, %d stale", upgraded, stale)
	if upgraded == 0 || stale == 0 {
		t.Error("want some of each")
	}
}

// TestMayNotWrite: a user without permission changes nothing; that is counted, and logged once.
func TestMayNotWrite(t *testing.T) {
	f := start(t, "reader", "on", ">p", "~*", "&*", "+@read", "+ping", "+hello")
	writer := publish.New(f.server.Client(t))
	offer := f.put(writer, "d", contract.NewSecret())
	f.Offer(offer)
	f.Offer(offer)
	f.run()
	f.counted("error", 2)
	if got := f.record(writer, "d"); got.Hashes[0] != offer.Hash || strings.Count(f.log.String(), "not upgraded") != 1 ||
		strings.Contains(f.log.String(), offer.Secret) {
		t.Errorf("got %+v, log %s", got, f.log)
	}
}
