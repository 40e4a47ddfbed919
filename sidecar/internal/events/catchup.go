package events

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)

const (
	// pageSize is how many members of the log are read at once.
	pageSize = 1000
	// pipelineSize is how many records are read at once; one may have 4 MiB. Where they don't come
	// within recordsTimeout, half as many are, until a catch-up has ended well.
	pipelineSize   = 100
	recordsTimeout = 4 * callTimeout
	// unknownFor is after how long without a position it is said, and unknownAgain for how long not again.
	unknownFor   = 5 * time.Second
	unknownAgain = time.Minute
	// progressEvery is how often a long catch-up is logged.
	progressEvery = 5 * time.Second
)

// ask completes what follow knew when it asked.
func (s *Subscriber) ask(ctx context.Context, asked position) position {
	master, err := s.master(ctx)
	var p position
	if err == nil {
		p, err = s.position(ctx, server{master, address(master)})
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
	switch {
	case p.epoch != s.epoch:
		return s.catchUp(ctx, "epoch")
	case p.seq < p.ours: // though writes may pass our number before it is asked for again
		s.lost(p)
		s.synced = false //mutant:TestLostIsRemembered deleted
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
	client, err := s.master(ctx)
	if err != nil {
		return err
	}
	// All of it over one connection, and so from one server, also while a name moves to another.
	conn := client.WithTimeout(recordsTimeout).Conn()
	defer conn.Close()
	master := server{conn, address(client)} //mutant:TestOneServer server{client, address(client)}
	p, err := s.position(ctx, master)
	if err != nil {
		return err
	}
	follows := p.history.same(s.history)
	if reason != "connected" {
		if follows = s.continues(p); !follows {
			return errOtherServer
		}
	}
	from := s.seq
	full := !s.synced || p.epoch != s.epoch || p.seq < s.seq || !follows
	if full {
		switch {
		case !s.synced || s.epoch == "": // it was empty, and has been written to
		case p.epoch != s.epoch || p.seq < s.seq:
			s.lost(p)
		default:
			s.log.Info("redis was restarted, or another server has taken over: everything is read again", "seq", s.seq, "redis_seq", p.seq)
		}
		s.metrics.Resyncs.Inc()
		from, s.synced = 0, false // until all is read
		s.Objects.BeginResync()
		s.Credentials.BeginResync()
	}
	var count int
	if full {
		count, err = s.readAll(ctx, master, p.epoch)
		s.resynced = true
	} else {
		count, err = s.readLog(ctx, master, from, p.seq, allKinds, func() {})
	}
	if err != nil {
		return fmt.Errorf("catch up from %d to %d: %w", from, p.seq, err)
	}
	if full {
		s.Objects.EndResync()
		s.Credentials.EndResync()
	}
	s.setSeq(p.seq)
	s.epoch, s.history, s.historyAt, s.synced = p.epoch, p.history, p.at, true
	s.batch, s.unknownAt = pipelineSize, time.Time{}
	s.setInStep(p.at)
	s.firstOnce.Do(func() { close(s.first) })
	s.log.Info("caught up with redis", "reason", reason, "full", full, "members", count, "seq", s.seq, "duration", time.Since(p.at))
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
		s.log.Warn("events come, but the position of redis can't be read: whether any are missing is not known, so the edge is not in step", "error", err)
		return
	}
	s.log.Debug("position of redis not known", "error", err)
}

// lost says that Redis is behind what it was.
func (s *Subscriber) lost(p position) {
	s.log.Warn("redis has lost data: the edge follows", "epoch", s.epoch, "seq", s.seq, "redis_epoch", p.epoch, "redis_seq", p.seq)
}

// readAll applies all records, those of devices first: a revocation matters more than an object, and
// they are soon read. What is written meanwhile moves up in the log. It is met further on, or it would
// seem gone when the resync ends; its event comes later and finds its version known.
func (s *Subscriber) readAll(ctx context.Context, master server, epoch string) (count int, err error) {
	count, err = s.readLog(ctx, master, 0, math.MaxUint64, contract.KindCredential, func() {})
	if err != nil {
		return count, err
	}
	n, err := s.readLog(ctx, master, 0,
		math.MaxUint64, //mutant:TestWrittenDuringResync uint64(1100)
		contract.KindObject,
		func() { s.applyDevices(epoch) }, //mutant:TestRevokedWhileObjectsAreRead func() {}
	)
	return count + n, err
}

// applyDevices applies what has come of devices while objects are read, for that may take minutes, and
// a revocation must not wait so long. It has its turn again later, when its version is known.
func (s *Subscriber) applyDevices(epoch string) {
	if s.in == nil {
		return
	}
	for _, payload := range s.in.unseen() {
		e, err := contract.ParseEvent(payload)
		if err == nil && e.Epoch == epoch && e.Member.Kind == contract.KindCredential && s.Shards.Belongs(e.Member, s.Shard) == nil {
			s.apply(e.Member, e.Fields)
		}
	}
}

// allKinds has readLog apply the records of every kind.
const allKinds byte = 0

// readLog applies the records of all members with from < score <= to, in that order, or of those of
// one kind only. A member that moves beyond to meanwhile is announced by an event. What is read of
// all kinds counts page by page, so that a catch-up that fails goes on there. between is called whenever some
// were applied.
func (s *Subscriber) readLog(ctx context.Context, master server, from, to uint64, kind byte, between func()) (count int, err error) {
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
			switch {
			case err != nil && kind == contract.KindObject: // was refused when devices were read
			case err != nil:
				s.refuse("member", text, err)
			case kind == allKinds || kind == m.Kind:
				members = append(members, m)
			}
		}
		n := len(members)
		if kind == contract.KindObject && s.resynced {
			if members, err = s.unconfirmed(ctx, master, members); err != nil {
				return count, err
			}
		}
		for len(members) > 0 {
			n := min(len(members), s.batch)
			err := s.readRecords(ctx, master, members[:n])
			if err != nil {
				if timeout, ok := errors.AsType[net.Error](err); n > 1 && ok && timeout.Timeout() {
					s.batch = n / 2
					s.log.Warn("records don't come in time: the next catch-up asks for fewer at once", "records", n, "next", s.batch, "timeout", recordsTimeout)
				}
				return count, err
			}
			members = members[n:]
			between()
		}
		between()
		count += n
		s.metrics.Members.Add(float64(n))
		if len(page) < pageSize {
			break
		}
		from = uint64(page[len(page)-1].Score)
		if kind == allKinds {
			s.setSeq(from)
		}
		if time.Since(logged) > progressEvery {
			logged = time.Now()
			s.log.Info("catching up with redis", "members", count, "seq", from, "redis_seq", to)
		}
	}
	return count, nil
}

