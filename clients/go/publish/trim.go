package publish

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
)

//go:embed trim.lua
var trimSource string

var trimScript = newScript(trimSource)

const (
	// trimPage is the number of log entries checked and removed at once.
	trimPage = 256
	// expiredFor is the time between the end of an object's lifetime and its deletion: clocks differ, and an edge may
	// serve stale objects.
	expiredFor = 24 * time.Hour
)

// ErrEvicts: Redis may evict records, so a missing record may not have been deleted.
var ErrEvicts = errors.New("redis evicts records")

// Trimmed is the result of [Publisher.Trim].
type Trimmed struct {
	// Members is the number of entries in the logs, Removed the number of removed entries, Expired the number of objects
	// deleted a day or more after their lifetimes, Purged the number of purged objects deleted, Purges the number of
	// purges deleted because no remaining object needs the purge.
	Members, Removed, Expired, Purged, Purges int
}

// Trim removes log entries with expired tombstones, and deletes, like [Publisher.Delete] but without a new version,
// objects that expired over 24 hours ago or were purged, and then needless purges; their entries are removed a day
// later. Trim works in pages, so that Redis is never blocked for long, and may be interrupted at any time. Readers
// disconnected since before a removed entry was written read everything again. Trim returns [ErrEvicts] if Redis evicts
// records: evicted records were not deleted, and a revocation needs their entries.
func (p *Publisher) Trim(ctx context.Context) (Trimmed, error) {
	var done Trimmed
	err := p.checkShards(ctx)
	if err == nil {
		err = checkEviction(ctx, p.client)
	}
	var now time.Time
	if err == nil {
		now, err = p.client.Time(ctx).Result() // by the clock of publication times; the local clock may be wrong
	}
	ended := now.Add(-expiredFor)
	for i := 0; err == nil && i < p.keyspace.Count(); i++ {
		err = (&trimmer{p: p, shard: p.keyspace.Keys(i), ended: ended, done: &done}).trimShard(ctx)
	}
	if err != nil {
		return done, fmt.Errorf("trim: %w", err)
	}
	return done, nil
}

var policyLine = regexp.MustCompile(`(?m)^maxmemory_policy:(\S+)`)

// checkEviction returns [ErrEvicts] if the server, in a Cluster any master, may evict records.
func checkEviction(ctx context.Context, client redis.UniversalClient) error {
	check := func(ctx context.Context, client redis.Cmdable) error {
		info, err := client.Info(ctx, "memory").Result()
		if err != nil {
			return fmt.Errorf("read maxmemory_policy: %w", err)
		}
		policy := policyLine.FindStringSubmatch(info)
		if policy != nil && policy[1] != "noeviction" {
			return fmt.Errorf("%w: maxmemory_policy is %s, want noeviction", ErrEvicts, policy[1])
		}
		return nil
	}
	if cluster, ok := client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return check(ctx, c) })
	}
	return check(ctx, client)
}

// trimmer trims a shard.
type trimmer struct {
	p     *Publisher
	shard contract.Keys
	ended time.Time // objects whose lifetime ended before are deleted
	done  *Trimmed

	end    uint64 // the last write at the start
	purges contract.Purges
	needed map[string]bool // purges that concern remaining objects
}

// trimShard reads the log once, up to the last write at the start.
func (t *trimmer) trimShard(ctx context.Context) (err error) {
	t.end, err = t.p.client.Get(ctx, t.shard.SeqKey()).Uint64()
	if errors.Is(err, redis.Nil) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", t.shard.SeqKey(), err)
	}
	if err := t.p.reader.hasLog(ctx, t.shard); err != nil {
		return err
	}
	if t.purges, err = t.p.reader.readAllPurges(ctx, t.shard); err != nil {
		return err
	}
	t.needed = map[string]bool{}
	for from := "-inf"; ; {
		page, err := t.p.client.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
			Key: t.shard.LogKey(), Start: from, Stop: strconv.FormatUint(t.end, 10), ByScore: true, Count: trimPage,
		}).Result()
		if err != nil {
			return fmt.Errorf("read %s: %w", t.shard.LogKey(), err)
		}
		if len(page) == 0 {
			return t.trimPurges(ctx)
		}
		t.done.Members += len(page)
		if err := t.trimMembers(ctx, page); err != nil {
			return err
		}
		from = "(" + formatScore(page[len(page)-1].Score)
	}
}

func formatScore(s float64) string { return strconv.FormatFloat(s, 'f', -1, 64) }

