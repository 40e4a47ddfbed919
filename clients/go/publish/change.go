package publish

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/apikey"
	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// GetDevice returns a device's credential. [ErrNotFound]: no such device. [ErrCorrupt]: the contract does not allow the
// stored record.
func (p *Publisher) GetDevice(ctx context.Context, id string) (contract.Credential, error) {
	c, err := p.reader.readDevice(ctx, id)
	if err != nil {
		return contract.Credential{}, fmt.Errorf("get device: %w", err)
	}
	return c, nil
}

// GetDevices yields the credentials of ids in order, read in one round trip to each server. A missing device, or a
// record that the contract does not allow, yields the ID with [ErrNotFound] or [ErrCorrupt], and GetDevices continues;
// any other error ends the iteration.
func (p *Publisher) GetDevices(ctx context.Context, ids []string) iter.Seq2[contract.Credential, error] {
	return func(yield func(contract.Credential, error) bool) {
		members := make([]contract.Member, len(ids))
		for i, id := range ids {
			members[i] = contract.CredentialMember(id)
		}
		err := p.checkShards(ctx)
		var records []*redis.MapStringStringCmd
		if err == nil {
			records, err = p.reader.readRecords(ctx, members)
		}
		if err != nil {
			yield(contract.Credential{}, fmt.Errorf("get devices: %w", err))
			return
		}
		for i, record := range records {
			c, err := parseDevice(ids[i], record)
			if err == nil && c.Deleted {
				err = fmt.Errorf("device %q: %w", ids[i], ErrNotFound)
			}
			if !yield(c, err) {
				return
			}
		}
	}
}

// ChangeDevice changes a device's record by change, and keeps the rest. If version is not 0 and not the stored version,
// ChangeDevice returns [ErrStale]. If version is 0 and the record is written meanwhile, change is called again with the
// newer record. Other errors: [ErrNotFound] for a missing device, and the error of change.
func (p *Publisher) ChangeDevice(ctx context.Context, id string, version uint64,
	change func(*contract.Credential) error) (receipt Receipt, err error) {
	for range attempts {
		if receipt, err = p.tryChange(ctx, id, version, change); version != 0 || !errors.Is(err, ErrStale) {
			break
		}
	}
	if err != nil {
		return Receipt{}, fmt.Errorf("change device: %w", err)
	}
	return receipt, nil
}

func (p *Publisher) tryChange(ctx context.Context, id string, version uint64,
	change func(*contract.Credential) error) (Receipt, error) {
	c, err := p.reader.readDevice(ctx, id)
	if err != nil {
		return Receipt{}, err
	}
	if version != 0 && c.Version != version {
		return Receipt{}, fmt.Errorf("%w: device %q has version %d, want %d", ErrStale, id, c.Version, version)
	}
	if err := change(&c); err != nil {
		return Receipt{}, err
	}
	c.Permissions = distinctNames(c.Permissions)
	if err := checkNames(id, c.Permissions, c.Labels); err != nil {
		return Receipt{}, err
	}
	fields := requireVersion(c.Fields(), c.Version)
	receipt, err := p.writer.writeRecord(ctx, replace, contract.CredentialMember(id), fields)
	if err != nil {
		return Receipt{}, fmt.Errorf("device %q: %w", id, err)
	}
	return receipt, nil
}

// Rotation gives a device a new secret.
type Rotation struct {
	// ID is the device id.
	ID string
	// Secret is the new secret (limits.ValidSecret).
	Secret string
	// Overlap is how long the previous secret stays valid, in milliseconds, by the clocks of this writer and of the edges;
	// 0: it ends at once. Older secrets end in any case.
	Overlap time.Duration
	// Version is the required version of the stored record; 0: any.
	Version uint64
	// Cost is the bcrypt cost, contract.MinCost to contract.MaxCost; 0 means [DefaultCost].
	Cost int
	// Pepper, if any, stores the secret as gh1, not bcrypt.
	Pepper *contract.Pepper
}

// RotateDevice makes the secret of r valid. The previous secret stays valid until the overlap ends. A revoked device
// stays revoked. [ErrNotFound]: the device does not exist. [ErrInvalid]: the device has the new secret already.
func (p *Publisher) RotateDevice(ctx context.Context, r Rotation) (Receipt, error) {
	device := Device{ID: r.ID, Secret: r.Secret, Cost: r.Cost, Pepper: r.Pepper}
	if err := device.Check(); err != nil {
		return Receipt{}, fmt.Errorf("rotate device: %w", err)
	}
	if r.Overlap != 0 && r.Overlap < time.Millisecond {
		return Receipt{}, fmt.Errorf("rotate device: %w",
			refuse("overlap %v of %q: want 0, or a millisecond at least", r.Overlap, r.ID))
	}
	hash, err := HashSecret(r.Secret, r.Cost, r.Pepper)
	if err != nil {
		return Receipt{}, fmt.Errorf("rotate device %q: %w", r.ID, err)
	}
	receipt, err := p.ChangeDevice(ctx, r.ID, r.Version, func(c *contract.Credential) error {
		before := c.Hashes[:min(1, len(c.Hashes))]
		for _, hash := range before {
			if Matches(hash, r.Secret, r.Pepper) {
				return refuse("secret of %q: is the current one", r.ID)
			}
		}
		c.Hashes, c.OldUntilMS = []string{hash}, 0
		if r.Overlap > 0 && len(before) > 0 {
			c.Hashes = append(c.Hashes, before...)
			c.OldUntilMS = time.Now().Add(r.Overlap).UnixMilli()
		}
		return nil
	})
	if err != nil {
		return Receipt{}, fmt.Errorf("rotate device: %w", err)
	}
	return receipt, nil
}

// NewSecret returns [contract.NewSecret].
func NewSecret() string { return contract.NewSecret() }

// APIKey returns the API key of a device with a secret from [NewSecret]. ok is false for other secrets and for invalid
// ids.
func APIKey(id, secret string) (key string, ok bool) { return apikey.Of(id, secret) }

func (r reader) readDevice(ctx context.Context, id string) (contract.Credential, error) {
	m := contract.CredentialMember(id)
	if err := checkMember(m); err != nil {
		return contract.Credential{}, err
	}
	records, err := r.readRecords(ctx, []contract.Member{m})
	if err != nil {
		return contract.Credential{}, err
	}
	c, err := parseDevice(id, records[0])
	if err == nil && c.Deleted {
		if err = r.checkShards(ctx); err == nil { // a different number of shards would mean a different shard
			err = fmt.Errorf("device %q: %w", id, ErrNotFound)
		}
	}
	return c, err
}
