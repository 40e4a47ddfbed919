package follow

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
	// pageSize is the number of log members in one read.
	pageSize = 1000
	// pipelineSize is the number of records in one read; a record may have 4 MiB. After a read that takes longer than
	// recordsTimeout the number is halved, until a catch-up succeeds.
	pipelineSize   = 100
	recordsTimeout = 4 * callTimeout
	// progressEvery is the interval at which a long catch-up is logged.
	progressEvery = 5 * time.Second
)

// readChanges applies the changes from from to p, or all records in a full resync. It reads devices first: revocations
// matter more than objects, and devices take little time. Since writes may be faster than reads, the end is fixed at
// the beginning. Records that move beyond it meanwhile have events, of which none is missing once everything up to end
// was applied.
func (f *Follower) readChanges(ctx context.Context, master server, from uint64, p position, full bool) (count int, end uint64, err error) {
	meanwhile := func() error { return f.applyMeanwhile(ctx, master, p.epoch) } //mutant:TestRevokedWhileObjectsAreRead func() error { return nil }
	if count, err = f.readLog(ctx, master, from, p.seq, contract.KindCredential, meanwhile); err != nil {
		return count, 0, err
	}
	if full && f.caughtUp() {
		release, err := f.takeTurn(ctx, master, meanwhile)
		if err != nil {
			return count, 0, err
		}
		defer release()
	}
	n, err := f.readLog(ctx, master, from, p.seq, contract.KindObject, meanwhile)
	if count += n; err != nil {
		return count, 0, err
	}
	if end, err = f.lastSeq(ctx, master, from, full); err != nil || !full {
		return count, end, err
	}
	// A moved device that was unknown would be refused at the end of the resync.
	n, err = f.readLog(ctx, master, p.seq, end, contract.KindCredential, meanwhile)
	if count += n; err != nil {
		return count, end, err
	}
	n, err = f.readUnmet(ctx, master, meanwhile) //mutant:TestWrittenDuringResync deleted
	return count + n, end, err
}

// lastSeq returns the number of the last write. If the log was meanwhile trimmed beyond from, it may lack entries that
// were not read, so lastSeq returns an error, and everything is read again.
func (f *Follower) lastSeq(ctx context.Context, master server, from uint64, full bool) (seq uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if seq, err = master.Get(ctx, f.keys.SeqKey()).Uint64(); err != nil && !errors.Is(err, redis.Nil) {
		return 0, err
	}
	if full || f.noChain.Load() {
		return seq, nil
	}
	values, err := master.HMGet(ctx, f.keys.ChainKey(), contract.ChainHead, contract.ChainFloor, contract.ChainField(from)).Result()
	if err != nil {
		return 0, err
	}
	var now position
	if now.setChain(values); from < now.floor { //mutant:TestTrimmedMeanwhile false
		f.synced, f.owed = false, resyncTrimmed
		return 0, errTrimmed
	}
	return seq, nil
}

// readUnmet reads, in a full resync, the known records that were not read yet: they were written meanwhile and have
// moved beyond the end, or they are gone.
func (f *Follower) readUnmet(ctx context.Context, master server, meanwhile func() error) (count int, err error) {
	for kind, ids := range map[byte][]string{contract.KindCredential: f.Credentials.Unmet(), contract.KindObject: f.Objects.Unmet()} {
		for len(ids) > 0 {
			n := min(len(ids), pageSize)
			members := make([]contract.Member, n)
			for i, id := range ids[:n] {
				members[i] = contract.Member{Kind: kind, ID: id}
			}
			if err := f.readMembers(ctx, master, members, meanwhile); err != nil {
				return count, err
			}
			ids, count = ids[n:], count+n
		}
	}
	return count, nil
}

// readLog applies the records of all members of a kind with from < score <= to, in that order. It records the progress
// for objects after each page, so that a failed catch-up continues there. It calls meanwhile whenever some were
// applied.
func (f *Follower) readLog(ctx context.Context, master server, from, to uint64, kind byte, meanwhile func() error) (count int, err error) {
	logged := time.Now()
	if err := meanwhile(); err != nil {
		return 0, err
	}
	for from < to {
		page, err := f.page(ctx, master, from, to)
		if err != nil {
			return count, err
		}
		members := f.members(page, kind)
		if err := f.readMembers(ctx, master, members, meanwhile); err != nil {
			return count, err
		}
		count += len(members)
		f.metrics.Members.Add(float64(len(members)))
		if len(page) < pageSize {
			break
		}
		from = uint64(page[len(page)-1].Score)
		if kind == contract.KindObject && f.synced {
			f.setSeq(from)
			f.chain.digest, f.chain.known = "", false
		}
		if time.Since(logged) > progressEvery {
			logged = time.Now()
			f.log.Info("catching up with redis", "kind", string(kind), "members", count, "seq", from, "redis_seq", to)
		}
	}
	return count, nil
}

