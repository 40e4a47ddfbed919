package follow

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
)

const (
	// An unreadable position is logged after unknownLogAfter, and again after unknownLogEvery at the earliest.
	unknownLogAfter = 5 * time.Second
	unknownLogEvery = time.Minute
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

// resyncReason is the reason for a full resync, a label of metrics.
type resyncReason string

const (
	resyncStart     resyncReason = "start"     // the first resync, also of the first data in an empty Redis
	resyncLost      resyncReason = "lost"      // Redis lost writes
	resyncRestarted resyncReason = "restarted" // Redis may have lost writes, in a restart or failover
	resyncTrimmed   resyncReason = "trimmed"   // log or tombstones don't go back to the follower's position
	resyncUnsure    resyncReason = "unsure"    // too many devices must be read again to list them
	resyncDemand    resyncReason = "demand"    // of an operator
)

// askPosition reads Redis's position, and adds the follower's state in asked.
func (f *Follower) askPosition(ctx context.Context, asked position) position {
	master, err := f.findMaster(ctx)
	var p position
	if err == nil {
		p, err = f.readPosition(ctx, server{master, serverAddress(master)}, asked)
	}
	p.at, p.catchups, p.ours, p.link, p.unsure, p.err = asked.at, asked.catchups, asked.seq, asked.link, asked.unsure, err
	return p
}

// comparePosition acts on a position from askPosition. Events may have arrived since.
func (f *Follower) comparePosition(ctx context.Context, p position) error {
	switch {
	case needsOperator(p.err):
		return p.err
	case p.err != nil:
		if ctx.Err() == nil {
			f.metrics.RedisErrors.Inc()
			f.board.setFailure(f.Shard, p.err)
			f.logUnknownPosition(p.err)
		}
		return nil // the subscription may work; otherwise it ends with an error
	}
	f.comparison.unknownAt = time.Time{}
	f.board.setFailure(f.Shard, nil)
	switch {
	case p.catchups != f.catchups:
		return nil // from before a catch-up
	case !f.continuesHistory(p), f.mayLackDeletions(p): // before the time of f.history changes
		return errOtherServer
	}
	f.setHistory(p)
	f.board.setVitals(f.Shard, p.vitals, f.log)
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
		f.synced, f.resync.pending = false, resyncLost
		return f.catchUp(ctx, catchUpDataEpoch)
	case p.hasOtherWrite():
		f.metrics.Breaks.WithLabelValues(string(metrics.BreakHistory)).Inc()
		f.log.Warn("another write has the number of our last one in redis: events were forged, or it lost writes; "+
			"everything is read again", "seq", p.ours)
		f.synced, f.resync.pending = false, resyncLost
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
	client, err := f.findMaster(ctx)
	if err != nil {
		return err
	}
	own := f.ownConnection(client)
	defer own.Close()
	hook := &lookAheadHook{Follower: f, epoch: f.dataEpoch}
	own.AddHook(hook)
	// A single connection, and so a single server, even if a name moves to another server meanwhile.
	conn := own.Conn()
	defer conn.Close()
	master := server{conn, serverAddress(client)}
	p, err := f.readPosition(ctx, master, position{seq: f.seq})
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
	f.board.setVitals(f.Shard, p.vitals, f.log)
	f.noticeLogBack(p)
	if f.rereads.overflowed {
		f.rereads.overflowed, f.synced, f.resync.pending = false, false, cmp.Or(f.resync.pending, resyncUnsure)
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
		f.setHistory(p)
	}
	count, end, err := f.readChanges(ctx, master, from, p, full)
	f.resync.tried = f.resync.tried || full
	if err != nil {
		return fmt.Errorf("catch up from %d to %d: %w", from, p.seq, err)
	}
	if full {
		f.endResync(count)
	}
	f.moveTo(p, end)
	f.log.Info("caught up with redis", "reason", string(reason), "full", full, "members", count,
		"seq", f.seq, "duration", time.Since(p.at))
	return nil
}

// beginResync begins a full resync for Redis's position p, and logs the reason, which a failed attempt keeps.
func (f *Follower) beginResync(p position) {
	switch {
	case f.dataEpoch != "" &&
		(p.dataEpoch != f.dataEpoch || p.seq < f.seq || p.hasOtherWrite() || f.nameLostKeys(p) != ""):
		if f.resync.pending != resyncLost { // not logged yet
			f.logLoss(p)
		}
		f.resync.pending = resyncLost
	case f.resync.pending != "":
	case !f.synced || f.dataEpoch == "": // Redis was empty, and has its first data now
		f.resync.pending = resyncStart
	case f.mayLackDeletions(p):
		f.resync.pending = resyncTrimmed
		f.log.Info("deletions since our position may have left no trace: everything is read again",
			"seq", f.seq, "floor", p.floor)
	default:
		f.resync.pending = resyncRestarted
		f.log.Info("redis was restarted, or another server has taken over: everything is read again",
			"seq", f.seq, "redis_seq", p.seq)
	}
	f.applied.Store(&contract.Link{Seq: p.seq, Digest: p.digestAtSeq()})
	f.metrics.Resyncs.WithLabelValues(string(f.resync.pending)).Inc()
	f.synced = false // until all was read
	f.Purges.BeginResync()
	f.Objects.BeginResync()
	f.Credentials.BeginResync()
}

// endResync ends a full resync that has read count records.
func (f *Follower) endResync(count int) {
	f.Objects.EndResync()
	f.Credentials.EndResync()
	if count > 0 { // an empty resync costs nothing
		f.resync.endedAt = time.Now()
	}
	f.chain, f.resync.pending = chain{}, ""
	if f.resync.done != nil {
		f.resync.done <- struct{}{} // has room
		f.resync.done = nil
	}
}

// moveTo sets the follower's position after a catch-up for p that has read everything up to end.
func (f *Follower) moveTo(p position, end uint64) {
	f.chain.readable = p.chained
	f.setLast(p.seq, p.digestAtSeq())
	f.rereads.reason = ""
	f.setHistory(p)
	f.dataEpoch, f.synced = p.dataEpoch, true
	f.batch = pipelineSize
	f.comparison.unknownAt = time.Time{}
	switch {
	case end == p.seq:
		f.setInStep(p.at)
	case end > p.seq: // an event announces each write beyond p
		f.comparison.pending = position{seq: end, at: p.at}
	}
	if f.needsReread() {
		f.scheduleCatchUp()
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

func (f *Follower) logLoss(p position) {
	f.log.Warn("redis has lost data: the edge drops it, too", "data_epoch", f.dataEpoch, "seq", f.seq,
		"redis_data_epoch", p.dataEpoch, "redis_seq", p.seq)
}
