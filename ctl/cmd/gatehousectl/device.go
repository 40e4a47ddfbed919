package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/publish"
)

// secretFlags give a device a secret.
type secretFlags struct {
	SecretFile string `xor:"secret" required:"" placeholder:"FILE" help:"The secret, 1 to 72 bytes, without one line end after it; - is standard input."`
	Generate   bool   `xor:"secret" required:"" help:"Make a secret of 128 random bits, and print it, and nothing else, to standard output; with --json in its object."`
	APIKey     bool   `name:"api-key" help:"With --generate: print the device's API key, which has its id and the secret, in place of the secret."`
	Cost       int    `default:"${cost}" help:"bcrypt cost, 4 to 15, at most the sidecars' bcrypt.max-cost: each step doubles the time of a verification."`

	pepperFlag `embed:""`
	jsonFlag   `embed:""`
}

// writtenDevice is the output of commands that write a device.
type writtenDevice struct {
	ID      string `json:"id"`
	Version uint64 `json:"version"`
	Secret  string `json:"secret,omitempty"`  // if generated
	APIKey  string `json:"api_key,omitempty"` // in place of Secret, with --api-key
}

// pepperFlag stores generated secrets as gh1.
type pepperFlag struct {
	PepperFile string `placeholder:"FILE" help:"Store generated secrets as gh1 by this pepper of the sidecars, not by bcrypt."`
}

// readPepper returns the pepper, or nil without the flag.
func (f *pepperFlag) readPepper(c *console) (*contract.Pepper, error) {
	if f.PepperFile == "" {
		return nil, nil
	}
	content, err := c.readInput(f.PepperFile, contract.MaxPepper, "a pepper")
	if err != nil {
		return nil, err
	}
	pepper, err := contract.NewPepper(content)
	if err != nil {
		return nil, usagef("--pepper-file %s: %w", f.PepperFile, err)
	}
	return &pepper, nil
}

// readSecret returns the secret.
func (f *secretFlags) readSecret(c *console) (string, error) {
	if f.Cost < contract.MinCost || f.Cost > contract.MaxCost {
		return "", usagef("--cost %d: is out of %d to %d", f.Cost, contract.MinCost, contract.MaxCost)
	}
	if f.Generate {
		return publish.NewSecret(), nil
	}
	if f.APIKey {
		return "", usagef("--api-key: needs --generate: only a generated secret has an API key")
	}
	const maxFile = 4096 // errors about larger secrets, up to this size, state the secret's size
	secret, err := c.readInput(f.SecretFile, maxFile, fmt.Sprintf("a secret (at most %d)", limits.MaxSecret))
	if err != nil {
		return "", err
	}
	if line, found := bytes.CutSuffix(secret, []byte("\n")); found {
		secret = bytes.TrimSuffix(line, []byte("\r"))
	}
	if len(secret) == 0 {
		return "", usagef("--secret-file %s: is empty, want a secret of 1 to %d bytes", f.SecretFile, limits.MaxSecret)
	}
	return string(secret), nil
}

// writeRecord calls write with the secret and the pepper, and prints the id, the version and a generated secret.
func (f *secretFlags) writeRecord(c *console, id string,
	write func(context.Context, *publish.Publisher, string, *contract.Pepper) (publish.Receipt, error)) error {
	pepper, err := f.readPepper(c)
	if err != nil {
		return err
	}
	secret, err := f.readSecret(c)
	if err != nil {
		return err
	}
	return c.withPublisher(func(ctx context.Context, p *publish.Publisher) error {
		receipt, err := write(ctx, p, secret, pepper)
		if err != nil {
			return err
		}
		wrote := writtenDevice{ID: id, Version: receipt.Version}
		switch {
		case f.APIKey:
			wrote.APIKey, _ = publish.APIKey(id, secret)
		case f.Generate:
			wrote.Secret = secret
		}
		if f.JSON || !f.Generate {
			return f.printResult(c, wrote, "%s: version %d\n", id, receipt.Version)
		}
		fmt.Fprintln(c.stdout, wrote.Secret+wrote.APIKey)
		fmt.Fprintf(c.stderr, "%s: version %d\n", id, receipt.Version)
		return nil
	})
}

