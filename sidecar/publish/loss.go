package publish

import (
	"context"
	"fmt"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)

// AcceptLoss gives each shard that has no data epoch one, and returns the number of these shards. A shard without one
// is empty: sidecars don't believe that it has lost everything, and keep what they have. After AcceptLoss they drop it,
// and refuse devices that are not in Redis.
func (p *Publisher) AcceptLoss(ctx context.Context) (accepted int, err error) {
	p.agreed.Store(false) // the number of shards was lost, too
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
