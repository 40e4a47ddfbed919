package publish

import (
	"context"
	"errors"
	"fmt"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// InvalidateDevice ends the verdicts of an authority on a device: the authority is asked again at its next request. It
// returns [ErrInvalid] if the device has a record, by which Gatehouse itself decides.
func (p *Publisher) InvalidateDevice(ctx context.Context, id string) (Receipt, error) {
	if contract.IsInvalidation(id) {
		return Receipt{}, fmt.Errorf("invalidate device: %w",
			refuse("device %q: ids that begin with %s are for invalidations", id, contract.InvalidateAll))
	}
	return p.invalidate(ctx, id)
}

// InvalidateAll is [Publisher.InvalidateDevice] for all devices without a record.
func (p *Publisher) InvalidateAll(ctx context.Context) (Receipt, error) {
	return p.invalidate(ctx, contract.InvalidateAll)
}

// InvalidateLabel is [Publisher.InvalidateDevice] for the devices to which the authority gave a label.
func (p *Publisher) InvalidateLabel(ctx context.Context, name, value string) (Receipt, error) {
	if err := contract.CheckLabel(name, value); err != nil {
		return Receipt{}, fmt.Errorf("invalidate devices: %w", refuse("%w", err))
	}
	return p.invalidate(ctx, contract.InvalidateLabel(name, value))
}

// invalidate writes a tombstone where there is no record.
func (p *Publisher) invalidate(ctx context.Context, id string) (receipt Receipt, err error) {
	m := contract.CredentialMember(id)
	if err := checkMember(m); err != nil {
		return Receipt{}, fmt.Errorf("invalidate device: %w", err)
	}
	for range attempts {
		if receipt, err = p.outdate(ctx, m); !errors.Is(err, ErrStale) {
			break
		}
	}
	if err != nil {
		return Receipt{}, fmt.Errorf("invalidate device %q: %w", id, err)
	}
	return receipt, nil
}

// outdate is one attempt of invalidate. If a record was written meanwhile it returns [ErrStale].
func (p *Publisher) outdate(ctx context.Context, m contract.Member) (Receipt, error) {
	state, err := p.state(ctx, m)
	if err != nil {
		return Receipt{}, err
	}
	if state.there {
		return Receipt{}, refuse("it has a record, which decides about it: revoke or delete the device")
	}
	return p.write(ctx, replace, m, after(contract.Credential{Deleted: true}.Fields(), state.version))
}
