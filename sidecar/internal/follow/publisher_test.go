package follow_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/follow"
	"github.com/gatehouse/gatehouse/testbed/logbuffer"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// publisher is a user with the contract's permissions for writers of objects, and no devices.
func publisher(t *testing.T, s server) *redis.Client {
	t.Helper()
	text, err := os.ReadFile("../../../docs/redis-contract.md")
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^ACL (SETUSER publisher .*)$`).FindSubmatch(text)
	if line == nil {
		t.Fatal("the contract lists no permissions of a publisher")
	}
	args := []any{"ACL"}
	for arg := range strings.FieldsSeq(string(line[1])) {
		args = append(args, arg)
	}
	s.do(t, args...)
	client := redis.NewClient(&redis.Options{Addr: s.Options().Addr, Username: "publisher",
		Password: "publisher-password", MaxRetries: -1})
	t.Cleanup(func() { client.Close() })
	for _, key := range []string{keys.CredentialKey("r"), keys.CredentialKey("new")} {
		if err := client.HSet(t.Context(), key, "version", 1).Err(); !redis.HasErrorPrefix(err, "NOPERM") {
			t.Fatalf("HSET %s: got %v, want NOPERM", key, err)
		}
	}
	return client
}

// believer is an authority that lets every device in with the secret "right".
type believer struct{ asked sync.Map } // calls, by device: *atomic.Int64

func (b *believer) Ask(_ context.Context, id, secret string, _ bool) (credential.Answer, error) {
	b.of(id).Add(1)
	return credential.Answer{Allow: secret == "right"}, nil
}

func (b *believer) of(id string) *atomic.Int64 {
	calls, _ := b.asked.LoadOrStore(id, new(atomic.Int64))
	return calls.(*atomic.Int64)
}

// sidecar is the part of a sidecar that decides about devices.
type sidecar struct {
	*credential.Verifier
	believer
	followers *follow.Group
}

// startSidecar starts a sidecar with an authority.
func startSidecar(t *testing.T, s server) *sidecar {
	t.Helper()
	x := new(sidecar)
	m, log := metrics.New(), slog.New(slog.NewTextHandler(new(logbuffer.Buffer), nil))
	memory := edgemem.New(edgemem.Config{Objects: 10, Verdicts: 100, Shards: 1})
	x.Verifier = credential.New(credential.Config{Workers: 2, Queue: 100, Wait: 5 * time.Second, MaxCost: 4,
		AllowTTL: time.Minute, PinTTL: time.Minute, Shards: 1, Authority: &x.believer, MaxAnswers: 100,
		Registered: func(ctx context.Context, id string) (bool, error) { return x.followers.Registered(ctx, id) },
	}, memory, m, log)
	client := redis.NewClient(&redis.Options{Addr: s.line.Address(), MaxRetries: -1, ContextTimeoutEnabled: true})
	x.followers = follow.NewGroup(contract.Keyspace{Shards: 1}, func(int) follow.Config {
		return follow.Config{Objects: objects{newSink()}, Credentials: x.Shard(0), Purges: purges{newSink()}}
	}, new(clock), client, m, log)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { x.followers.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait(); client.Close() })
	<-x.followers.Synced()
	return x
}

// becomes waits until a device gets an answer, for a reason, "" for any. The authority, which would let the device in,
// is never called.
func (x *sidecar) becomes(t *testing.T, id, secret string, want wire.Outcome, reason credential.Reason) {
	t.Helper()
	var got credential.Result
	await.Until(t, fmt.Sprintf("%s: %v %s", id, want, reason), func() bool {
		got = x.Verify(t.Context(), id, secret, "192.0.2.1")
		if got.Outcome == wire.Allow && secret == "right" || x.of(id).Load() > 0 {
			t.Fatalf("%s with %q: got %v (%s) after %d calls of the authority", id, secret, got.Outcome, got.Reason,
				x.of(id).Load())
		}
		return got.Outcome == want && (reason == "" || got.Reason == reason)
	})
}

// TestForgedDevice: a writer of objects, and so of seq, chain and log, publishes fitting events about devices. The
// authority never decides about a device with a record, and no version keeps a revocation out.
func TestForgedDevice(t *testing.T) {
	t.Parallel()
	s := serverAt(t, strings.TrimPrefix(redistest.Start(t), "redis://"))
	forger := server{Client: publisher(t, s)}
	s.device(t, "r")
	s.revoke(t, "r")
	registered := map[string]bool{"r": true}
	x := startSidecar(t, s)
	last := fmt.Sprint(limits.MaxVersion)
	for n, e := range []contract.Event{
		{Fields: map[string]string{"version": last, "published": last, "deleted": "1"}},
		{Fields: map[string]string{"version": "1", "published": "1", "deleted": "1"}},
		{Fields: map[string]string{"version": last, "published": last, "disabled": "revoked"}},
		{Fields: map[string]string{"version": last, "published": last, "hash": hash}},
		{Fields: map[string]string{"version": "?"}},
		{Fields: map[string]string{"version": "1"}, Traceparent: "?"}, // only the member is readable
	} {
		good := fmt.Sprint("g", n)
		s.device(t, good)
		registered[good] = true
		x.becomes(t, good, "s", wire.Allow, "")
		for id := range registered {
			e.Member = contract.CredentialMember(id)
			forger.announce(t, keys, e)
		}
		x.becomes(t, "r", "right", wire.Deny, "revoked")
		x.becomes(t, good, "right", wire.Deny, "")
		s.revoke(t, good)
		x.becomes(t, good, "s", wire.Deny, "revoked")
	}
	s.device(t, "new")
	for id := range registered {
		x.becomes(t, id, "right", wire.Deny, "revoked")
	}
}

// TestForgedTombstoneBeforeARecord: a forged tombstone of a device without a record leaves the decision to the
// authority, and keeps no later record out.
func TestForgedTombstoneBeforeARecord(t *testing.T) {
	t.Parallel()
	s := serverAt(t, strings.TrimPrefix(redistest.Start(t), "redis://"))
	forger := server{Client: publisher(t, s)}
	s.device(t, "other")
	x := startSidecar(t, s)
	last := fmt.Sprint(limits.MaxVersion)
	for _, id := range []string{"new", "*"} {
		forger.announce(t, keys, contract.Event{Member: contract.CredentialMember(id),
			Fields: map[string]string{"version": last, "published": last, "deleted": "1"}})
	}
	await.Until(t, "the authority to decide", func() bool {
		return x.Verify(t.Context(), "new", "right", "192.0.2.1").Outcome == wire.Allow
	})
	if _, err := s.publish.InvalidateDevice(t.Context(), "tombstone"); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the authority to decide about a device with a tombstone", func() bool {
		return x.Verify(t.Context(), "tombstone", "right", "192.0.2.1").Outcome == wire.Allow
	})
	calls := x.of("new")
	if _, err := s.publish.InvalidateAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	asked := calls.Load()
	await.Until(t, "an invalidation", func() bool {
		x.Verify(t.Context(), "new", "right", "192.0.2.1")
		return calls.Load() > asked
	})
	s.device(t, "new")
	s.revoke(t, "new")
	await.Until(t, "the revocation", func() bool {
		return x.Verify(t.Context(), "new", "right", "192.0.2.1").Reason == "revoked"
	})
}

// TestForgedLog: a writer of objects removes devices from the log before a sidecar starts, so the sidecar can't know
// the devices. The authority doesn't decide about these devices.
func TestForgedLog(t *testing.T) {
	t.Parallel()
	hide := map[string]func(t *testing.T, p *redis.Client, ids []string){
		"beyond seq": func(t *testing.T, p *redis.Client, ids []string) {
			for _, id := range ids {
				p.ZAdd(t.Context(), keys.LogKey(), redis.Z{Score: limits.MaxVersion, Member: "c:" + id})
			}
		},
		"another log": func(t *testing.T, p *redis.Client, _ []string) {
			p.PExpire(t.Context(), keys.LogKey(), time.Millisecond)
			await.Until(t, "the log to go", func() bool {
				return len(p.ZRange(t.Context(), keys.LogKey(), 0, -1).Val()) == 0
			})
			p.ZAdd(t.Context(), keys.LogKey(), redis.Z{Score: 1, Member: "o:/a"})
		},
	}
	for name, hide := range hide {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serverAt(t, strings.TrimPrefix(redistest.Start(t), "redis://"))
			s.device(t, "r")
			s.revoke(t, "r")
			s.device(t, "g")
			s.do(t, "SET", keys.CredentialKey("string"), "x")
			hide(t, publisher(t, s), []string{"r", "g"})
			s.put(t, "/a")
			x := startSidecar(t, s)
			x.becomes(t, "r", "right", wire.Deny, "revoked")
			x.becomes(t, "g", "right", wire.Deny, "")
			x.becomes(t, "g", "s", wire.Allow, "")
			x.becomes(t, "string", "right", wire.Deny, "refused_record")
			if got := x.Verify(t.Context(), "unknown", "right", "192.0.2.1"); got.Outcome != wire.Allow {
				t.Errorf("a device without a record: got %v (%s), want the authority's answer", got.Outcome, got.Reason)
			}
		})
	}
}

// TestForgedLogWhileAway: a revocation that a sidecar misses, and the log hides, counts after a resync.
func TestForgedLogWhileAway(t *testing.T) {
	t.Parallel()
	s := serverAt(t, strings.TrimPrefix(redistest.Start(t), "redis://"))
	s.device(t, "g")
	p := publisher(t, s)
	x := startSidecar(t, s)
	x.becomes(t, "g", "s", wire.Allow, "")
	s.line.Cut()
	await.Until(t, "the loss to be noticed", func() bool { return x.followers.Failure() != "" })
	s.revoke(t, "g")
	p.ZAdd(t.Context(), keys.LogKey(), redis.Z{Score: limits.MaxVersion, Member: "c:g"})
	s.heal(t)
	await.Until(t, "Redis to be followed", func() bool { return x.followers.Failure() == "" })
	require.NoError(t, x.followers.Resync(t.Context()))
	x.becomes(t, "g", "s", wire.Deny, "revoked")
}

// TestRegisteredAtTheOldServer: a server that lacks applied writes, or doesn't answer, doesn't decide whether a device
// is registered.
func TestRegisteredAtTheOldServer(t *testing.T) {
	t.Parallel()
	s := serverAt(t, strings.TrimPrefix(redistest.Start(t), "redis://"))
	s.device(t, "g")
	x := startSidecar(t, s)
	for id, want := range map[string]bool{"g": true, "unknown": false} {
		if got, err := x.followers.Registered(t.Context(), id); got != want || err != nil {
			t.Errorf("%s: got %v, %v, want %v", id, got, err, want)
		}
	}
	s.do(t, "FLUSHALL")
	if got, err := x.followers.Registered(t.Context(), "g"); err == nil {
		t.Errorf("got %v of a Redis without data, want an error", got)
	}
	s.line.Hang()
	for range 3 {
		if got := x.Verify(t.Context(), "unknown", "right", "192.0.2.1"); got.Outcome != wire.Allow {
			t.Errorf("Redis is away: got %v (%s), want the authority's answer", got.Outcome, got.Reason)
		}
	}
}
