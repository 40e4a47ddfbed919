package publish

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

var keys contract.Keys

// event is an event with its payload.
type event struct {
	contract.Event
	payload string
}

// server is one of the two kinds of Redis of every test.
type server struct {
	*redis.Client
	p *Publisher
}

// onBoth runs test against a miniredis and against a redis-server.
func onBoth(t *testing.T, test func(t *testing.T, s server)) {
	t.Helper()
	for name, start := range map[string]func(*testing.T) string{
		"miniredis":    func(t *testing.T) string { return "redis://" + miniredis.RunT(t).Addr() },
		"redis-server": func(t *testing.T) string { return redistest.Start(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, serverAt(t, start(t)))
		})
	}
}

func serverAt(t *testing.T, url string) server {
	t.Helper()
	options, err := redis.ParseURL(url)
	require.NoError(t, err)
	options.ReadTimeout = time.Minute // a busy machine and miniredis
	client := redis.NewClient(options)
	t.Cleanup(func() { client.Close() })
	return server{client, New(client)}
}

// events subscribes, and returns a function that waits for the next event.
func (s server) events(t *testing.T) func() event {
	t.Helper()
	subscription := s.Subscribe(t.Context(), keys.EventsChannel())
	t.Cleanup(func() { subscription.Close() })
	if _, err := subscription.Receive(t.Context()); err != nil { // the acknowledgement
		t.Fatal(err)
	}
	return func() event {
		t.Helper()
		message, err := subscription.ReceiveMessage(t.Context())
		require.NoError(t, err)
		e, err := contract.ParseEvent(message.Payload)
		require.NoError(t, err)
		return event{e, message.Payload}
	}
}

// hash returns a record as stored.
func (s server) hash(t *testing.T, m contract.Member) map[string]string {
	t.Helper()
	fields, err := s.HGetAll(t.Context(), keys.RecordKey(m)).Result()
	require.NoError(t, err)
	return fields
}

// TestWriteIsWhole: each write appears in the hash, seq, log, epoch and event.
func TestWriteIsWhole(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		next := s.events(t)
		writes := []struct {
			name   string
			member contract.Member
			write  func(context.Context) (Receipt, error)
			want   Receipt
		}{
			{"put", contract.ObjectMember("/a"), func(ctx context.Context) (Receipt, error) {
				return s.p.Put(ctx, Object{Key: "/a", Body: []byte("\x00\xff,\r\n"), ContentType: "text/plain"})
			}, Receipt{1, 1}},
			{"put with a version", contract.ObjectMember("/a"), func(ctx context.Context) (Receipt, error) {
				return s.p.Put(ctx, Object{Key: "/a", ContentType: "text/plain", Version: 1 << 52})
			}, Receipt{1 << 52, 2}},
			{"delete", contract.ObjectMember("/a"), func(ctx context.Context) (Receipt, error) {
				return s.p.Delete(ctx, "/a", 0)
			}, Receipt{1<<52 + 1, 3}},
			{"put again", contract.ObjectMember("/a"), func(ctx context.Context) (Receipt, error) {
				return s.p.Put(ctx, Object{Key: "/a", ContentType: "text/plain"})
			}, Receipt{1<<52 + 2, 4}},
			{"device", contract.CredentialMember("d"), func(ctx context.Context) (Receipt, error) {
				return s.p.PutDevice(ctx, Device{ID: "d", Secret: "s", Cost: 4, Permissions: []string{"b", "a", "b"}})
			}, Receipt{1, 5}},
			{"revoke", contract.CredentialMember("d"), func(ctx context.Context) (Receipt, error) {
				return s.p.RevokeDevice(ctx, "d")
			}, Receipt{2, 6}},
		}
		var epoch string
		for _, w := range writes {
			got, err := w.write(t.Context())
			if err != nil || got != w.want {
				t.Fatalf("%s: got %+v, %v; want %+v", w.name, got, err, w.want)
			}
			e := next()
			if epoch == "" {
				epoch = s.Get(t.Context(), keys.DataEpochKey()).Val()
			}
			if e.Seq != w.want.Seq || e.Member != w.member || e.DataEpoch != epoch || !contract.ValidDataEpoch(epoch) {
				t.Errorf("%s: event %+v, want seq %d of %v in epoch %q", w.name, e, w.want.Seq, w.member, epoch)
			}
			if stored := s.hash(t, w.member); !maps.Equal(e.Fields, stored) {
				t.Errorf("%s: event has %v, the hash %v", w.name, e.Fields, stored)
			}
			if seq, _ := s.Get(t.Context(), keys.SeqKey()).Uint64(); seq != w.want.Seq {
				t.Errorf("%s: seq %d, want %d", w.name, seq, w.want.Seq)
			}
			if score := s.ZScore(t.Context(), keys.LogKey(), w.member.String()).Val(); score != float64(w.want.Seq) {
				t.Errorf("%s: log score %v, want %d", w.name, score, w.want.Seq)
			}
			life := s.PTTL(t.Context(), keys.RecordKey(w.member)).Val()
			if deleted := e.Fields["deleted"] != ""; deleted != (life > 0) || life > contract.TombstoneLife {
				t.Errorf("%s: expires in %v, deleted %v", w.name, life, deleted)
			}
		}
		if n := s.ZCard(t.Context(), keys.LogKey()).Val(); n != 2 {
			t.Errorf("log has %d members, want 2", n)
		}
	})
}

