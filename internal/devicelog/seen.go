package devicelog

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
)

// Seen is a device's last authentication, as recorded by sidecars with their clocks: at most a minute late, and the
// edge asks the sidecar again only when a verdict ends. Zero times mean that nothing was recorded.
type Seen struct {
	// Last is the last authentication, Old the last authentication with an old secret in an overlap.
	Last, Old time.Time
}

// LastSeen returns when devices authenticated last, in the order of ids.
func (l *Log) LastSeen(ctx context.Context, ids ...string) ([]Seen, error) {
	type shardSeen struct {
		at        []int // in ids
		last, old *redis.FloatSliceCmd
	}
	shards := map[contract.Keys]*shardSeen{}
	for i, id := range ids {
		keys := l.Keyspace.KeysOf(id)
		if shards[keys] == nil {
			shards[keys] = &shardSeen{}
		}
		shards[keys].at = append(shards[keys].at, i)
	}
	pipe := l.Client.Pipeline()
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

// SeenSince returns when sidecars began to record last authentications in all shards; [publish.ErrNotFound]
// if a shard has no record.
func (l *Log) SeenSince(ctx context.Context) (since time.Time, err error) {
	if err := l.checkShards(ctx); err != nil {
		return time.Time{}, err
	}
	for i := range l.Keyspace.Count() {
		scores, err := l.Client.ZMScore(ctx, l.Keyspace.Keys(i).SeenKey(), contract.SeenBegin).Result()
		if err != nil {
			return time.Time{}, fmt.Errorf("read when devices were seen last: %w", err)
		}
		began := unixMilli(scores[0])
		if began.IsZero() {
			return time.Time{}, fmt.Errorf("last authentications of shard %d: %w", i, publish.ErrNotFound)
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
func (l *Log) FailedAttempts(ctx context.Context, id string) ([]FailedAttempts, error) {
	keys, now := l.Keyspace.KeysOf(id), time.Now()
	counts := map[string]int{}
	for _, day := range []time.Time{now, now.AddDate(0, 0, -1)} {
		entries, err := l.Client.ZRangeWithScores(ctx, keys.SeenFailedKey(day), 0, -1).Result()
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
