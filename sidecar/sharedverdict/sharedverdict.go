// Package sharedverdict writes to Redis that secrets of devices are right, as a sidecar does that has run bcrypt and
// was given the fleet's secret (--verdict.secret-file). It is for programs that know the right secrets and can't run
// bcrypt for each: a load test with a million devices.
package sharedverdict

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/credential"
	"github.com/gatehouse/gatehouse/sidecar/internal/fleet"
)

// Verdict states that Secret matches Hash, the only hash of a version of a device's record.
type Verdict struct {
	Device, Secret string
	Version        uint64
	Hash           string
	// Until is the end of its validity; sidecars use their own --verdict.pin-ttl if that ends sooner.
	Until time.Time
}

// Put writes verdicts in one round trip. fleetSecret is the content of the sidecars' file, without white space at its
// ends.
func Put(ctx context.Context, client redis.UniversalClient, fleetSecret []byte, shards contract.Shards, verdicts []Verdict) error {
	_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range verdicts {
			v := &verdicts[i]
			c := credential.Question{Device: v.Device, Secret: v.Secret, Version: v.Version, Hashes: []string{v.Hash}}
			fleet.Put(ctx, p, fleetSecret, shards, &c, &credential.Match{Hash: v.Hash, Until: v.Until})
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("share %d verdicts: %w", len(verdicts), err)
	}
	return nil
}
