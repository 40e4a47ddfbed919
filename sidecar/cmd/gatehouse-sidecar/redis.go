package main

import (
	"context"
	"fmt"
	"log/slog"
)

// redisLogger puts what the client says into our log: errors come back from calls anyway.
type redisLogger struct{ log *slog.Logger }

// Printf logs.
func (l redisLogger) Printf(_ context.Context, format string, args ...any) {
	l.log.Debug("redis client", "message", fmt.Sprintf(format, args...))
}
