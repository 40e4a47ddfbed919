package tracing

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// RedisHook returns a hook that starts a span for each command within a recorded span. Spans have the names of commands
// and no arguments, because arguments contain keys and values.
func RedisHook() redis.Hook { return hook{} }

type hook struct{}

// DialHook implements [redis.Hook].
func (hook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessHook implements [redis.Hook].
func (hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		ctx, span := startSpan(ctx, strings.ToUpper(cmd.Name()))
		err := next(ctx, cmd)
		endSpan(span, err)
		return err
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		ctx, span := startSpan(ctx, "PIPELINE", attribute.Int("db.operation.batch.size", len(cmds)))
		err := next(ctx, cmds)
		endSpan(span, err)
		return err
	}
}

func startSpan(ctx context.Context, operation string, more ...attribute.KeyValue) (context.Context, trace.Span) {
	return StartChild(ctx, "redis "+operation, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		append(more, attribute.String("db.system.name", "redis"), attribute.String("db.operation.name", operation))...))
}

func endSpan(span trace.Span, err error) {
	if err != nil && !errors.Is(err, redis.Nil) {
		span.SetStatus(codes.Error, errorClass(err))
	}
	span.End()
}

// errorClass returns the kind of an error without the text, in which Redis repeats arguments.
func errorClass(err error) string {
	if answered, ok := errors.AsType[redis.Error](err); ok {
		prefix, _, _ := strings.Cut(answered.Error(), " ")
		return prefix
	}
	return fmt.Sprintf("%T", err)
}
