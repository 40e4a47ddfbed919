package credential

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/gatehouse/gatehouse/sidecar/internal/tracing"
)

// flightLife is how long a verification keeps its place after the last request for it. A device that was told to try again
// does so sooner. A device that has gone costs no bcrypt, and neither does a flood of credentials that come once each.
const flightLife = 15 * time.Second

// flights are the running verifications: one for each credential and generation, shared by all requests.
// golang.org/x/sync/singleflight can't record when the last request came, which a flight needs.
type flights struct {
	mu  sync.Mutex
	all map[string]*flight
}

type flight struct {
	done          chan struct{} // closed when result is set
	result        Result
	lastRequestMS atomic.Int64 // time of the last request for it, unix ms
	span          trace.Span   // of the work, in the trace of the first request
}

// join returns the flight of key, if there is one, for the request of ctx.
func (f *flights) join(ctx context.Context, key string) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.joinLocked(ctx, key)
}

// joinLocked is join; mu is held.
func (f *flights) joinLocked(ctx context.Context, key string) *flight {
	found := f.all[key]
	if found != nil {
		found.lastRequestMS.Store(time.Now().UnixMilli())
		tracing.Link(trace.SpanFromContext(ctx), found.span)
	}
	return found
}

// start returns the flight of key; if there is none yet, it starts one that runs work, with the span of the flight in
// its context. The work does not end with ctx.
func (f *flights) start(ctx context.Context, key string, work func(context.Context, *flight) Result) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	if found := f.joinLocked(ctx, key); found != nil {
		return found
	}
	ctx, span := tracing.Child(context.WithoutCancel(ctx), "verification")
	started := &flight{done: make(chan struct{}), span: span}
	started.lastRequestMS.Store(time.Now().UnixMilli())
	f.all[key] = started
	go func() {
		started.result = work(ctx, started)
		span.SetAttributes(tracing.Outcome.String(started.result.Outcome.String()),
			tracing.Reason.String(string(started.result.Reason)))
		span.End()
		f.mu.Lock()
		delete(f.all, key)
		f.mu.Unlock()
		close(started.done)
	}()
	return started
}

// isWanted reports whether a request came within keepFor.
func (f *flight) isWanted() bool {
	return time.Now().UnixMilli()-f.lastRequestMS.Load() < flightLife.Milliseconds()
}
