// Package push sends the memory to the edge over a unix socket: batch after batch, each with the changes since the last
// one.
package push

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/tracing"
)

const (
	// heartbeatEvery is the maximum interval between batches, changes or not.
	heartbeatEvery = 200 * time.Millisecond
	// rivalGone is the age of the last heartbeat of a sidecar that took over from us after which we take over from it.
	rivalGone = 5 * time.Second
	// rivalEvery is the interval between checks whether it still pushes.
	rivalEvery = time.Second
	minBackoff = 50 * time.Millisecond
	maxBackoff = time.Second
	// maxOwn bounds the epochs remembered as our own. More than one counts, because a push that timed out may still be
	// applied after the next one.
	maxOwn = 1000
)

// Memory makes the batches.
type Memory interface {
	Wake() <-chan struct{}
	Take(dst []byte) ([]byte, edgemem.Taken)
	Acked()
	Reset(before *wire.State)
}

// Pusher pushes to one edge.
type Pusher struct {
	memory  Memory
	client  *client
	socket  string
	synced  <-chan struct{}
	metrics *metrics.Metrics
	tracer  trace.Tracer
	log     *slog.Logger

	status  atomic.Pointer[string] // why the edge is not ready; empty: it is
	demands chan chan<- struct{}   // of operators, see [Pusher.PushAll]

	// Of the goroutine that runs Run.
	epoch uint64          // the pushed one
	own   map[uint64]bool // epochs that were ours
	rival uint64          // epoch of the sidecar that took over from us, or 0
	said  string          // the last logged reason of a failed push; empty: none has failed since
	// demanded is closed when the edge has everything that an operator demanded to push again; nil: none did.
	demanded chan<- struct{}
	buf      []byte
}

// New returns a Pusher to the edge that listens on socket. It takes over after synced is closed: until then the edge's
// content is better than ours.
func New(memory Memory, socket string, synced <-chan struct{}, m *metrics.Metrics, tracer trace.Tracer,
	log *slog.Logger) *Pusher {
	p := &Pusher{
		memory: memory, client: newClient(socket), socket: socket, synced: synced,
		metrics: m, tracer: tracer, log: log, own: make(map[uint64]bool), demands: make(chan chan<- struct{}),
	}
	p.setStatus("redis was not read yet")
	return p
}

func (p *Pusher) setStatus(why string) { p.status.Store(&why) }

// Ready returns nil if the edge has acknowledged everything of the current epoch once, otherwise the reason why not.
func (p *Pusher) Ready() error {
	if why := *p.status.Load(); why != "" {
		return errors.New(why)
	}
	return nil
}

// epochReason is the reason for a new epoch, a label of metrics.
type epochReason string

const (
	becauseStart       epochReason = "start"
	becauseEmpty       epochReason = "empty" // the edge's memory was not ours
	becauseRival       epochReason = "rival" // another sidecar pushed to this edge
	becausePermissions epochReason = "permissions"
	becauseDemand      epochReason = "demand" // of an operator
	becauseError       epochReason = "error"
)

