package events

import (
	"context"
	"fmt"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
)

const (
	// unknownFor is after how long without a position it is said, and unknownAgain for how long not again.
	unknownFor   = 5 * time.Second
	unknownAgain = time.Minute
)

// catchUpReason is why a catch-up begins, as metrics show it.
type catchUpReason string

const (
	onConnected  catchUpReason = "connected"
	onGap        catchUpReason = "gap"        // an event is missing
	onOverflow   catchUpReason = "overflow"   // events came faster than they were applied
	onEpoch      catchUpReason = "epoch"      // Redis has another data epoch, or has gone back
	onComparison catchUpReason = "comparison" // Redis was ahead for a whole interval
	onChain      catchUpReason = "chain"      // Redis has another history
)

// ask completes what follow knew when it asked.
func (s *Subscriber) ask(ctx context.Context, asked position) position {
	master, err := s.master(ctx)
	var p position
	if err == nil {
		p, err = s.position(ctx, server{master, address(master)}, asked)
	}
	p.at, p.catchups, p.ours, p.link, p.unsure, p.err = asked.at, asked.catchups, asked.seq, asked.link, asked.unsure, err
	return p
}

// compare is the answer to ask. Events may have come since.
func (s *Subscriber) compare(ctx context.Context, p position) error {
	switch {
	case refusal(p.err):
		return p.err
	case p.err != nil:
		if ctx.Err() == nil {
			s.metrics.RedisErrors.Inc()
			s.unknown(p.err)
		}
		return nil // the subscription may work; if not, its end will say so
	}
	s.unknownAt = time.Time{}
	switch {
	case p.catchups != s.catchups:
		return nil // of before a catch-up
	case !s.continues(p):
		return errOtherServer
	}
	s.history, s.historyAt = p.history, p.at
	s.board.setPolicy(s.Shard, p.policy, s.log)
	if err := s.sure(ctx, p.unsure, p.links); err != nil || p.catchups != s.catchups {
		return err
	}
	switch {
	case p.epoch != s.epoch:
		return s.catchUp(ctx, onEpoch)
	case p.seq < p.ours: // though writes may pass our number before it is asked for again
		s.lost(p)
		s.synced = false //mutant:TestLostIsRemembered deleted
		return s.catchUp(ctx, onEpoch)
	case p.differs(): //mutant:TestOtherDigest false
		s.metrics.Breaks.WithLabelValues(string(metrics.BreakHistory)).Inc()
		s.log.Warn("redis has another write than we at our number: events were forged, or it lost writes; everything is read again", "seq", p.ours)
		s.synced = false
		return s.catchUp(ctx, onChain)
	case p.seq <= s.seq:
		s.setInStep(p.at)
		s.ahead = position{}
	case s.ahead.seq == 0:
		s.ahead = p
		s.ahead.ours = s.seq
	default:
		// An event is still not there although a whole interval has passed.
		silent := s.seq == s.ahead.ours
		if err := s.catchUp(ctx, onComparison); err != nil || !silent {
			return err
		}
		return errSilent //mutant:TestSubscribedElsewhere nil
	}
	return nil
}

// catchUp reads what changed since the last number applied; everything, if Redis has
// another data epoch or has gone back, which both mean that it lost data, or may have: it
// was restarted, or a replica was promoted, and writes may have passed our number since. Where our last
// write is in its chain, nothing was lost, whatever server that is.
func (s *Subscriber) catchUp(ctx context.Context, reason catchUpReason) error {
	s.metrics.Catchups.WithLabelValues(string(reason)).Inc()
	s.catchups++
	s.ahead, s.claim = position{}, position{}
	client, err := s.master(ctx)
	if err != nil {
		return err
	}
	// All of it over one connection, and so from one server, also while a name moves to another.
	conn := client.WithTimeout(recordsTimeout).Conn()
	defer conn.Close()
	master := server{conn, address(client)} //mutant:TestOneServer server{client, address(client)}
	p, err := s.position(ctx, master, position{seq: s.seq})
	if err != nil {
		return err
	}
	p.link = contract.Link{Seq: s.seq, Digest: s.chain.digest}
	if reason != onConnected && !s.continues(p) {
		return errOtherServer
	}
	s.board.setPolicy(s.Shard, p.policy, s.log)
	from := s.seq
	full := !s.synced || p.epoch != s.epoch || p.seq < s.seq || s.seq < p.floor || !s.goesOn(p, reason)
	if full {
		switch {
		case !s.synced || s.epoch == "": // it was empty, and has been written to
		case p.epoch != s.epoch || p.seq < s.seq || p.differs():
			s.lost(p)
		case s.seq < p.floor:
			s.log.Info("the log was trimmed beyond our position: everything is read again", "seq", s.seq, "floor", p.floor)
		default:
			s.log.Info("redis was restarted, or another server has taken over: everything is read again", "seq", s.seq, "redis_seq", p.seq)
		}
		s.metrics.Resyncs.Inc()
		from, s.synced = 0, false // until all is read
		s.Objects.BeginResync()
		s.Credentials.BeginResync()
	}
	count, end, err := s.readChanges(ctx, master, from, p, full)
	s.resynced = s.resynced || full
	if err != nil {
		return fmt.Errorf("catch up from %d to %d: %w", from, p.seq, err)
	}
	if full {
		s.Objects.EndResync()
		s.Credentials.EndResync()
		if count > 0 { // an empty one costs nothing
			s.fullAt = time.Now()
		}
		s.chain = chain{}
	}
	s.setSeq(p.seq)
	s.chain.known, s.chain.begun = p.chained, p.head.Digest != ""
	s.chain.set(p.seq, p.digest())
	s.doubt = ""
	s.epoch, s.history, s.historyAt, s.synced = p.epoch, p.history, p.at, true
	s.batch, s.unknownAt = pipelineSize, time.Time{}
	switch {
	case end == p.seq:
		s.setInStep(p.at)
	case end > p.seq: // what has moved beyond p meanwhile comes with its event
		s.claim = position{seq: end, at: p.at}
	}
	if len(s.again) > 0 {
		s.later()
	}
	s.log.Info("caught up with redis", "reason", string(reason), "full", full, "members", count, "seq", s.seq, "duration", time.Since(p.at))
	return nil
}

// unknown tells of a position that can't be read though events may come, if that lasts.
func (s *Subscriber) unknown(err error) {
	now := time.Now()
	switch {
	case s.unknownAt.IsZero():
		s.unknownAt = now
	case now.Sub(s.unknownAt) > unknownFor:
		s.unknownAt = now.Add(unknownAgain)
		s.log.Warn("events come, but the position of redis can't be read: events may be missing, so the edge is not in step", "error", err)
		return
	}
	s.log.Debug("position of redis not known", "error", err)
}

// lost says that Redis is behind what it was.
func (s *Subscriber) lost(p position) {
	s.log.Warn("redis has lost data: the edge follows", "epoch", s.epoch, "seq", s.seq, "redis_epoch", p.epoch, "redis_seq", p.seq)
}
