package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// clusterEdge is an edge of a Redis Cluster with eight shards.
type clusterEdge struct {
	*edge
	cluster *redistest.Cluster
	shards  contract.Shards
	bodies  map[string]string // by key
}

// putObjects publishes objects, with retries until the Cluster accepts them: a failover may be under way.
func (c *clusterEdge) putObjects(key, body string) {
	c.t.Helper()
	await(c.t, "published "+key, patience, func() error {
		_, err := c.publisher.Put(c.t.Context(), publish.Object{Key: key, Body: []byte(body), ContentType: "text/plain"})
		return err
	})
	c.bodies[key] = body
}

// awaitObjects waits until the edge answers all objects as published.
func (c *clusterEdge) awaitObjects(when string) {
	c.t.Helper()
	took := await(c.t, when, patience, func() error {
		for key, body := range c.bodies {
			if a := c.send("GET " + key); a.body != body || a.header.Get("Cache-Status") != "gatehouse; hit" {
				return fmt.Errorf("%s: got %d %q %s, want %q", key, a.status, a.body, a.header.Get("Cache-Status"), body)
			}
		}
		return nil
	})
	c.t.Logf("%s: all %d objects within %s", when, len(c.bodies), took)
}

// shardsOf returns the shards of a master, with a key of each.
func (c *clusterEdge) shardsOf(master *redistest.Server) map[int]string {
	c.t.Helper()
	keys := map[int]string{}
	for key := range c.bodies {
		shard := contract.Keyspace{Shards: c.shards}.KeysOf(key)
		node, err := c.redis.(*redis.ClusterClient).MasterForKey(c.t.Context(), shard.SeqKey())
		if err != nil {
			c.t.Fatal(err)
		}
		if node.Options().Addr == master.Address {
			keys[c.shards.Of(key)] = key
		}
	}
	if len(keys) == 0 {
		c.t.Fatalf("no shard is on %s", master.Address)
	}
	return keys
}

// TestCluster serves from all masters of a real Redis Cluster. One master is killed and restarted, and another one is
// replaced by its replica.
func TestCluster(t *testing.T) {
	leaveToNative(t)
	t.Parallel()
	cluster := redistest.StartCluster(t)
	c := &clusterEdge{
		edge: reuse(t, stack.Options{RedisURL: cluster.URL, SidecarArgs: []string{"--redis.shards=8"},
			Seed: stack.AcceptLoss(contract.Keyspace{Shards: 8})}),
		cluster: cluster, shards: 8, bodies: map[string]string{},
	}
	c.publisher = publish.New(c.redis, publish.Shards(int(c.shards)))
	for i := range 48 {
		c.putObjects(fmt.Sprint("/v1/products/", i), fmt.Sprint("first ", i))
	}
	const devices = 16
	allowed := func(i, status int) func() error {
		return func() error {
			return c.sendFromAll([]*http.Client{shared}, func(a answer) bool {
				return a.status == status
			}, "POST /v1/telemetry", credential(fmt.Sprint("dev-", i), "secret")...)
		}
	}
	for i := range devices {
		c.putDevice(fmt.Sprint("dev-", i), "secret", 4, "telemetry.write")
	}
	c.awaitObjects("first")
	for i := range devices {
		await(t, "devices of all shards", patience, allowed(i, 200))
		if i%2 == 0 {
			if _, err := c.publisher.RevokeDevice(t.Context(), fmt.Sprint("dev-", i)); err != nil {
				t.Fatal(err)
			}
			await(t, "revoked", patience, allowed(i, 401))
		}
	}
	if catchups := c.metric("gatehouse_catchups_total"); catchups != 8 { // at start
		t.Errorf("%v catch-ups, want 8: events are missing", catchups)
	}
	c.usesShardedPubSub()
	c.takesGatehousectl()
	c.restartMaster(cluster.Masters[1])
	c.failover(cluster.Masters[0])
}