type devicePutCmd struct {
	ID          string            `arg:"" help:"The device's id."`
	Permissions []string          `sep:"," placeholder:"NAME" help:"Permissions of the device; they replace the previous ones."`
	NotAfter    time.Time         `placeholder:"TIME" help:"Refuse the device from then on, such as 2030-01-31T00:00:00Z. Default: never; this replaces the previous setting."`
	Labels      map[string]string `name:"label" placeholder:"NAME=VALUE" mapsep:"," help:"Labels of the device, for operators; they replace the previous ones."`

	secretFlags `embed:""`
}

// Run registers the device.
func (cmd *devicePutCmd) Run(c *console) error {
	return cmd.writeRecord(c, cmd.ID, func(ctx context.Context, p *publish.Publisher, secret string,
		pepper *contract.Pepper) (publish.Receipt, error) {
		return p.PutDevice(ctx, publish.Device{ID: cmd.ID, Secret: secret, Permissions: cmd.Permissions,
			NotAfter: cmd.NotAfter, Labels: cmd.Labels, Cost: cmd.Cost, Pepper: pepper})
	})
}

// ifVersion makes a change conditional.
type ifVersion struct {
	IfVersion storedVersion `placeholder:"N" help:"Change nothing, and fail, unless the record has this version."`
}

type deviceRotateCmd struct {
	ID      string  `arg:"" help:"The device's id."`
	Overlap overlap `default:"24h" help:"How long the secret before stays valid beside the new one, such as 24h or 30d; 0: it ends at once. Older ones end in any case."`

	secretFlags `embed:""`
	ifVersion   `embed:""`
}

// overlap is a duration, perhaps in days.
type overlap time.Duration

// UnmarshalText parses a duration.
func (o *overlap) UnmarshalText(text []byte) error {
	d, err := parseDuration(string(text))
	*o = overlap(d)
	return err
}

// Run gives the device a new secret.
func (cmd *deviceRotateCmd) Run(c *console) error {
	return cmd.writeRecord(c, cmd.ID, func(ctx context.Context, p *publish.Publisher, secret string,
		pepper *contract.Pepper) (publish.Receipt, error) {
		return p.RotateDevice(ctx, publish.Rotation{ID: cmd.ID, Secret: secret, Overlap: time.Duration(cmd.Overlap),
			Version: uint64(cmd.IfVersion), Cost: cmd.Cost, Pepper: pepper})
	})
}

type deviceSetCmd struct {
	ID          string            `arg:"" help:"The device's id."`
	Permissions *[]string         `xor:"permissions" sep:"," placeholder:"NAME" help:"Permissions of the device, instead of those that it has; empty for none."`
	Add         []string          `xor:"permissions" sep:"," placeholder:"NAME" help:"Permissions to add."`
	Remove      []string          `sep:"," placeholder:"NAME" help:"Permissions to remove."`
	NotAfter    string            `placeholder:"TIME" help:"Refuse the device from then on, such as 2030-01-31T00:00:00Z; never: no end."`
	Labels      map[string]string `name:"label" placeholder:"NAME=VALUE" mapsep:"," help:"Labels to set; the others stay."`
	Unlabel     []string          `sep:"," placeholder:"NAME" help:"Labels to remove."`
	Disabled    *bool             `negatable:"" help:"Refuse the device; --no-disabled: accept it again, also after a revocation, with the secret that it has."`
	EndOverlap  bool              `help:"End the secret before at once, if a rotation lets it count still."`

	ifVersion `embed:""`
	jsonFlag  `embed:""`
}

