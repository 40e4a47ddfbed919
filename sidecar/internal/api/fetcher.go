package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/singleflight"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/internal/tracing"
	"github.com/gatehouse/gatehouse/sidecar/internal/follow"
	"github.com/gatehouse/gatehouse/sidecar/internal/objectcache"
)

const (
	// absentTTL is how long an absent key is cached before Redis is asked again.
	absentTTL = time.Second
	// maxAbsent bounds the cached absent keys.
	maxAbsent = 10000
	// fetchTimeout bounds a call to Redis, which continues without its caller.
	fetchTimeout = 5 * time.Second
	// maxReads is the maximum number of concurrent calls to a server.
	maxReads = 8
)

// Cache has the objects, and receives fetched objects.
type Cache interface {
	Get(key string) (contract.Object, bool)
	ReadMark(key string) uint64
	ApplyRead(o *contract.Object, mark uint64) objectcache.Result
}

// EdgeRedis is a [Fetcher] for an edge of Redis. Reads for an edge that wait for other reads of the same edge delay no
// other edge's.
type EdgeRedis struct {
	*Redis
	flights singleflight.Group
	reads   []chan struct{} // by server: one element per running call for the edge
}

// Redis reads the cache first, and then Redis. It is safe for concurrent use.
type Redis struct {
	cache    Cache
	client   redis.UniversalClient
	keyspace contract.Keyspace
	applied  func(shard int) (contract.Link, error)
	synced   <-chan struct{}
	metrics  *metrics.Metrics
	flights  singleflight.Group // of all edges
	absent   *otter.Cache[string, struct{}]
	// noMemory: the server refuses MEMORY USAGE.
	noMemory atomic.Bool
	// replica is of ReadReplicas; nil: client is used.
	replica func(shard int) (*redis.Client, error)
	reads   []chan struct{} // by server: one element per running call
}

// NewRedis returns a Redis that reads through client, which must not read from replicas. Reads use at most half of the
// client's connections to a server, because the followers need connections. applied returns the last write that the
// follower of a shard has applied, or why the shard's records can't be read. synced is closed when everything in Redis
// has been applied once: until then, the cache may have versions of a snapshot, older than what the edge has.
func NewRedis(m Cache, client redis.UniversalClient, connections int, k contract.Keyspace,
	applied func(shard int) (contract.Link, error), synced <-chan struct{}, mm *metrics.Metrics) (*Redis, error) {
	absent, err := otter.New(&otter.Options[string, struct{}]{
		MaximumSize:      maxAbsent,
		ExpiryCalculator: otter.ExpiryWriting[string, struct{}](absentTTL),
	})
	if err != nil {
		return nil, fmt.Errorf("memory of absent keys: %w", err)
	}
	servers := 1
	if _, ok := client.(*redis.ClusterClient); ok {
		servers = k.Count() // at most: one server may have all shards
	}
	reads := makeReads(servers, max(1, min(connections/2, maxReads)/servers))
	return &Redis{cache: m, client: client, keyspace: k, applied: applied, synced: synced,
		metrics: mm, absent: absent, reads: reads}, nil
}

// makeReads returns reads for a number of concurrent calls to each server.
func makeReads(servers, calls int) []chan struct{} {
	reads := make([]chan struct{}, servers)
	for i := range reads {
		reads[i] = make(chan struct{}, calls)
	}
	return reads
}

// AddEdge returns a Fetcher for an edge. Each edge has as many concurrent calls as all edges together, so an edge
// alone waits as without others, and of a flood at an edge only these calls are in the way of other edges.
func (r *Redis) AddEdge() *EdgeRedis {
	return &EdgeRedis{Redis: r, reads: makeReads(len(r.reads), cap(r.reads[0]))}
}

// ReadReplicas has further calls of Fetch read from the replica that the follower of the shard reads: the master may be
// ahead of the replica. Without a replica, calls fail.
func (r *Redis) ReadReplicas(replica func(shard int) (*redis.Client, error)) { r.replica = replica }

// fetched is the result of one call to Redis.
type fetched struct {
	object contract.Object
	found  bool
}

// Fetch returns the object at key.
func (r *EdgeRedis) Fetch(ctx context.Context, key string) (contract.Object, bool, error) {
	if o, found := r.cache.Get(key); found && r.isSynced() {
		r.countAnswer(ctx, "cache")
		return o, true, nil
	}
	if _, found := r.absent.GetIfPresent(key); found {
		r.countAnswer(ctx, "remembered_absent")
		return contract.Object{}, false, nil
	}
	flight := r.flights.DoChan(key, func() (any, error) { return r.readRecord(ctx, key) })
	select {
	case done := <-flight:
		f, _ := done.Val.(fetched)
		if done.Shared {
			trace.SpanFromContext(ctx).SetAttributes(tracing.Coalesced.Bool(true))
		}
		return r.countFetch(ctx, f, done.Err)
	case <-ctx.Done():
		return r.countFetch(ctx, fetched{}, ctx.Err())
	}
}

func (r *Redis) isSynced() bool {
	select {
	case <-r.synced:
		return true
	default:
		return false
	}
}

func (r *Redis) countFetch(ctx context.Context, f fetched, err error) (contract.Object, bool, error) {
	result := "redis"
	switch {
	case err != nil:
		result = "error"
	case !f.found:
		result = "absent"
	}
	r.countAnswer(ctx, result)
	return f.object, f.found, err
}

// countAnswer counts an answer, and records in the span of the call where the object was found.
func (r *Redis) countAnswer(ctx context.Context, result string) {
	r.metrics.Fetches.WithLabelValues(result).Inc()
	trace.SpanFromContext(ctx).SetAttributes(tracing.FoundIn.String(result))
}