func (s *Subscriber) page(ctx context.Context, master server, from, to uint64) ([]redis.Z, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return master.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
		Key: s.keys.LogKey(), Start: "(" + strconv.FormatUint(from, 10), Stop: strconv.FormatUint(to, 10),
		ByScore: true, Count: pageSize,
	}).Result()
}

// unconfirmed is members without the objects that are known as they are in Redis, of which all but the
// bodies are read. What can't be told so is left to [Subscriber.readRecords].
func (s *Subscriber) unconfirmed(ctx context.Context, master server, members []contract.Member) ([]contract.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, recordsTimeout)
	defer cancel()
	fields := contract.HeadFields()
	pipe := master.Pipeline()
	replies := make([]*redis.SliceCmd, len(members))
	for i, m := range members {
		replies[i] = pipe.HMGet(ctx, s.keys.RecordKey(m), fields...)
	}
	if err := unsent(pipe.Exec(ctx)); err != nil {
		return nil, err
	}
	var unconfirmed []contract.Member
	for i, m := range members {
		values, err := replies[i].Result()
		if _, refused := errors.AsType[redis.Error](err); err != nil && !refused {
			return nil, err
		}
		if redis.HasErrorPrefix(err, "NOPERM") {
			s.board.headOnce.Do(func() {
				s.log.Warn("redis does not let parts of records be read: after each restart and failover of it whole ones are; permit HMGET (+hmget)", "error", err)
			})
		}
		head := make(map[string]string, len(fields))
		for j, value := range values {
			if text, found := value.(string); found {
				head[fields[j]] = text
			}
		}
		o, err := contract.ParseObjectHead(head)
		if o.Key = m.ID; err != nil || !s.Objects.Confirm(o) {
			unconfirmed = append(unconfirmed, m)
		}
	}
	return unconfirmed, nil
}

func (s *Subscriber) readRecords(ctx context.Context, master server, members []contract.Member) error {
	ctx, cancel := context.WithTimeout(ctx, recordsTimeout)
	defer cancel()
	pipe := master.Pipeline()
	replies := make([]*redis.MapStringStringCmd, len(members))
	for i, m := range members {
		replies[i] = pipe.HGetAll(ctx, s.keys.RecordKey(m))
	}
	if err := unsent(pipe.Exec(ctx)); err != nil {
		return err
	}
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
