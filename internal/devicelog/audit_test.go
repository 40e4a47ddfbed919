package devicelog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// TestAuditOfShards: entries of several shards come in the order of their times, with all pages.
func TestAuditOfShards(t *testing.T) {
	s := redistest.StartServer(t).Client(t)
	l := Log{s, contract.Keyspace{Shards: 3}}
	if _, err := publish.New(s, publish.Shards(3)).Put(t.Context(), publish.Object{Key: "/a",
		ContentType: "a"}); err != nil {
		t.Fatal(err)
	}
	const each = auditPage + 10
	pipe := s.Pipeline()
	for i := range each {
		for shard := range 3 {
			pipe.XAdd(t.Context(), &redis.XAddArgs{Stream: contract.Keys{Shard: shard}.AuditKey(),
				ID: fmt.Sprintf("%d-0", 1000+3*i+shard), Values: []string{"device", "d", "version", strconv.Itoa(3*i + shard)}})
		}
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, since := range []int{0, 1500, 1000 + 3*each} {
		next := max(since-1000, 0)
		for c, err := range l.Audit(t.Context(), time.UnixMilli(int64(since))) {
			if err != nil || c.Version != uint64(next) {
				t.Fatalf("since %d: got version %d, %v; want %d", since, c.Version, err, next)
			}
			next++
		}
		if next != 3*each {
			t.Errorf("since %d: the list ends with %d, want %d", since, next, 3*each)
		}
	}
	l.Keyspace.Shards = 2
	for _, err := range l.Audit(t.Context(), time.Time{}) {
		if !errors.As(err, new(*contract.ShardsError)) {
			t.Errorf("another number of shards: got %v", err)
		}
	}
}

// TestFollowAudit: new entries are passed as they come, from a Cluster, and by sentinels also after a failover, to a
// reader with the documented permissions.
func TestFollowAudit(t *testing.T) {
	t.Parallel()
	t.Run("user", func(t *testing.T) {
		server := redistest.StartServer(t)
		rules := []any{"acl", "setuser", "auditor", "on", ">p", "%R~{gatehouse:*}:*", "-@all", "+get", "+xrange",
			"+xread"}
		require.NoError(t, server.Client(t).Do(t.Context(), rules...).Err())
		followsAudit(t, "redis://"+server.Address, "redis://auditor:p@"+server.Address, func() {})
	})
	t.Run("cluster", func(t *testing.T) {
		c := redistest.StartCluster(t)
		followsAudit(t, c.URL, c.URL, func() {})
	})
	t.Run("sentinel", func(t *testing.T) {
		s := redistest.StartSentinels(t)
		followsAudit(t, s.URL, s.URL, func() { s.Failover(t, func() {}) })
	})
}

func followsAudit(t *testing.T, writer, reader string, trouble func()) {
	t.Helper()
	connect := func(url string) redis.UniversalClient {
		client, err := redisurl.Connect(url)
		require.NoError(t, err)
		t.Cleanup(func() { client.Close() })
		return client
	}
	p := publish.New(connect(writer), publish.Author("a"), publish.Shards(3))
	put := func(id string) {
		t.Helper()
		var err error
		await.Until(t, "write of "+id, func() bool { // after a failover the client looks for the master
			_, err = p.PutDevice(t.Context(), publish.Device{ID: id, Secret: "s", Cost: 4})
			return err == nil
		})
	}
	put("before")
	ctx, cancel := context.WithCancel(t.Context())
	got, ended := make(chan string, 100), make(chan error, 1)
	go func() {
		l := Log{connect(reader), contract.Keyspace{Shards: 3}}
		ended <- l.FollowAudit(ctx, time.Time{},
			func(c Change) error { got <- c.Device; return nil }, func(error) {})
	}()
	expect := func(want string) {
		t.Helper()
		select {
		case id := <-got:
			if id != want {
				t.Fatalf("got %s, want %s", id, want)
			}
		case <-time.After(await.Deadline):
			t.Fatalf("no entry of %s", want)
		}
	}
	expect("before")
	for _, id := range []string{"b", "c", "d", "e"} { // of all shards
		put(id)
		expect(id)
	}
	trouble()
	put("after")
	expect("after")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
