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
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/tracing"
	"github.com/gatehouse/gatehouse/sidecar/internal/edgemem"
)

const (
	// heartbeatEvery is the maximum interval between batches, changes or not.
	heartbeatEvery = 200 * time.Millisecond
	// rivalTimeout is the age of a rival's last heartbeat from which on we take over from the rival, a sidecar that
	// took over from us.
	rivalTimeout = 5 * time.Second
	// rivalEvery is the interval between checks of the rival's heartbeat.
	rivalEvery = time.Second
	// minEpoch is the time from which on a failure in an epoch is followed by the next epoch at once. An edge that loses
	// its memory more often must not cost the sidecar full pushes without a pause.
	minEpoch   = time.Second
	minBackoff = 50 * time.Millisecond
	maxBackoff = time.Second
	// maxIdleBuffer is the maximum size of the buffer that is kept between batches. Most batches of an edge that is up to
	// date are far smaller.
	maxIdleBuffer = 64 << 10
	// maxOwnEpochs bounds the epochs remembered as our own. Several epochs count, because the edge may apply a push
	// that timed out after the next push.
	maxOwnEpochs = 1000
)

// Memory makes the batches.
type Memory interface {
	Wake() <-chan struct{}
	TakeBatch(dst []byte) ([]byte, edgemem.BatchInfo)
	MarkAcked()
	Detach()
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

	notReady     atomic.Pointer[string] // why the edge is not ready; empty: it is
	pushAllCalls chan chan<- struct{}   // of operators, see [Pusher.PushAll]

	// The fields below belong to the goroutine of Run.
	epoch       uint64          // the pushed epoch
	ownEpochs   map[uint64]bool // our epochs so far
	rivalEpoch  uint64          // epoch of the sidecar that took over from us, or 0
	lastFailure string          // the last logged reason of a failed push; empty: none has failed since
	// pushAllDone is closed when the edge has everything again that an operator asked to push; nil: no call waits.
	pushAllDone chan<- struct{}
	buf         []byte
}

// New returns a Pusher to the edge that listens on socket, a file and no symbolic link to one. The Pusher takes over
// after synced is closed: until then the edge's content is better than ours.
func New(memory Memory, socket string, synced <-chan struct{}, m *metrics.Metrics, tracer trace.Tracer,
	log *slog.Logger) *Pusher {
	p := &Pusher{
		memory: memory, client: newClient(socket), socket: socket, synced: synced,
		metrics: m, tracer: tracer, log: log, ownEpochs: make(map[uint64]bool), pushAllCalls: make(chan chan<- struct{}),
	}
	p.setNotReady("redis was not read yet")
	return p
}

func (p *Pusher) setNotReady(why string) { p.notReady.Store(&why) }

// Ready returns nil if the edge has acknowledged everything of the current epoch once, otherwise the reason why not.
func (p *Pusher) Ready() error {
	if why := *p.notReady.Load(); why != "" {
		return errors.New(why)
	}
	return nil
}

// epochReason is the reason for a new epoch, a label of metrics.
type epochReason string

const (
	reasonStart  epochReason = "start"
	reasonEmpty  epochReason = "empty"  // the edge's memory was not ours
	reasonRival  epochReason = "rival"  // another sidecar pushed to this edge
	reasonDemand epochReason = "demand" // of an operator
	reasonError  epochReason = "error"
)

