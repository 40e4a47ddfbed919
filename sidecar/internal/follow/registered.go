package follow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

const (
	// registeredTimeout bounds [Group.Registered]: its caller waits, and continues without an answer.
	registeredTimeout = 200 * time.Millisecond
	// maxLookups bounds concurrent calls: the followers need connections, too.
	maxLookups = 4
	// maxRegistered bounds the devices that wait to be read because Redis has their records. Further devices are looked
	// up again.
	maxRegistered = 64
)

var errRecentFailure = errors.New("redis did not answer a moment ago")

// Registered reports whether Redis has a record of a device, and no tombstone. If so, the follower reads the record:
// the record's event may be on its way, or somebody has forged an event of the device, or its entry in the log.
func (g *Group) Registered(ctx context.Context, id string) (bool, error) {
	f := g.followers[g.keyspace.Of(id)]
	applied, err := g.Applied(f.Shard)
	switch {
	case err != nil:
		return false, err
	case !f.registeredBreaker.AllowCall(time.Now()):
		return false, errRecentFailure
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), registeredTimeout)
	defer cancel()
	registered, err := g.lookUpRecord(ctx, f, id, applied)
	f.registeredBreaker.RecordResult(err != nil, time.Now())
	if err != nil {
		return false, fmt.Errorf("look for the record of a device: %w", err)
	}
	if registered {
		select {
		case f.grants.registered <- contract.CredentialMember(id):
		default:
		}
	}
	return registered, nil
}

// lookUpRecord calls askRegistered with a free slot of lookupSlots.
func (g *Group) lookUpRecord(ctx context.Context, f *Follower, id string, after contract.Link) (bool, error) {
	select {
	case g.lookupSlots <- struct{}{}:
		defer func() { <-g.lookupSlots }()
		return f.askRegistered(ctx, id, after)
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// askRegistered asks a server that has the write after.
func (f *Follower) askRegistered(ctx context.Context, id string, after contract.Link) (bool, error) {
	pipe := f.client.Pipeline()
	proof := AskProof(ctx, pipe, f.keys, after)
	record := pipe.HMGet(ctx, f.keys.CredentialKey(id), contract.FieldDeleted, contract.FieldVersion)
	if err := Unsent(pipe.Exec(ctx)); err != nil {
		return false, err
	}
	if err := proof.Err(); err != nil {
		return false, err
	}
	values, err := record.Result()
	switch {
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return true, nil // a malformed record
	case err != nil:
		return false, err
	}
	return values[0] == nil && values[1] != nil, nil
}
