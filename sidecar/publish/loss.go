package publish

import (
	"context"
	"fmt"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)

// AcceptLoss gives each shard that has no data epoch one, and returns the number of these shards. A shard without one
// is empty: sidecars don't believe that it has lost everything, and keep what they have. After AcceptLoss they drop it,
// and refuse devices that are not in Redis. If Redis has lost the number of shards, too, [Shards] must say it, since
// the number that AcceptLoss stores is for ever.
func (p *Publisher) AcceptLoss(ctx context.Context) (accepted int, err error) {
	p.agreed.Store(false) // the number of shards was lost, too
	if p.shards == 0 {
		if stored, err := p.client.Exists(ctx, contract.ShardsKey).Result(); err != nil {
			return 0, fmt.Errorf("read %s: %w", contract.ShardsKey, err)
		} else if stored == 0 {
			return 0, refuse("shards: %s is gone, too; name the sidecars' number (gatehousectl --shards, publish.Shards)",
				contract.ShardsKey)
		}
	}
	if err := p.agree(ctx); err != nil {
		return 0, err
	}
	for i := range p.shards.Count() {
		key := contract.ShardKeys(i).DataEpochKey()
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
