package redistest

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

// MoveSlot moves a slot to master to of c, key by key, as redis-cli --cluster reshard does. After each key, pause
// (unless nil) is called with the number of moved keys. MoveSlot is not safe for concurrent use.
func (c *Cluster) MoveSlot(ctx context.Context, slot, to int, pause func(moved int)) error {
	ids := make([]string, len(c.Masters))
	clients := make([]*redis.Client, len(c.Masters))
	from := -1
	for i, server := range c.Masters {
		clients[i] = redis.NewClient(&redis.Options{Addr: server.Address, MaxRetries: -1})
		defer clients[i].Close()
		shards, err := clients[i].ClusterShards(ctx).Result()
		if err != nil {
			return err
		}
		ids[i] = clients[i].Do(ctx, "CLUSTER", "MYID").Val().(string)
		for _, s := range shards {
			ours := slices.ContainsFunc(s.Nodes, func(n redis.Node) bool { return n.ID == ids[i] })
			if ours && slices.ContainsFunc(s.Slots, func(r redis.SlotRange) bool {
				return r.Start <= int64(slot) && int64(slot) <= r.End
			}) {
				from = i
			}
		}
	}
	if from < 0 || from == to {
		return fmt.Errorf("slot %d is at master %d, and was to go to %d", slot, from, to)
	}
	do := func(at int, args ...any) error {
		if err := clients[at].Do(ctx, args...).Err(); err != nil {
			return fmt.Errorf("%v at %s: %w", args, c.Masters[at].Address, err)
		}
		return nil
	}
	if err := do(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[from]); err != nil {
		return err
	}
	if err := do(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to]); err != nil {
		return err
	}
	for moved := 0; ; {
		keys, err := clients[from].ClusterGetKeysInSlot(ctx, slot, 10).Result()
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			break
		}
		for _, key := range keys {
			if err := do(from, "MIGRATE", "127.0.0.1", c.Masters[to].Port(), key, 0, 5000); err != nil {
				return err
			}
			if moved++; pause != nil {
				pause(moved)
			}
		}
	}
	// The new owner first: as soon as the new owner serves the slot, the old owner may redirect.
	if err := do(to, "CLUSTER", "SETSLOT", slot, "NODE", ids[to]); err != nil {
		return err
	}
	for i := range clients {
		if i != to {
			if err := do(i, "CLUSTER", "SETSLOT", slot, "NODE", ids[to]); err != nil {
				return err
			}
		}
	}
	return nil
}
