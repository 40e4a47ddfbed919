package events

import (
	"context"
	"errors"
	"fmt"
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

// position is where Redis is, or was.
type position struct {
	epoch    string
	seq      uint64
	at       time.Time // before Redis was asked
	catchups uint64    // how many we had made by then
	ours     uint64    // our seq by then
	err      error
}

// position asks Redis. A Redis that was never written to has no epoch and no seq.
func (s *Subscriber) position(ctx context.Context) (position, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	p := position{at: time.Now()}
	// One transaction, so that the sequence number is of that epoch.
	tx := s.client.TxPipeline()
	epoch, seq := tx.Get(ctx, s.Keys.EpochKey()), tx.Get(ctx, s.Keys.SeqKey())
	tx.Exec(ctx) // its error is one of theirs
	for _, err := range []error{epoch.Err(), seq.Err()} {
		if err != nil && !errors.Is(err, redis.Nil) {
			return p, fmt.Errorf("read the position of redis: %w", err)
		}
	}
	p.epoch = epoch.Val()
	if p.epoch != "" && !contract.ValidEpoch(p.epoch) {
		return p, fmt.Errorf("%s holds %.80q, which is no data epoch: delete it, and the next write sets one", s.Keys.EpochKey(), p.epoch)
	}
	if text := seq.Val(); text != "" {
		var err error
		if p.seq, err = strconv.ParseUint(text, 10, 64); err != nil {
			return p, fmt.Errorf("%s holds %.80q, which is no sequence number", s.Keys.SeqKey(), text)
		}
	}
	return p, nil
}

// ask completes what follow knew when it asked.
func (s *Subscriber) ask(ctx context.Context, asked position) position {
	p, err := s.position(ctx)
	p.at, p.catchups, p.ours, p.err = asked.at, asked.catchups, asked.seq, err
	return p
}

// compare is the answer to ask. Events may have come since.
func (s *Subscriber) compare(ctx context.Context, p position) error {
	switch {
	case p.err != nil:
		if ctx.Err() == nil {
			s.metrics.RedisErrors.Inc()
			s.log.Debug("position of redis not known", "error", p.err)
		}
		return nil // the subscription may work; if not, its end will say so
	case p.catchups != s.catchups:
		return nil // of before a catch-up
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
// another data epoch or has gone back, which both mean that it lost data.
func (s *Subscriber) catchUp(ctx context.Context, reason string) error {
	s.metrics.Catchups.WithLabelValues(reason).Inc()
	s.catchups++
	s.ahead = position{}
	p, err := s.position(ctx)
	if err != nil {
		return err
	}
	from := s.seq
	full := !s.synced || p.epoch != s.epoch || p.seq < s.seq
	if full {
		if s.synced && s.epoch != "" { // else it was empty, and has been written to
			s.log.Warn("redis has lost data: the edge follows", "epoch", s.epoch, "seq", s.seq, "redis_epoch", p.epoch, "redis_seq", p.seq)
		}
		s.metrics.Resyncs.Inc()
		from, s.synced = 0, false // until all is read
		s.Objects.BeginResync()
		s.Credentials.BeginResync()
	}
	count, err := s.readLog(ctx, from, p.seq)
	if err != nil {
		return fmt.Errorf("catch up from %d to %d: %w", from, p.seq, err)
	}
	if full {
		s.Objects.EndResync()
		s.Credentials.EndResync()
	}
	s.epoch, s.seq, s.synced = p.epoch, p.seq, true
	s.metrics.Seq.Set(float64(s.seq))
	s.setInStep(p.at)
	s.firstOnce.Do(func() { close(s.first) })
	s.log.Info("caught up with redis", "reason", reason, "full", full, "members", count, "seq", s.seq, "duration", time.Since(p.at))
	return nil
}

// readLog applies the records of all members with from < score <= to, in that order. A
// member that moves up meanwhile is announced by an event.
func (s *Subscriber) readLog(ctx context.Context, from, to uint64) (count int, err error) {
	logged := time.Now()
	for from < to {
		page, err := s.page(ctx, from, to)
		if err != nil {
			return count, err
		}
		members := make([]contract.Member, 0, len(page))
		for _, z := range page {
			text, _ := z.Member.(string)
			m, err := contract.ParseMember(text)
			if err != nil {
				s.refuse("member", text, err)
				continue
			}
			members = append(members, m)
		}
		for len(members) > 0 {
			n := min(len(members), pipelineSize)
			if err := s.readRecords(ctx, members[:n]); err != nil {
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

func (s *Subscriber) page(ctx context.Context, from, to uint64) ([]redis.Z, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return s.client.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
		Key: s.Keys.LogKey(), Start: "(" + strconv.FormatUint(from, 10), Stop: strconv.FormatUint(to, 10),
		ByScore: true, Count: pageSize,
	}).Result()
}

func (s *Subscriber) readRecords(ctx context.Context, members []contract.Member) error {
	ctx, cancel := context.WithTimeout(ctx, 4*callTimeout) // up to some 400 MiB
	defer cancel()
	pipe := s.client.Pipeline()
	replies := make([]*redis.MapStringStringCmd, len(members))
	for i, m := range members {
		replies[i] = pipe.HGetAll(ctx, s.Keys.RecordKey(m))
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
