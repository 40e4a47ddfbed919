package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/crypto/bcrypt"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/passhash"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
)

// DefaultCost is the default bcrypt cost of a secret's hash.
const DefaultCost = 12

// Device is a device's credential. Exactly one of Secret and Hashes is required. A disabled device may have neither.
type Device struct {
	// ID is the device id (limits.ValidDeviceID).
	ID string
	// Secret is hashed with bcrypt, or with Pepper (limits.ValidSecret, contract.CheckSecret).
	Secret string
	// Hashes are existing hashes of any scheme (contract.ParseHash), 1 to contract.MaxHashes. The contract excludes hashes
	// of some secrets.
	Hashes []string
	// OldUntil is the time from which only the first hash counts, in milliseconds; zero means never.
	OldUntil time.Time
	// Disabled means that the device is refused with any credential, Revoked that a revocation disabled the device.
	Disabled, Revoked bool
	// Permissions are names (limits.ValidPermission), at most limits.MaxPermissions.
	Permissions []string
	// NotAfter is the time from which the device is refused, in milliseconds; zero means never.
	NotAfter time.Time
	// Labels are for operators (contract.CheckLabel), at most contract.MaxLabels.
	Labels map[string]string
	// Version must exceed the stored version; 0 means the next version.
	Version uint64
	// Cost is the bcrypt cost of Secret, contract.MinCost to contract.MaxCost; 0 means [DefaultCost].
	Cost int
	// Pepper, if not nil, stores Secret as gh1. Secret must be generated ([NewSecret]).
	Pepper *contract.Pepper
}

// PutDevice registers d, or replaces the stored record, even of a revoked device.
func (p *Publisher) PutDevice(ctx context.Context, d Device) (Receipt, error) {
	m, err := d.newMutation(replace)
	if err != nil {
		return Receipt{}, fmt.Errorf("put device: %w", err)
	}
	receipt, err := p.writer.writeRecord(ctx, m.mode, m.member, m.fields)
	if err != nil {
		return Receipt{}, fmt.Errorf("put device %q: %w", d.ID, err)
	}
	return receipt, nil
}

// AddDevices registers devices with different ids, some hundreds in a round trip to each server, and returns a result
// for each device. A device whose record already equals d is not written: Seq is 0. A device with a different record,
// even a revoked one, or a tombstone, gets [ErrExists]; with force, the record is replaced, as by
// [Publisher.PutDevice]. A call that failed, or has an unknown outcome, can be repeated. Hash secrets before the call
// by [HashSecret]: each hash of the same secret differs.
func (p *Publisher) AddDevices(ctx context.Context, devices []Device, force bool) []Result {
	results := make([]Result, len(devices))
	write := func(mode string, these []int) {
		var mutations []mutation
		var written []int
		for _, i := range these {
			m, err := devices[i].newMutation(mode)
			if err != nil {
				results[i].Err = err
				continue
			}
			mutations, written = append(mutations, m), append(written, i)
		}
		for n, r := range p.writer.writeAll(ctx, mutations) {
			results[written[n]] = r
		}
	}
	all, others := make([]int, len(devices)), []int(nil)
	for i := range all {
		all[i] = i
	}
	write(add, all)
	for i, r := range results {
		if errors.Is(r.Err, ErrExists) {
			others = append(others, i)
		}
	}
	if force && len(others) > 0 {
		write(replace, others)
	}
	for i, r := range results {
		if r.Err != nil {
			results[i].Err = fmt.Errorf("device %q: %w", devices[i].ID, r.Err)
		}
	}
	return results
}