// TestRefusedWrite: a refused write changes nothing.
func TestRefusedWrite(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		ctx := t.Context()
		if _, err := s.p.RevokeDevice(ctx, "nobody"); !errors.Is(err, ErrNotFound) ||
			!strings.Contains(err.Error(), `"nobody"`) {
			t.Errorf("revoke: %v, want ErrNotFound", err)
		}
		if got := s.Keys(ctx, "*").Val(); !slices.Equal(got, []string{contract.Keyspace{}.ShardsKey()}) {
			t.Errorf("keys %q after a refused write, want the number of shards only", got)
		}
		if _, err := s.p.Put(ctx, Object{Key: "/a", Body: []byte("first"), ContentType: "a", Version: 5}); err != nil {
			t.Fatal(err)
		}
		before := s.hash(t, contract.ObjectMember("/a"))
		stale := map[string]func() error{
			"same":   func() error { _, err := s.p.Put(ctx, Object{Key: "/a", ContentType: "a", Version: 5}); return err },
			"older":  func() error { _, err := s.p.Put(ctx, Object{Key: "/a", ContentType: "a", Version: 4}); return err },
			"delete": func() error { _, err := s.p.Delete(ctx, "/a", 5); return err },
		}
		for name, write := range stale {
			err := write()
			if !errors.Is(err, ErrStale) || !strings.Contains(err.Error(), "of o:/a is not newer than the stored 5") {
				t.Errorf("%s: %v, want ErrStale that names both versions", name, err)
			}
		}
		if after := s.hash(t, contract.ObjectMember("/a")); !maps.Equal(before, after) {
			t.Errorf("hash is %v, was %v", after, before)
		}
		if seq := s.Get(ctx, keys.SeqKey()).Val(); seq != "1" {
			t.Errorf("seq %s, want 1", seq)
		}
	})
}

// TestFailedWriteLosesNothing: a write that Redis refuses halfway must not have deleted the record.
func TestFailedWriteLosesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		ctx := t.Context()
		put := func() error {
			_, err := s.p.Put(ctx, Object{Key: "/a", Body: []byte("x"), ContentType: "a"})
			return err
		}
		require.NoError(t, put())
		before := s.hash(t, contract.ObjectMember("/a"))
		breaks := map[string]func() error{
			"seq is no number": func() error {
				return errors.Join(s.Set(ctx, keys.SeqKey(), "x", 0).Err(), s.Del(ctx, keys.LogKey(), keys.ChainKey()).Err())
			},
			"log is no zset": func() error {
				return errors.Join(s.Set(ctx, keys.SeqKey(), "1", 0).Err(), s.Set(ctx, keys.LogKey(), "x", 0).Err())
			},
		}
		if strings.Contains(s.Info(ctx, "server").Val(), "redis_version") { // miniredis has no memory limit
			breaks["memory used up"] = func() error { return s.ConfigSet(ctx, "maxmemory", "1").Err() }
		}
		for name, spoil := range breaks {
			require.NoError(t, spoil())
			if err := put(); err == nil || errors.Is(err, ErrStale) {
				t.Errorf("%s: error %v, want one of Redis", name, err)
			}
			if after := s.hash(t, contract.ObjectMember("/a")); !maps.Equal(before, after) {
				t.Errorf("%s: hash is %v, was %v", name, after, before)
			}
			s.ConfigSet(ctx, "maxmemory", "0")
		}
	})
}

// TestVersionGoesOn: an expired tombstone, or a damaged version, does not make versions decrease.
func TestVersionGoesOn(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		ctx := t.Context()
		m := contract.ObjectMember("/a")
		put := func(want uint64) {
			t.Helper()
			got, err := s.p.Put(ctx, Object{Key: m.ID, ContentType: "a"})
			if err != nil || got.Version != want {
				t.Fatalf("got %+v, %v; want version %d", got, err, want)
			}
		}
		put(1)
		put(2)
		require.NoError(t, s.Del(ctx, keys.RecordKey(m)).Err())
		put(3)
		for i, damaged := range []string{"", "x", "1e9", "-1", "99999999999999999999"} {
			require.NoError(t, s.HSet(ctx, keys.RecordKey(m), "version", damaged).Err())
			put(uint64(4 + i))
		}
	})
}

// TestConcurrentWriters: concurrent writers share no version and no sequence number, and events arrive in order.
func TestConcurrentWriters(t *testing.T) {
	onBoth(t, func(t *testing.T, s server) {
		const writers, each = 8, 25
		next := s.events(t)
		var wg sync.WaitGroup
		for range writers {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for range each {
					if _, err := s.p.Put(t.Context(), Object{Key: "/a", ContentType: "a"}); err != nil {
						t.Error(err)
						return
					}
				}
			}()
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		for want := uint64(1); want <= writers*each; want++ {
			e := next()
			o, err := contract.ParseObject(e.Fields)
			if err != nil || e.Seq != want || o.Version != want {
				t.Fatalf("event has seq %d, version %d, error %v; want %d", e.Seq, o.Version, err, want)
			}
		}
	})
}
