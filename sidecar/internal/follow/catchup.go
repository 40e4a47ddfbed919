package follow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/internal/metrics"
)

const (
	// An unreadable position is logged after unknownLogAfter, and again after unknownLogEvery at the earliest.
	unknownLogAfter = 5 * time.Second
	unknownLogEvery = time.Minute
	// maxUnsure bounds the earlier events to check with Redis, once a second.
	maxUnsure = 1000
	// rereadEvery and rereadBurst bound the rate of catch-ups that events cause, because events may be forged.
	rereadEvery = 250 * time.Millisecond
	rereadBurst = 4
)

// catchUpReason is the reason for a catch-up, a label of metrics.
type catchUpReason string

const (
	catchUpConnected  catchUpReason = "connected"
	catchUpGap        catchUpReason = "gap"        // an event is missing
	catchUpOverflow   catchUpReason = "overflow"   // events arrived faster than the follower applied them
	catchUpDataEpoch  catchUpReason = "data_epoch" // Redis has another data epoch, or a lower sequence number
	catchUpComparison catchUpReason = "comparison" // Redis was ahead for a whole interval
	catchUpChain      catchUpReason = "chain"      // Redis has another history
	catchUpDemand     catchUpReason = "demand"     // of an operator
)

// askPosition reads Redis's position, and adds the follower's state in asked.
func (f *Follower) askPosition(ctx context.Context, asked position) position {
	client, err := f.findServer(ctx)
	var p position
	if err == nil {
		p, err = f.readPosition(ctx, server{client, serverAddress(client)}, asked)
	}
	if err == nil && f.reportEnd != nil {
		f.reportEnd(p.end)
	}
	p.at, p.catchups, p.ours, p.link, p.unsure, p.err = asked.at, asked.catchups, asked.seq, asked.link, asked.unsure, err
	return p
}

// comparePosition acts on a position from askPosition. Events may have arrived since.
func (f *Follower) comparePosition(ctx context.Context, p position) error {
	_, foreign := errors.AsType[*foreignError](p.err)
	switch {
	case needsOperator(p.err), foreign:
		return p.err
	case p.err != nil:
		if ctx.Err() == nil {
			f.metrics.RedisErrors.Inc()
			f.board.setFailure(f.slot, p.err)
			f.logUnknownPosition(p.err)
		}
		return nil // the subscription may work; otherwise it ends with an error
	}
	f.comparison.unknownAt = time.Time{}
	f.replica.linkDown = p.linkDown
	f.board.setFailure(f.slot, f.findDelay())
	switch {
	case p.catchups != f.catchups:
		return nil // from before a catch-up
	case !f.continuesHistory(p), f.mayLackDeletions(p): // before the time of f.history changes
		return errOtherServer
	}
	if f.Replicas != nil && !p.hasOurWrite() {
		if err := f.judgeReplica(ctx, p); err != nil {
			return err
		}
	}
	f.setHistory(p)
	f.board.setVitals(f.slot, p.vitals, f.log)
	if f.noticeLogBack(p); !f.synced {
		return f.catchUp(ctx, catchUpDataEpoch)
	}
	full := p.dataEpoch != f.dataEpoch || p.seq < p.ours || p.hasOtherWrite()
	if err := f.confirmNotLost(p, full); err != nil {
		return err
	}
	if err := f.checkUnsure(ctx, p.unsure, p.links); err != nil || p.catchups != f.catchups {
		return err
	}
	switch {
	case p.dataEpoch != f.dataEpoch:
		return f.catchUp(ctx, catchUpDataEpoch)
	case p.seq < p.ours: // writes may raise p.seq above f.seq before the next comparison
		f.logLoss(p)
		f.requireResync(resyncLost)
		return f.catchUp(ctx, catchUpDataEpoch)
	case p.hasOtherWrite():
		f.metrics.Breaks.WithLabelValues(string(metrics.BreakHistory)).Inc()
		f.log.Warn("another write has the number of our last one in redis: events were forged, or it lost writes; "+
			"everything is read again", "seq", p.ours)
		f.requireResync(resyncLost)
		return f.catchUp(ctx, catchUpChain)
	case p.seq <= f.seq:
		f.setInStep(p.at)
		f.comparison.ahead = position{}
	case f.comparison.ahead.seq == 0:
		f.comparison.ahead = p
		f.comparison.ahead.ours = f.seq
	default:
		// The event is still missing after a whole interval.
		silent := f.seq == f.comparison.ahead.ours
		if err := f.catchUp(ctx, catchUpComparison); err != nil || !silent {
			return err
		}
		return errSilent
	}
	return nil
}

