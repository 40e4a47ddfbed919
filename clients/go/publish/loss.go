package publish

import (
	"context"
	"fmt"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// AcceptLoss gives each shard without data epoch a new one, has a log that was lost and written to since count as
// whole, and returns the number of both kinds of shards. A shard without data epoch is empty: sidecars don't believe
// that all was lost, and keep what they have. After AcceptLoss they drop what Redis lacks, and refuse devices that are
// not in Redis; sidecars that start know what the log has. If Redis has lost the number of shards, too, [Shards] must
// say it, since the number that AcceptLoss stores is for ever.
func (p *Publisher) AcceptLoss(ctx context.Context) (accepted int, err error) {
	p.agreed.Store(false) // the number of shards was lost, too
	if p.keyspace.Shards == 0 {
		if stored, err := p.storedShards(ctx); err != nil {
			return 0, err
		} else if stored == "" {
			return 0, refuse("shards: %s is gone, too; name the sidecars' number (gatehousectl --shards, publish.Shards)",
				p.keyspace.ShardsKey())
		}
	}
	if err := p.agree(ctx); err != nil {
		return 0, err
	}
	for i := range p.keyspace.Count() {
		keys := p.keyspace.Keys(i)
		key := keys.DataEpochKey()
		set, err := p.client.SetNX(ctx, key, newDataEpoch(), 0).Result()
		if err != nil {
			return accepted, fmt.Errorf("set %s: %w", key, scriptError(err))
		}
		marks, err := p.client.HDel(ctx, keys.ChainKey(), contract.ChainLost).Result()
		if err != nil {
			return accepted, fmt.Errorf("delete %s of %s: %w", contract.ChainLost, keys.ChainKey(), scriptError(err))
		}
		if set || marks > 0 {
			accepted++
		}
	}
	return accepted, nil
}

// hasLog returns an error if Redis has lost the log of a shard, with which not all of its records are known.
func (p *Publisher) hasLog(ctx context.Context, shard contract.Keys) error {
	pipe := p.client.Pipeline()
	seq, last := pipe.Get(ctx, shard.SeqKey()), pipe.ZRange(ctx, shard.LogKey(), -1, -1)
	fields := pipe.HMGet(ctx, shard.ChainKey(), contract.ChainLost, contract.ChainFloor)
	if err := exec(ctx, pipe); err != nil {
		return fmt.Errorf("read %s: %w", shard.ChainKey(), err)
	}
	lost, floor := fields.Val()[0], fields.Val()[1]
	if trimmed := seq.Val() == "" || floor == seq.Val(); lost != nil || len(last.Val()) == 0 && !trimmed {
		return fmt.Errorf("redis has lost %s: records that it does not list are not known; restore the data of redis, or "+
			"publish all records again, then run gatehousectl accept-loss", shard.LogKey())
	}
	return nil
}
