package publish

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
)

// reader reads records and logs.
type reader struct{ *store }

// visitMembers passes the members of a kind in the logs of all shards to page, in each shard the oldest write first. A
// member written meanwhile may be passed twice.
func (r reader) visitMembers(ctx context.Context, kind byte, page func([]contract.Member) bool) error {
	if err := r.checkShards(ctx); err != nil {
		return err
	}
	for i := range r.keyspace.Count() {
		if more, err := r.visitShardMembers(ctx, r.keyspace.Keys(i), kind, page); err != nil || !more {
			return err
		}
	}
	return nil
}

// visitShardMembers is visitMembers for a single shard. more is true if page never returned false.
func (r reader) visitShardMembers(ctx context.Context, shard contract.Keys, kind byte,
	page func([]contract.Member) bool) (more bool, err error) {
	const pageSize = 256
	start := "-inf"
	for {
		entries, err := r.client.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
			Key: shard.LogKey(), Start: start, Stop: "+inf", ByScore: true, Count: pageSize,
		}).Result()
		if err != nil {
			return false, fmt.Errorf("read %s: %w", shard.LogKey(), err)
		}
		if len(entries) == 0 {
			return true, nil
		}
		var members []contract.Member
		for _, entry := range entries {
			name, _ := entry.Member.(string)
			if m, err := contract.ParseMember(name); err == nil && m.Kind == kind { // the sidecar counts bad members
				members = append(members, m)
			}
		}
		if !page(members) {
			return false, nil
		}
		// Scores are sequence numbers: unique, and exact as doubles.
		start = "(" + strconv.FormatFloat(entries[len(entries)-1].Score, 'f', -1, 64)
	}
}

// recordState is the state of a member in Redis.
type recordState struct {
	exists  bool   // a record other than a tombstone exists
	deleted bool   // a tombstone exists
	logged  bool   // the log has an entry
	version uint64 // of the record or tombstone, 0 without both
}

// isMissing reports whether a record was written and doesn't exist any more.
func (s recordState) isMissing() bool { return s.logged && !s.exists && !s.deleted }

// isKnown reports whether a record exists, or existed and edges may still have the device.
func (s recordState) isKnown() bool { return s.exists || s.isMissing() }

func (r reader) readState(ctx context.Context, m contract.Member) (recordState, error) {
	states, err := r.readStates(ctx, m)
	if err != nil {
		return recordState{}, err
	}
	return states[0], nil
}

// readStates returns the states of members, read in one round trip to each server.
func (r reader) readStates(ctx context.Context, members ...contract.Member) ([]recordState, error) {
	type query struct {
		score   *redis.FloatCmd
		version *redis.StringCmd
		deleted *redis.BoolCmd
	}
	queries := make([]query, len(members))
	pipe := r.client.Pipeline()
	for i, m := range members {
		shard := r.keyspace.KeysOf(m.ID)
		queries[i] = query{
			score:   pipe.ZScore(ctx, shard.LogKey(), m.String()),
			version: pipe.HGet(ctx, shard.RecordKey(m), contract.FieldVersion),
			deleted: pipe.HExists(ctx, shard.RecordKey(m), contract.FieldDeleted),
		}
	}
	_, _ = pipe.Exec(ctx) // the replies have the errors
	states := make([]recordState, len(members))
	for i, q := range queries {
		for _, cmd := range []redis.Cmder{q.version, q.deleted, q.score} {
			if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
				return nil, err
			}
		}
		version, _ := q.version.Uint64()
		states[i] = recordState{
			exists:  q.version.Err() == nil && !q.deleted.Val(),
			deleted: q.deleted.Val(),
			logged:  q.score.Err() == nil,
			version: version,
		}
	}
	return states, nil
}

// hasLog returns an error if Redis has lost the log of a shard: without the log, some records are unknown.
func (r reader) hasLog(ctx context.Context, shard contract.Keys) error {
	pipe := r.client.Pipeline()
	seq, last := pipe.Get(ctx, shard.SeqKey()), pipe.ZRange(ctx, shard.LogKey(), -1, -1)
	fields := pipe.HMGet(ctx, shard.ChainKey(), contract.ChainLost, contract.ChainFloor)
	if err := redisurl.ExecPipeline(ctx, pipe); err != nil {
		return fmt.Errorf("read %s: %w", shard.ChainKey(), err)
	}
	lost, floor := fields.Val()[0], fields.Val()[1]
	if trimmed := seq.Val() == "" || floor == seq.Val(); lost != nil || len(last.Val()) == 0 && !trimmed {
		return fmt.Errorf("redis has lost %s: records that it does not list are not known; restore the data of redis, or "+
			"publish all records again, then run gatehousectl accept-loss", shard.LogKey())
	}
	return nil
}
