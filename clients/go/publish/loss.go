package publish

import (
	"context"
	"fmt"
)

// AcceptLoss gives each shard that has no data epoch one, and returns the number of these shards. A shard without one
// is empty: sidecars don't believe that it has lost everything, and keep what they have. After AcceptLoss they drop it,
// and refuse devices that are not in Redis. If Redis has lost the number of shards, too, [Shards] must say it, since
// the number that AcceptLoss stores is for ever.
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
		key := p.keyspace.Keys(i).DataEpochKey()
		set, err := p.client.SetNX(ctx, key, newDataEpoch(), 0).Result()
		if err != nil {
			return accepted, fmt.Errorf("set %s: %w", key, scriptError(err))
		}
		if set {
			accepted++
		}
	}
	return accepted, nil
}
