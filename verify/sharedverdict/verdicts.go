// Package sharedverdict shares between the sidecars of a Redis which secrets bcrypt found right, so that bcrypt runs
// once in the fleet and not once in each sidecar.
//
// A verdict is a key of the device's shard with a lifetime. The key's name is an HMAC of device, secret and record; a
// second HMAC seals the value; both use the fleet's secret. So nobody can test secrets with the data in Redis, and a
// client that can write to Redis can't authenticate a device. While a sidecar runs bcrypt, the sidecar holds a lock
// beside the verdict. The lock saves work and is not needed for safety: without the lock bcrypt runs twice, with the
// same result.
//
// If Redis does not answer at once, bcrypt runs in this sidecar.
package sharedverdict

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/passhash"
	"github.com/gatehouse/gatehouse/internal/breaker"
	"github.com/gatehouse/gatehouse/internal/metrics"
	"github.com/gatehouse/gatehouse/verify/credential"
)

const (
	// callTimeout bounds a call to Redis, and is less than the run of bcrypt that the call may save.
	callTimeout = 200 * time.Millisecond
	// pollInterval is the interval between lookups of a verdict that another sidecar is computing.
	pollInterval = 25 * time.Millisecond
	// maxFinds bounds concurrent calls of verifications without a worker, so that a flood leaves connections to
	// verifications with a worker.
	maxFinds = 8
	// The lifetime of a lock is about eight runs of bcrypt, because a busy machine is slow. After the lifetime a second
	// sidecar may run bcrypt, too. If the holder has died, waiting sidecars wait for the lifetime.
	lockRuns = 8
	minLock  = 2 * time.Second
	maxLock  = 30 * time.Second
)

// Verdicts implements [credential.Fleet] with Redis.
type Verdicts struct {
	sealer   sealer
	client   redis.UniversalClient
	keyspace contract.Keyspace
	metrics  *metrics.Metrics
	log      *slog.Logger

	timeout       time.Duration     // callTimeout, except in tests
	finds         chan struct{}     // an element per call of Find
	reads, writes []breaker.Breaker // by shard; separate, because a user may have permission to read only
}

// New returns the Verdicts of the sidecars with the same secret. The client must obey deadlines of contexts, and not
// read from replicas.
func New(secret []byte, client redis.UniversalClient, k contract.Keyspace, m *metrics.Metrics,
	log *slog.Logger) *Verdicts {
	return &Verdicts{
		sealer: secret, client: client, keyspace: k, metrics: m, log: log,
		timeout: callTimeout, finds: make(chan struct{}, maxFinds),
		reads: make([]breaker.Breaker, k.Count()), writes: make([]breaker.Breaker, k.Count()),
	}
}

// verdictKeys has the keys of a verdict in Redis.
type verdictKeys struct {
	name      [sha256.Size]byte
	shard     int
	key, lock string
}

func (v *Verdicts) keysOf(c *credential.Question) verdictKeys { return v.sealer.keysOf(c, v.keyspace) }

func (s sealer) keysOf(c *credential.Question, k contract.Keyspace) verdictKeys {
	name := s.verdictName(c)
	text, keys := hex.EncodeToString(name[:]), k.KeysOf(c.Device)
	return verdictKeys{name, k.Of(c.Device), keys.VerdictKey(text), keys.VerdictLockKey(text)}
}

// addStore adds to p the command that stores m for c, with the lifetime life.
func (s sealer) addStore(ctx context.Context, p redis.Pipeliner, c *credential.Question, at *verdictKeys,
	m *credential.Match, life time.Duration) {
	value := s.sealMatch(at.name, slices.Index(c.Hashes, m.Hash), m.Until)
	if m.Authority != nil {
		value = s.sealAnswer(at.name, m)
	}
	p.Set(ctx, at.key, value, life)
}

// ShareMatch adds to a pipeline the command that shares the match m for c; none if m has expired.
func ShareMatch(ctx context.Context, p redis.Pipeliner, secret []byte, k contract.Keyspace, c *credential.Question,
	m *credential.Match) {
	at := sealer(secret).keysOf(c, k)
	if life := time.Until(m.Until); life >= time.Millisecond {
		sealer(secret).addStore(ctx, p, c, &at, m, life)
	}
}

// Find looks for a verdict.
func (v *Verdicts) Find(ctx context.Context, c *credential.Question) *credential.Match {
	timeout := time.NewTimer(v.timeout)
	defer timeout.Stop()
	select {
	case v.finds <- struct{}{}:
		defer func() { <-v.finds }()
	case <-timeout.C:
		v.countResult("skipped")
		return nil
	}
	at := v.keysOf(c)
	var value *redis.StringCmd
	if !v.callShard(ctx, v.reads, at.shard, "read", func(ctx context.Context, p redis.Pipeliner) {
		value = p.Get(ctx, at.key)
	}) {
		return nil
	}
	if errors.Is(value.Err(), redis.Nil) {
		v.countResult("miss")
	}
	return v.openReply(c, &at, value)
}

