package follow

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
)

const (
	// pageSize is the number of log members per read.
	pageSize = 1000
	// pipelineSize is the maximum number of records per read. After a read that takes longer than recordsTimeout the
	// number is halved, until a catch-up succeeds.
	pipelineSize = 250
	// pipelineBytes bounds the bytes of records per read, because Redis and the sidecar have all of them in memory.
	// maxReads bounds concurrent reads of objects by all shards.
	pipelineBytes = 8 << 20
	maxReads      = 4
	// headBytes bounds the records whose heads a pipeline reads. Heads are small unless somebody wrote them by hand.
	headBytes      = 64 << 20
	recordsTimeout = 4 * callTimeout
	// A long catch-up is logged every progressEvery.
	progressEvery = 5 * time.Second
)

// readChanges applies the changes after from up to p, or all records in a full resync. It reads devices first, since
// revocations matter more than objects, and purges with the devices, so that no purged object is applied. Since writes
// may be faster than reads, the end is fixed at the beginning. Records that move beyond the end meanwhile have events,
// and no event is missing once everything up to end was applied.
func (f *Follower) readChanges(ctx context.Context, master server, from uint64, p position, full bool) (count int,
	end uint64, err error) {
	meanwhile := func() error { return f.applyUrgent(ctx, master, p.dataEpoch) }
	if count, err = f.readLog(ctx, master, from, p.seq, contract.KindCredential, meanwhile); err != nil {
		return count, 0, err
	}
	if full {
		if err := f.readUnappliedOf(ctx, master, contract.KindPurge, f.Purges.Unapplied(), meanwhile); err != nil {
			return count, 0, err
		}
		f.Purges.EndResync()
	}
	// Most devices get a 503 until their record is read.
	for left := len(f.rereads.members); len(f.rereads.members) > 0 && left > 0; left -= pipelineSize {
		if err := meanwhile(); err != nil {
			return count, 0, err
		}
	}
	if full {
		lease, err := f.acquireLease(ctx, master, meanwhile)
		if err != nil {
			return count, 0, err
		}
		defer lease.release(ctx)
		meanwhile = lease.prolongDuring(ctx, meanwhile)
	}
	n, err := f.readLog(ctx, master, from, p.seq, contract.KindObject, meanwhile)
	if count += n; err != nil {
		return count, 0, err
	}
	if end, err = f.lastSeq(ctx, master, from, p, full); err != nil || !full {
		return count, end, err
	}
	// A moved device that was unknown would be refused at the end of the resync.
	n, err = f.readLog(ctx, master, p.seq, end, contract.KindCredential, meanwhile)
	if count += n; err != nil {
		return count, end, err
	}
	n, err = f.readUnapplied(ctx, master, meanwhile)
	return count + n, end, err
}

// lastSeq returns the number of the last write. If Redis was meanwhile emptied, or lost its log, or trimmed the log
// beyond from, the log may have lacked unread entries, so lastSeq returns an error, and everything is read again.
func (f *Follower) lastSeq(ctx context.Context, master server, from uint64, then position,
	full bool) (seq uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	pipe := master.Pipeline()
	number, current := pipe.Get(ctx, f.keys.SeqKey()), pipe.Get(ctx, f.keys.DataEpochKey())
	last := pipe.ZRangeWithScores(ctx, f.keys.LogKey(), -1, -1)
	if err := Unsent(pipe.Exec(ctx)); err != nil {
		return 0, err
	}
	for _, err := range []error{number.Err(), current.Err(), last.Err()} {
		if err != nil && !errors.Is(err, redis.Nil) {
			return 0, err
		}
	}
	if current.Val() != then.dataEpoch || then.last != 0 && len(last.Val()) == 0 {
		return 0, errOtherDataEpoch
	}
	if seq, err = number.Uint64(); err != nil && !errors.Is(err, redis.Nil) {
		return 0, err
	}
	if f.withheld.chain.Load() {
		return seq, nil
	}
	values, err := master.HMGet(ctx, f.keys.ChainKey(), contract.ChainHead, contract.ChainFloor,
		contract.ChainField(from), contract.ChainNeeds, contract.ChainLost).Result()
	if err != nil {
		return 0, err
	}
	var now position
	switch now.setChain(values); {
	case now.lost > then.lost: // and the log has entries since
		return 0, errOtherDataEpoch
	case !full && from < now.floor && now.floor <= seq:
		f.synced, f.resync.pending = false, resyncTrimmed
		return 0, errTrimmed
	}
	return seq, nil
}

