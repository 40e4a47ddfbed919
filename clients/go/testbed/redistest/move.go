package redistest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
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
		id, err := clients[i].Do(ctx, "CLUSTER", "MYID").Text()
		if err != nil {
			return err
		}
		owner, _, err := slotOwner(ctx, clients[i], slot)
		if err != nil {
			return err
		}
		if ids[i] = id; owner == id {
			from = i
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
	return c.giveSlot(ctx, clients, slot, to, ids)
}

// giveSlot makes a master the owner of a slot without keys elsewhere, and waits until all masters agree. The new owner
// comes first: as soon as the new owner serves the slot, the old owner may redirect. Masters must also agree on the
// epoch before the next move: a master that takes a slot with an epoch already in use can lose the slot to a late
// message of the former owner, and then no master has the slot.
func (c *Cluster) giveSlot(ctx context.Context, clients []*redis.Client, slot, to int, ids []string) error {
	order := []int{to}
	for i := range clients {
		if i != to {
			order = append(order, i)
		}
	}
	set := func(i int) error {
		if err := clients[i].Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", ids[to]).Err(); err != nil {
			return fmt.Errorf("set the owner of slot %d at %s: %w", slot, c.Masters[i].Address, err)
		}
		return nil
	}
	for _, i := range order { // each, as this also ends the states IMPORTING and MIGRATING
		if err := set(i); err != nil {
			return err
		}
	}
	var views []string
	for end := time.Now().Add(await.Deadline); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
		views = nil
		for _, i := range order {
			owner, epoch, err := slotOwner(ctx, clients[i], slot)
			if err != nil {
				return err
			}
			if owner != ids[to] {
				if err := set(i); err != nil {
					return err
				}
			}
			views = append(views, owner+" "+epoch)
		}
		if strings.HasPrefix(views[0], ids[to]) && len(slices.Compact(slices.Clone(views))) == 1 {
			return nil
		}
	}
	return fmt.Errorf("slot %d: masters have different owners and epochs: %q", slot, views)
}

// slotOwner returns the id of the master that has a slot, and the cluster's epoch, both as a node knows them.
func slotOwner(ctx context.Context, client *redis.Client, slot int) (id, epoch string, err error) {
	//lint:ignore SA1019 CLUSTER SHARDS lists the nodes of a shard, and doesn't say which node has the slots.
	slots, err := client.ClusterSlots(ctx).Result()
	if err != nil {
		return "", "", err
	}
	for _, s := range slots {
		if s.Start <= slot && slot <= s.End {
			id = s.Nodes[0].ID
		}
	}
	info, err := client.ClusterInfo(ctx).Result()
	if err != nil {
		return "", "", err
	}
	_, rest, _ := strings.Cut(info, "cluster_current_epoch:")
	epoch, _, _ = strings.Cut(rest, "\r")
	return id, epoch, nil
}