// Run changes the fields that the flags name, and keeps the secret.
func (cmd *deviceSetCmd) Run(c *console) error {
	var notAfter time.Time
	if cmd.NotAfter != "" && cmd.NotAfter != "never" {
		var err error
		if notAfter, err = time.Parse(time.RFC3339, cmd.NotAfter); err != nil || notAfter.UnixMilli() < 1 {
			return usagef("--not-after %q: want never, or a time such as 2030-01-31T00:00:00Z", cmd.NotAfter)
		}
	}
	if cmd.Permissions == nil && len(cmd.Add)+len(cmd.Remove)+len(cmd.Labels)+len(cmd.Unlabel) == 0 &&
		cmd.NotAfter == "" && cmd.Disabled == nil && !cmd.EndOverlap {
		return usagef("device set: give what to change, such as --add NAME")
	}
	return c.withPublisher(func(ctx context.Context, p *publish.Publisher) error {
		receipt, err := p.ChangeDevice(ctx, cmd.ID, uint64(cmd.IfVersion), func(d *contract.Credential) error {
			if cmd.Permissions != nil {
				d.Permissions = slices.Clone(*cmd.Permissions)
			}
			d.Permissions = slices.DeleteFunc(append(d.Permissions, cmd.Add...), func(name string) bool {
				return slices.Contains(cmd.Remove, name)
			})
			for name, value := range cmd.Labels {
				if d.Labels == nil {
					d.Labels = map[string]string{}
				}
				d.Labels[name] = value
			}
			for _, name := range cmd.Unlabel {
				delete(d.Labels, name)
			}
			switch {
			case cmd.NotAfter == "never":
				d.NotAfterMS = 0
			case cmd.NotAfter != "":
				d.NotAfterMS = notAfter.UnixMilli()
			}
			if cmd.Disabled != nil {
				d.Disabled, d.Revoked = *cmd.Disabled, *cmd.Disabled && d.Revoked
			}
			if cmd.EndOverlap && d.OldUntilMS != 0 {
				d.Hashes, d.OldUntilMS = d.Hashes[:min(1, len(d.Hashes))], 0
			}
			return nil
		})
		if err != nil {
			return err
		}
		return cmd.printResult(c, writtenDevice{ID: cmd.ID, Version: receipt.Version}, "%s: version %d\n", cmd.ID,
			receipt.Version)
	})
}

type deviceDeleteCmd struct {
	ID    string `arg:"" help:"The device's id."`
	Force bool   `help:"Also delete a device that is not in Redis, so that a put in flight with an older version doesn't bring it back."`

	jsonFlag `embed:""`
}

// Run deletes the device.
func (cmd *deviceDeleteCmd) Run(c *console) error {
	return c.withPublisher(func(ctx context.Context, p *publish.Publisher) error {
		receipt, err := p.DeleteDevice(ctx, cmd.ID, cmd.Force)
		if err != nil {
			return err
		}
		return cmd.printResult(c, writtenDevice{ID: cmd.ID, Version: receipt.Version}, "%s: deleted, version %d\n", cmd.ID,
			receipt.Version)
	})
}

type deviceRevokeCmd struct {
	ID       string            `arg:"" optional:"" help:"The device's id."`
	Labels   map[string]string `name:"label" placeholder:"NAME=VALUE" mapsep:"," help:"Revoke every device with these labels. Prints how many were revoked now."`
	Force    bool              `help:"Also revoke a device that is not in Redis, so that edges that still have it from before a loss of data forget it."`
	All      bool              `help:"Revoke every device, also those of which Redis has only a log entry. Prints how many were revoked now."`
	Replicas int               `placeholder:"N" help:"Also wait, at most 5 s, until N replicas of Redis have the revocation: a failover to another one may undo it. Exit code 1 if fewer have it; it is in force then."`

	jsonFlag `embed:""`
}

