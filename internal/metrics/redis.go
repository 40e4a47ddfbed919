package metrics

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// ObserveRedis measures the calls of client; call ObserveRedis before the client's first call. Failed calls count as
// well, with the time until the failure. Subscriptions are not calls.
func (m *Metrics) ObserveRedis(client redis.UniversalClient) {
	if cluster, ok := client.(*redis.ClusterClient); ok {
		// By server: a call of the cluster's client may be several, and the followers call the servers themselves.
		cluster.OnNewNode(func(node *redis.Client) { node.AddHook(redisHook{m}) })
		return
	}
	client.AddHook(redisHook{m})
}

// redisHook observes each round trip.
type redisHook struct{ metrics *Metrics }

// DialHook implements [redis.Hook].
func (redisHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (h redisHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	seconds := h.metrics.Redis.WithLabelValues("command")
	return func(ctx context.Context, cmd redis.Cmder) error {
		started := time.Now()
		err := next(ctx, cmd)
		seconds.Observe(time.Since(started).Seconds())
		return err
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (h redisHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	seconds := h.metrics.Redis.WithLabelValues("pipeline")
	return func(ctx context.Context, cmds []redis.Cmder) error {
		started := time.Now()
		err := next(ctx, cmds)
		seconds.Observe(time.Since(started).Seconds())
		return err
	}
}
