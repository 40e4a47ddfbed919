package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/internal/devicelog"
)

// deviceView is the printed form of a device.
type deviceView struct {
	ID string `json:"id"`
	// State is "enabled", "revoked", "disabled", "expired" or "corrupt".
	State       string            `json:"state"`
	Version     uint64            `json:"version"`
	Published   string            `json:"published,omitempty"` // RFC 3339
	NotAfter    string            `json:"not_after,omitempty"`
	Permissions []string          `json:"permissions"`
	Labels      map[string]string `json:"labels"`
	// Schemes has scheme and cost of each hash, the newest secret's first: bcrypt 12, or gh1 and the pepper's id.
	Schemes []string `json:"schemes"`
	// OldUntil is when all secrets but the newest end.
	OldUntil string `json:"old_until,omitempty"`
	// LastSeen is the last authentication, OldSecretSeen the last authentication with an old secret. Sidecars write both.
	LastSeen      string `json:"last_seen,omitempty"`
	OldSecretSeen string `json:"old_secret_seen,omitempty"`
	// Failed is empty in lists and exports.
	Failed []devicelog.FailedAttempts `json:"failed_attempts,omitempty"`
	// Hashes is only in an export.
	Hashes []string `json:"hashes,omitempty"`
}

// newDeviceView returns the view of c without hashes. damage: why the record can't be read, or nil.
func newDeviceView(c contract.Credential, damage error) deviceView {
	now := time.Now().UnixMilli()
	d := deviceView{ID: c.ID, State: "enabled", Version: c.Version,
		Permissions: append([]string{}, c.Permissions...), Labels: maps.Clone(c.Labels), Schemes: []string{}}
	if d.Labels == nil {
		d.Labels = map[string]string{}
	}
	for _, hash := range c.Hashes {
		h, _ := contract.ParseHash(hash) // contract.ParseCredential has checked the hash
		d.Schemes = append(d.Schemes, h.String())
	}
	if c.PublishedMS != 0 {
		d.Published = formatTimestamp(c.PublishedMS)
	}
	if c.NotAfterMS != 0 {
		d.NotAfter = formatTimestamp(c.NotAfterMS)
	}
	if c.OldUntilMS != 0 {
		d.OldUntil = formatTimestamp(c.OldUntilMS)
	}
	switch {
	case damage != nil:
		d.State = "corrupt"
	case c.Revoked:
		d.State = "revoked"
	case c.Disabled:
		d.State = "disabled"
	case c.NotAfterMS != 0 && c.NotAfterMS <= now:
		d.State = "expired"
	}
	return d
}

type deviceGetCmd struct {
	ID string `arg:"" help:"The device's id."`

	jsonFlag `embed:""`
}

// Run prints the device's record without the hashes.
func (cmd *deviceGetCmd) Run(c *console) error {
	return c.withClientAndPublisher(func(ctx context.Context, client redis.UniversalClient, p *publish.Publisher) error {
		device, err := p.GetDevice(ctx, cmd.ID)
		if err != nil {
			return err
		}
		d := newDeviceView(device, nil)
		log := c.deviceLog(client)
		seen, err := log.LastSeen(ctx, cmd.ID)
		if err == nil {
			d.setLastSeen(seen[0])
			d.Failed, err = log.FailedAttempts(ctx, cmd.ID)
		}
		if err != nil && !redis.IsPermissionError(err) {
			return err
		}
		if cmd.JSON {
			return c.printJSON(d)
		}
		w := c.newTable()
		fmt.Fprintf(w, "id:\t%s\nstate:\t%s\nversion:\t%d\npublished:\t%s\nnot-after:\t%s\npermissions:\t%s\n"+
			"labels:\t%s\n", d.ID, d.State, d.Version, d.Published, cmp.Or(d.NotAfter, "-"),
			cmp.Or(strings.Join(d.Permissions, ","), "-"), cmp.Or(contract.FormatLabels(d.Labels), "-"))
		for i, scheme := range d.Schemes {
			secret := "newest"
			switch {
			case i > 0 && d.OldUntil == "":
				secret = "valid"
			case i > 0 && device.OldUntilMS <= time.Now().UnixMilli():
				secret = "ended " + d.OldUntil
			case i > 0:
				secret = "until " + d.OldUntil
			}
			fmt.Fprintf(w, "secret:\t%s, %s\n", secret, scheme)
		}
		with := ""
		switch {
		case d.LastSeen == "":
		case d.OldSecretSeen == d.LastSeen:
			with = ", with an old secret"
		case d.OldSecretSeen != "":
			with = ", with an old secret " + d.OldSecretSeen
		}
		fmt.Fprintf(w, "last seen:\t%s%s\n", cmp.Or(d.LastSeen, "-"), with)
		for _, f := range d.Failed {
			fmt.Fprintf(w, "failed:\t%d times from %s since yesterday\n", f.Count, printable(f.Network))
		}
		return w.Flush()
	})
}