// Begin takes the lock and then looks for a verdict. A verdict is stored before the lock is removed, so the lock's next
// holder sees the verdict. A lock that remains beside a verdict does no harm and expires.
func (v *Verdicts) Begin(ctx context.Context, c *credential.Question) (*credential.Match, func(*credential.Match)) {
	at, life, began := v.keysOf(c), lockLife(c), time.Now()
	var taken *redis.BoolCmd
	var value *redis.StringCmd
	if !v.callShard(ctx, v.writes, at.shard, "write", func(ctx context.Context, p redis.Pipeliner) {
		taken = p.SetNX(ctx, at.lock, "1", life)
		value = p.Get(ctx, at.key)
	}) {
		return nil, func(*credential.Match) {} // nor will the result be shared: Redis has just failed
	}
	if m := v.openReply(c, &at, value); m != nil {
		return m, nil
	}
	if !taken.Val() {
		return nil, nil
	}
	return nil, func(m *credential.Match) { v.endRun(ctx, c, &at, m, time.Since(began) < life) }
}

// endRun stores a match, nil for none, and removes the lock if it is ours.
func (v *Verdicts) endRun(ctx context.Context, c *credential.Question, at *verdictKeys, m *credential.Match,
	locked bool) {
	life := time.Duration(0)
	if m != nil {
		life = time.Until(m.Until)
	}
	stores := life >= time.Millisecond
	if !stores && !locked {
		return
	}
	if v.callShard(ctx, v.writes, at.shard, "write", func(ctx context.Context, p redis.Pipeliner) {
		if stores {
			v.sealer.addStore(ctx, p, c, at, m, life)
		}
		if locked {
			p.Del(ctx, at.lock)
		}
	}) && stores {
		v.countResult("stored")
	}
}

// Await looks for the verdict until it exists, the lock is gone, or Redis fails.
func (v *Verdicts) Await(ctx context.Context, c *credential.Question, wanted func() bool) *credential.Match {
	v.countResult("waited")
	at := v.keysOf(c)
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for wanted() {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		var lock, value *redis.StringCmd
		if !v.callShard(ctx, v.reads, at.shard, "read", func(ctx context.Context, p redis.Pipeliner) {
			lock = p.Get(ctx, at.lock) // before the verdict: if the lock is gone, the verdict exists
			value = p.Get(ctx, at.key)
		}) {
			return nil
		}
		if m := v.openReply(c, &at, value); m != nil || errors.Is(lock.Err(), redis.Nil) {
			return m
		}
	}
	return nil
}

// callShard sends commands to a shard, and reports whether they were answered. Failures are counted, and the first is
// logged. callShard continues after the end of ctx, which is no failure of Redis.
func (v *Verdicts) callShard(ctx context.Context, breakers []breaker.Breaker, shard int, kind string,
	commands func(context.Context, redis.Pipeliner)) bool {
	b := &breakers[shard]
	if !b.AllowCall(time.Now()) {
		v.countResult("skipped")
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), v.timeout)
	defer cancel()
	done, err := v.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		commands(ctx, p)
		return nil
	})
	for _, command := range done { // err is the first failed command's, perhaps only: not found
		if err == nil || errors.Is(err, redis.Nil) {
			err = command.Err()
		}
	}
	failed := err != nil && !errors.Is(err, redis.Nil)
	changed := b.RecordResult(failed, time.Now())
	if failed {
		v.countResult("error")
	}
	switch {
	case changed && failed:
		v.log.Warn("shared verdicts are unavailable: bcrypt runs here", "call", kind, "shard", shard, "error", err)
	case changed:
		v.log.Info("shared verdicts are available again", "call", kind, "shard", shard)
	}
	return !failed
}

// openReply returns the match in a stored value, if the seal is valid.
func (v *Verdicts) openReply(c *credential.Question, at *verdictKeys, value *redis.StringCmd) *credential.Match {
	if value.Err() != nil {
		return nil
	}
	m, ok := v.sealer.openValue(c, at.name, value.Val(), time.Now())
	if !ok {
		v.countResult("invalid")
		return nil
	}
	v.countResult("hit")
	return m
}

func (v *Verdicts) countResult(result string) { v.metrics.Shared.WithLabelValues(result).Inc() }

// lockLife returns the lifetime of a lock, for all hashes of a question, or a call of the authority.
func lockLife(c *credential.Question) time.Duration {
	life := c.Timeout
	for _, hash := range c.Hashes {
		life += lockRuns * passhash.Time(hash)
	}
	return min(max(life, minLock), maxLock)
}