// Run revokes the device, those with the labels, or all.
func (cmd *deviceRevokeCmd) Run(c *console) error {
	if countTrue(cmd.ID != "", cmd.Labels != nil, cmd.All) != 1 {
		return usagef("device revoke: give a device's id, --label NAME=VALUE, or --all for every device")
	}
	if cmd.ID == "" && cmd.Force {
		return usagef("device revoke: --force is for a device's id; --label and --all have no others to find")
	}
	if cmd.Replicas < 0 {
		return usagef("device revoke: --replicas %d: want 0 or more", cmd.Replicas)
	}
	c.redis.oneConnection = cmd.Replicas > 0
	return c.withClientAndPublisher(func(ctx context.Context, client redis.UniversalClient, p *publish.Publisher) error {
		confirm := confirmReplicas(ctx, client, c.redis.keyspace(client), cmd.Replicas)
		if cmd.ID == "" {
			what, revoke := "all devices", p.RevokeAll
			if cmd.Labels != nil {
				what = "devices with " + contract.FormatLabels(cmd.Labels)
				revoke = func(ctx context.Context) (int, error) { return revokeLabelled(ctx, p, cmd.Labels) }
			}
			count, err := revoke(ctx)
			if err != nil {
				return err
			}
			return errors.Join(cmd.printResult(c, map[string]any{"revoked": count}, "%s: %d revoked\n", what, count),
				confirm(""))
		}
		revoke := p.RevokeDevice
		if cmd.Force {
			revoke = p.ForceRevokeDevice
		}
		receipt, err := revoke(ctx, cmd.ID)
		if errors.Is(err, publish.ErrNotFound) {
			err = fmt.Errorf("%w; if your authority has it, register it first, or use device invalidate", err)
		}
		if err != nil {
			return err
		}
		return errors.Join(cmd.printResult(c, writtenDevice{ID: cmd.ID, Version: receipt.Version},
			"%s: revoked, version %d\n", cmd.ID, receipt.Version), confirm(cmd.ID))
	})
}

// revokeLabelled revokes each device with the labels, and returns how many were not revoked before.
func revokeLabelled(ctx context.Context, p *publish.Publisher, labels map[string]string) (count int, err error) {
	these := selection{Labels: labels}
	err = these.visitDevices(ctx, p, func(device contract.Credential, _ error) error {
		if device.Revoked {
			return nil
		}
		_, err := p.RevokeDevice(ctx, device.ID)
		if errors.Is(err, publish.ErrNotFound) { // deleted meanwhile
			return nil
		}
		if err == nil {
			count++
		}
		return err
	})
	return count, err
}

func countTrue(these ...bool) (n int) {
	for _, is := range these {
		if is {
			n++
		}
	}
	return n
}

type deviceInvalidateCmd struct {
	ID    string `arg:"" optional:"" help:"The device's id; it must have no record."`
	All   bool   `help:"Invalidate the verdicts on all devices without a record."`
	Label string `placeholder:"NAME=VALUE" help:"Invalidate the verdicts on the devices to which the authority gave this label."`

	jsonFlag `embed:""`
}

// Run ends verdicts of an authority.
func (cmd *deviceInvalidateCmd) Run(c *console) error {
	name, value, pair := strings.Cut(cmd.Label, "=")
	if countTrue(cmd.ID != "", cmd.All, cmd.Label != "") != 1 || cmd.Label != "" && !pair {
		return usagef("device invalidate: give a device's id, --all or --label NAME=VALUE")
	}
	return c.withPublisher(func(ctx context.Context, p *publish.Publisher) (err error) {
		what, output := cmd.ID, map[string]any{"id": cmd.ID}
		switch {
		case cmd.All:
			what, output = "all devices", map[string]any{"all": true}
			_, err = p.InvalidateAll(ctx)
		case pair:
			what, output = "devices with "+cmd.Label, map[string]any{"label": cmd.Label}
			_, err = p.InvalidateLabel(ctx, name, value)
		default:
			_, err = p.InvalidateDevice(ctx, cmd.ID)
		}
		if err != nil {
			return err
		}
		return cmd.printResult(c, output, "%s: invalidated\n", what)
	})
}
