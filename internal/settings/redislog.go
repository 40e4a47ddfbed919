package settings

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"
)

// LogRedis writes messages of the process's Redis clients to log. Errors come back from calls anyway.
func LogRedis(log *slog.Logger) { redis.SetLogger(redisLogger{log}) }

type redisLogger struct{ log *slog.Logger }

// Printf logs.
func (l redisLogger) Printf(_ context.Context, format string, args ...any) {
	l.log.Debug("redis client", "message", fmt.Sprintf(format, args...))
}
