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
	// attempts bounds the retries of a change or revocation when the record is written meanwhile.
	attempts = 10
)

// RevokeDevice disables a device and keeps the rest of the record. If the log has the device but the record is missing,
// Redis evicted the record, or its tombstone expired. Edges may still have the device, so RevokeDevice writes a
// tombstone. [ErrNotFound]: Redis has neither record nor log entry, or already a tombstone. RevokeDevice does not fail
// because of a concurrent write of the record; the later write wins.
func (p *Publisher) RevokeDevice(ctx context.Context, id string) (Receipt, error) {
	return p.withdrawDevice(ctx, "revoke", id, contract.FieldDisabled, contract.DisabledRevoked, false)
}

// ForceRevokeDevice is [Publisher.RevokeDevice], but also writes a tombstone if Redis doesn't have the device, for
// example after a loss of data, or already has a tombstone. Edges that still have the device remove it.
func (p *Publisher) ForceRevokeDevice(ctx context.Context, id string) (Receipt, error) {
	return p.withdrawDevice(ctx, "revoke", id, contract.FieldDisabled, contract.DisabledRevoked, true)
}

// DeleteDevice makes the edges forget a device. If Redis doesn't have the record, DeleteDevice acts as
// [Publisher.RevokeDevice], with force as [Publisher.ForceRevokeDevice].
func (p *Publisher) DeleteDevice(ctx context.Context, id string, force bool) (Receipt, error) {
	return p.withdrawDevice(ctx, "delete", id, contract.FieldDeleted, "1", force)
}

// withdrawDevice sets a field of a device's record, or writes a tombstone if no record exists.
func (p *Publisher) withdrawDevice(ctx context.Context, verb, id, field, value string, force bool) (receipt Receipt,
	err error,
) {
	m := contract.CredentialMember(id)
	if err := checkMember(m); err != nil {
		return Receipt{}, fmt.Errorf("%s device: %w", verb, err)
	}
	for range attempts {
		fields := map[string]string{contract.FieldVersion: "0", field: value}
		if receipt, err = p.writer.writeRecord(ctx, merge, m, fields); !errors.Is(err, ErrNotFound) {
			break
		}
		if receipt, err = p.writeTombstone(ctx, m, force); !errors.Is(err, ErrStale) { // stale: written meanwhile
			break
		}
	}
	if err != nil {
		return Receipt{}, fmt.Errorf("%s device %q: %w", verb, id, err)
	}
	return receipt, nil
}

// writeTombstone writes a tombstone if no record exists. The version exceeds every version that a writer can have
// derived from the time in microseconds, and every version that Redis has counted after an earlier tombstone of
// writeTombstone. ErrStale: a record was written meanwhile.
func (p *Publisher) writeTombstone(ctx context.Context, m contract.Member, force bool) (Receipt, error) {
	state, err := p.reader.readState(ctx, m)
	if err != nil {
		return Receipt{}, err
	}
	if !state.exists && !force && (state.deleted || !state.logged) {
		return Receipt{}, ErrNotFound
	}
	version := uint64(limits.MaxOwnVersion + time.Now().UnixMicro())
	if state.version >= version {
		version = 0 // the next version, over a tombstone of a forced revocation
	}
	receipt, err := p.writer.writeRecord(ctx, add, m, contract.Credential{Version: version, Deleted: true}.Fields())
	if errors.Is(err, ErrExists) {
		return Receipt{}, fmt.Errorf("%w: written meanwhile", ErrStale)
	}
	return receipt, err
}

// RevokeAll revokes every device that is not revoked yet, each like [Publisher.RevokeDevice], including devices with
// only an entry in the log, and returns the number of devices revoked. Without an error, every device registered at the
// time of the call is revoked; a device registered meanwhile may or may not be. A device that Redis refuses to revoke,
// for example because the record has a wrong type, does not stop RevokeAll: the error names up to 100 such devices, and
// the number of further devices. After an error, call RevokeAll again to continue.
func (p *Publisher) RevokeAll(ctx context.Context) (revoked int, err error) {
	var count atomic.Int64
	var failed error
	var odd failures
	// A revoked device moves to the end of the log and is listed once more, revoked. A device written before its turn
	// moves, too.
	err = p.reader.visitMembers(ctx, contract.KindCredential, func(page []contract.Member) bool {
		var enabled []contract.Member
		if enabled, failed = p.reader.readEnabled(ctx, page); failed != nil {
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
				return odd.keepError(err)
			})
		}
		failed = group.Wait()
		return failed == nil
	})
	for i := 0; err == nil && i < p.keyspace.Count(); i++ {
		err = p.reader.hasLog(ctx, p.keyspace.Keys(i)) // after all devices that can be found are revoked
	}
	if err = errors.Join(append(odd.allErrors(), err, failed)...); err != nil {
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

// keepError counts an error that concerns a single device or shard, and returns nil. Any other error is returned.
func (f *failures) keepError(err error) error {
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

// allErrors returns the collected errors, and an error with the number of further errors.
func (f *failures) allErrors() []error {
	if more := f.count - len(f.errs); more > 0 {
		return append(f.errs, fmt.Errorf("%d more devices could not be revoked", more))
	}
	return f.errs
}

// readEnabled returns the members that are neither deleted nor disabled, and members with an unreadable state.
func (r reader) readEnabled(ctx context.Context, members []contract.Member) ([]contract.Member, error) {
	if len(members) == 0 {
		return nil, nil
	}
	pipe := r.client.Pipeline()
	states := make([]*redis.SliceCmd, len(members))
	for i, m := range members {
		states[i] = pipe.HMGet(ctx, r.keyspace.KeysOf(m.ID).RecordKey(m), contract.FieldDeleted, contract.FieldDisabled)
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.As(err, new(redis.Error)) {
		return nil, err
	}
	var enabled []contract.Member
	for i, m := range members {
		// An error, since otherwise revoked devices would be revoked again, for ever.
		if err := states[i].Err(); err != nil && !strings.HasPrefix(err.Error(), "WRONGTYPE") {
			return nil, fmt.Errorf("read whether devices are revoked: %w", scriptError(err))
		}
		state := states[i].Val()
		if len(state) < 2 || state[0] == nil && state[1] != "1" && state[1] != contract.DisabledRevoked {
			enabled = append(enabled, m)
		}
	}
	return enabled, nil
}
