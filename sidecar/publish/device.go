package publish

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/edge/wire/limits"
	"github.com/gatehouse/gatehouse/sidecar/contract"
)

// DefaultCost is the default bcrypt cost of a secret's hash.
const DefaultCost = 12

// Device is a device's credential. Exactly one of Secret and Hashes is required.
type Device struct {
	// ID is the device id (limits.ValidDeviceID).
	ID string
	// Secret is hashed with bcrypt, or with Pepper (limits.ValidSecret, contract.CheckSecret).
	Secret string
	// Hashes are existing hashes of any scheme (contract.ParseHash), 1 to contract.MaxHashes. The contract tells which
	// secrets they must not be of.
	Hashes []string
	// Permissions are names (limits.ValidPermission), at most limits.MaxPermissions.
	Permissions []string
	// NotAfter is the time from which the device is refused, in milliseconds; zero means never.
	NotAfter time.Time
	// Labels are for operators (contract.CheckLabel), at most contract.MaxLabels.
	Labels map[string]string
	// Version must exceed the stored one; 0 means the next one.
	Version uint64
	// Cost is the bcrypt cost of Secret, contract.MinCost to contract.MaxCost; 0 means [DefaultCost].
	Cost int
	// Pepper, if any, stores Secret, which must be generated ([NewSecret]), as gh1.
	Pepper *contract.Pepper
}

// PutDevice registers d, or replaces its stored record, even a revoked one.
func (p *Publisher) PutDevice(ctx context.Context, d Device) (Receipt, error) {
	if err := d.check(); err != nil {
		return Receipt{}, fmt.Errorf("put device: %w", err)
	}
	record := contract.Credential{Version: d.Version, Hashes: d.Hashes, Permissions: distinct(d.Permissions),
		Labels: d.Labels}
	if !d.NotAfter.IsZero() {
		record.NotAfterMS = d.NotAfter.UnixMilli()
	}
	if d.Secret != "" {
		hash, err := hashOf(d.Secret, d.Cost, d.Pepper)
		if err != nil {
			return Receipt{}, fmt.Errorf("put device %q: %w", d.ID, err)
		}
		record.Hashes = []string{hash}
	}
	receipt, err := p.write(ctx, replace, contract.CredentialMember(d.ID), record.Fields())
	if err != nil {
		return Receipt{}, fmt.Errorf("put device %q: %w", d.ID, err)
	}
	return receipt, nil
}

// hashOf returns the hash of a secret: gh1 with a pepper, otherwise bcrypt, where a cost of 0 means [DefaultCost].
func hashOf(secret string, cost int, pepper *contract.Pepper) (string, error) {
	if pepper != nil {
		return pepper.Hash(secret)
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(secret), cmp.Or(cost, DefaultCost))
	return string(hash), err
}

// distinct returns names in byte order, each once.
func distinct(names []string) []string {
	names = slices.Clone(names)
	slices.Sort(names)
	return slices.Compact(names)
}