// members returns a page's members of a kind. It reports invalid members only when it reads devices, so once.
func (f *Follower) members(page []redis.Z, kind byte) []contract.Member {
	members := make([]contract.Member, 0, len(page))
	for _, z := range page {
		text, _ := z.Member.(string)
		m, err := contract.ParseMember(text)
		if err == nil {
			err = f.Shards.Belongs(m, f.Shard)
		}
		switch {
		case err != nil && kind == contract.KindCredential:
			f.refuse("member", text, err)
		case err == nil && kind == m.Kind:
			members = append(members, m)
		}
	}
	return members
}

// readMembers applies the records of members, which have one kind and are at most a page.
func (f *Follower) readMembers(ctx context.Context, master server, members []contract.Member, meanwhile func() error) (err error) {
	if err := meanwhile(); err != nil {
		return err
	}
	if len(members) > 0 && members[0].Kind == contract.KindObject && f.resynced && !f.synced && f.demanded == nil {
		if members, err = f.unconfirmed(ctx, master, members); err != nil {
			return err
		}
	}
	for len(members) > 0 {
		n := min(len(members), f.batch)
		if err := f.readRecords(ctx, master, members[:n]); err != nil {
			if timeout, ok := errors.AsType[net.Error](err); n > 1 && ok && timeout.Timeout() {
				f.batch = n / 2
				f.log.Warn("records time out: the next catch-up reads fewer at once", "records", n, "next", f.batch, "timeout", recordsTimeout)
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

func (f *Follower) page(ctx context.Context, master server, from, to uint64) ([]redis.Z, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return master.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
		Key: f.keys.LogKey(), Start: "(" + strconv.FormatUint(from, 10), Stop: strconv.FormatUint(to, 10),
		ByScore: true, Count: pageSize,
	}).Result()
}

// unconfirmed returns members without the objects whose known version is the one in Redis. It reads everything but the
// bodies. It leaves what it can't decide to [Follower.readRecords].
func (f *Follower) unconfirmed(ctx context.Context, master server, members []contract.Member) ([]contract.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, recordsTimeout)
	defer cancel()
	fields := contract.HeadFields()
	pipe := master.Pipeline()
	replies := make([]*redis.SliceCmd, len(members))
	for i, m := range members {
		replies[i] = pipe.HMGet(ctx, f.keys.RecordKey(m), fields...)
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
			f.board.headOnce.Do(func() {
				f.log.Warn("no permission to read parts of records: each restart and failover of redis costs reading whole ones; permit HMGET (+hmget)", "error", err)
			})
		}
		o, err := contract.ParseObjectHead(contract.HeadOf(values))
		if o.Key = m.ID; err != nil || !f.Objects.Confirm(o) {
			unconfirmed = append(unconfirmed, m)
		}
	}
	return unconfirmed, nil
}

func (f *Follower) readRecords(ctx context.Context, master server, members []contract.Member) error {
	replies, err := f.fetch(ctx, master, members, recordsTimeout)
	for i := 0; err == nil && i < len(members); i++ {
		err = f.applyReply(members[i], replies[i])
	}
	return err
}

// fetch reads records in one pipeline.
func (f *Follower) fetch(ctx context.Context, master redis.Cmdable, members []contract.Member, timeout time.Duration) ([]*redis.MapStringStringCmd, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	pipe := master.Pipeline()
	replies := make([]*redis.MapStringStringCmd, len(members))
	for i, m := range members {
		replies[i] = pipe.HGetAll(ctx, f.keys.RecordKey(m))
	}
	return replies, unsent(pipe.Exec(ctx))
}

// applyReply applies a record as read from Redis.
func (f *Follower) applyReply(m contract.Member, reply *redis.MapStringStringCmd) error {
	fields, err := reply.Result()
	switch {
	case err == nil && len(fields) == 0:
		f.remove(m) // its tombstone has expired
	case err == nil:
		f.apply(m, fields)
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		f.refuse(kind(m), m.ID, errWrongType)
		f.remove(m)
	default:
		return err
	}
	return nil
}