// readRecord reads the record when the edge's earlier reads leave room, together with other edges that read it then.
// It continues after the end of ctx, because other calls may wait for the result.
func (r *EdgeRedis) readRecord(ctx context.Context, key string) (any, error) {
	ctx = context.WithoutCancel(ctx)
	waits, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	leave, err := acquireRead(waits, r.reads[r.keyspace.Of(key)%len(r.reads)], key)
	if err != nil {
		return fetched{}, err
	}
	defer leave()
	// The time begins anew, since other edges may join the read.
	f, err, _ := r.Redis.flights.Do(key, func() (any, error) { return r.Redis.readRecord(ctx, key) })
	return f, err
}

func acquireRead(ctx context.Context, reads chan struct{}, key string) (leave func(), err error) {
	select {
	case reads <- struct{}{}:
		return func() { <-reads }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("read %q: %d other reads are in progress, the maximum: %w", key, cap(reads), ctx.Err())
	}
}

// readRecord reads the record from Redis and applies it to the cache by version. If an event brought a newer version
// meanwhile, or a full resync has begun, readRecord returns the cache's object. If the cache has no object, the record
// may still exist, so readRecord asks Redis once more.
func (r *Redis) readRecord(ctx context.Context, key string) (fetched, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	leave, err := acquireRead(ctx, r.reads[r.keyspace.Of(key)%len(r.reads)], key)
	if err != nil {
		return fetched{}, err
	}
	defer leave()
	var result objectcache.Result
	for range 2 {
		mark := r.cache.ReadMark(key)
		fields, err := r.readFields(ctx, key)
		if contract.ReasonOf(err) != "" {
			return r.rememberAbsent(key), r.countCorrupt(key, err)
		}
		if err != nil {
			return fetched{}, fmt.Errorf("read %q: %w", key, err)
		}
		if len(fields) == 0 {
			return r.rememberAbsent(key), nil
		}
		o, err := contract.ParseObject(fields)
		if err != nil {
			return r.rememberAbsent(key), r.countCorrupt(key, err)
		}
		o.Key = key
		result = r.cache.ApplyRead(&o, mark)
		if result == objectcache.Unjudged {
			return fetched{}, fmt.Errorf("read %q: the purges in redis were not read yet", key)
		}
		if newest, found := r.cache.Get(key); found {
			return fetched{newest, true}, nil
		}
		switch result {
		case objectcache.Stored, objectcache.NotAdmitted, objectcache.TooLarge, objectcache.Unchanged:
			return fetched{o, true}, nil
		}
		if result != objectcache.NotNewer && result != objectcache.Overtaken || o.Deleted {
			return r.rememberAbsent(key), nil
		}
	}
	if result == objectcache.Overtaken {
		return fetched{}, fmt.Errorf("read %q: overtaken twice by removals or newer reads", key)
	}
	return r.rememberAbsent(key), nil
}

// readFields reads the fields of an object, none if there is no record. It asks for the record's size first: a huge
// record, written by hand, could exhaust the memory.
func (r *Redis) readFields(ctx context.Context, key string) (fields map[string]string, err error) {
	record := r.keyspace.KeysOf(key).ObjectKey(key)
	if !r.noMemory.Load() {
		var size *redis.IntCmd
		ask := func(p redis.Pipeliner) { size = p.MemoryUsage(ctx, record, 0) }
		if err := r.readWithProof(ctx, key, ask); err != nil {
			return nil, err
		}
		switch bytes, err := size.Result(); {
		case errors.Is(err, redis.Nil):
			return nil, nil
		case redisurl.Withheld(err):
			r.noMemory.Store(true) // the follower logs it
		case err != nil:
			return nil, err
		default:
			if err := contract.ObjectMember(key).CheckMemory(bytes); err != nil {
				return nil, err
			}
		}
	}
	var all *redis.MapStringStringCmd
	ask := func(p redis.Pipeliner) { all = p.HGetAll(ctx, record) }
	if err := r.readWithProof(ctx, key, ask); err != nil {
		return nil, err
	}
	return all.Result()
}

// readWithProof sends a command about a record, and leaves the command's own error to the caller. readWithProof returns
// an error if the server lacks writes that were applied before, see [follow.Proof], even if the server lost them after
// the question before the command.
func (r *Redis) readWithProof(ctx context.Context, key string, command func(redis.Pipeliner)) error {
	applied, err := r.applied(r.keyspace.Of(key))
	if err != nil {
		return err
	}
	var server redis.Cmdable = r.client
	if r.replica != nil {
		if server, err = r.replica(r.keyspace.Of(key)); err != nil {
			return err
		}
	}
	pipe := server.Pipeline()
	proof := follow.AskProof(ctx, pipe, r.keyspace.KeysOf(key), applied)
	command(pipe)
	still := follow.AskProof(ctx, pipe, r.keyspace.KeysOf(key), applied)
	if err := follow.Unsent(pipe.Exec(ctx)); err != nil {
		return err
	}
	return cmp.Or(proof.Err(), still.Err())
}

func (r *Redis) rememberAbsent(key string) fetched {
	r.absent.Set(key, struct{}{})
	return fetched{}
}

func (r *Redis) countCorrupt(key string, err error) error {
	reason := contract.ReasonOf(err)
	if reason == "" {
		reason = contract.ReasonMalformed
	}
	r.metrics.Corrupt.WithLabelValues("object", string(reason)).Inc()
	return fmt.Errorf("object %q in redis: %w", key, err)
}