// catchUp reads the changes since the last applied write. It reads everything if Redis has lost data or may have lost
// data: Redis has another data epoch or a lower sequence number; or Redis was restarted or a replica was promoted, and
// new writes may have raised its number above the follower's since. If the server's chain contains the last applied
// write, the server has lost nothing, whichever server it is.
func (f *Follower) catchUp(ctx context.Context, reason catchUpReason) error {
	f.metrics.Catchups.WithLabelValues(string(reason)).Inc()
	f.catchups++
	f.comparison.ahead, f.comparison.pending = position{}, position{}
	f.rereadGrants()
	client, err := f.findServer(ctx)
	if err != nil {
		return err
	}
	own := f.ownConnection(client)
	defer own.Close()
	hook := &lookAheadHook{deviceReads: f.deviceReads, epoch: f.dataEpoch}
	own.AddHook(hook)
	// A single connection, and so a single server, even if a name moves to another server meanwhile.
	conn := own.Conn()
	defer conn.Close()
	server := server{conn, serverAddress(client)}
	if err := f.useSnapshot(ctx, server); err != nil {
		return err
	}
	p, err := f.readPosition(ctx, server, position{seq: f.seq})
	if err != nil {
		return err
	}
	if hook.epoch != p.dataEpoch {
		hook.epoch = p.dataEpoch
		f.inbox.resetSeen()
	}
	p.link = contract.Link{Seq: f.seq, Digest: f.chain.digest}
	if reason != catchUpConnected && !f.continuesHistory(p) {
		return errOtherServer
	}
	if f.Replicas != nil && (reason == catchUpConnected || !p.hasOurWrite()) {
		if err := f.judgeReplica(ctx, p); err != nil {
			return err
		}
	}
	f.board.setVitals(f.slot, p.vitals, f.log)
	f.noticeLogBack(p)
	if f.rereads.overflowed {
		f.rereads.overflowed = false
		f.requireResync(cmp.Or(f.resync.pending, resyncUnsure))
	}
	from := f.seq
	full := !f.synced || p.dataEpoch != f.dataEpoch || p.seq < f.seq || f.mayLackDeletions(p) ||
		!f.hasAllWrites(p, reason) || f.nameLostKeys(p) != "" && !f.lacksOnlyLog(p)
	if err := f.confirmNotLost(p, full); err != nil {
		return err
	}
	if full {
		f.beginResync(p)
		from = 0
	} else { // f.seq is a position of this history, even if some changes can't be read
		f.history = p.history
		if f.fromSnapshot != nil { // reads must not get older records than this catch-up
			f.applied.Store(&contract.Link{Seq: p.seq, Digest: p.digestAtSeq()})
		}
	}
	c := &catchUpReader{deviceReads: f.deviceReads, server: server, redis: p, full: full}
	end, err := c.readChanges(ctx, from)
	f.resync.tried = f.resync.tried || full
	if err != nil {
		return fmt.Errorf("catch up from %d to %d: %w", from, p.seq, err)
	}
	if full {
		f.endResync(c.count)
	} else if f.fromSnapshot != nil {
		f.Credentials.EndResync()
		f.fromSnapshot = nil
	}
	f.moveTo(p, end)
	f.log.Info("caught up with redis", "reason", string(reason), "full", full, "members", c.count,
		"seq", f.seq, "duration", time.Since(p.at))
	return nil
}

