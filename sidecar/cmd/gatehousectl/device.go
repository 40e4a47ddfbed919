package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gatehouse/gatehouse/edge/wire/limits"
	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/publish"
)

type devicePutCmd struct {
	ID          string    `arg:"" help:"The device's id."`
	SecretFile  string    `required:"" placeholder:"F" help:"The secret, 1 to 72 bytes, without one line end after it; - is standard input."`
	Permissions []string  `sep:"," placeholder:"NAME" help:"Permissions of the device; they replace the previous ones."`
	Cost        int       `default:"12" help:"bcrypt cost, 4 to 15, at most the sidecars' bcrypt.max-cost: each step doubles the time of a verification."`
	NotAfter    time.Time `placeholder:"TIME" help:"Refuse the device from then on, such as 2030-01-31T00:00:00Z. Default: never; this replaces the previous setting."`
}

// Run registers the device.
func (cmd *devicePutCmd) Run(c *console) error {
	if cmd.Cost < contract.MinCost || cmd.Cost > contract.MaxCost {
		return usagef("--cost %d: is out of %d to %d", cmd.Cost, contract.MinCost, contract.MaxCost)
	}
	const maxFile = 4096 // up to here a secret is refused with its own size
	secret, err := c.read(cmd.SecretFile, maxFile, fmt.Sprintf("a secret (at most %d)", limits.MaxSecret))
	if err != nil {
		return err
	}
	if line, found := bytes.CutSuffix(secret, []byte("\n")); found {
		secret = bytes.TrimSuffix(line, []byte("\r"))
	}
	if len(secret) == 0 {
		return usagef("--secret-file %s: is empty, want a secret of 1 to %d bytes", cmd.SecretFile, limits.MaxSecret)
	}
	return c.connect(func(ctx context.Context, p *publish.Publisher) error {
		receipt, err := p.PutDevice(ctx, publish.Device{
			ID: cmd.ID, Secret: string(secret), Permissions: cmd.Permissions, NotAfter: cmd.NotAfter, Cost: cmd.Cost,
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(c.stdout, "%s: version %d\n", cmd.ID, receipt.Version)
		return nil
	})
}

type deviceRevokeCmd struct {
	ID    string `arg:"" optional:"" help:"The device's id."`
	Force bool   `help:"Also revoke a device that is not in Redis, so that edges that still have it from before a loss of data forget it."`
	All   bool   `help:"Revoke every device, also those of which Redis has only a log entry. Prints how many were revoked now. To accept a device again, run device put with its secret."`
}

// Run revokes the device, or all.
func (cmd *deviceRevokeCmd) Run(c *console) error {
	if cmd.All == (cmd.ID != "") {
		return usagef("device revoke: give a device's id, or --all for every device")
	}
	if cmd.All && cmd.Force {
		return usagef("device revoke: --force is for a device's id; --all has no others to find")
	}
	return c.connect(func(ctx context.Context, p *publish.Publisher) error {
		if cmd.All {
			count, err := p.RevokeAll(ctx)
			if err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "all devices: %d revoked\n", count)
			return nil
		}
		revoke := p.RevokeDevice
		if cmd.Force {
			revoke = p.ForceRevokeDevice
		}
		receipt, err := revoke(ctx, cmd.ID)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.stdout, "%s: revoked, version %d\n", cmd.ID, receipt.Version)
		return nil
	})
}

type deviceListCmd struct{}

// Run lists the devices; a damaged record has its own state, and fails the command.
func (cmd *deviceListCmd) Run(c *console) error {
	return c.connect(func(ctx context.Context, p *publish.Publisher) error {
		devices := map[string]contract.Credential{} // by id: one may come twice
		damaged := map[string]error{}
		for device, err := range p.ListDevices(ctx) {
			if err != nil && !errors.Is(err, publish.ErrCorrupt) {
				return err
			}
			devices[device.ID] = device
			delete(damaged, device.ID)
			if err != nil {
				damaged[device.ID] = err
			}
		}
		w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "ID\tVERSION\tSTATE\tNOT-AFTER\tPERMISSIONS")
		var errs []error
		for _, id := range slices.Sorted(maps.Keys(devices)) {
			d := devices[id]
			state, notAfter := "enabled", "-"
			if d.NotAfterMS != 0 {
				notAfter = timestamp(d.NotAfterMS)
			}
			switch {
			case damaged[id] != nil:
				state = "corrupt"
				errs = append(errs, damaged[id])
			case d.Disabled:
				state = "revoked"
			case d.NotAfterMS != 0 && d.NotAfterMS <= time.Now().UnixMilli():
				state = "expired"
			}
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", id, d.Version, state, notAfter, strings.Join(d.Permissions, ","))
		}
		return errors.Join(append(errs, w.Flush())...)
	})
}
