package follow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// registeredTimeout bounds [Group.Registered]: its caller waits, and continues without an answer.
var registeredTimeout = 200 * time.Millisecond

const (
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
	f := g.devices[g.keyspace.Of(id)]
	applied, err := f.lastApplied()
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
