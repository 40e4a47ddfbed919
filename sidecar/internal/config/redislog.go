package config

import (
	"context"
	"fmt"
	"log/slog"
)

// RedisLogger puts what the Redis client says into a program's log, for redis.SetLogger. Errors come back from calls
// anyway.
type RedisLogger struct{ Log *slog.Logger }

// Printf logs.
func (l RedisLogger) Printf(_ context.Context, format string, args ...any) {
	l.Log.Debug("redis client", "message", fmt.Sprintf(format, args...))
}