// readUnapplied reads, in a full resync, the known records that were not read yet: records that were written meanwhile
// and have moved beyond the end, or that are gone.
func (f *Follower) readUnapplied(ctx context.Context, master server, meanwhile func() error) (count int, err error) {
	// Devices first.
	for _, unapplied := range []struct {
		kind byte
		ids  []string
	}{{contract.KindCredential, f.Credentials.Unapplied()}, {contract.KindObject, f.Objects.Unapplied()}} {
		if err := f.readUnappliedOf(ctx, master, unapplied.kind, unapplied.ids, meanwhile); err != nil {
			return count, err
		}
		count += len(unapplied.ids)
	}
	return count, nil
}

// readUnappliedOf reads the records of a kind with the given ids.
func (f *Follower) readUnappliedOf(ctx context.Context, master server, kind byte, ids []string,
	meanwhile func() error) error {
	for ids := range slices.Chunk(ids, pageSize) {
		members := make([]contract.Member, len(ids))
		for i, id := range ids {
			members[i] = contract.Member{Kind: kind, ID: id}
		}
		if err := f.readMembers(ctx, master, members, false, meanwhile); err != nil {
			return err
		}
	}
	return nil
}

// readLog applies the records of all members of a kind, and for devices also all purges, with from < score <= to, in
// the log's order. It records the progress for objects after each page, so a failed catch-up continues at the page.
// Whenever readLog has applied some records, it calls meanwhile.
func (f *Follower) readLog(ctx context.Context, master server, from, to uint64, kind byte,
	meanwhile func() error) (count int, err error) {
	logged := time.Now()
	if err := meanwhile(); err != nil {
		return 0, err
	}
	f.recentKinds = map[byte]bool{}
	for from < to {
		page, err := f.readLogPage(ctx, master, from, to)
		if err != nil {
			return count, err
		}
		members := f.parseMembers(page, kind)
		if err := f.readMembers(ctx, master, members, true, meanwhile); err != nil {
			return count, err
		}
		if kind == contract.KindCredential {
			purges := f.parseMembers(page, contract.KindPurge)
			if err := f.readMembers(ctx, master, purges, true, meanwhile); err != nil {
				return count, err
			}
			members = append(members, purges...)
		}
		count += len(members)
		f.metrics.Members.Add(float64(len(members)))
		if len(page) < pageSize {
			break
		}
		from = uint64(page[len(page)-1].Score)
		if kind == contract.KindObject && f.synced {
			f.chain.readable = false
			f.setLast(from, "")
		}
		if time.Since(logged) > progressEvery {
			logged = time.Now()
			f.log.Info("catching up with redis", "kind", string(kind), "members", count, "seq", from, "redis_seq", to)
		}
	}
	return count, nil
}

// parseMembers returns a page's members of a kind. To report invalid members once, it reports them only with devices.
func (f *Follower) parseMembers(page []redis.Z, kind byte) []contract.Member {
	members := make([]contract.Member, 0, len(page))
	for _, z := range page {
		text, _ := z.Member.(string)
		m, err := contract.ParseMember(text)
		if err == nil {
			err = f.Keyspace.Belongs(m, f.Shard)
		}
		switch {
		case err != nil && kind == contract.KindCredential:
			f.reportUnreadable("member", text, err)
		case err == nil && kind == m.Kind:
			members = append(members, m)
		}
	}
	return members
}

// readMembers applies the records of members, at most a page of a single kind; logged: the log has the members.
func (f *Follower) readMembers(ctx context.Context, master server, members []contract.Member, logged bool,
	meanwhile func() error) (err error) {
	if err := meanwhile(); err != nil {
		return err
	}
	records, err := f.fetchSizes(ctx, master, members)
	if err != nil {
		return err
	}
	for i := range records {
		records[i].logged = logged
	}
	objects := len(records) > 0 && records[0].Kind == contract.KindObject
	if objects && f.resync.tried && !f.synced && f.resync.done == nil {
		if records, err = f.dropConfirmed(ctx, master, records); err != nil {
			return err
		}
	}
	for len(records) > 0 {
		n := countFitting(records, f.batch, pipelineBytes)
		if err := f.readInTurn(ctx, master, records[:n], objects, meanwhile); err != nil {
			if timeout, ok := errors.AsType[net.Error](err); n > 1 && ok && timeout.Timeout() {
				f.batch = n / 2
				f.log.Warn("records time out: the next catch-up reads fewer at once", "records", n, "next", f.batch,
					"timeout", recordsTimeout)
			}
			return err
		}
		records = records[n:]
		if err := meanwhile(); err != nil {
			return err
		}
	}
	return nil
}

