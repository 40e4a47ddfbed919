package follow_test

import (
	"context"
	"net"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/sidecar/internal/follow"
)

// TestGrantFromTheOldServer moves a name to a promoted replica, while a connection to the old server remains. A device
// is registered again, and its record is requested over the old connection: the old record is not taken for the new
// record.
func TestGrantFromTheOldServer(t *testing.T) {
	t.Cleanup(follow.SetCompareEvery(2 * time.Second)) // a comparison would notice where the connection leads
	old := redistest.StartServer(t)
	promoted := redistest.StartServer(t, "--replicaof", "127.0.0.1 "+old.Port())
	a, b := serverAt(t, old.Address), serverAt(t, promoted.Address)
	register := func(s server) uint64 {
		t.Helper()
		r, err := s.publish.PutDevice(t.Context(), publish.Device{ID: "d", Secret: "s", Cost: 4})
		require.NoError(t, err)
		return r.Version
	}
	register(a)
	b.promote(t)
	name := newName(old.Address)
	client := redis.NewClient(&redis.Options{MaxRetries: -1, Dialer: name.dial})
	f := followWith(t, client)
	<-f.Synced()
	free := make(chan error, 1) // nil when the last connection to the old server is
	go func() {
		pipe := client.Pipeline()
		pipe.BLPop(t.Context(), 0, "held")
		_, err := pipe.Exec(t.Context())
		free <- err
	}()
	await.Until(t, "a connection to be held", func() bool {
		return strings.Contains(a.Info(t.Context(), "clients").Val(), "blocked_clients:1")
	})
	name.at.Store(&promoted.Address)
	a.do(t, "CLIENT", "KILL", "TYPE", "pubsub")
	moved := time.Now()
	await.Until(t, "the promoted one to be followed", func() bool {
		return strings.Contains(b.ClientList(t.Context()).Val(), "sub=1") && f.Connected() && f.clock.inStep().After(moved)
	})
	before := f.clock.inStep()
	await.Until(t, "a comparison", func() bool { return f.clock.inStep() != before })
	a.do(t, "LPUSH", "held", "no more")
	require.NoError(t, <-free)
	reads := func() string { return regexp.MustCompile("cmdstat_hgetall:calls=[0-9]+").FindString(a.commands(t)) }
	had := reads()
	version := register(b) // and asked for before the next comparison
	await.Until(t, "the old server to be asked", func() bool { return reads() != had })
	a.do(t, "CLIENT", "KILL", "TYPE", "normal") // as at the end of its life
	await.Until(t, "the new record", func() bool { return f.credentials.version("d") == version })
}

// TestRevokedAtTheNewServer moves a name while connections to the old server remain, which still acts as master, and a
// new subscription is at the new server. A revocation at the new server stays in effect: the old server's data isn't
// read any more.
func TestRevokedAtTheNewServer(t *testing.T) {
	old := redistest.StartServer(t)
	promoted := redistest.StartServer(t, "--replicaof", "127.0.0.1 "+old.Port())
	a, b := serverAt(t, old.Address), serverAt(t, promoted.Address)
	if _, err := a.publish.PutDevice(t.Context(), publish.Device{ID: "d", Secret: "s", Cost: 4}); err != nil {
		t.Fatal(err)
	}
	b.promote(t)
	name := newName(old.Address)
	client := redis.NewClient(&redis.Options{MaxRetries: -1, Dialer: name.dial})
	f := followWith(t, client)
	<-f.Synced()
	await.Until(t, "a comparison", func() bool { return strings.Contains(a.commands(t), "cmdstat_info:calls=2") })
	var pooled [4]*redis.Conn // which return to the pool
	for i := range pooled {
		pooled[i] = client.Conn()
		require.NoError(t, pooled[i].Ping(t.Context()).Err())
	}
	for _, conn := range pooled {
		conn.Close()
	}
	name.at.Store(&promoted.Address)
	a.do(t, "CLIENT", "KILL", "TYPE", "pubsub")
	await.Until(t, "a subscription at the promoted one", func() bool {
		return f.Connected() && strings.Contains(b.ClientList(t.Context()).Val(), "sub=1")
	})
	revoked, err := b.publish.RevokeDevice(t.Context(), "d")
	require.NoError(t, err)
	await.Until(t, "the revocation", func() bool { return f.credentials.version("d") == revoked.Version })
	now := time.Now()
	await.Until(t, "in step again", func() bool { return f.clock.inStep().After(now) && f.Connected() })
	if got := f.count(t, "gatehouse_full_resyncs_total"); got != 1 || f.credentials.version("d") != revoked.Version {
		t.Errorf("got %v full resyncs and version %d, want the first one and version %d: the old server was read",
			got, f.credentials.version("d"), revoked.Version)
	}
}

// name is the name of a server that moves.
type name struct{ at atomic.Pointer[string] }

func newName(address string) *name {
	n := new(name)
	n.at.Store(&address)
	return n
}

func (n *name) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, *n.at.Load())
}

// promote makes a replica a master once the replica has a write.
func (s server) promote(t *testing.T) {
	t.Helper()
	await.Until(t, "the replica", func() bool { return s.Get(t.Context(), keys.SeqKey()).Val() == "1" })
	s.do(t, "REPLICAOF", "NO", "ONE")
}

func (s server) commands(t *testing.T) string { return s.Info(t.Context(), "commandstats").Val() }