// usesShardedPubSub checks the subscriptions at each master.
func (c *clusterEdge) usesShardedPubSub() {
	c.t.Helper()
	for _, master := range c.cluster.Masters {
		client := master.Client(c.t)
		for shard := range c.shardsOf(master) {
			channel := contract.Keys{Shard: shard}.EventsChannel()
			if n := client.PubSubShardNumSub(c.t.Context(), channel).Val()[channel]; n != 1 {
				c.t.Errorf("%s: %d subscribed to %s at its master, want the sidecar", master.Address, n, channel)
			}
		}
		if channels := client.PubSubChannels(c.t.Context(), "*").Val(); len(channels) != 0 {
			c.t.Errorf("%s: channels %q are subscribed to without shards", master.Address, channels)
		}
	}
}

func (c *clusterEdge) takesGatehousectl() {
	c.t.Helper()
	body := writeFile(c.t, "a.txt", "by gatehousectl")
	for i := range 8 {
		key := fmt.Sprint("/v1/products/ctl-", i)
		c.ctl("put", key, "--file", body, "--shards", "8")
		c.bodies[key] = "by gatehousectl"
		if got := c.ctl("get", key, "--shards", "8"); got != "by gatehousectl" {
			c.t.Errorf("get %s: %q", key, got)
		}
	}
	if got := strings.Count(c.ctl("list", "/v1/products/", "--shards", "8"), "/v1/"); got != len(c.bodies) {
		c.t.Errorf("listed %d objects, want %d", got, len(c.bodies))
	}
	out, err := gatehousectl(c.t, "put", "/v1/x", "--file", body, "--redis", c.RedisURL())
	if err == nil || !strings.Contains(out, "is 8, this program is set to 1") {
		c.t.Errorf("another number of shards: %v, %s", err, out)
	}
	c.awaitObjects("by gatehousectl")
}

// restartMaster kills a master and restarts it with its file.
func (c *clusterEdge) restartMaster(master *redistest.Server) {
	c.t.Helper()
	before, its := c.metric("gatehouse_full_resyncs_total"), c.shardsOf(master)
	var gone string
	for _, gone = range its {
		break
	}
	if _, err := c.publisher.Delete(c.t.Context(), gone, 0); err != nil {
		c.t.Fatal(err)
	}
	delete(c.bodies, gone)
	master.Kill()
	for key := range c.bodies {
		if _, down := its[c.shards.Of(key)]; !down {
			c.putObjects(key, "while one was down")
		}
	}
	c.awaitObjects("while a master is down")
	master.Restart()
	for shard, key := range its {
		if key == gone {
			key = fmt.Sprint("/v1/products/again-", shard)
			for i := 0; c.shards.Of(key) != shard; i++ {
				key = fmt.Sprint("/v1/products/again-", i)
			}
		}
		c.putObjects(key, "after the restart")
	}
	c.awaitObjects("after a master was restarted")
	if a := c.send("GET " + gone); a.header.Get("Cache-Status") != "gatehouse; fwd=uri-miss" {
		c.t.Errorf("deleted before the restart: got %s", a.header.Get("Cache-Status"))
	}
	if n := c.metric("gatehouse_full_resyncs_total") - before; n != 0 {
		c.t.Errorf("%v full resyncs, want none: nothing was lost", n)
	}
}

// failover kills a master, and waits until the replica is master.
func (c *clusterEdge) failover(master *redistest.Server) {
	c.t.Helper()
	its := c.shardsOf(master)
	master.Kill()
	for _, key := range its {
		c.putObjects(key, "after the failover")
	}
	c.awaitObjects("after the failover")
	for shard := range its {
		channel := contract.Keys{Shard: shard}.EventsChannel()
		if n := c.cluster.Replica.Client(c.t).PubSubShardNumSub(c.t.Context(), channel).Val()[channel]; n != 1 {
			c.t.Errorf("%d subscribed to %s at the new master, want the sidecar", n, channel)
		}
	}
}