// setLastSeen sets when the device was seen.
func (d *deviceView) setLastSeen(seen devicelog.Seen) {
	if !seen.Last.IsZero() {
		d.LastSeen = formatTimestamp(seen.Last.UnixMilli())
	}
	if !seen.Old.IsZero() {
		d.OldSecretSeen = formatTimestamp(seen.Old.UnixMilli())
	}
}

// selection is the flags that select devices.
type selection struct {
	Glob       string            `arg:"" optional:"" help:"Only the ids that match, with * and ? as in a shell."`
	Labels     map[string]string `name:"label" placeholder:"NAME=VALUE" mapsep:"," help:"Only the devices with these labels."`
	Permission string            `placeholder:"NAME" help:"Only the devices with this permission."`
	Overlap    bool              `help:"Only the devices of which two secrets count, after a rotation."`
}

func (s *selection) matchesDevice(c contract.Credential) bool {
	if !matchesGlob(s.Glob, c.ID) || s.Permission != "" && !slices.Contains(c.Permissions, s.Permission) ||
		s.Overlap && c.OldUntilMS <= time.Now().UnixMilli() {
		return false
	}
	for name, want := range s.Labels {
		if value, found := c.Labels[name]; !found || value != want {
			return false
		}
	}
	return true
}

// Validate checks the glob pattern. The parser calls Validate.
func (s *selection) Validate() error { return checkGlobs(s.Glob) }

// checkGlobs returns an error if a glob pattern is malformed.
func checkGlobs(globs ...string) error {
	for _, glob := range globs {
		if _, err := path.Match(glob, ""); err != nil {
			return fmt.Errorf("%q: %w", glob, err)
		}
	}
	return nil
}

// matchesGlob reports whether text matches a pattern that checkGlobs has accepted; "" matches every text.
func matchesGlob(glob, text string) bool {
	ok, _ := path.Match(glob, text)
	return ok || glob == ""
}

