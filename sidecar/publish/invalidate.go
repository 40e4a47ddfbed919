package publish

import (
	"context"
	"fmt"

	"github.com/gatehouse/gatehouse/sidecar/contract"
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

// invalidate writes a tombstone. A record that is written meanwhile is deleted, as by [Publisher.DeleteDevice].
func (p *Publisher) invalidate(ctx context.Context, id string) (Receipt, error) {
	m := contract.CredentialMember(id)
	err := checkMember(m)
	if err == nil {
		var state state
		if state, err = p.state(ctx, m); err == nil && state.there {
			err = refuse("device %q has a record, which decides about it: revoke or delete the device", id)
		}
	}
	if err != nil {
		return Receipt{}, fmt.Errorf("invalidate device: %w", err)
	}
	receipt, err := p.write(ctx, replace, m, contract.Credential{Deleted: true}.Fields())
	if err != nil {
		return Receipt{}, fmt.Errorf("invalidate device %q: %w", id, err)
	}
	return receipt, nil
}