// moveTo sets the follower's position after a catch-up for p that has read everything up to end.
func (f *Follower) moveTo(p position, end uint64) {
	f.chain.readable = p.chained
	f.setLast(p.seq, p.digestAtSeq())
	f.schedule.reason = ""
	f.setHistory(p)
	f.dataEpoch, f.synced = p.dataEpoch, true
	f.batch = pipelineSize
	f.comparison.unknownAt = time.Time{}
	f.replica.ours, f.replica.oursAt, f.replica.end = f.seq, time.Now(), chainEnd{}
	f.queueRereads()
	if f.rereads.overflowed {
		f.scheduleCatchUp()
		return
	}
	switch {
	case end == p.seq:
		f.setInStep(p.at)
	case end > p.seq: // an event announces each write beyond p
		f.comparison.pending = position{seq: end, at: p.at}
	}
}

// logUnknownPosition logs that the position has been unreadable for a while, though events may still arrive.
func (f *Follower) logUnknownPosition(err error) {
	now := time.Now()
	switch {
	case f.comparison.unknownAt.IsZero():
		f.comparison.unknownAt = now
	case now.Sub(f.comparison.unknownAt) > unknownLogAfter:
		f.comparison.unknownAt = now.Add(unknownLogEvery)
		f.log.Warn("events arrive, but the position of redis can't be read: events may be missing, so the edge is not in "+
			"step", "error", err)
		return
	}
	f.log.Debug("the position of redis is unknown", "error", err)
}

// rejectEvent counts and logs an event that is not in the chain, and starts a catch-up: the event was forged, or Redis
// has lost writes.
func (f *Follower) rejectEvent(ctx context.Context, e *contract.Event) error {
	const reason = string(metrics.BreakDigest)
	f.metrics.Breaks.WithLabelValues(reason).Inc()
	f.board.breaksLog.Do(func() {
		f.log.Warn("an event is not of the history that redis had: it is rejected, and redis is read", "reason", reason,
			"member", e.Member.String(), "event_seq", e.Seq, "seq", f.seq)
	})
	return f.requestCatchUp(ctx, catchUpChain)
}

// requestCatchUp catches up now, or later after many catch-ups: forged events could cause catch-ups at any rate.
func (f *Follower) requestCatchUp(ctx context.Context, reason catchUpReason) error {
	f.schedule.reason = reason
	if !f.schedule.scheduled && f.schedule.limiter.Allow() {
		return f.catchUp(ctx, reason)
	}
	f.scheduleCatchUp()
	return nil
}

// scheduleCatchUp starts the timer for runDueCatchUp, for when the rate limit permits a catch-up.
func (f *Follower) scheduleCatchUp() {
	if f.schedule.scheduled {
		return
	}
	f.schedule.scheduled = true
	f.schedule.timer.Reset(f.schedule.limiter.Reserve().Delay())
}

// runDueCatchUp runs the scheduled catch-up, if a catch-up is still necessary.
func (f *Follower) runDueCatchUp(ctx context.Context) error {
	f.schedule.scheduled = false
	if f.schedule.reason == "" && !f.needsReread() {
		return nil
	}
	return f.catchUp(ctx, cmp.Or(f.schedule.reason, catchUpChain))
}

// unsureEvent is an earlier event to check with Redis.
type unsureEvent struct {
	event  contract.Event // without fields
	denies bool           // the event removes or restricts a device
}

// addUnsure adds the event to the list that the next comparison checks with Redis.
func (f *Follower) addUnsure(e *contract.Event) {
	if len(f.unsure) < maxUnsure { // further events are only not reported: the data was read from Redis
		f.unsure = append(f.unsure,
			unsureEvent{contract.Event{Seq: e.Seq, Digest: strings.Clone(e.Digest), Member: e.Member}, deniesDevice(e.Fields)})
	}
}

// checkUnsure checks asked against Redis's links of the same numbers, as far as Redis still has links. Without
// permission to read the chain, links is empty.
func (f *Follower) checkUnsure(ctx context.Context, asked []unsureEvent, links []contract.Link) error {
	for i, link := range links {
		if u := asked[i]; link.Seq == u.event.Seq && link.Digest != u.event.Digest {
			if u.denies {
				f.doubtDevice(u.event.Member)
			}
			if err := f.rejectEvent(ctx, &u.event); err != nil {
				return err
			}
		}
	}
	return nil
}