// visitDevices calls visit with each selected device and, if the record is corrupt, its error. After the last device,
// the errors of corrupt records (at most 100) are returned.
func (s *selection) visitDevices(ctx context.Context, p *publish.Publisher,
	visit func(contract.Credential, error) error) error {
	var errs []error
	for device, err := range p.ListDevices(ctx) {
		if err != nil && !errors.Is(err, publish.ErrCorrupt) {
			return err
		}
		if !s.matchesDevice(device) {
			continue
		}
		const most = 100
		if err != nil && len(errs) < most {
			errs = append(errs, err)
		}
		if err := visit(device, err); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

type deviceListCmd struct {
	NotSeen        string `placeholder:"TIME" help:"Only the devices that have not authenticated since then, or never: a duration such as 30d, or a time such as 2030-01-31T00:00:00Z."`
	OldSecretInUse bool   `help:"Only the devices in an overlap that used an old secret last, or within 5 minutes before their last authentication."`

	selection `embed:""`
	jsonFlag  `embed:""`
}

// listedDevice is a device of a list.
type listedDevice struct {
	device contract.Credential
	view   deviceView
}

// Run prints the devices page by page, so that a million devices need little memory.
func (cmd *deviceListCmd) Run(c *console) error {
	lines := json.NewEncoder(c.stdout)
	w := c.newTable()
	if !cmd.JSON {
		fmt.Fprintln(w, "ID\tVERSION\tSTATE\tNOT-AFTER\tLAST SEEN\tPERMISSIONS\tLABELS")
	}
	before, err := parseSince(cmd.NotSeen)
	if err != nil {
		return usagef("--not-seen %w", err)
	}
	return c.withClientAndPublisher(func(ctx context.Context, client redis.UniversalClient, p *publish.Publisher) error {
		log := c.deviceLog(client)
		if cmd.NotSeen != "" {
			if err := checkSeenSince(ctx, c, log, before); err != nil {
				return err
			}
		}
		const most = 1000
		var page []listedDevice
		flush := func() error {
			kept, err := cmd.filterBySeen(ctx, log, page, before)
			page = page[:0]
			if err != nil {
				return err
			}
			for _, l := range kept {
				d := l.view
				if cmd.JSON {
					if err := lines.Encode(d); err != nil {
						return err
					}
					continue
				}
				fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", d.ID, d.Version, d.State, cmp.Or(d.NotAfter, "-"),
					cmp.Or(d.LastSeen, "-"), cmp.Or(strings.Join(d.Permissions, ","), "-"),
					cmp.Or(contract.FormatLabels(d.Labels), "-"))
			}
			return w.Flush()
		}
		err := cmd.visitDevices(ctx, p, func(device contract.Credential, damage error) error {
			if page = append(page, listedDevice{device, newDeviceView(device, damage)}); len(page) < most {
				return nil
			}
			return flush()
		})
		return errors.Join(flush(), err)
	})
}

// filterBySeen sets last authentications in page, and returns the devices that the flags select, in page's memory.
func (cmd *deviceListCmd) filterBySeen(ctx context.Context, log *devicelog.Log, page []listedDevice,
	before time.Time) ([]listedDevice, error) {
	ids := make([]string, len(page))
	for i, l := range page {
		ids[i] = l.device.ID
	}
	seen, err := log.LastSeen(ctx, ids...)
	if redis.IsPermissionError(err) && cmd.NotSeen == "" && !cmd.OldSecretInUse {
		return page, nil
	}
	if err != nil {
		return nil, err
	}
	kept := page[:0]
	for i, l := range page {
		l.view.setLastSeen(seen[i])
		if (cmd.NotSeen == "" || seen[i].Last.Before(before)) && (!cmd.OldSecretInUse || usesOldSecret(l.device, seen[i])) {
			kept = append(kept, l)
		}
	}
	return kept, nil
}

// usesOldSecret reports whether an old secret of a device is still valid and was used at the last authentication, or
// within 5 minutes before: some processes of the device may have the new secret already.
func usesOldSecret(c contract.Credential, seen devicelog.Seen) bool {
	return c.OldUntilMS > time.Now().UnixMilli() && !seen.Old.IsZero() && seen.Last.Sub(seen.Old) <= 5*time.Minute
}

// checkSeenSince returns an error if no sidecar records last authentications. If the records begin after before,
// checkSeenSince prints a warning.
func checkSeenSince(ctx context.Context, c *console, log *devicelog.Log, before time.Time) error {
	since, err := log.SeenSince(ctx)
	if errors.Is(err, publish.ErrNotFound) {
		return errors.New("no sidecar has written last authentications to every shard: its Redis user may lack the " +
			"permission (docs/redis-contract.md, Last seen)")
	}
	if err == nil && since.After(before) {
		fmt.Fprintf(c.stderr, "last authentications are known since %s only: a device that isn't seen may have been here "+
			"before\n", formatTimestamp(since.UnixMilli()))
	}
	return err
}

type deviceExportCmd struct {
	selection `embed:""`
}

// Run prints the devices with their hashes.
func (cmd *deviceExportCmd) Run(c *console) error {
	lines := json.NewEncoder(c.stdout)
	return c.withPublisher(func(ctx context.Context, p *publish.Publisher) error {
		return cmd.visitDevices(ctx, p, func(device contract.Credential, damage error) error {
			d := newDeviceView(device, damage)
			d.Hashes = device.Hashes
			return lines.Encode(d)
		})
	})
}
