package publish

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// Seen is a device's last authentication, as recorded by sidecars with their clocks: at most a minute late, and the
// edge asks the sidecar again only when a verdict ends. Zero times mean that nothing was recorded.
type Seen struct {
	// Last is the last authentication, Old the last authentication with an old secret in an overlap.
	Last, Old time.Time
}

// LastSeen returns when devices authenticated last, in the order of ids.
func (p *Publisher) LastSeen(ctx context.Context, ids ...string) ([]Seen, error) {
	type shardSeen struct {
		at        []int // in ids
		last, old *redis.FloatSliceCmd
	}
	shards := map[contract.Keys]*shardSeen{}
	for i, id := range ids {
		keys := p.keyspace.KeysOf(id)
		if shards[keys] == nil {
			shards[keys] = &shardSeen{}
		}
		shards[keys].at = append(shards[keys].at, i)
	}
	pipe := p.client.Pipeline()
	for keys, s := range shards {
		members := make([]string, len(s.at))
		for i, at := range s.at {
			members[i] = ids[at]
		}
		s.last, s.old = pipe.ZMScore(ctx, keys.SeenKey(), members...), pipe.ZMScore(ctx, keys.SeenOldKey(), members...)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("read when devices were seen last: %w", err)
	}
	seen := make([]Seen, len(ids))
	for _, s := range shards {
		for i, at := range s.at {
			seen[at] = Seen{Last: unixMilli(s.last.Val()[i]), Old: unixMilli(s.old.Val()[i])}
		}
	}
	return seen, nil
}

// unixMilli returns the time of a score, zero for 0.
func unixMilli(score float64) time.Time {
	if score <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(score)).UTC()
}

// SeenSince returns when sidecars began to record last authentications in all shards; [ErrNotFound] if a shard has no
// record.
func (p *Publisher) SeenSince(ctx context.Context) (since time.Time, err error) {
	if err := p.checkShards(ctx); err != nil {
		return time.Time{}, err
	}
	for i := range p.keyspace.Count() {
		scores, err := p.client.ZMScore(ctx, p.keyspace.Keys(i).SeenKey(), contract.SeenBegin).Result()
		if err != nil {
			return time.Time{}, fmt.Errorf("read when devices were seen last: %w", err)
		}
		began := unixMilli(scores[0])
		if began.IsZero() {
			return time.Time{}, fmt.Errorf("last authentications of shard %d: %w", i, ErrNotFound)
		}
		if began.After(since) {
			since = began
		}
	}
	return since, nil
}

// FailedAttempts counts the wrong secrets of a device from a network.
type FailedAttempts struct {
	// Network is an IPv4 address or an IPv6 /64, as a prefix; "-" if unknown.
	Network string `json:"network"`
	Count   int    `json:"count"`
}

// FailedAttempts returns the wrong secrets of a device that sidecars verified today and yesterday (UTC), most first.
// For each shard and day, Redis keeps the contract.MaxFailed pairs of network and device with most wrong secrets.
func (p *Publisher) FailedAttempts(ctx context.Context, id string) ([]FailedAttempts, error) {
	return ReadFailedAttempts(ctx, p.client, p.keyspace, id)
}

// ReadFailedAttempts is [Publisher.FailedAttempts] for a program without a publisher.
func ReadFailedAttempts(ctx context.Context, client redis.Cmdable, k contract.Keyspace, id string) ([]FailedAttempts,
	error) {
	keys, now := k.KeysOf(id), time.Now()
	counts := map[string]int{}
	for _, day := range []time.Time{now, now.AddDate(0, 0, -1)} {
		entries, err := client.ZRangeWithScores(ctx, keys.SeenFailedKey(day), 0, -1).Result()
		if err != nil {
			return nil, fmt.Errorf("read wrong secrets: %w", err)
		}
		for _, entry := range entries {
			member, _ := entry.Member.(string)
			if network, device, ok := contract.ParseFailedMember(member); ok && device == id {
				counts[network] += int(entry.Score)
			}
		}
	}
	var failed []FailedAttempts
	for network, count := range counts {
		failed = append(failed, FailedAttempts{network, count})
	}
	slices.SortFunc(failed, func(a, b FailedAttempts) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Network, b.Network))
	})
	return failed, nil
}

// forgetSeen removes devices of a shard from the sidecars' records of authentications.
func (p *Publisher) forgetSeen(ctx context.Context, shard contract.Keys, ids []any) error {
	if len(ids) == 0 {
		return nil
	}
	pipe := p.client.Pipeline()
	pipe.ZRem(ctx, shard.SeenKey(), ids...)
	pipe.ZRem(ctx, shard.SeenOldKey(), ids...)
	return execPipeline(ctx, pipe)
}
