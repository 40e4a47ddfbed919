package credential

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/gatehouse/gatehouse/internal/tracing"
)

// flightLife is how long a verification stays in the queue after its last request. A device that gets a Retry-After
// tries again sooner. Devices that have gone cost no bcrypt, nor does a flood in which each credential comes once.
const flightLife = 15 * time.Second

// flights are the running verifications: a single flight for each credential and generation, shared by all requests.
// Each edge has its own flights, because a flight waits in an edge's queue; see [runs]. golang.org/x/sync/singleflight
// can't record the time of the last request, which a flight needs.
type flights struct {
	mu  sync.Mutex
	all map[string]*flight // +checklocks:mu
}

type flight struct {
	done          chan struct{} // closed when result is set
	result        Result
	lastRequestMS atomic.Int64 // time of the last request, unix ms
	span          trace.Span   // of the work, in the trace of the first request
}

func newFlights() *flights { return &flights{all: make(map[string]*flight)} }

// join returns the flight of key, nil for none, and links the request's span in ctx to the flight.
func (f *flights) join(ctx context.Context, key string) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.joinLocked(ctx, key)
}

// joinLocked is join under the lock.
// +checklocks:f.mu
func (f *flights) joinLocked(ctx context.Context, key string) *flight {
	found := f.all[key]
	if found != nil {
		found.lastRequestMS.Store(time.Now().UnixMilli())
		tracing.Link(trace.SpanFromContext(ctx), found.span)
	}
	return found
}

// start joins the flight of key; without a flight, start begins a flight that runs work. work's context has the
// flight's span, and does not end with ctx.
func (f *flights) start(ctx context.Context, key string, work func(context.Context, *flight) Result) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	if found := f.joinLocked(ctx, key); found != nil {
		return found
	}
	ctx, span := tracing.StartChild(context.WithoutCancel(ctx), "verification")
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

// isWanted reports whether a request came within flightLife.
func (f *flight) isWanted() bool {
	return time.Now().UnixMilli()-f.lastRequestMS.Load() < flightLife.Milliseconds()
}

// runs are the flights that have a worker: of the flights of several edges for a credential, one runs bcrypt.
type runs struct {
	mu  sync.Mutex
	all map[string]*run // by key of the flight; +checklocks:mu
}

type run struct {
	key   string
	class class
	done  chan struct{} // closed when result is set
	// result is the run's answer if isDecided; otherwise another sidecar runs bcrypt.
	result    Result
	isDecided bool
}

// begin returns the run of key. isNew: the caller must run, and end the run. A suspect's run may pause for long, so
// only suspects wait for it.
func (r *runs) begin(key string, c class) (found *run, isNew bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if found = r.all[key]; found != nil && (found.class != suspect || c == suspect) {
		return found, false
	}
	r.all[key] = &run{key: key, class: c, done: make(chan struct{})}
	return r.all[key], true
}

// end gives the flights that wait for a run its result.
func (r *runs) end(ended *run, result Result, isDecided bool) {
	ended.result, ended.isDecided = result, isDecided
	r.mu.Lock()
	if r.all[ended.key] == ended {
		delete(r.all, ended.key)
	}
	r.mu.Unlock()
	close(ended.done)
}
