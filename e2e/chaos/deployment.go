package chaos

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
)

// Deployment is a kind of Redis deployment.
type Deployment string

// The deployments.
const (
	// Single is one server behind a link that can be broken. The server keeps all acknowledged writes after kill -9, but
	// not after a loss of power.
	Single Deployment = "single"
	// Sentinel is a master with a replica, which may lack the last writes when promoted.
	Sentinel Deployment = "sentinel"
	// Cluster is three masters; slots move between masters.
	Cluster Deployment = "cluster"
	// Replica is a master with a replica, from which the sidecars read objects. The link between both can be broken.
	Replica Deployment = "replica"
)

// Deployments are all deployments.
var Deployments = []Deployment{Single, Sentinel, Cluster, Replica}

// clusterShards is the number of shards in a Cluster.
const clusterShards contract.Shards = 8

// lag bounds how far a replica is behind when promoted, and how far the disk is behind when power is lost: writes
// acknowledged during the last lag may be lost.
const lag = time.Second

// servers are the servers of a Sentinel or Cluster deployment.
type servers struct {
	*host
	sentinels *redistest.Sentinels
	cluster   *redistest.Cluster
	replica   *replicated
	random    func(n int) int
}

func (d Deployment) startServers(ctx context.Context, dir string, random func(n int) int) (s *servers, err error) {
	s = &servers{host: &host{ctx: ctx, dir: dir}, random: random}
	err = s.catchFatal(func() {
		switch d {
		case Sentinel:
			s.sentinels = redistest.StartSentinels(s)
		case Cluster:
			s.cluster = redistest.StartCluster(s)
		case Replica:
			s.replica = startReplicated(s)
		}
	})
	return s, err
}

func (s *servers) redisURL() string {
	switch {
	case s.cluster != nil:
		return s.cluster.URL
	case s.replica != nil:
		return "redis://" + s.replica.master.Address
	}
	return s.sentinels.URL
}

// moveSlot moves the slot of a shard to another master, slowly, so that the slot's keys are at two masters for a while.
func (s *servers) moveSlot(ctx context.Context) error {
	slot, from, err := s.slotOf(contract.Keys{Shard: s.random(int(clusterShards))}.SeqKey())
	if err != nil {
		return err
	}
	to := (from + 1 + s.random(len(s.cluster.Masters)-1)) % len(s.cluster.Masters)
	return s.cluster.MoveSlot(ctx, slot, to, func(int) { wait(ctx, 10*time.Millisecond) })
}

// slotOf returns the slot of a key and the index of its master.
func (s *servers) slotOf(key string) (slot, master int, err error) {
	for i, master := range s.cluster.Masters {
		client := redis.NewClient(&redis.Options{Addr: master.Address, MaxRetries: -1})
		slot, err := client.ClusterKeySlot(s.ctx, key).Result()
		if err == nil {
			err = client.Get(s.ctx, key).Err()
		}
		_ = client.Close()
		if err == nil || err == redis.Nil {
			return int(slot), i, nil
		}
		if !redis.HasErrorPrefix(err, "MOVED") {
			return 0, 0, fmt.Errorf("ask %s for %s: %w", master.Address, key, err)
		}
	}
	return 0, 0, fmt.Errorf("no master has %s", key)
}

// host implements redistest.T outside of a test.
type host struct {
	ctx      context.Context
	dir      string
	cleanups []func()
}

// failure is the value with which Fatal panics.
type failure string

// catchFatal runs f, which may call Fatal, and returns the failure as an error.
func (h *host) catchFatal(f func()) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case failure:
			err = fmt.Errorf("%s", string(v))
		default:
			panic(v)
		}
	}()
	f()
	return nil
}

// close ends the servers.
func (h *host) close() {
	for _, f := range slices.Backward(h.cleanups) {
		f()
	}
}

// Helper implements redistest.T.
func (h *host) Helper() {}

// Cleanup implements redistest.T.
func (h *host) Cleanup(f func()) { h.cleanups = append(h.cleanups, f) }

// Context implements redistest.T.
func (h *host) Context() context.Context { return h.ctx }

// TempDir implements redistest.T.
func (h *host) TempDir() string {
	dir, err := os.MkdirTemp(h.dir, "redis-")
	if err != nil {
		h.Fatal(err)
	}
	return dir
}

// Fatal implements redistest.T.
func (h *host) Fatal(args ...any) { panic(failure(strings.TrimSuffix(fmt.Sprintln(args...), "\n"))) }

// Fatalf implements redistest.T.
func (h *host) Fatalf(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }
