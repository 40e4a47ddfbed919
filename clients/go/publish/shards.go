package publish

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// store is a namespace in Redis, with the number of its shards. store is safe for concurrent use.
type store struct {
	client   redis.UniversalClient
	keyspace contract.Keyspace
	agreed   atomic.Bool // Redis has the same number of shards
}

// ensureShards compares the number of shards with the number in Redis before the first write, and stores the number if
// Redis has none.
func (s *store) ensureShards(ctx context.Context) error {
	if s.agreed.Load() {
		return nil
	}
	stored, err := s.storedShards(ctx) // a full Redis refuses SET, also with NX
	if err == nil && stored == "" {
		key := s.keyspace.ShardsKey()
		if err := s.client.SetNX(ctx, key, s.keyspace.Count(), 0).Err(); err != nil {
			return fmt.Errorf("set %s: %w", key, scriptError(err))
		}
		stored, err = s.storedShards(ctx)
	}
	if err == nil {
		err = s.keyspace.Agree(stored)
	}
	s.agreed.Store(err == nil)
	return err
}

// storedShards returns the number of shards in Redis, "" if nothing was written yet.
func (s *store) storedShards(ctx context.Context) (string, error) {
	if err := s.keyspace.Check(); err != nil {
		return "", fmt.Errorf("%w %w", ErrInvalid, err)
	}
	stored, err := s.client.Get(ctx, s.keyspace.ShardsKey()).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", fmt.Errorf("read %s: %w", s.keyspace.ShardsKey(), err)
	}
	return stored, nil
}

// checkShards returns an error if Redis has a different number of shards.
func (s *store) checkShards(ctx context.Context) error {
	stored, err := s.storedShards(ctx)
	if err != nil {
		return err
	}
	return s.keyspace.Agree(stored)
}
