package publish

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
)

const (
	// revokeParallel is how many devices RevokeAll revokes concurrently.
	revokeParallel = 16
	// attempts bounds the retries of a change or revocation whose record is written meanwhile.
	attempts = 10
)

// RevokeDevice disables a device and keeps the rest of its record. If the log has the device but the record is gone,
// Redis evicted the record, or its tombstone expired. Edges may still have the device then, so RevokeDevice writes a
// tombstone. It returns [ErrNotFound] if Redis has neither, or already a tombstone. A concurrent write of the record
// doesn't make it fail; the later one of the two wins.
func (p *Publisher) RevokeDevice(ctx context.Context, id string) (Receipt, error) {
	return p.withdraw(ctx, "revoke", id, contract.FieldDisabled, contract.DisabledRevoked, false)
}

// ForceRevokeDevice is [Publisher.RevokeDevice], but also writes a tombstone if Redis doesn't have the device, for
// example after a loss of data, or has a tombstone already, so that edges that still have it remove it.
func (p *Publisher) ForceRevokeDevice(ctx context.Context, id string) (Receipt, error) {
	return p.withdraw(ctx, "revoke", id, contract.FieldDisabled, contract.DisabledRevoked, true)
}

// DeleteDevice makes the edges forget a device. Where Redis doesn't have its record, DeleteDevice does what
// [Publisher.RevokeDevice] does, with force what [Publisher.ForceRevokeDevice] does.
func (p *Publisher) DeleteDevice(ctx context.Context, id string, force bool) (Receipt, error) {
	return p.withdraw(ctx, "delete", id, contract.FieldDeleted, "1", force)
}

// withdraw sets a field of a device's record, or writes a tombstone if there is none.
func (p *Publisher) withdraw(ctx context.Context, verb, id, field, value string, force bool) (receipt Receipt,
	err error,
) {
	m := contract.CredentialMember(id)
	if err := checkMember(m); err != nil {
		return Receipt{}, fmt.Errorf("%s device: %w", verb, err)
	}
	for range attempts {
		fields := map[string]string{contract.FieldVersion: "0", field: value}
		if receipt, err = p.write(ctx, merge, m, fields); !errors.Is(err, ErrNotFound) {
			break
		}
		if receipt, err = p.bury(ctx, m, force); !errors.Is(err, ErrStale) { // stale: the record was written meanwhile
			break
		}
	}
	if err != nil {
		return Receipt{}, fmt.Errorf("%s device %q: %w", verb, id, err)
	}
	return receipt, nil
}

// bury writes a tombstone where there is no record. Its version exceeds the highest that a writer can have given by the
// time in microseconds, and so also those that Redis has counted after an earlier tombstone of this kind. It returns
// ErrStale if a record was written meanwhile.
func (p *Publisher) bury(ctx context.Context, m contract.Member, force bool) (Receipt, error) {
	state, err := p.state(ctx, m)
	if err != nil {
		return Receipt{}, err
	}
	if !state.there && !force && (state.deleted || !state.logged) {
		return Receipt{}, ErrNotFound
	}
	version := uint64(limits.MaxOwnVersion + time.Now().UnixMicro())
	if state.version >= version {
		version = 0 // over a tombstone of a forced revocation the next one
	}
	receipt, err := p.write(ctx, add, m, contract.Credential{Version: version, Deleted: true}.Fields())
	if errors.Is(err, ErrExists) {
		return Receipt{}, fmt.Errorf("%w: written meanwhile", ErrStale)
	}
	return receipt, err
}

// state is the state of a member in Redis.
type state struct {
	there   bool   // it has a record other than a tombstone
	deleted bool   // it has a tombstone
	logged  bool   // the log has an entry
	version uint64 // of the record or tombstone, 0 for neither
}

// missing reports whether a record was written and doesn't exist any more.
func (s state) missing() bool { return s.logged && !s.there && !s.deleted }

// known reports whether there is a record, or was one that edges may have.
func (s state) known() bool { return s.there || s.missing() }

func (p *Publisher) state(ctx context.Context, m contract.Member) (state, error) {
	states, err := p.states(ctx, m)
	if err != nil {
		return state{}, err
	}
	return states[0], nil
}