// PushAll pushes everything again, in a new epoch, as soon as the edge has all waiting changes. PushAll returns nil or
// ctx's error, and must not be called again before.
func (p *Pusher) PushAll(ctx context.Context) error {
	done := make(chan struct{})
	select {
	case p.pushAllCalls <- done:
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

// Run pushes until ctx ends. Each failure begins a new epoch, in which Run pushes everything.
func (p *Pusher) Run(ctx context.Context) error {
	defer p.client.close()
	select {
	case <-p.synced:
	case <-ctx.Done():
		return nil
	}
	p.setNotReady("nothing was pushed yet")
	reason, wait := reasonStart, time.Duration(0)
	for backoff := minBackoff; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		upToDate, began := false, time.Now()
		err := p.takeOver(ctx, reason)
		if err == nil {
			upToDate, err = p.sendBatches(ctx)
		}
		p.memory.Detach()
		if ctx.Err() != nil {
			return nil
		}
		if upToDate {
			backoff, p.lastFailure = minBackoff, ""
		}
		reason = p.reportFailure(err)
		switch {
		case reason == reasonRival:
			wait = rivalEvery
		case upToDate && time.Since(began) >= minEpoch:
			wait = 0
		default:
			wait, backoff = backoff, min(2*backoff, maxBackoff)
		}
	}
}

// takeOver begins a new epoch, unless another sidecar pushes to the edge.
func (p *Pusher) takeOver(ctx context.Context, reason epochReason) error {
	before, err := p.client.readState(ctx)
	if err != nil {
		return err
	}
	if p.rivalEpoch != 0 && before != nil && !p.ownEpochs[before.Epoch] && isFresh(before) {
		return errRival
	}
	if p.rivalEpoch != 0 {
		p.log.Info("the other sidecar is gone: taking over", "socket", p.socket)
		p.rivalEpoch = 0
	}
	p.memory.Reset(before)
	p.metrics.Epochs.WithLabelValues(string(reason)).Inc()
	return nil
}

func isFresh(s *wire.State) bool {
	return time.Since(time.UnixMilli(s.HeartbeatMS)).Abs() < rivalTimeout
}

var errDemand = errors.New("an operator demands a new epoch")

var errRival = errors.New("another sidecar pushes to this edge")

// sendBatches sends batches until a batch fails, and reports whether the edge was up to date meanwhile.
func (p *Pusher) sendBatches(ctx context.Context) (upToDate bool, err error) {
	heartbeat := time.NewTimer(heartbeatEvery)
	defer heartbeat.Stop()
	for {
		batch, taken := p.memory.TakeBatch(p.buf)
		p.buf = batch
		if taken.Takeover {
			p.recordEpoch(batch)
		}
		span := p.startSpan(len(batch), &taken)
		started := time.Now()
		if err := p.client.sendBatch(ctx, batch); err != nil {
			span.SetStatus(codes.Error, "not acknowledged")
			span.End()
			return upToDate, err
		}
		span.End()
		p.memory.MarkAcked()
		p.countPush(len(batch), taken.Ops, started, span)
		if taken.Drained && !upToDate {
			upToDate = true
			p.setNotReady("")
			p.log.Info("edge is up to date", "socket", p.socket, "epoch", formatEpoch(p.epoch))
			if p.pushAllDone != nil {
				close(p.pushAllDone)
				p.pushAllDone = nil
			}
		}
		if taken.More {
			continue
		}
		if cap(p.buf) > maxIdleBuffer {
			p.buf = nil
		}
		heartbeat.Reset(heartbeatEvery)
		select {
		case <-p.memory.Wake():
		case <-heartbeat.C:
		case p.pushAllDone = <-p.pushAllCalls:
			return upToDate, errDemand
		case <-ctx.Done():
			return upToDate, ctx.Err()
		}
	}
}

// recordEpoch records the epoch of a batch that takes over.
func (p *Pusher) recordEpoch(batch []byte) {
	b, err := wire.ParseBatch(batch)
	if err != nil {
		panic(fmt.Sprintf("push: the memory made a bad batch: %v", err))
	}
	p.epoch = b.Epoch
	if len(p.ownEpochs) >= maxOwnEpochs {
		clear(p.ownEpochs)
	}
	p.ownEpochs[p.epoch] = true
}

// startSpan starts the span of a batch, which ends with the acknowledgement. The span is in the trace of the first
// event in the batch, with links to the traces of the remaining events. Heartbeats have no span.
func (p *Pusher) startSpan(bytes int, t *edgemem.BatchInfo) trace.Span {
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

func (p *Pusher) countPush(bytes, ops int, started time.Time, span trace.Span) {
	now := time.Now()
	p.metrics.Pushes.WithLabelValues("ok").Inc()
	p.metrics.PushOps.Add(float64(ops))
	p.metrics.PushBytes.Add(float64(bytes))
	tracing.Observe(p.metrics.PushSeconds, now.Sub(started).Seconds(), span)
	p.metrics.PushAcked.Set(float64(now.UnixMilli()) / 1000)
}

func formatEpoch(epoch uint64) string { return fmt.Sprintf("%016x", epoch) }

// reportFailure counts why a push ended, logs each new reason, and returns the reason for the next epoch.
func (p *Pusher) reportFailure(err error) epochReason {
	conflict, _ := errors.AsType[*conflictError](err)
	switch {
	case errors.Is(err, errDemand):
		p.log.Info("operator resync: pushing everything", "socket", p.socket)
		return reasonDemand
	case errors.Is(err, errRival): // unchanged
		p.metrics.Pushes.WithLabelValues("rival").Inc()
		return reasonRival
	case conflict != nil && conflict.state != nil && !p.ownEpochs[conflict.state.Epoch] && isFresh(conflict.state):
		p.metrics.Pushes.WithLabelValues("rival").Inc()
		p.rivalEpoch = conflict.state.Epoch
		why := fmt.Sprintf("another sidecar has taken over the edge at %s (its epoch %s, ours %s): run one sidecar for "+
			"each edge and stop one of the two",
			p.socket, formatEpoch(p.rivalEpoch), formatEpoch(p.epoch))
		p.setNotReady(why)
		p.log.Error("another sidecar has taken over this edge: not pushing until it is gone; run one sidecar for each "+
			"edge, stop one of the two",
			"socket", p.socket, "epoch", formatEpoch(p.epoch), "rival_epoch", formatEpoch(p.rivalEpoch))
		return reasonRival
	case conflict != nil:
		p.metrics.Pushes.WithLabelValues("conflict").Inc()
		p.setNotReady(conflict.Error() + ": pushing everything")
		p.log.Info("the edge lost its memory, or another sidecar wrote it: pushing everything", "socket", p.socket,
			"epoch", formatEpoch(p.epoch), "error", conflict)
		return reasonEmpty
	}
	result := "error"
	if _, refused := errors.AsType[*refusedError](err); refused {
		result = "refused"
	}
	p.metrics.Pushes.WithLabelValues(result).Inc()
	p.setNotReady(fmt.Sprintf("push to %s: %v", p.socket, err))
	if err.Error() == p.lastFailure {
		p.log.Debug("push still fails", "socket", p.socket, "error", err)
	} else {
		p.log.Warn("push failed: retrying until the edge answers", "socket", p.socket, "error", err)
	}
	p.lastFailure = err.Error()
	return reasonError
}
