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

// catchUpReader reads what a catch-up needs, from a single server, and applies it.
type catchUpReader struct {
	*deviceReads
	server    server
	redis     position     // of Redis at the beginning
	full      bool         // a full resync
	meanwhile func() error // applyUrgent, to be called between reads
	leaseAt   time.Time    // time when the lease was got or prolonged; zero: none
	count     int          // number of records that were read
	// recentKinds has the kinds whose entries in the unread rest of the log are too young for an expired tombstone.
	recentKinds map[byte]bool
}

// readChanges applies the changes after from up to p, or all records in a full resync. It reads devices first, since
// revocations matter more than objects, and purges with the devices, so that no purged object is applied. Since writes
// may be faster than reads, the end is fixed at the beginning. Records that move beyond the end meanwhile have events,
// and no event is missing once everything up to end was applied.
func (c *catchUpReader) readChanges(ctx context.Context, from uint64) (end uint64, err error) {
	c.meanwhile = func() error { return c.applyUrgent(ctx) }
	first := c.full || c.fromSnapshot != nil // all devices and purges are read
	if c.fromSnapshot != nil {
		if err := c.readUnappliedOf(ctx, contract.KindCredential, c.fromSnapshot.devices); err != nil {
			return 0, err
		}
		c.count += len(c.fromSnapshot.devices)
	}
	if err := c.readLog(ctx, from, c.redis.seq, contract.KindCredential); err != nil {
		return 0, err
	}
	if first {
		if err := c.readUnappliedOf(ctx, contract.KindPurge, c.Purges.Unapplied()); err != nil {
			return 0, err
		}
		c.Purges.EndResync()
	}
	// Most devices get a 503 until their record is read.
	for left := len(c.rereads.members); len(c.rereads.members) > 0 && left > 0; left -= pipelineSize {
		if err := c.meanwhile(); err != nil {
			return 0, err
		}
	}
	if c.follows(contract.KindObject) {
		if c.full {
			if err := c.acquireLease(ctx); err != nil {
				return 0, err
			}
			defer c.releaseLease(ctx)
		}
		if err := c.readLog(ctx, from, c.redis.seq, contract.KindObject); err != nil {
			return 0, err
		}
	}
	if end, err = c.lastSeq(ctx, from); err != nil || !first {
		return end, err
	}
	// A moved device that was unknown would be refused at the end of the resync.
	if err := c.readLog(ctx, c.redis.seq, end, contract.KindCredential); err != nil {
		return end, err
	}
	err = c.readUnapplied(ctx)
	return end, err
}

// lastSeq returns the number of the last write. If Redis was meanwhile emptied, or lost its log, or trimmed the log
// beyond from, the log may have lacked unread entries, so lastSeq returns an error, and everything is read again.
func (c *catchUpReader) lastSeq(ctx context.Context, from uint64) (seq uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	pipe := c.server.Pipeline()
	number, current := pipe.Get(ctx, c.keys.SeqKey()), pipe.Get(ctx, c.keys.DataEpochKey())
	last := pipe.ZRangeWithScores(ctx, c.keys.LogKey(), -1, -1)
	if err := Unsent(pipe.Exec(ctx)); err != nil {
		return 0, err
	}
	for _, err := range []error{number.Err(), current.Err(), last.Err()} {
		if err != nil && !errors.Is(err, redis.Nil) {
			return 0, err
		}
	}
	if current.Val() != c.redis.dataEpoch || c.redis.last != 0 && len(last.Val()) == 0 {
		return 0, errOtherDataEpoch
	}
	if seq, err = number.Uint64(); err != nil && !errors.Is(err, redis.Nil) {
		return 0, err
	}
	if c.withheld.chain.Load() {
		return seq, nil
	}
	values, err := c.server.HMGet(ctx, c.keys.ChainKey(), contract.ChainHead, contract.ChainFloor,
		contract.ChainField(from), contract.ChainNeeds, contract.ChainLost).Result()
	if err != nil {
		return 0, err
	}
	var now position
	switch now.setChain(values); {
	case now.lost > c.redis.lost: // and the log has entries since
		return 0, errOtherDataEpoch
	case !c.full && from < now.floor && now.floor <= seq:
		c.requireResync(resyncTrimmed)
		return 0, errTrimmed
	}
	return seq, nil
}