// sizedRecord is a record to read, with its memory in Redis.
type sizedRecord struct {
	contract.Member
	bytes  int64
	logged bool // the log has the record
}

// fetchSizes asks Redis for the memory of records. If Redis refuses, fetchSizes assumes the largest size within the
// limits.
func (f *Follower) fetchSizes(ctx context.Context, master redis.Cmdable,
	members []contract.Member) ([]sizedRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, recordsTimeout)
	defer cancel()
	records := make([]sizedRecord, len(members))
	for i, m := range members {
		records[i] = sizedRecord{Member: m, bytes: contract.MaxMemory(m.Kind) / 2}
	}
	if len(members) == 0 || f.withheld.memory.Load() {
		return records, nil
	}
	pipe := master.Pipeline()
	replies := make([]*redis.IntCmd, len(members))
	for i, m := range members {
		replies[i] = pipe.MemoryUsage(ctx, f.keys.RecordKey(m), 0) // 0: all fields count, not samples
	}
	if err := Unsent(pipe.Exec(ctx)); err != nil {
		return nil, err
	}
	for i := range records {
		bytes, err := replies[i].Result()
		switch {
		case err == nil || errors.Is(err, redis.Nil):
			records[i].bytes = bytes
		case redisurl.Withheld(err):
			f.withheld.memory.Store(true)
			if redis.HasErrorPrefix(err, "NOPERM") {
				f.board.memoryOnce.Do(func() {
					f.log.Warn("no permission to ask for sizes: records are read a few at a time, and one without bounds can "+
						"exhaust the memory; permit MEMORY USAGE (+memory|usage)", "error", err)
				})
			}
			return records, nil
		default:
			return nil, err
		}
	}
	return records, nil
}

// countFitting returns how many of records to read at once: at most count, and not more than bytes, but at least 1.
func countFitting(records []sizedRecord, count int, bytes int64) (n int) {
	for n < min(len(records), count) {
		if bytes -= records[n].bytes; bytes < 0 && n > 0 {
			break
		}
		n++
	}
	return n
}

// readInTurn calls readRecords; for objects, after waiting for a slot, since all shards together have at most maxReads.
// Revocations don't wait for the slot.
func (f *Follower) readInTurn(ctx context.Context, master server, records []sizedRecord, objects bool,
	meanwhile func() error) error {
	if objects {
		if err := waitUntil(ctx, f.board.readSlots, f.inbox, meanwhile); err != nil {
			return err
		}
		defer func() { f.board.readSlots <- struct{}{} }()
	}
	return f.readRecords(ctx, master, records)
}

func (f *Follower) readLogPage(ctx context.Context, master server, from, to uint64) ([]redis.Z, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return master.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
		Key: f.keys.LogKey(), Start: "(" + strconv.FormatUint(from, 10), Stop: strconv.FormatUint(to, 10),
		ByScore: true, Count: pageSize,
	}).Result()
}

// dropConfirmed returns records without the objects whose known version is the version in Redis. It reads everything
// but the bodies, and leaves undecided objects to [Follower.readRecords].
func (f *Follower) dropConfirmed(ctx context.Context, master server,
	records []sizedRecord) (rest []sizedRecord, err error) {
	for len(records) > 0 && err == nil {
		n := countFitting(records, pageSize, headBytes)
		var more []sizedRecord
		more, err = f.confirmHeads(ctx, master, records[:n])
		rest, records = append(rest, more...), records[n:]
	}
	return rest, err
}

// confirmHeads is dropConfirmed for the records of a single pipeline.
func (f *Follower) confirmHeads(ctx context.Context, master server, records []sizedRecord) ([]sizedRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, recordsTimeout)
	defer cancel()
	fields := contract.HeadFields()
	pipe := master.Pipeline()
	replies := make([]*redis.SliceCmd, len(records))
	for i, r := range records {
		if r.CheckMemory(r.bytes) == nil {
			replies[i] = pipe.HMGet(ctx, f.keys.RecordKey(r.Member), fields...)
		}
	}
	if err := Unsent(pipe.Exec(ctx)); err != nil {
		return nil, err
	}
	var unconfirmed []sizedRecord
	for i, r := range records {
		if replies[i] == nil {
			unconfirmed = append(unconfirmed, r)
			continue
		}
		values, err := replies[i].Result()
		if _, refused := errors.AsType[redis.Error](err); err != nil && !refused {
			return nil, err
		}
		if redis.HasErrorPrefix(err, "NOPERM") {
			f.board.headOnce.Do(func() {
				f.log.Warn("no permission to read parts of records: each restart and failover of redis costs reading whole ones; "+
					"permit HMGET (+hmget)", "error", err)
			})
		}
		o, err := contract.ParseObjectHead(contract.HeadOf(values))
		if o.Key = r.ID; err != nil || !f.Objects.Confirm(o) {
			unconfirmed = append(unconfirmed, r)
		}
	}
	return unconfirmed, nil
}

