package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/gatehouse/gatehouse/sidecar/internal/config"
)

// connect is a client; it connects when it is used.
func connect(c *config.Config) (*redis.Client, error) {
	options, err := c.RedisOptions()
	if err != nil {
		return nil, err
	}
	options.ClientName = "gatehouse-sidecar"
	options.DialTimeout = 2 * time.Second
	options.ReadTimeout = 5 * time.Second
	options.MaxRetries = 1
	// Hand-overs of a hosted Redis would make the subscription anew behind our back.
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(options), nil
}

// redisLogger puts what the client says into our log: errors come back from calls anyway.
type redisLogger struct{ log *slog.Logger }

// Printf logs.
func (l redisLogger) Printf(_ context.Context, format string, args ...any) {
	l.log.Debug("redis client", "message", fmt.Sprintf(format, args...))
}
