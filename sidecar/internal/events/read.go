package events

import (
	"context"
	"errors"
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
	// progressEvery is how often a long catch-up is logged.
	progressEvery = 5 * time.Second
)

// readChanges applies what changed from there to p, all records in a full resync, those of devices first: a
// revocation matters more than an object, and they are soon read. The end is fixed when it begins, because
// writes may be faster than reads. What moves beyond it meanwhile comes with its event: none of those is
// missing once all up to end were applied.
func (s *Subscriber) readChanges(ctx context.Context, master server, from uint64, p position, full bool) (count int, end uint64, err error) {
	meanwhile := func() error { return s.applyMeanwhile(ctx, master, p.epoch) } //mutant:TestRevokedWhileObjectsAreRead func() error { return nil }
	if count, err = s.readLog(ctx, master, from, p.seq, contract.KindCredential, meanwhile); err != nil {
		return count, 0, err
	}
	if full && s.caughtUp() {
		release, err := s.takeTurn(ctx, master, meanwhile)
		if err != nil {
			return count, 0, err
		}
		defer release()
	}
	n, err := s.readLog(ctx, master, from, p.seq, contract.KindObject, meanwhile)
	if count += n; err != nil {
		return count, 0, err
	}
	if end, err = s.lastSeq(ctx, master, from, full); err != nil || !full {
		return count, end, err
	}
	// A device that was unknown and has moved would be refused when the resync ends.
	n, err = s.readLog(ctx, master, p.seq, end, contract.KindCredential, meanwhile)
	if count += n; err != nil {
		return count, end, err
	}
	n, err = s.readUnmet(ctx, master, meanwhile) //mutant:TestWrittenDuringResync deleted
	return count + n, end, err
}

// lastSeq is the number of the last write. If the log was trimmed meanwhile beyond where it was read from,
// entries may have gone that were not met, and everything is to be read.
func (s *Subscriber) lastSeq(ctx context.Context, master server, from uint64, full bool) (seq uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if seq, err = master.Get(ctx, s.keys.SeqKey()).Uint64(); err != nil && !errors.Is(err, redis.Nil) {
		return 0, err
	}
	if full || s.noChain.Load() {
		return seq, nil
	}
	values, err := master.HMGet(ctx, s.keys.ChainKey(), contract.ChainHead, contract.ChainFloor, contract.ChainField(from)).Result()
	if err != nil {
		return 0, err
	}
	var now position
	if now.setChain(values); from < now.floor { //mutant:TestTrimmedMeanwhile false
		s.synced = false
		return 0, errTrimmed
	}
	return seq, nil
}

// readUnmet reads in a full resync what was known and not met: it was written meanwhile and has moved
// beyond the end, or it is gone.
func (s *Subscriber) readUnmet(ctx context.Context, master server, meanwhile func() error) (count int, err error) {
	for kind, ids := range map[byte][]string{contract.KindCredential: s.Credentials.Unmet(), contract.KindObject: s.Objects.Unmet()} {
		for len(ids) > 0 {
			n := min(len(ids), pageSize)
			members := make([]contract.Member, n)
			for i, id := range ids[:n] {
				members[i] = contract.Member{Kind: kind, ID: id}
			}
			if err := s.readMembers(ctx, master, members, meanwhile); err != nil {
				return count, err
			}
			ids, count = ids[n:], count+n
		}
	}
	return count, nil
}

// readLog applies the records of all members of a kind with from < score <= to, in that order. What is
// read of objects counts page by page, so that a catch-up that fails goes on there. meanwhile is called
// whenever some were applied.
func (s *Subscriber) readLog(ctx context.Context, master server, from, to uint64, kind byte, meanwhile func() error) (count int, err error) {
	logged := time.Now()
	if err := meanwhile(); err != nil {
		return 0, err
	}
	for from < to {
		page, err := s.page(ctx, master, from, to)
		if err != nil {
			return count, err
		}
		members := s.members(page, kind)
		if err := s.readMembers(ctx, master, members, meanwhile); err != nil {
			return count, err
		}
		count += len(members)
		s.metrics.Members.Add(float64(len(members)))
		if len(page) < pageSize {
			break
		}
		from = uint64(page[len(page)-1].Score)
		if kind == contract.KindObject && s.synced {
			s.setSeq(from)
			s.chain.digest, s.chain.known = "", false
		}
		if time.Since(logged) > progressEvery {
			logged = time.Now()
			s.log.Info("catching up with redis", "kind", string(kind), "members", count, "seq", from, "redis_seq", to)
		}
	}
	return count, nil
}

// members are those of a kind on a page of the log. What is wrong there is refused when devices are read.
func (s *Subscriber) members(page []redis.Z, kind byte) []contract.Member {
	members := make([]contract.Member, 0, len(page))
	for _, z := range page {
		text, _ := z.Member.(string)
		m, err := contract.ParseMember(text)
		if err == nil {
			err = s.Shards.Belongs(m, s.Shard)
		}
		switch {
		case err != nil && kind == contract.KindCredential:
			s.refuse("member", text, err)
		case err == nil && kind == m.Kind:
			members = append(members, m)
		}
	}
	return members
}

// readMembers applies the records of members, which are of one kind and at most a page.
func (s *Subscriber) readMembers(ctx context.Context, master server, members []contract.Member, meanwhile func() error) (err error) {
	if err := meanwhile(); err != nil {
		return err
	}
	if len(members) > 0 && members[0].Kind == contract.KindObject && s.resynced && !s.synced {
		if members, err = s.unconfirmed(ctx, master, members); err != nil {
			return err
		}
	}
	for len(members) > 0 {
		n := min(len(members), s.batch)
		if err := s.readRecords(ctx, master, members[:n]); err != nil {
			if timeout, ok := errors.AsType[net.Error](err); n > 1 && ok && timeout.Timeout() {
				s.batch = n / 2
				s.log.Warn("records time out: the next catch-up reads fewer at once", "records", n, "next", s.batch, "timeout", recordsTimeout)
			}
			return err
		}
		members = members[n:]
		if err := meanwhile(); err != nil {
			return err
		}
	}
	return nil
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
				s.log.Warn("no permission to read parts of records: after each restart and failover of redis whole ones are read; permit HMGET (+hmget)", "error", err)
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
	replies, err := s.fetch(ctx, master, members, recordsTimeout)
	for i := 0; err == nil && i < len(members); i++ {
		err = s.applyReply(members[i], replies[i])
	}
	return err
}

// fetch asks for records, as a pipeline.
func (s *Subscriber) fetch(ctx context.Context, master redis.Cmdable, members []contract.Member, timeout time.Duration) ([]*redis.MapStringStringCmd, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	pipe := master.Pipeline()
	replies := make([]*redis.MapStringStringCmd, len(members))
	for i, m := range members {
		replies[i] = pipe.HGetAll(ctx, s.keys.RecordKey(m))
	}
	return replies, unsent(pipe.Exec(ctx))
}

// applyReply applies a record as Redis has it.
func (s *Subscriber) applyReply(m contract.Member, reply *redis.MapStringStringCmd) error {
	fields, err := reply.Result()
	switch {
	case err == nil && len(fields) == 0:
		s.remove(m) // its tombstone has expired
	case err == nil:
		s.apply(m, fields)
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		s.refuse(kind(m), m.ID, errWrongType)
		s.remove(m)
	default:
		return err
	}
	return nil
}
