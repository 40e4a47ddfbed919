package follow_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/sidecar/internal/follow"
)

// tenant is a fleet in a shared Redis: follower, writer, and writes.
type tenant struct {
	*group
	keyspace contract.Keyspace
	publish  *publish.Publisher
	versions map[string]uint64 // of existing records, by member
}

// hash matches no secret: hashing takes time, and a follower that waits for a hash doubts devices.
const hash = "$2b$04$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ01234"

// write makes writes of all kinds; round n begins with a version that no other tenant has.
func (x *tenant) write(ctx context.Context, n int, base uint64) error {
	key, device := fmt.Sprint("/", n), publish.Device{ID: fmt.Sprint("d", n), Hashes: []string{hash}, Version: base}
	object := publish.Object{Key: key, ContentType: "image/png", Version: base} // is not compressed
	_, err := x.publish.Put(ctx, object)
	_, err2 := x.publish.PutDevice(ctx, device)
	object.Version, device.Version = 0, 0
	put, err3 := x.publish.Put(ctx, object)
	known, err4 := x.publish.PutDevice(ctx, device)
	if err := errors.Join(err, err2, err3, err4); err != nil {
		return err
	}
	x.versions["o:"+key], x.versions["c:"+device.ID] = put.Version, known.Version
	switch n % 4 {
	case 0:
		_, err = x.publish.Delete(ctx, key, 0)
		delete(x.versions, "o:"+key)
	case 1:
		_, err = x.publish.ForceRevokeDevice(ctx, "lost-"+device.ID) // a tombstone
	case 2:
		known, err = x.publish.RevokeDevice(ctx, device.ID)
		x.versions["c:"+device.ID] = known.Version
	default:
		_, err = x.publish.Trim(ctx)
	}
	return err
}

// held returns the records of the sinks, in the form of versions.
func (x *tenant) held() map[string]uint64 {
	held := map[string]uint64{}
	for kind, sinks := range map[string][]*sink{"o:": x.objects, "c:": x.credentials} {
		for _, s := range sinks {
			s.mu.Lock()
			for id, version := range s.versions {
				held[kind+id] = version
			}
			s.mu.Unlock()
		}
	}
	return held
}

// TestKeyspacesShareARedis: fleets with another namespace or database have the same keys and devices in the same Redis,
// and no fleet notices the writes of the rest.
func TestKeyspacesShareARedis(t *testing.T) {
	const rounds = 30
	follow.SetGrantTimeout(t, time.Minute) // reads that are late put a device in doubt, too
	s := serverAt(t, strings.TrimPrefix(redistest.Start(t), "redis://"))
	var tenants []*tenant
	for _, k := range []contract.Keyspace{
		{}, {Database: 1}, {Database: 12}, {Namespace: "shop", Shards: 2}, {Namespace: "shop", Database: 1},
		{Namespace: "shop-a"},
	} {
		client := redis.NewClient(&redis.Options{Addr: s.Options().Addr, DB: k.Database, MaxRetries: -1})
		t.Cleanup(func() { client.Close() })
		x := &tenant{keyspace: k, versions: map[string]uint64{},
			publish: publish.New(client, publish.Namespace(k.Namespace), publish.Shards(k.Count()))}
		if _, err := x.publish.AcceptLoss(t.Context()); err != nil {
			t.Fatal(err)
		}
		x.group = followKeyspace(t, s, k, 0)
		tenants = append(tenants, x)
	}
	for _, x := range tenants {
		<-x.Synced()
	}
	writing, ctx := errgroup.WithContext(t.Context())
	for i, x := range tenants {
		writing.Go(func() error {
			for n := range rounds {
				if err := x.write(ctx, n, uint64(1000*(i+1))); err != nil {
					return fmt.Errorf("%+v: %w", x.keyspace, err)
				}
			}
			return nil
		})
	}
	if err := writing.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, x := range tenants {
		await.Until(t, fmt.Sprintf("all writes of %+v", x.keyspace), func() bool {
			return maps.Equal(x.held(), x.versions)
		})
		now := time.Now()
		await.Until(t, "in step", func() bool { return x.clock.inStep().After(now) })
		doubts := 0
		for _, sink := range x.credentials {
			doubts += sink.removals()
		}
		count := func(name string, labels ...string) float64 { return metricstest.Value(t, x.metrics, name, labels...) }
		for what, got := range map[string]float64{
			"devices in doubt": float64(doubts),
			"foreign events":   count("gatehouse_events_total", "result", "foreign"),
			"rejected events":  count("gatehouse_events_total", "result", "mistrusted"),
			"breaks":           count("gatehouse_chain_breaks_total"),
			"further catch-ups": count("gatehouse_catchups_total") -
				count("gatehouse_catchups_total", "reason", "connected"),
			"further connections": count("gatehouse_catchups_total", "reason", "connected") - float64(x.keyspace.Count()),
		} {
			if got != 0 {
				t.Errorf("%+v: %v %s, want none", x.keyspace, got, what)
			}
		}
	}
}
