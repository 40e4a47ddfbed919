package follow_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
)

// TestDemotedAndPromoted: the follower disconnects from a server that becomes a replica, although the subscription goes
// on. When the server is a master again and has the follower's last write, nothing is read again; without a chain,
// everything is.
func TestDemotedAndPromoted(t *testing.T) {
	address := strings.TrimPrefix(redistest.Start(t), "redis://")
	client := redis.NewClient(&redis.Options{Addr: address})
	t.Cleanup(func() { client.Close() })
	s := server{client, publish.New(client), newLine(t, address)}
	s.put(t, "/lost")
	s.put(t, "/a")
	g := followShards(t, s, 1)
	<-g.Synced()
	s.do(t, "REPLICAOF", "127.0.0.1", "1")
	await.Until(t, "the refusal", func() bool {
		return strings.Contains(g.log.String(), "is a replica (role slave, of 127.0.0.1:1)")
	})
	s.do(t, "REPLICAOF", "NO", "ONE")
	await.Until(t, "followed again", func() bool { return strings.Count(g.log.String(), "reason=connected full=") == 2 })
	s.put(t, "/a")
	await.Until(t, "an event", func() bool { return g.objects[0].version("/a") == 2 })
	if log := g.log.String(); strings.Count(log, "full=true") != 1 {
		t.Errorf("got %s, want no second full resync", log)
	}

	// Too short for a comparison to notice; writes that the log no longer has were lost meanwhile.
	tx := s.TxPipeline()
	tx.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1")
	tx.Do(t.Context(), "REPLICAOF", "NO", "ONE")
	tx.Del(t.Context(), keys.ObjectKey("/lost"), keys.ChainKey())
	tx.ZRem(t.Context(), keys.LogKey(), contract.ObjectMember("/lost").String())
	if _, err := tx.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.put(t, "/a")
	await.Until(t, "what was lost to go", func() bool {
		return g.objects[0].version("/lost") == 0 && g.objects[0].version("/a") == 3
	})
	await.Until(t, "the second full resync", func() bool { return strings.Count(g.log.String(), "full=true") == 2 })
}

// TestWhatIsKnown reads everything again, but no bodies of known objects.
func TestWhatIsKnown(t *testing.T) {
	address := strings.TrimPrefix(redistest.Start(t), "redis://")
	s := serverAt(t, address)
	s.put(t, "/0")  // sets the data epoch
	s.fill(t, 1100) // more than a page of the log
	if _, err := s.publish.Delete(t.Context(), "/7", 0); err != nil {
		t.Fatal(err)
	}
	g := followShards(t, s, 1)
	<-g.Synced()
	got := g.objects[0]
	again := func(n int) {
		t.Helper()
		tx := s.TxPipeline()
		tx.ConfigResetStat(t.Context())
		tx.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1")
		tx.Do(t.Context(), "REPLICAOF", "NO", "ONE")
		tx.Del(t.Context(), keys.ChainKey())
		tx.Del(t.Context(), keys.ObjectKey("/8")) // lost
		tx.HSet(t.Context(), keys.ObjectKey("/9"), contract.FieldVersion, 9)
		if _, err := tx.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
		await.Until(t, "a full resync", func() bool { return strings.Count(g.log.String(), "full=true") == n })
		if got.version("/8") != 0 || got.version("/9") != 9 || got.version("/1099") != 1 || got.len() != 1098 {
			t.Errorf("got version %d, %d, %d and %d objects, want 0, 9, 1 and 1,098", got.version("/8"),
				got.version("/9"), got.version("/1099"), got.len())
		}
	}
	again(2)
	got.mu.Lock()
	confirmed := got.confirmed
	got.mu.Unlock()
	if stats := s.Info(t.Context(), "commandstats").Val(); !strings.Contains(stats, "cmdstat_hgetall:calls=2,") ||
		confirmed != 1098 {
		t.Errorf("got %d confirmed, and %s; want 1,098, and 2 HGETALL", confirmed, stats)
	}
	s.do(t, "ACL", "SETUSER", "default", "-hmget")
	again(3)
	if stats := s.Info(t.Context(), "commandstats").Val(); !strings.Contains(stats, "cmdstat_hgetall:calls=1100,") ||
		!strings.Contains(g.log.String(), "permit HMGET (+hmget)") {
		t.Errorf("without permission: got %s and %s; want 1,100 HGETALL and a warning", stats, g.log)
	}
}

// TestFirstReplica: Redis gets another replication ID because a first replica connects, and loses nothing.
func TestFirstReplica(t *testing.T) {
	address := strings.TrimPrefix(redistest.Start(t), "redis://")
	s := serverAt(t, address)
	s.put(t, "/a")
	g := followShards(t, s, 1)
	<-g.Synced()
	line := func() string {
		_, after, _ := strings.Cut(s.Info(t.Context(), "replication").Val(), "master_replid:")
		return after[:40]
	}
	before := line()
	replica := redis.NewClient(&redis.Options{Addr: strings.TrimPrefix(redistest.Start(t), "redis://")})
	t.Cleanup(func() { replica.Close() })
	host, port, _ := net.SplitHostPort(address)
	if err := replica.ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "another line", func() bool { return line() != before })
	s.put(t, "/a")
	await.Until(t, "the event", func() bool { return g.objects[0].version("/a") == 2 })
	for range 2 { // comparisons
		now := time.Now()
		await.Until(t, "in step", func() bool { return g.clock.inStep().After(now) })
	}
	if log := g.log.String(); strings.Count(log, "full=true") != 1 || strings.Contains(log, "not followed") {
		t.Errorf("got %s, want no second full resync, and no reconnection", log)
	}
}
