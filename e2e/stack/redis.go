package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// startRedis starts the stack's own Redis, unless it uses one that runs already.
func (s *Stack) startRedis(ctx context.Context) error {
	switch {
	case s.opts.RedisURL != "":
		return s.pingRedis(ctx, nil)
	case s.opts.RedisServerPath != "":
		return s.startRedisServer(ctx)
	}
	if s.embedded == nil {
		s.embedded = miniredis.NewMiniRedis()
		if err := s.embedded.StartAddr(s.opts.Redis); err != nil {
			return &AddressError{Variable: "REDIS", Address: s.opts.Redis, Err: err}
		}
		ctx, cancel := context.WithCancel(context.Background())
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			expire(ctx, s.embedded)
		}()
		s.stopEmbedded = func() { cancel(); <-stopped; s.embedded.Close() }
		return nil
	}
	if err := s.embedded.Restart(); err != nil {
		return &AddressError{Variable: "REDIS", Address: s.opts.Redis, Err: err}
	}
	return nil
}

// expire moves the embedded Redis's clock: it doesn't age keys by itself.
func expire(ctx context.Context, server *miniredis.Miniredis) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			server.FastForward(now.Sub(last))
			last = now
		}
	}
}

// startRedisServer runs redis-server without persistence: what it loses when it is killed
// is what a test wants to see lost.
func (s *Stack) startRedisServer(ctx context.Context) error {
	host, port, err := net.SplitHostPort(s.opts.Redis)
	if err != nil {
		return fmt.Errorf("address of redis-server: %w", err)
	}
	args := []string{"--bind", host, "--port", port, "--dir", s.opts.Dir, "--save", "", "--appendonly", "no"}
	return s.startChild(ctx, redisName, program{
		name: redisName, path: s.opts.RedisServerPath, args: append(args, s.opts.RedisArgs...), log: s.path("redis.log"),
	}, s.pingRedis)
}

// pingRedis waits until Redis answers.
func (s *Stack) pingRedis(ctx context.Context, child *process) error {
	options, err := redis.ParseURL(s.RedisURL())
	if err != nil {
		return fmt.Errorf("%w: REDIS_URL: %w; want redis://HOST:PORT", ErrUsage, err)
	}
	options.MaxRetries = -1 // await tries again
	client := redis.NewClient(options)
	defer func() { _ = client.Close() }()
	return s.await(ctx, child, "redis "+options.Addr, func(ctx context.Context) error {
		// The client would write to stderr about every dial that fails.
		conn, err := new(net.Dialer).DialContext(ctx, options.Network, options.Addr)
		if err != nil {
			return err
		}
		_ = conn.Close()
		if err := client.Ping(ctx).Err(); err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("PING: %w", err)
		}
		return ctx.Err()
	})
}