// newMutation returns the write of d, or an error if d is invalid.
func (d Device) newMutation(mode string) (mutation, error) {
	if err := d.Check(); err != nil {
		return mutation{}, err
	}
	record := contract.Credential{Version: d.Version, Disabled: d.Disabled, Revoked: d.Revoked, Hashes: d.Hashes,
		Permissions: distinctNames(d.Permissions), Labels: d.Labels}
	if !d.NotAfter.IsZero() {
		record.NotAfterMS = d.NotAfter.UnixMilli()
	}
	if !d.OldUntil.IsZero() {
		record.OldUntilMS = d.OldUntil.UnixMilli()
	}
	if d.Secret != "" {
		hash, err := HashSecret(d.Secret, d.Cost, d.Pepper)
		if err != nil {
			return mutation{}, fmt.Errorf("device %q: %w", d.ID, err)
		}
		record.Hashes = []string{hash}
	}
	return mutation{mode: mode, member: contract.CredentialMember(d.ID), fields: record.Fields()}, nil
}

// HashSecret returns the hash of a secret, for [Device]: gh1 with a pepper, otherwise bcrypt, where a cost of 0 means
// [DefaultCost].
func HashSecret(secret string, cost int, pepper *contract.Pepper) (string, error) {
	if pepper != nil {
		return pepper.Hash(secret)
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(secret), cmp.Or(cost, DefaultCost))
	return string(hash), err
}

// Matches reports whether a secret is right for a hash. gh1 hashes need their pepper. The time depends on the hash's
// scheme.
func Matches(hash, secret string, pepper *contract.Pepper) bool {
	return passhash.Compare(hash, secret) == nil || pepper != nil && pepper.Matches(hash, secret)
}

// distinctNames returns names in byte order, each once.
func distinctNames(names []string) []string {
	names = slices.Clone(names)
	slices.Sort(names)
	return slices.Compact(names)
}

// Check returns an [ErrInvalid] if the contract does not allow d.
func (d Device) Check() error {
	if err := checkMember(contract.CredentialMember(d.ID)); err != nil {
		return err
	}
	switch {
	case contract.IsInvalidation(d.ID):
		return refuse("device %q: ids that begin with %s are for invalidations", d.ID, contract.InvalidateAll)
	case d.Secret != "" && len(d.Hashes) > 0, d.Secret == "" && len(d.Hashes) == 0 && !d.Disabled:
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
	case !d.NotAfter.IsZero() && (d.NotAfter.UnixMilli() < 1 || d.NotAfter.UnixMilli() > limits.MaxVersion):
		return refuse("not-after %v of %q: want a time after 1970", d.NotAfter, d.ID)
	case !d.OldUntil.IsZero() && (d.OldUntil.UnixMilli() < 1 || d.OldUntil.UnixMilli() > limits.MaxVersion):
		return refuse("old-until %v of %q: want a time after 1970", d.OldUntil, d.ID)
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
			return refuse("permission %.64q of %q: want 1 to %d of letters, digits and . _ : -", name, id,
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

// ListDevices yields the credentials of all devices, in each shard the oldest write first. A device written meanwhile
// may be yielded twice, the newer record later. A record that the contract does not allow yields the ID with
// [ErrCorrupt], and ListDevices continues; any other error ends the list.
func (p *Publisher) ListDevices(ctx context.Context) iter.Seq2[contract.Credential, error] {
	return func(yield func(contract.Credential, error) bool) {
		var failed error
		err := p.reader.visitMembers(ctx, contract.KindCredential, func(members []contract.Member) bool {
			var records []*redis.MapStringStringCmd
			if records, failed = p.reader.readRecords(ctx, members); failed != nil {
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

// parseDevice parses a record as read from Redis. A missing record counts as a tombstone.
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

// readRecords reads the hashes of members in one round trip.
func (r reader) readRecords(ctx context.Context, members []contract.Member) ([]*redis.MapStringStringCmd, error) {
	if len(members) == 0 {
		return nil, nil
	}
	pipe := r.client.Pipeline()
	records := make([]*redis.MapStringStringCmd, len(members))
	for i, m := range members {
		records[i] = pipe.HGetAll(ctx, r.keyspace.KeysOf(m.ID).RecordKey(m))
	}
	return records, redisurl.ExecPipeline(ctx, pipe)
}
