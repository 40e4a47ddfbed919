package events_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/e2e/redistest"
	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/publish"
)

// A server that becomes a replica is left, although the subscription goes on; when it is
// a master again everything is read, although epoch and numbers would do.
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
	eventually(t, "the refusal", func() bool { return strings.Contains(g.log.String(), "is a replica (role slave, of 127.0.0.1:1)") })
	s.do(t, "REPLICAOF", "NO", "ONE")
	eventually(t, "followed again", func() bool { return strings.Contains(g.log.String(), "everything is read again") })
	s.put(t, "/a")
	eventually(t, "an event", func() bool { return g.objects[0].version("/a") == 2 })

	// So short that no comparison sees it; what the log no longer has was lost meanwhile.
	tx := s.TxPipeline()
	tx.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1")
	tx.Do(t.Context(), "REPLICAOF", "NO", "ONE")
	tx.Del(t.Context(), keys.ObjectKey("/lost"))
	tx.ZRem(t.Context(), keys.LogKey(), contract.ObjectMember("/lost").String())
	if _, err := tx.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.put(t, "/a")
	eventually(t, "what was lost to go", func() bool { return g.objects[0].version("/lost") == 0 && g.objects[0].version("/a") == 3 })
	eventually(t, "the third full resync", func() bool { return strings.Count(g.log.String(), "full=true") == 3 })
}