func (d Device) check() error {
	if err := checkMember(contract.CredentialMember(d.ID)); err != nil {
		return err
	}
	switch {
	case (d.Secret == "") == (len(d.Hashes) == 0):
		return refuse("device %q: give a secret of 1 to %d bytes, or hashes", d.ID, limits.MaxSecret)
	case len(d.Secret) > limits.MaxSecret:
		return refuse("secret of %q: %d bytes, at most %d are allowed: bcrypt reads no more", d.ID,
			len(d.Secret), limits.MaxSecret)
	case d.Secret != "" && !limits.ValidSecret(d.Secret):
		return refuse("secret of %q: has a NUL, line end or other control character, a blank at an end, or a byte order "+
			"mark, which no header can carry", d.ID)
	case d.Secret == "" && d.Pepper != nil:
		return refuse("device %q: a pepper is for a secret, not for hashes", d.ID)
	case d.Pepper != nil && !contract.Generated(d.Secret):
		return refuse("secret of %q: only generated ones can be stored as gh1", d.ID)
	case d.Cost != 0 && (d.Cost < contract.MinCost || d.Cost > contract.MaxCost):
		return refuse("cost %d of %q: is out of %d to %d", d.Cost, d.ID, contract.MinCost, contract.MaxCost)
	case len(d.Hashes) > contract.MaxHashes:
		return refuse("hashes of %q: %d, at most %d are allowed", d.ID, len(d.Hashes), contract.MaxHashes)
	case d.Version == limits.MaxVersion:
		return refuse("version %d of %q: leave one for its revocation", d.Version, d.ID)
	case !d.NotAfter.IsZero() && (d.NotAfter.UnixMilli() < 1 || d.NotAfter.UnixMilli() > limits.MaxVersion):
		return refuse("not-after %v of %q: want a time after 1970", d.NotAfter, d.ID)
	}
	if err := contract.CheckSecret(d.Secret); err != nil {
		return refuse("secret of %q: %w", d.ID, err)
	}
	for i, hash := range d.Hashes {
		if err := contract.CheckHash(hash); err != nil {
			return refuse("hash %d of %q: %w", i+1, d.ID, err)
		}
	}
	if err := checkNames(d.ID, d.Permissions, d.Labels); err != nil {
		return err
	}
	return checkVersion(d.Version)
}

// checkNames checks the permissions and labels of a device.
func checkNames(id string, permissions []string, labels map[string]string) error {
	for _, name := range permissions {
		if !limits.ValidPermission(name) {
			return refuse("permission %q of %q: want 1 to %d of letters, digits and . _ : -", name, id,
				limits.MaxPermissionName)
		}
	}
	if n := len(permissions); n > limits.MaxPermissions {
		return refuse("permissions of %q: %d names, at most %d are allowed", id, n, limits.MaxPermissions)
	}
	for name, value := range labels {
		if err := contract.CheckLabel(name, value); err != nil {
			return refuse("device %q: %w", id, err)
		}
	}
	if n := len(labels); n > contract.MaxLabels {
		return refuse("labels of %q: %d, at most %d are allowed", id, n, contract.MaxLabels)
	}
	return nil
}

// ListDevices yields the credentials of all devices, in each shard the oldest write first. A device that is written
// meanwhile may be yielded twice, the newer record later. For a record that the contract does not allow, it yields the
// ID with an [ErrCorrupt] and continues; any other error ends the list.
func (p *Publisher) ListDevices(ctx context.Context) iter.Seq2[contract.Credential, error] {
	return func(yield func(contract.Credential, error) bool) {
		var failed error
		err := p.members(ctx, contract.KindCredential, func(members []contract.Member) bool {
			var records []*redis.MapStringStringCmd
			if records, failed = p.records(ctx, members); failed != nil {
				return false
			}
			for i, record := range records {
				c, err := parseDevice(members[i].ID, record)
				if !c.Deleted && !yield(c, err) {
					return false
				}
			}
			return true
		})
		if err == nil {
			err = failed
		}
		if err != nil {
			yield(contract.Credential{}, fmt.Errorf("list devices: %w", err))
		}
	}
}

// records reads the hashes of members in one round trip.
func (p *Publisher) records(ctx context.Context, members []contract.Member) ([]*redis.MapStringStringCmd, error) {
	if len(members) == 0 {
		return nil, nil
	}
	pipe := p.client.Pipeline()
	records := make([]*redis.MapStringStringCmd, len(members))
	for i, m := range members {
		records[i] = pipe.HGetAll(ctx, p.keyspace.KeysOf(m.ID).RecordKey(m))
	}
	return records, exec(ctx, pipe)
}

// parseDevice parses a record as read from Redis; it treats a missing one as a tombstone.
func parseDevice(id string, record *redis.MapStringStringCmd) (c contract.Credential, err error) {
	fields, err := record.Result()
	switch {
	case err == nil && len(fields) == 0:
		c.Deleted = true
	case err == nil:
		c, err = contract.ParseCredential(fields)
	}
	c.ID = id
	if err != nil {
		return c, fmt.Errorf("device %q: %w: %w", id, ErrCorrupt, err)
	}
	return c, nil
}
