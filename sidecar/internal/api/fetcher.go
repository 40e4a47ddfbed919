package api

import (
	"context"
	"fmt"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/metrics"
	"github.com/gatehouse/gatehouse/sidecar/internal/mirror"
)

const (
	// absentFor is how long an absent key is remembered before Redis is asked again.
	absentFor = time.Second
	// maxAbsent bounds the keys remembered.
	maxAbsent = 10000
	// fetchTimeout bounds a call to Redis, which continues after its caller has left.
	fetchTimeout = 5 * time.Second
	// maxReads is the maximum number of concurrent calls to a server.
	maxReads = 8
)

// Mirror holds the objects, and receives those that were fetched.
type Mirror interface {
	Get(key string) (contract.Object, bool)
	Stored(key string) string
	Generation(stored string) uint64
	ApplyRead(o contract.Object, generation uint64) mirror.Result
}

// Redis is a [Fetcher] that reads the mirror, and reads from Redis what the mirror doesn't hold.
type Redis struct {
	mirror  Mirror
	client  redis.UniversalClient
	shards  contract.Shards
	metrics *metrics.Metrics
	flights singleflight.Group
	absent  *otter.Cache[string, struct{}]
	reads   []chan struct{} // of each server: one for each running call
}

// NewRedis returns a Redis that reads through client, which must not read from replicas. It uses at most half of its
// connections to a server, because the subscriber needs some.
func NewRedis(m Mirror, client redis.UniversalClient, connections int, shards contract.Shards, mm *metrics.Metrics) (*Redis, error) {
	absent, err := otter.New(&otter.Options[string, struct{}]{
		MaximumSize:      maxAbsent,
		ExpiryCalculator: otter.ExpiryWriting[string, struct{}](absentFor),
	})
	if err != nil {
		return nil, fmt.Errorf("memory of absent keys: %w", err)
	}
	servers := 1
	if _, ok := client.(*redis.ClusterClient); ok {
		servers = shards.Count() // at most: one may have them all
	}
	reads := make([]chan struct{}, servers)
	for i := range reads {
		reads[i] = make(chan struct{}, max(1,
			min(connections/2, maxReads)/servers, //mutant:TestReadsLeaveRoom 100*connections/servers
		))
	}
	return &Redis{mirror: m, client: client, shards: shards, metrics: mm, absent: absent, reads: reads}, nil
}

// fetched is the outcome of one call to Redis.
type fetched struct {
	object contract.Object
	found  bool
}

// Fetch returns the object at key.
func (r *Redis) Fetch(ctx context.Context, key string) (contract.Object, bool, error) {
	if o, found := r.mirror.Get(key); found {
		r.metrics.Fetches.WithLabelValues("mirror").Inc()
		return o, true, nil
	}
	if _, found := r.absent.GetIfPresent(key); found {
		r.metrics.Fetches.WithLabelValues("remembered_absent").Inc()
		return contract.Object{}, false, nil
	}
	flight := r.flights.DoChan(key, func() (any, error) { return r.read(key) })
	select {
	case done := <-flight:
		f, _ := done.Val.(fetched)
		return r.count(f, done.Err)
	case <-ctx.Done():
		return r.count(fetched{}, ctx.Err())
	}
}

func (r *Redis) count(f fetched, err error) (contract.Object, bool, error) {
	result := "redis"
	switch {
	case err != nil:
		result = "error"
	case !f.found:
		result = "absent"
	}
	r.metrics.Fetches.WithLabelValues(result).Inc()
	return f.object, f.found, err
}

// read reads from Redis and applies the record, by version. If an event brought a newer one meanwhile, or a full resync
// has begun, it returns the mirror's. If the mirror holds none, the object may still exist, so read asks Redis once
// more.
func (r *Redis) read(key string) (fetched, error) {
	ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
	defer cancel()
	reads := r.reads[r.shards.Of(key)%len(r.reads)]
	select {
	case reads <- struct{}{}:
		defer func() { <-reads }()
	case <-ctx.Done():
		return fetched{}, fmt.Errorf("read %q: %d other reads are in progress, the maximum: %w", key, cap(reads), ctx.Err())
	}
	var result mirror.Result
	for range 2 {
		stored := r.mirror.Stored(key) //mutant:TestFetchOfAnotherSpelling key
		generation := r.mirror.Generation(stored)
		fields, err := r.client.HGetAll(ctx, r.shards.KeysOf(stored).ObjectKey(stored)).Result()
		if err != nil {
			return fetched{}, fmt.Errorf("read %q: %w", key, err)
		}
		if len(fields) == 0 {
			return r.gone(key), nil
		}
		o, err := contract.ParseObject(fields)
		if err != nil {
			return r.gone(key), r.corrupt(key, err)
		}
		o.Key = stored
		result = r.mirror.ApplyRead(o, generation)
		o.Key = key
		if newest, found := r.mirror.Get(key); found {
			return fetched{newest, true}, nil
		}
		if r.mirror.Stored(key) != stored { //mutant:TestFetchOfAnotherSpelling false
			result = mirror.Overtaken // by a write of another spelling
			continue
		}
		switch result {
		case mirror.Stored, mirror.NotAdmitted, mirror.TooLarge, mirror.Unchanged:
			return fetched{o, true}, nil
		}
		if result != mirror.NotNewer && result != mirror.Overtaken || o.Deleted {
			return r.gone(key), nil
		}
	}
	if result == mirror.Overtaken {
		return fetched{}, fmt.Errorf("read %q: overtaken twice by removals or newer reads", key)
	}
	return r.gone(key), nil
}

func (r *Redis) gone(key string) fetched {
	r.absent.Set(key, struct{}{})
	return fetched{}
}

func (r *Redis) corrupt(key string, err error) error {
	reason := contract.ReasonOf(err)
	if reason == "" {
		reason = contract.ReasonMalformed
	}
	r.metrics.Corrupt.WithLabelValues("object", string(reason)).Inc()
	return fmt.Errorf("object %q in redis: %w", key, err)
}
