// Package lastseen writes to Redis, in batches, when each device authenticated last and from where wrong secrets came,
// for operators. Verifications neither wait for the writes nor depend on them.
package lastseen

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/verify/credential"
)

const (
	writeEvery  = time.Minute
	callTimeout = 5 * time.Second
	// maxSeen and maxFailed bound the devices and pairs that wait for a batch. A batch begins early at half of maxSeen.
	maxSeen   = 1 << 16
	maxFailed = 4096
	// maxCommand is the number of devices of one command: a longer command would block Redis for too long.
	maxCommand = 512
	// failedOfBatch is the number of pairs of network and device that a batch writes, with the most wrong secrets
	// first. Redis keeps contract.MaxFailed pairs, so an attacker's addresses take a bounded part.
	failedOfBatch = 256
	failedLife    = 48 * time.Hour
)

// Results of the metric.
const (
	written = "written"
	failed  = "failed"
	dropped = "dropped"
)

// Log has the sightings and failures that this sidecar has not written yet, and is safe for concurrent use.
type Log struct {
	client   redis.UniversalClient
	keyspace contract.Keyspace
	metrics  *metrics.Metrics
	log      *slog.Logger
	halfFull chan struct{} // maxSeen is half used

	mu        sync.Mutex
	unwritten // +checklocks:mu
}

// unwritten has what the next batches write.
type unwritten struct {
	seen      map[string]times
	failed    map[string]int // wrong secrets by contract.FailedMember
	isRefused bool           // Redis does not permit the writes
	// isFailing: the last batch was not written, so no batch begins early.
	isFailing bool
}

// times are the last authentications of a device, unix ms; 0: none.
type times struct{ last, old int64 }

// New returns an empty Log.
func New(client redis.UniversalClient, k contract.Keyspace, m *metrics.Metrics, log *slog.Logger) *Log {
	return &Log{client: client, keyspace: k, metrics: m, log: log, halfFull: make(chan struct{}, 1),
		unwritten: unwritten{seen: map[string]times{}, failed: map[string]int{}}}
}

// Allowed notes that a device authenticated now; old: with a secret that ends.
func (l *Log) Allowed(device string, old bool) {
	t := times{last: time.Now().UnixMilli()}
	if old {
		t.old = t.last
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.addTimes(device, t); len(l.seen) >= maxSeen/2 && !l.isFailing {
		select {
		case l.halfFull <- struct{}{}:
		default:
		}
	}
}

// addTimes adds t.
// +checklocks:l.mu
func (l *Log) addTimes(device string, t times) {
	before, found := l.seen[device]
	switch {
	case l.isRefused:
	case found:
		l.seen[device] = times{max(before.last, t.last), max(before.old, t.old)}
	case len(l.seen) >= maxSeen:
		l.metrics.LastSeen.WithLabelValues(dropped).Inc()
	default:
		l.seen[strings.Clone(device)] = t
	}
}

// Failed notes a wrong secret of a device that has a record, from an address.
func (l *Log) Failed(device, from string) {
	network := "-"
	if prefix, ok := credential.NetworkOf(from); ok {
		network = prefix.String()
	}
	member := contract.FailedMember(network, device)
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, found := l.failed[member]; !l.isRefused && (found || len(l.failed) < maxFailed) {
		l.failed[member]++
	}
}

// Run writes batches until ctx ends, and then a last batch.
func (l *Log) Run(ctx context.Context) error {
	tick := time.NewTicker(writeEvery)
	defer tick.Stop()
	logged := false // the refusal by Redis
	for {
		select {
		case <-ctx.Done():
			l.writeBatch(context.WithoutCancel(ctx))
			return nil
		case <-tick.C:
		case <-l.halfFull:
		}
		err := l.writeBatch(ctx)
		if refused := redis.IsPermissionError(err); refused && !logged {
			l.log.Info("redis does not permit to write when devices were seen last: gatehousectl device does not show it",
				"error", err)
			logged = true
		} else if err != nil {
			l.log.Debug("last authentications are not written", "error", err)
		}
	}
}

// writeBatch writes one batch.
func (l *Log) writeBatch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	now := time.Now()
	err := l.markBegin(ctx, now)
	l.mu.Lock()
	seen, wrong := l.seen, l.failed
	l.seen, l.failed = map[string]times{}, map[string]int{}
	l.isRefused = redis.IsPermissionError(err)
	off := l.isRefused
	l.mu.Unlock()
	if off {
		return err
	}
	if err == nil {
		err = l.sendBatch(ctx, now, seen, wrong)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isFailing = err != nil; !l.isFailing {
		l.metrics.LastSeen.WithLabelValues(written).Add(float64(len(seen)))
		return nil
	}
	l.metrics.LastSeen.WithLabelValues(failed).Add(float64(len(seen)))
	meanwhile := l.seen // usually few: verifications wait for the lock
	l.seen = seen       // the next batch has them; wrong secrets may have been counted
	for device, t := range meanwhile {
		l.addTimes(device, t)
	}
	return err
}

// markBegin records when the first sidecar began to write. The call shows whether Redis permits the writes.
func (l *Log) markBegin(ctx context.Context, now time.Time) error {
	pipe := l.client.Pipeline()
	for i := range l.keyspace.Count() {
		pipe.ZAddNX(ctx, l.keyspace.Keys(i).SeenKey(), redis.Z{Score: float64(now.UnixMilli()), Member: contract.SeenBegin})
	}
	_, err := pipe.Exec(ctx)
	return err
}

func (l *Log) sendBatch(ctx context.Context, now time.Time, seen map[string]times, wrong map[string]int) error {
	byKey := map[string][]redis.Z{}
	for device, t := range seen {
		shard := l.keyspace.KeysOf(device)
		byKey[shard.SeenKey()] = append(byKey[shard.SeenKey()], redis.Z{Score: float64(t.last), Member: device})
		if t.old != 0 {
			byKey[shard.SeenOldKey()] = append(byKey[shard.SeenOldKey()], redis.Z{Score: float64(t.old), Member: device})
		}
	}
	pipe := l.client.Pipeline()
	for key, members := range byKey {
		for part := range slices.Chunk(members, maxCommand) {
			pipe.ZAddGT(ctx, key, part...)
		}
	}
	most := slices.SortedFunc(maps.Keys(wrong), func(a, b string) int { return cmp.Compare(wrong[b], wrong[a]) })
	touched := map[string]struct{}{}
	for _, member := range most[:min(len(most), failedOfBatch)] {
		_, device, _ := contract.ParseFailedMember(member)
		key := l.keyspace.KeysOf(device).SeenFailedKey(now)
		pipe.ZIncrBy(ctx, key, float64(wrong[member]), member)
		touched[key] = struct{}{}
	}
	for key := range touched {
		pipe.ZRemRangeByRank(ctx, key, 0, -contract.MaxFailed-1)
		pipe.Expire(ctx, key, failedLife)
	}
	_, err := pipe.Exec(ctx)
	return err
}