// PushAll pushes everything again, in a new epoch, as soon as the edge has what waits. It must not be called again
// before it returns, with nil or ctx's error.
func (p *Pusher) PushAll(ctx context.Context) error {
	done := make(chan struct{})
	select {
	case p.demands <- done:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run pushes until ctx ends. After each failure it begins a new epoch, in which it pushes everything.
func (p *Pusher) Run(ctx context.Context) error {
	defer p.client.close()
	select {
	case <-p.synced:
	case <-ctx.Done():
		return nil
	}
	p.setStatus("nothing was pushed yet")
	reason, wait := becauseStart, time.Duration(0)
	for backoff := minBackoff; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		upToDate := false
		err := p.takeOver(ctx, reason)
		if err == nil {
			upToDate, err = p.push(ctx)
		}
		if ctx.Err() != nil {
			return nil
		}
		if upToDate {
			backoff, p.said = minBackoff, ""
		}
		reason = p.explain(err)
		switch {
		case reason == becauseRival:
			wait = rivalEvery
		case upToDate:
			wait = 0
		default:
			wait, backoff = backoff, min(2*backoff, maxBackoff)
		}
	}
}

// takeOver begins a new epoch, unless another sidecar pushes to this edge.
func (p *Pusher) takeOver(ctx context.Context, reason epochReason) error {
	before, err := p.client.state(ctx)
	if err != nil {
		return err
	}
	if p.rival != 0 && before != nil && !p.own[before.Epoch] && fresh(before) {
		return errRival
	}
	if p.rival != 0 {
		p.log.Info("the other sidecar is gone: taking over", "socket", p.socket)
		p.rival = 0
	}
	p.memory.Reset(before)
	p.metrics.Epochs.WithLabelValues(string(reason)).Inc()
	return nil
}

func fresh(s *wire.State) bool {
	return time.Since(time.UnixMilli(s.HeartbeatMS)).Abs() < rivalGone
}

var errRenew = errors.New("permission names need a new epoch")

var errDemand = errors.New("an operator demands a new epoch")

var errRival = errors.New("another sidecar pushes to this edge")

// push sends batches until one fails. It reports whether the edge was up to date meanwhile.
func (p *Pusher) push(ctx context.Context) (upToDate bool, err error) {
	heartbeat := time.NewTimer(heartbeatEvery)
	defer heartbeat.Stop()
	for {
		batch, taken := p.memory.Take(p.buf)
		p.buf = batch
		if taken.Takeover {
			p.begin(batch)
		}
		span := p.span(len(batch), &taken)
		started := time.Now()
		if err := p.client.send(ctx, batch); err != nil {
			span.SetStatus(codes.Error, "not acknowledged")
			span.End()
			return upToDate, err
		}
		span.End()
		p.memory.Acked()
		p.count(len(batch), taken.Ops, started, span)
		if taken.Drained && !upToDate {
			upToDate = true
			p.setStatus("")
			p.log.Info("edge is up to date", "socket", p.socket, "epoch", hex(p.epoch))
			if p.demanded != nil {
				close(p.demanded)
				p.demanded = nil
			}
		}
		if taken.Renew {
			return upToDate, errRenew
		}
		if taken.More {
			continue
		}
		heartbeat.Reset(heartbeatEvery)
		select {
		case <-p.memory.Wake():
		case <-heartbeat.C:
		case p.demanded = <-p.demands:
			return upToDate, errDemand
		case <-ctx.Done():
			return upToDate, ctx.Err()
		}
	}
}

// begin records the epoch of a batch that takes over.
func (p *Pusher) begin(batch []byte) {
	b, err := wire.ParseBatch(batch)
	if err != nil {
		panic(fmt.Sprintf("push: the memory made a bad batch: %v", err))
	}
	p.epoch = b.Epoch
	if len(p.own) >= maxOwn {
		clear(p.own)
	}
	p.own[p.epoch] = true
}

// span starts the span of a batch, which ends with its acknowledgement: in the trace of the first event whose change it
// has, with links to the others. Heartbeats have none.
func (p *Pusher) span(bytes int, t *edgemem.Taken) trace.Span {
	ctx := context.Background()
	if t.Ops <= 1 && len(t.Traces) == 0 { // only the state
		return trace.SpanFromContext(ctx)
	}
	var links []trace.Link
	for i, of := range t.Traces {
		if i == 0 {
			ctx = trace.ContextWithSpanContext(ctx, of)
		} else {
			links = append(links, trace.Link{SpanContext: of})
		}
	}
	_, span := p.tracer.Start(ctx, "push", trace.WithSpanKind(trace.SpanKindClient), trace.WithLinks(links...),
		trace.WithAttributes(tracing.Ops.Int(t.Ops), tracing.Bytes.Int(bytes)))
	return span
}

func (p *Pusher) count(bytes, ops int, started time.Time, span trace.Span) {
	now := time.Now()
	p.metrics.Pushes.WithLabelValues("ok").Inc()
	p.metrics.PushOps.Add(float64(ops))
	p.metrics.PushBytes.Add(float64(bytes))
	tracing.Observe(p.metrics.PushSeconds, now.Sub(started).Seconds(), span)
	p.metrics.PushAcked.Set(float64(now.UnixMilli()) / 1000)
}

func hex(epoch uint64) string { return fmt.Sprintf("%016x", epoch) }

// explain counts why a push ended, logs it when it changes, and returns the reason for the next epoch.
func (p *Pusher) explain(err error) epochReason {
	conflict, _ := errors.AsType[*conflictError](err)
	switch {
	case errors.Is(err, errRenew):
		p.log.Info("new permission names replace unused ones: pushing everything", "socket", p.socket)
		return becausePermissions
	case errors.Is(err, errDemand):
		p.log.Info("operator resync: pushing everything", "socket", p.socket)
		return becauseDemand
	case errors.Is(err, errRival): // unchanged
		p.metrics.Pushes.WithLabelValues("rival").Inc()
		return becauseRival
	case conflict != nil && conflict.state != nil && !p.own[conflict.state.Epoch] && fresh(conflict.state):
		p.metrics.Pushes.WithLabelValues("rival").Inc()
		p.rival = conflict.state.Epoch
		why := fmt.Sprintf("another sidecar has taken over the edge at %s (its epoch %s, ours %s): run one sidecar for "+
			"each edge and stop one of the two",
			p.socket, hex(p.rival), hex(p.epoch))
		p.setStatus(why)
		p.log.Error("another sidecar has taken over this edge: not pushing until it is gone; run one sidecar for each "+
			"edge, stop one of the two",
			"socket", p.socket, "epoch", hex(p.epoch), "rival_epoch", hex(p.rival))
		return becauseRival
	case conflict != nil:
		p.metrics.Pushes.WithLabelValues("conflict").Inc()
		p.setStatus(conflict.Error() + ": pushing everything")
		p.log.Info("the edge lost its memory, or another sidecar wrote it: pushing everything", "socket", p.socket,
			"epoch", hex(p.epoch), "error", conflict)
		return becauseEmpty
	}
	result := "error"
	if _, refused := errors.AsType[*refusedError](err); refused {
		result = "refused"
	}
	p.metrics.Pushes.WithLabelValues(result).Inc()
	p.setStatus(fmt.Sprintf("push to %s: %v", p.socket, err))
	if err.Error() == p.said {
		p.log.Debug("push still fails", "socket", p.socket, "error", err)
	} else {
		p.log.Warn("push failed: retrying until the edge answers", "socket", p.socket, "error", err)
	}
	p.said = err.Error()
	return becauseError
}
