package publish

import (
	"context"
	"fmt"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// AcceptLoss creates a data epoch in each shard without data epoch, marks logs that were lost and written to since as
// complete, and returns the number of changed shards. A shard without data epoch is empty: sidecars don't assume a loss
// of all data, and keep their records. After AcceptLoss, sidecars drop records missing in Redis, and refuse devices
// that are not in Redis; starting sidecars know the records of the log. If Redis has also lost the number of shards,
// [Shards] must be right, since the number that AcceptLoss stores never changes.
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
	if err := p.ensureShards(ctx); err != nil {
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