// trimPurges deletes purges up to the write end that no object needs, unless written meanwhile. Later purges may
// concern objects that were written after end, and not seen.
func (t *trimmer) trimPurges(ctx context.Context) error {
	var calls []call
	for id, u := range t.purges {
		if u.Last() <= t.end && !t.needed[id] {
			fields := requireVersion(contract.Purge{Deleted: true}.Fields(), u.Version)
			m := mutation{replace, contract.PurgeMember(id), fields, ""}
			calls = append(calls, t.p.writer.writeCallIn(ctx, t.shard, m, false))
		}
	}
	for part := range slices.Chunk(calls, trimPage) {
		for _, reply := range writeScript.runCalls(ctx, t.p.client, part...) {
			switch err := t.p.writer.writeResult(ctx, reply).Err; {
			case err == nil:
				t.done.Purges++
			case !errors.Is(err, ErrStale):
				return err
			}
		}
	}
	return nil
}

// trimMembers removes a page's entries without a record, and deletes objects that were purged or whose lifetime ended
// before ended. The purges that concern remaining objects are added to t.needed.
func (t *trimmer) trimMembers(ctx context.Context, page []redis.Z) error {
	pipe := t.p.client.Pipeline()
	heads := make([]*redis.SliceCmd, len(page))
	members := make([]contract.Member, len(page))
	for i, z := range page {
		name, _ := z.Member.(string)
		m, err := contract.ParseMember(name)
		if err != nil {
			continue // the sidecar counts invalid members
		}
		members[i] = m
		heads[i] = pipe.HMGet(ctx, t.shard.RecordKey(m), contract.FieldVersion, contract.FieldPublished, contract.FieldTTL,
			contract.FieldTags, contract.FieldSeq, contract.FieldETag)
	}
	_, _ = pipe.Exec(ctx) // the replies have the errors
	keys := []string{t.shard.LogKey(), t.shard.ChainKey()}
	var args, gone []any
	for i, head := range heads {
		if head == nil || redis.HasErrorPrefix(head.Err(), "WRONGTYPE") {
			continue
		}
		if err := head.Err(); err != nil {
			return fmt.Errorf("read %s: %w", members[i], err)
		}
		version, _ := head.Val()[0].(string)
		var err error
		purged := t.isPurged(members[i], head.Val())
		deleted := false
		if purged || isExpired(members[i], head.Val(), t.ended) {
			deleted, err = t.p.writer.deleteVersion(ctx, members[i], version)
		}
		switch {
		case err != nil:
			return err
		case deleted && purged:
			t.done.Purged++
		case deleted:
			t.done.Expired++
		case version == "": // removed, if the script also finds no record
			keys = append(keys, t.shard.RecordKey(members[i]))
			args = append(args, formatScore(page[i].Score), members[i].String())
			if members[i].Kind == contract.KindCredential {
				gone = append(gone, members[i].ID)
			}
		}
	}
	if len(args) == 0 {
		return nil
	}
	if err := t.forgetSeen(ctx, gone); err != nil { // first: without the entries, nothing finds the devices
		return err
	}
	reply := trimScript.runCalls(ctx, t.p.client, call{keys, args})[0]
	if reply.err != nil {
		return reply.err
	}
	if len(reply.numbers) == 1 {
		t.done.Removed += int(reply.numbers[0])
	}
	return nil
}

// forgetSeen removes devices of a shard from the sidecars' records of authentications.
func (t *trimmer) forgetSeen(ctx context.Context, ids []any) error {
	if len(ids) == 0 {
		return nil
	}
	pipe := t.p.client.Pipeline()
	pipe.ZRem(ctx, t.shard.SeenKey(), ids...)
	pipe.ZRem(ctx, t.shard.SeenOldKey(), ids...)
	return redisurl.ExecPipeline(ctx, pipe)
}

// isPurged reports whether a member is a purged object. For other objects, later purges that concern the object are
// added to t.needed. head has version, publish time, lifetime, tags, number and entity-tag.
func (t *trimmer) isPurged(m contract.Member, head []any) bool {
	if _, object := head[5].(string); !object || m.Kind != contract.KindObject || len(t.purges) == 0 {
		return false
	}
	var tags []string
	if text, found := head[3].(string); found {
		tags = strings.Split(text, ",")
	}
	text, _ := head[4].(string)
	seq, _ := strconv.ParseUint(text, 10, 64)
	if purged, _ := t.purges.Of(m.ID, tags, seq); purged {
		return true
	}
	contract.VisitPurges(m.ID, tags, func(id []byte) bool {
		if u, found := t.purges[string(id)]; found && seq <= u.Last() {
			t.needed[u.ID] = true
		}
		return true
	})
	return false
}

// isExpired reports whether a member is an object whose lifetime ended before ended. head has version, publish time and
// lifetime.
func isExpired(m contract.Member, head []any, ended time.Time) bool {
	var numbers [3]uint64
	for i := range numbers {
		text, _ := head[i].(string)
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil || n > math.MaxInt64/2 {
			return false // without a valid lifetime
		}
		numbers[i] = n
	}
	return m.Kind == contract.KindObject && ended.UnixMilli() >= int64(numbers[1]+numbers[2])
}
