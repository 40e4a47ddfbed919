package publish

import (
	"context"
	"errors"
	"fmt"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

// InvalidateDevice ends the verdicts of an authority on a device: at the device's next request, the authority is asked
// again. [ErrInvalid]: the device has a record, so Gatehouse itself decides.
func (p *Publisher) InvalidateDevice(ctx context.Context, id string) (Receipt, error) {
	if contract.IsInvalidation(id) {
		return Receipt{}, fmt.Errorf("invalidate device: %w",
			refuse("device %q: ids that begin with %s are for invalidations", id, contract.InvalidateAll))
	}
	return p.writeInvalidation(ctx, id)
}

// InvalidateAll is [Publisher.InvalidateDevice] for all devices without a record.
func (p *Publisher) InvalidateAll(ctx context.Context) (Receipt, error) {
	return p.writeInvalidation(ctx, contract.InvalidateAll)
}

// InvalidateLabel is [Publisher.InvalidateDevice] for all devices with a label from the authority.
func (p *Publisher) InvalidateLabel(ctx context.Context, name, value string) (Receipt, error) {
	if err := contract.CheckLabel(name, value); err != nil {
		return Receipt{}, fmt.Errorf("invalidate devices: %w", refuse("%w", err))
	}
	return p.writeInvalidation(ctx, contract.InvalidateLabel(name, value))
}

// writeInvalidation writes a tombstone if no record exists.
func (p *Publisher) writeInvalidation(ctx context.Context, id string) (receipt Receipt, err error) {
	m := contract.CredentialMember(id)
	if err := checkMember(m); err != nil {
		return Receipt{}, fmt.Errorf("invalidate device: %w", err)
	}
	for range attempts {
		if receipt, err = p.tryInvalidation(ctx, m); !errors.Is(err, ErrStale) {
			break
		}
	}
	if err != nil {
		return Receipt{}, fmt.Errorf("invalidate device %q: %w", id, err)
	}
	return receipt, nil
}

// tryInvalidation attempts writeInvalidation once. [ErrStale]: a record was written meanwhile.
func (p *Publisher) tryInvalidation(ctx context.Context, m contract.Member) (Receipt, error) {
	state, err := p.reader.readState(ctx, m)
	if err != nil {
		return Receipt{}, err
	}
	if state.exists {
		return Receipt{}, refuse("it has a record, which decides about it: revoke or delete the device")
	}
	fields := requireVersion(contract.Credential{Deleted: true}.Fields(), state.version)
	return p.writer.writeRecord(ctx, replace, m, fields)
}
