package follow

import (
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/internal/metrics"
)

// Tests wait for many comparisons and full resyncs. On a busy machine Redis answers late.
func init() {
	compareEvery, fullEvery = 200*time.Millisecond, 200*time.Millisecond
	registeredTimeout = 5 * time.Second
	delayShown, maxBehind = time.Second, 3*time.Second
}

// SetGrantTimeout changes grantTimeout until the end of the test, which must not be parallel.
func SetGrantTimeout(t *testing.T, timeout time.Duration) {
	before := grantTimeout
	grantTimeout = timeout
	t.Cleanup(func() { grantTimeout = before })
}

// newReader returns the reader of a catch-up at a server.
func (f *Follower) newReader(master redis.Cmdable) *catchUpReader {
	return &catchUpReader{deviceReads: f.deviceReads, server: server{master, ""}, meanwhile: func() error { return nil }}
}

// New returns a Follower of a single shard, without a group.
func New(c Config, client redis.UniversalClient, m *metrics.Metrics, log *slog.Logger) *Follower {
	c.Keyspace, c.Shard = contract.Keyspace{Database: redisurl.Database(client)}, 0
	return newFollower(c, 0, "", newBoard(1, c.Clock, m), client, m, log)
}
