package publish

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
)

// Purge selects the objects of a purge: exactly one of Tag and Prefix is set.
type Purge struct {
	// Tag selects objects with the tag.
	Tag string
	// Prefix selects objects with a path (without device, virtual host, host and query) that begins with Prefix. Prefix
	// begins and ends with a slash; "/" selects everything of the virtual host.
	Prefix string
	// VirtualHost is the virtual host of the objects; "" purges only objects of none.
	VirtualHost string
	// Soft keeps the objects as expired: edges that may serve stale objects still serve them.
	Soft bool
}

// ID returns the ID of the purge's record, or [ErrInvalid].
func (u Purge) ID() (string, error) {
	if (u.Tag == "") == (u.Prefix == "") {
		return "", refuse("purge: want a tag or a prefix")
	}
	id := contract.TagPurge(u.VirtualHost, u.Tag)
	if u.Prefix != "" {
		id = contract.PrefixPurge(u.VirtualHost, u.Prefix)
		if want := lookupTarget(u.Prefix); u.Prefix != want {
			return "", refuse("prefix %q: no edge looks up such paths, want %q", u.Prefix,
				strings.TrimSuffix(want, "/")+"/")
		}
	}
	return id, checkMember(contract.PurgeMember(id))
}

// Purge purges all objects of u that were published before, in every shard, and returns the receipts by shard. Objects
// published later stay. After an error some shards may have purged: call Purge again.
func (p *Publisher) Purge(ctx context.Context, u Purge) ([]Receipt, error) {
	id, err := u.ID()
	if err == nil {
		err = p.ensureShards(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("purge: %w", err)
	}
	field := contract.FieldHard
	if u.Soft {
		field = contract.FieldSoft
	}
	m := mutation{purge, contract.PurgeMember(id), map[string]string{contract.FieldVersion: "0", field: "1"},
		requestOf(ctx, 0)}
	calls := make([]call, p.keyspace.Count())
	for i := range calls {
		calls[i] = p.writer.writeCallIn(ctx, p.keyspace.Keys(i), m, false)
	}
	receipts, errs := make([]Receipt, len(calls)), make([]error, len(calls))
	for i, reply := range writeScript.runCalls(ctx, p.client, calls...) {
		result := p.writer.writeResult(ctx, reply)
		receipts[i] = result.Receipt
		if result.Err != nil {
			errs[i] = fmt.Errorf("shard %d: %w", i, result.Err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return receipts, fmt.Errorf("purge %q: %w", id, err)
	}
	return receipts, nil
}

// readAllPurges reads all purges of a shard. Unreadable purges are ignored, as by sidecars.
func (r reader) readAllPurges(ctx context.Context, shard contract.Keys) (contract.Purges, error) {
	all := contract.Purges{}
	var failed error
	_, err := r.visitShardMembers(ctx, shard, contract.KindPurge, func(members []contract.Member) bool {
		failed = r.readPurges(ctx, shard, members, all)
		return failed == nil
	})
	return all, errors.Join(err, failed)
}

// readPurgesOf reads the purges that concern the object at key with tags.
func (r reader) readPurgesOf(ctx context.Context, key string, tags []string) (contract.Purges, error) {
	var members []contract.Member
	contract.VisitPurges(key, tags, func(id []byte) bool {
		members = append(members, contract.PurgeMember(string(id)))
		return true
	})
	all := contract.Purges{}
	return all, r.readPurges(ctx, r.keyspace.KeysOf(key), members, all)
}

// readPurges adds the records of members to all, in one round trip.
func (r reader) readPurges(ctx context.Context, shard contract.Keys, members []contract.Member,
	all contract.Purges) error {
	if len(members) == 0 {
		return nil
	}
	pipe := r.client.Pipeline()
	records := make([]*redis.MapStringStringCmd, len(members))
	for i, m := range members {
		records[i] = pipe.HGetAll(ctx, shard.RecordKey(m))
	}
	if err := redisurl.ExecPipeline(ctx, pipe); err != nil {
		return err
	}
	for i, record := range records {
		if u, err := contract.ParsePurge(record.Val()); err == nil && !u.Deleted {
			u.ID = members[i].ID
			all[u.ID] = u
		}
	}
	return nil
}

// purgedKeys returns the keys of purged objects, in one round trip and another for each shard.
func (r reader) purgedKeys(ctx context.Context, members []contract.Member) (map[string]bool, error) {
	if len(members) == 0 {
		return nil, nil
	}
	type query struct{ tags, seq *redis.StringCmd } // HGET: writers need no HMGET
	queries := make([]query, len(members))
	pipe := r.client.Pipeline()
	for i, m := range members {
		key := r.keyspace.KeysOf(m.ID).RecordKey(m)
		queries[i] = query{pipe.HGet(ctx, key, contract.FieldTags), pipe.HGet(ctx, key, contract.FieldSeq)}
	}
	if err := redisurl.ExecPipeline(ctx, pipe); err != nil {
		return nil, err
	}
	byShard := map[int][]Entry{}
	for i, m := range members {
		e := Entry{Key: m.ID}
		e.Seq, _ = queries[i].seq.Uint64()
		if tags := queries[i].tags.Val(); tags != "" {
			e.Tags = strings.Split(tags, ",")
		}
		shard := r.keyspace.KeysOf(m.ID).Shard
		byShard[shard] = append(byShard[shard], e)
	}
	purged := map[string]bool{}
	for shard, entries := range byShard {
		ids := map[string]bool{}
		for _, e := range entries {
			contract.VisitPurges(e.Key, e.Tags, func(id []byte) bool {
				ids[string(id)] = true
				return true
			})
		}
		var members []contract.Member
		for id := range ids {
			members = append(members, contract.PurgeMember(id))
		}
		purges := contract.Purges{}
		if err := r.readPurges(ctx, r.keyspace.Keys(shard), members, purges); err != nil {
			return nil, err
		}
		for _, e := range entries {
			purged[e.Key], _ = purges.Of(e.Key, e.Tags, e.Seq)
		}
	}
	return purged, nil
}
