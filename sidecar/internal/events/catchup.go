package events

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)

const (
	// pageSize is how many members of the log are read at once.
	pageSize = 1000
	// pipelineSize is how many records are read at once; one may have 4 MiB.
	pipelineSize = 100
	// progressEvery is how often a long catch-up is logged.
	progressEvery = 5 * time.Second
)

// ask completes what follow knew when it asked.
func (s *Subscriber) ask(ctx context.Context, asked position) position {
	master, err := s.master(ctx)
	var p position
	if err == nil {
		p, err = s.position(ctx, master)
	}
	p.at, p.catchups, p.ours, p.err = asked.at, asked.catchups, asked.seq, err
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
			s.log.Debug("position of redis not known", "error", p.err)
		}
		return nil // the subscription may work; if not, its end will say so
	case p.catchups != s.catchups:
		return nil // of before a catch-up
	case p.history != s.history:
		return errOtherServer
	case p.epoch != s.epoch || p.seq < p.ours:
		return s.catchUp(ctx, "epoch")
	case p.seq <= s.seq:
		s.setInStep(p.at)
		s.ahead = position{}
	case s.ahead.seq != 0:
		// An event is still not there although a whole interval has passed.
		return s.catchUp(ctx, "comparison")
	default:
		s.ahead = p
	}
	return nil
}

// catchUp reads what changed since the last number applied; everything, if Redis has
// another data epoch or has gone back, which both mean that it lost data, or may have: it
// was restarted, or a replica was promoted, and writes may have passed our number since.
func (s *Subscriber) catchUp(ctx context.Context, reason string) error {
	s.metrics.Catchups.WithLabelValues(reason).Inc()
	s.catchups++
	s.ahead = position{}
	master, err := s.master(ctx)
	if err != nil {
		return err
	}
	p, err := s.position(ctx, master)
	if err != nil {
		return err
	}
	if reason != "connected" && p.history != s.history {
		return errOtherServer
	}
	from := s.seq
	full := !s.synced || p.epoch != s.epoch || p.seq < s.seq || p.history != s.history
	if full {
		switch {
		case !s.synced || s.epoch == "": // it was empty, and has been written to
		case p.epoch != s.epoch || p.seq < s.seq:
			s.log.Warn("redis has lost data: the edge follows", "epoch", s.epoch, "seq", s.seq, "redis_epoch", p.epoch, "redis_seq", p.seq)
		default:
			s.log.Info("redis was restarted, or another server has taken over: everything is read again", "seq", s.seq, "redis_seq", p.seq)
		}
		s.metrics.Resyncs.Inc()
		from, s.synced = 0, false // until all is read
		s.Objects.BeginResync()
		s.Credentials.BeginResync()
	}
	to := p.seq
	if full {
		// What is written meanwhile moves up in the log. It is met further on, or it would seem
		// gone when the resync ends; its event comes later and finds its version known.
		to = math.MaxUint64
	}
	count, err := s.readLog(ctx, master, from, to)
	if err != nil {
		return fmt.Errorf("catch up from %d to %d: %w", from, p.seq, err)
	}
	if full {
		s.Objects.EndResync()
		s.Credentials.EndResync()
	}
	s.setSeq(p.seq)
	s.epoch, s.history, s.synced = p.epoch, p.history, true
	s.setInStep(p.at)
	s.firstOnce.Do(func() { close(s.first) })
	s.log.Info("caught up with redis", "reason", reason, "full", full, "members", count, "seq", s.seq, "duration", time.Since(p.at))
	return nil
}

// readLog applies the records of all members with from < score <= to, in that order. A
// member that moves beyond to meanwhile is announced by an event.
func (s *Subscriber) readLog(ctx context.Context, master redis.UniversalClient, from, to uint64) (count int, err error) {
	logged := time.Now()
	for from < to {
		page, err := s.page(ctx, master, from, to)
		if err != nil {
			return count, err
		}
		members := make([]contract.Member, 0, len(page))
		for _, z := range page {
			text, _ := z.Member.(string)
			m, err := contract.ParseMember(text)
			if err == nil {
				err = s.Shards.Belongs(m, s.Shard)
			}
			if err != nil {
				s.refuse("member", text, err)
				continue
			}
			members = append(members, m)
		}
		for len(members) > 0 {
			n := min(len(members), pipelineSize)
			if err := s.readRecords(ctx, master, members[:n]); err != nil {
				return count, err
			}
			members = members[n:]
		}
		count += len(page)
		s.metrics.Members.Add(float64(len(page)))
		if len(page) < pageSize {
			break
		}
		from = uint64(page[len(page)-1].Score)
		if time.Since(logged) > progressEvery {
			logged = time.Now()
			s.log.Info("catching up with redis", "members", count, "seq", from, "redis_seq", to)
		}
	}
	return count, nil
}

func (s *Subscriber) page(ctx context.Context, master redis.UniversalClient, from, to uint64) ([]redis.Z, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return master.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
		Key: s.keys.LogKey(), Start: "(" + strconv.FormatUint(from, 10), Stop: strconv.FormatUint(to, 10),
		ByScore: true, Count: pageSize,
	}).Result()
}

func (s *Subscriber) readRecords(ctx context.Context, master redis.UniversalClient, members []contract.Member) error {
	ctx, cancel := context.WithTimeout(ctx, 4*callTimeout) // up to some 400 MiB
	defer cancel()
	pipe := master.Pipeline()
	replies := make([]*redis.MapStringStringCmd, len(members))
	for i, m := range members {
		replies[i] = pipe.HGetAll(ctx, s.keys.RecordKey(m))
	}
	pipe.Exec(ctx) // its error is one of theirs
	for i, m := range members {
		fields, failed := replies[i].Result()
		switch {
		case failed == nil && len(fields) == 0:
			s.remove(m) // its tombstone has expired
		case failed == nil:
			s.apply(m, fields)
		case redis.HasErrorPrefix(failed, "WRONGTYPE"):
			s.refuse(kind(m), m.ID, errWrongType)
			s.remove(m)
		default:
			return failed
		}
	}
	return nil
}