// readUnapplied reads, in a full resync, the known records that were not read yet: records that were written meanwhile
// and have moved beyond the end, or that are gone.
func (c *catchUpReader) readUnapplied(ctx context.Context) error {
	// Devices first.
	for _, unapplied := range []struct {
		kind byte
		ids  []string
	}{{contract.KindCredential, c.Credentials.Unapplied()}, {contract.KindObject, c.Objects.Unapplied()}} {
		if err := c.readUnappliedOf(ctx, unapplied.kind, unapplied.ids); err != nil {
			return err
		}
		c.count += len(unapplied.ids)
	}
	return nil
}

// readUnappliedOf reads the records of a kind with the given ids.
func (c *catchUpReader) readUnappliedOf(ctx context.Context, kind byte, ids []string) error {
	for ids := range slices.Chunk(ids, pageSize) {
		members := make([]contract.Member, len(ids))
		for i, id := range ids {
			members[i] = contract.Member{Kind: kind, ID: id}
		}
		if err := c.readMembers(ctx, members, false); err != nil {
			return err
		}
	}
	return nil
}

// readLog applies the records of all members of a kind, and for devices also all purges, with from < score <= to, in
// the log's order. It records the progress for objects after each page, so a failed catch-up continues at the page.
// Whenever readLog has applied some records, it calls meanwhile.
func (c *catchUpReader) readLog(ctx context.Context, from, to uint64, kind byte) error {
	logged, before := time.Now(), c.count
	if err := c.meanwhile(); err != nil {
		return err
	}
	c.recentKinds = map[byte]bool{}
	for from < to {
		page, err := c.readLogPage(ctx, c.server, from, to)
		if err != nil {
			return err
		}
		members := c.parseMembers(page, kind)
		if err := c.readMembers(ctx, members, true); err != nil {
			return err
		}
		if kind == contract.KindCredential {
			purges := c.parseMembers(page, contract.KindPurge)
			if err := c.readMembers(ctx, purges, true); err != nil {
				return err
			}
			members = append(members, purges...)
		}
		c.count += len(members)
		c.metrics.Members.Add(float64(len(members)))
		if len(page) < pageSize {
			break
		}
		from = uint64(page[len(page)-1].Score)
		if kind == contract.KindObject && c.synced {
			c.chain.readable = false
			c.setLast(from, "")
		}
		if time.Since(logged) > progressEvery {
			logged = time.Now()
			c.log.Info("catching up with redis", "kind", string(kind), "members", c.count-before, "seq", from,
				"redis_seq", to)
		}
	}
	return nil
}

// parseMembers returns a page's members of a kind. To report invalid members once, it reports them only with devices.
func (c *catchUpReader) parseMembers(page []redis.Z, kind byte) []contract.Member {
	members := make([]contract.Member, 0, len(page))
	for _, z := range page {
		text, _ := z.Member.(string)
		m, err := contract.ParseMember(text)
		if err == nil {
			err = c.Keyspace.Belongs(m, c.Shard)
		}
		switch {
		case err != nil && kind == contract.KindCredential:
			c.reportUnreadable("member", text, err)
		case err == nil && kind == m.Kind && c.follows(kind):
			members = append(members, m)
		}
	}
	return members
}