// states returns the states of members, read in one round trip to each server.
func (p *Publisher) states(ctx context.Context, members ...contract.Member) ([]state, error) {
	type query struct {
		score   *redis.FloatCmd
		version *redis.StringCmd
		deleted *redis.BoolCmd
	}
	queries := make([]query, len(members))
	pipe := p.client.Pipeline()
	for i, m := range members {
		shard := p.keyspace.KeysOf(m.ID)
		queries[i] = query{
			score:   pipe.ZScore(ctx, shard.LogKey(), m.String()),
			version: pipe.HGet(ctx, shard.RecordKey(m), contract.FieldVersion),
			deleted: pipe.HExists(ctx, shard.RecordKey(m), contract.FieldDeleted),
		}
	}
	_, _ = pipe.Exec(ctx) // the replies have the errors
	states := make([]state, len(members))
	for i, q := range queries {
		for _, cmd := range []redis.Cmder{q.version, q.deleted, q.score} {
			if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
				return nil, err
			}
		}
		version, _ := q.version.Uint64()
		states[i] = state{
			there:   q.version.Err() == nil && !q.deleted.Val(),
			deleted: q.deleted.Val(),
			logged:  q.score.Err() == nil,
			version: version,
		}
	}
	return states, nil
}

// RevokeAll revokes every device that is not revoked yet, each like [Publisher.RevokeDevice], including those with only
// an entry in the log, and returns their number. If it returns no error, every device registered at the time of the
// call is revoked; a device registered meanwhile may or may not be. A device that Redis refuses to revoke, as one whose
// record has another type, does not stop the others: the error names it, or of more than 100 their number. After an
// error, call RevokeAll again to continue.
func (p *Publisher) RevokeAll(ctx context.Context) (revoked int, err error) {
	var count atomic.Int64
	var failed error
	var odd failures
	// A revoked device moves to the end of the log and is listed once more, revoked. So is a device that was written
	// meanwhile, before its turn.
	err = p.members(ctx, contract.KindCredential, func(page []contract.Member) bool {
		var enabled []contract.Member
		if enabled, failed = p.enabled(ctx, page); failed != nil {
			return false
		}
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(revokeParallel)
		for _, m := range enabled {
			group.Go(func() error {
				_, err := p.RevokeDevice(ctx, m.ID)
				if errors.Is(err, ErrNotFound) { // deleted meanwhile
					return nil
				}
				if err == nil {
					count.Add(1)
				}
				return odd.keep(err)
			})
		}
		failed = group.Wait()
		return failed == nil
	})
	for i := 0; err == nil && i < p.keyspace.Count(); i++ {
		err = p.hasLog(ctx, p.keyspace.Keys(i)) // those that can be found are revoked in any case
	}
	if err = errors.Join(append(odd.all(), err, failed)...); err != nil {
		err = fmt.Errorf("revoke all devices, after %d: %w", count.Load(), err)
	}
	return int(count.Load()), err
}

// failures collects the errors of single devices.
type failures struct {
	mu    sync.Mutex // protects all
	errs  []error
	count int
}

// maxFailures bounds the collected errors.
const maxFailures = 100

// keep counts an error that concerns one device, or one shard, and returns nil; it returns any other error.
func (f *failures) keep(err error) error {
	var answer redis.Error
	refused := errors.As(err, &answer) && (strings.HasPrefix(answer.Error(), "ERR ") ||
		strings.Contains(answer.Error(), "WRONGTYPE"))
	if err == nil || !refused && !errors.Is(err, ErrStale) && !errors.Is(err, ErrInvalid) {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	if len(f.errs) < maxFailures {
		f.errs = append(f.errs, err)
	}
	return nil
}

// all returns the collected errors, with one about those that were only counted.
func (f *failures) all() []error {
	if more := f.count - len(f.errs); more > 0 {
		return append(f.errs, fmt.Errorf("%d more devices could not be revoked", more))
	}
	return f.errs
}

// enabled returns the members that are neither deleted nor disabled, or whose state can't be read.
func (p *Publisher) enabled(ctx context.Context, members []contract.Member) ([]contract.Member, error) {
	if len(members) == 0 {
		return nil, nil
	}
	pipe := p.client.Pipeline()
	states := make([]*redis.SliceCmd, len(members))
	for i, m := range members {
		states[i] = pipe.HMGet(ctx, p.keyspace.KeysOf(m.ID).RecordKey(m), contract.FieldDeleted, contract.FieldDisabled)
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.As(err, new(redis.Error)) {
		return nil, err
	}
	var enabled []contract.Member
	for i, m := range members {
		if err := states[i].Err(); err != nil && !strings.HasPrefix(err.Error(), "WRONGTYPE") {
			return nil, fmt.Errorf("read whether devices are revoked: %w", scriptError(err)) // or they would be again, for ever
		}
		state := states[i].Val()
		if len(state) < 2 || state[0] == nil && state[1] != "1" && state[1] != contract.DisabledRevoked {
			enabled = append(enabled, m)
		}
	}
	return enabled, nil
}
