package follow

import (
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
)

// Tests wait for many comparisons and full resyncs.
func init() { compareEvery, fullEvery = 200*time.Millisecond, 200*time.Millisecond }

// New returns a Follower of a single shard, without a group.
func New(c Config, client redis.UniversalClient, m *metrics.Metrics, log *slog.Logger) *Follower {
	c.Keyspace, c.Shard = contract.Keyspace{Database: redisurl.Database(client)}, 0
	return newFollower(c, newBoard(1, c.Clock, m), client, m, log)
}