// readMembers applies the records of members, at most a page of a single kind; logged: the log has the members.
func (c *catchUpReader) readMembers(ctx context.Context, members []contract.Member, logged bool) error {
	if err := c.meanwhile(); err != nil {
		return err
	}
	records, err := c.fetchSizes(ctx, c.server, members)
	if err != nil {
		return err
	}
	for i := range records {
		records[i].logged = logged
	}
	objects := len(records) > 0 && records[0].Kind == contract.KindObject
	if objects && c.resync.tried && !c.synced && c.resync.done == nil {
		if records, err = c.dropConfirmed(ctx, records); err != nil {
			return err
		}
	}
	for len(records) > 0 {
		n := countFitting(records, c.batch, pipelineBytes)
		if err := c.readInTurn(ctx, records[:n], objects); err != nil {
			if timeout, ok := errors.AsType[net.Error](err); n > 1 && ok && timeout.Timeout() {
				c.batch = n / 2
				c.log.Warn("records time out: the next catch-up reads fewer at once", "records", n, "next", c.batch,
					"timeout", recordsTimeout)
			}
			return err
		}
		records = records[n:]
		if err := c.meanwhile(); err != nil {
			return err
		}
	}
	return nil
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
func (c *catchUpReader) readInTurn(ctx context.Context, records []sizedRecord, objects bool) error {
	if objects {
		if err := waitUntil(ctx, c.board.readSlots, c.inbox, c.meanwhile); err != nil {
			return err
		}
		defer func() { c.board.readSlots <- struct{}{} }()
	}
	return c.readRecords(ctx, records)
}

// dropConfirmed returns records without the objects whose known version is the version in Redis. It reads everything
// but the bodies, and leaves undecided objects to [catchUpReader.readRecords].
func (c *catchUpReader) dropConfirmed(ctx context.Context, records []sizedRecord) (rest []sizedRecord, err error) {
	for len(records) > 0 && err == nil {
		n := countFitting(records, pageSize, headBytes)
		var more []sizedRecord
		more, err = c.confirmHeads(ctx, records[:n])
		rest, records = append(rest, more...), records[n:]
	}
	return rest, err
}

// confirmHeads is dropConfirmed for the records of a single pipeline.
func (c *catchUpReader) confirmHeads(ctx context.Context, records []sizedRecord) ([]sizedRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, recordsTimeout)
	defer cancel()
	fields := contract.HeadFields()
	pipe := c.server.Pipeline()
	replies := make([]*redis.SliceCmd, len(records))
	for i, r := range records {
		if r.CheckMemory(r.bytes) == nil {
			replies[i] = pipe.HMGet(ctx, c.keys.RecordKey(r.Member), fields...)
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
			c.board.headOnce.Do(func() {
				c.log.Warn("no permission to read parts of records: each restart and failover of redis costs reading whole ones; "+
					"permit HMGET (+hmget)", "error", err)
			})
		}
		o, err := contract.ParseObjectHead(contract.HeadOf(values))
		if o.Key = r.ID; err != nil || !c.Objects.Confirm(o) {
			unconfirmed = append(unconfirmed, r)
		}
	}
	return unconfirmed, nil
}

// readRecords applies records, except those with an event since the read began.
func (c *catchUpReader) readRecords(ctx context.Context, records []sizedRecord) error {
	c.rereads.arrived = map[contract.Member]bool{}
	defer func() { c.rereads.arrived = nil }()
	replies, err := c.fetchRecords(ctx, c.server, records, recordsTimeout, nil, !c.emptySince.IsZero())
	for i := 0; err == nil && i < len(records); i++ {
		m := records[i].Member
		arrived := c.rereads.arrived[m]
		if arrived && m.Kind != contract.KindPurge {
			continue // the reply may be older than the event, which has the record read again
		}
		if records[i].logged {
			c.reportEvicted(m, replies[i])
		}
		if err = c.applyReply(m, replies[i]); err == nil && !arrived {
			delete(c.rereads.members, m)
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
func (c *catchUpReader) reportEvicted(m contract.Member, reply *redis.MapStringStringCmd) {
	fields, err := reply.Result()
	if err != nil {
		return
	}
	if len(fields) == 0 {
		if c.synced || c.recentKinds[m.Kind] {
			c.reportUnreadable(kindName(m), m.ID, errEvicted)
		}
		return
	}
	published, _ := strconv.ParseInt(fields[contract.FieldPublished], 10, 64)
	if time.Since(time.UnixMilli(published)) < contract.TombstoneLife-time.Hour {
		c.recentKinds[m.Kind] = true
	}
}

// applyUrgent applies events of devices and purges that arrive while records are read, and prolongs the lease. Reading
// may take minutes, and neither a revocation nor a new device may wait so long. First come revocations, at once, and
// then reads of the devices, a pipeline per call. Later, the events are applied once more in their order.
func (c *catchUpReader) applyUrgent(ctx context.Context) error {
	c.prolongLease(ctx)
	c.lookAhead(c.inbox.peekUnseen(), c.redis.dataEpoch)
	members := make([]contract.Member, 0, min(len(c.rereads.members), pipelineSize))
	for m := range c.rereads.members {
		if len(members) == pipelineSize {
			break
		}
		members = append(members, m)
	}
	if len(members) == 0 {
		return nil
	}
	records, err := c.fetchSizes(ctx, c.server, members)
	if err != nil {
		return err
	}
	if err := c.readRecords(ctx, records); err != nil {
		return err
	}
	if len(c.rereads.members) == 0 {
		c.rereads.members = map[contract.Member]bool{}
	}
	return nil
}