func (f *Follower) readRecords(ctx context.Context, master server, records []sizedRecord) error {
	f.rereads.arrived = map[contract.Member]bool{}
	defer func() { f.rereads.arrived = nil }()
	replies, err := f.fetchRecords(ctx, master, records, recordsTimeout, nil, !f.comparison.emptySince.IsZero())
	for i := 0; err == nil && i < len(records); i++ {
		m := records[i].Member
		if f.rereads.arrived[m] {
			continue // the reply may be older than the event, which has the record read again
		}
		if records[i].logged {
			f.reportEvicted(m, replies[i])
		}
		if err = f.applyReply(m, replies[i]); err == nil {
			delete(f.rereads.members, m)
		}
		replies[i] = nil // frees the reply, which may be large
	}
	return err
}

// errEvicted: the log has a record whose key is gone, though nobody deleted the record as the contract says.
var errEvicted = errors.New("the log has it, but its key is gone, and no tombstone can have expired since: somebody " +
	"deleted the key, or redis evicts keys; publish it again")

// reportEvicted reports a record whose key is gone while the log still has it, unless its tombstone may have expired.
// Entries that were made since the follower's position are too young for an expired tombstone, and so are entries
// behind the entry of a recently published record. In an older part of the log nobody can tell.
func (f *Follower) reportEvicted(m contract.Member, reply *redis.MapStringStringCmd) {
	fields, err := reply.Result()
	if err != nil {
		return
	}
	if len(fields) == 0 {
		if f.synced || f.recentKinds[m.Kind] {
			f.reportUnreadable(kindName(m), m.ID, errEvicted)
		}
		return
	}
	published, _ := strconv.ParseInt(fields[contract.FieldPublished], 10, 64)
	if time.Since(time.UnixMilli(published)) < contract.TombstoneLife-time.Hour {
		f.recentKinds[m.Kind] = true
	}
}

// fetchRecords reads records in a pipeline, from a server that has the write after; nil: the server is known to have
// all writes. A record that is too large gets an error as its reply. If Redis is empty afterwards, and the loss was not
// accepted, absent records weren't deleted, so fetchRecords returns an error.
func (f *Follower) fetchRecords(ctx context.Context, master redis.Cmdable, records []sizedRecord, timeout time.Duration,
	after *contract.Link, lossAccepted bool) ([]*redis.MapStringStringCmd, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	pipe := master.Pipeline()
	var proof Proof
	if after != nil {
		proof = AskProof(ctx, pipe, f.keys, *after)
	}
	replies := make([]*redis.MapStringStringCmd, len(records))
	for i, r := range records {
		if err := r.CheckMemory(r.bytes); err != nil {
			replies[i] = redis.NewMapStringStringCmd(ctx)
			replies[i].SetErr(err)
			continue
		}
		replies[i] = pipe.HGetAll(ctx, f.keys.RecordKey(r.Member))
	}
	epoch, seq := pipe.Get(ctx, f.keys.DataEpochKey()), pipe.Get(ctx, f.keys.SeqKey())
	err := Unsent(pipe.Exec(ctx))
	if err == nil && !lossAccepted && errors.Is(epoch.Err(), redis.Nil) && errors.Is(seq.Err(), redis.Nil) {
		err = emptyError{}
	}
	if err == nil && after != nil {
		err = proof.Err()
	}
	return replies, err
}

// applyReply applies a record as read from Redis.
func (f *Follower) applyReply(m contract.Member, reply *redis.MapStringStringCmd) error {
	fields, err := reply.Result()
	switch {
	case err == nil && len(fields) == 0:
		f.removeRecord(m) // the tombstone has expired
	case err == nil:
		f.applyRecord(m, fields)
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		f.reportUnreadable(kindName(m), m.ID, errWrongType)
		f.removeMalformed(m)
	case contract.ReasonOf(err) != "":
		f.reportUnreadable(kindName(m), m.ID, err)
		f.removeMalformed(m)
	default:
		return err
	}
	return nil
}
