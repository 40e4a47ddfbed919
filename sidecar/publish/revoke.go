package publish

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/gatehouse/gatehouse/sidecar/contract"
)

// revokeParallel is how many devices RevokeAll revokes at a time.
const revokeParallel = 16

// RevokeAll revokes every device that is not revoked yet, each as [Publisher.RevokeDevice]
// does, and returns how many. When it returns without an error, every device that was
// registered when it was called is revoked; one that is registered meanwhile may be. A device
// whose record is of another type, or whose version can't grow, holds up no other: the error
// names it. After an error it can be called again, and goes on where it was.
func (p *Publisher) RevokeAll(ctx context.Context) (revoked int, err error) {
	var count atomic.Int64
	var failed error
	var odd failures
	// What is revoked moves to the end of the log and comes once more, revoked. So does a
	// device that was written meanwhile, before its turn.
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
	if err = errors.Join(append(odd.errs, err, failed)...); err != nil {
		err = fmt.Errorf("revoke all devices, after %d: %w", count.Load(), err)
	}
	return int(count.Load()), err
}

// failures are what Redis says of single devices.
type failures struct {
	mu   sync.Mutex // protects errs
	errs []error
}

// maxFailures bounds those that are told of.
const maxFailures = 100

// keep keeps an error that is of one device only, and returns any other.
func (f *failures) keep(err error) error {
	answer, answered := errors.AsType[redis.Error](err)
	if err == nil || !errors.Is(err, ErrStale) && !(answered && strings.Contains(answer.Error(), "WRONGTYPE")) {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.errs) == maxFailures {
		return fmt.Errorf("too many devices can't be revoked: %w", err)
	}
	f.errs = append(f.errs, err)
	return nil
}

// enabled are those of members that are neither deleted nor revoked, and those of which Redis
// can't tell.
func (p *Publisher) enabled(ctx context.Context, members []contract.Member) ([]contract.Member, error) {
	if len(members) == 0 {
		return nil, nil
	}
	pipe := p.client.Pipeline()
	states := make([]*redis.SliceCmd, len(members))
	for i, m := range members {
		states[i] = pipe.HMGet(ctx, p.shards.KeysOf(m.ID).RecordKey(m), contract.FieldDeleted, contract.FieldDisabled)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		if _, answered := errors.AsType[redis.Error](err); !answered {
			return nil, err
		}
	}
	var enabled []contract.Member
	for i, m := range members {
		if state := states[i].Val(); len(state) < 2 || state[0] == nil && state[1] != "1" {
			enabled = append(enabled, m)
		}
	}
	return enabled, nil
}
