package main

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// replicasTimeout bounds how long replicas may take to confirm a write.
const replicasTimeout = 5 * time.Second

// dialCounter counts the connections of a client, including connections to the servers of a Cluster.
type dialCounter struct{ dials atomic.Int64 }

// DialHook implements [redis.Hook].
func (d *dialCounter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		d.dials.Add(1)
		return next(ctx, network, address)
	}
}

// ProcessHook implements [redis.Hook].
func (*dialCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (*dialCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// confirmReplicas returns a function that waits until the given number of replicas have the client's writes to a
// device's shard or, for "", to all shards. WAIT counts replicas only for writes of the same connection: client must
// have one connection to each server, and must not have reconnected since the writes.
func confirmReplicas(ctx context.Context, client redis.UniversalClient, k contract.Keyspace,
	replicas int) (confirm func(device string) error) {
	if replicas == 0 {
		return func(string) error { return nil }
	}
	counter := new(dialCounter)
	client.AddHook(counter)
	return func(device string) error {
		before := counter.dials.Load()
		for shard := range k.Count() {
			if device != "" && shard != k.Shards.Of(device) {
				continue
			}
			server, ok := client.(*redis.Client)
			if cluster, is := client.(*redis.ClusterClient); is {
				var err error
				if server, err = cluster.MasterForKey(ctx, k.Keys(shard).SeqKey()); err != nil {
					return fmt.Errorf("--replicas: find the server of shard %d: %w", shard, err)
				}
			} else if !ok {
				return fmt.Errorf("--replicas: client %T: want one of a server or of a Cluster", client)
			}
			have, err := server.Wait(ctx, replicas, replicasTimeout).Result()
			switch {
			case err != nil:
				return fmt.Errorf("--replicas: the revocation is in force, but a failover may undo it: %w", err)
			case counter.dials.Load() != before:
				return fmt.Errorf("--replicas: the connection was lost: the revocation is in force, but a failover may undo it; " +
					"revoke again")
			case have < int64(replicas):
				return fmt.Errorf("--replicas: after %v %d of %d replicas have the revocation: it is in force, but a failover may "+
					"undo it", replicasTimeout, have, replicas)
			}
		}
		return nil
	}
}
