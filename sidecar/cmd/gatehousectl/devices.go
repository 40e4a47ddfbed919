package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/publish"
)

// deviceView is a device as commands print it.
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
	// Hashes is only in an export.
	Hashes []string `json:"hashes,omitempty"`
}

// view returns c without its hashes; damage is why it can't be read.
func view(c contract.Credential, damage error) deviceView {
	now := time.Now().UnixMilli()
	d := deviceView{ID: c.ID, State: "enabled", Version: c.Version,
		Permissions: slices.Concat([]string{}, c.Permissions), Labels: maps.Clone(c.Labels), Schemes: []string{}}
	if d.Labels == nil {
		d.Labels = map[string]string{}
	}
	for _, hash := range c.Hashes {
		h, _ := contract.ParseHash(hash) // contract.ParseCredential has checked it
		d.Schemes = append(d.Schemes, h.String())
	}
	if c.PublishedMS != 0 {
		d.Published = timestamp(c.PublishedMS)
	}
	if c.NotAfterMS != 0 {
		d.NotAfter = timestamp(c.NotAfterMS)
	}
	if c.OldUntilMS != 0 {
		d.OldUntil = timestamp(c.OldUntilMS)
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
	ID   string `arg:"" help:"The device's id."`
	JSON bool   `name:"json" help:"As a JSON object."`
}

// Run prints the device's record without its hashes.
func (cmd *deviceGetCmd) Run(c *console) error {
	return c.connect(func(ctx context.Context, p *publish.Publisher) error {
		device, err := p.GetDevice(ctx, cmd.ID)
		if err != nil {
			return err
		}
		d := view(device, nil)
		if cmd.JSON {
			return c.printJSON(d)
		}
		w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintf(w, "id:\t%s\nstate:\t%s\nversion:\t%d\npublished:\t%s\nnot-after:\t%s\npermissions:\t%s\n"+
			"labels:\t%s\n", d.ID, d.State, d.Version, d.Published, orNone(d.NotAfter),
			orNone(strings.Join(d.Permissions, ",")), orNone(contract.FormatLabels(d.Labels)))
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
		return w.Flush()
	})
}

func orNone(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// selection says which devices.
type selection struct {
	Glob       string            `arg:"" optional:"" help:"Only the ids that match, with * and ? as in a shell."`
	Labels     map[string]string `name:"label" placeholder:"NAME=VALUE" mapsep:"," help:"Only the devices with these labels."`
	Permission string            `placeholder:"NAME" help:"Only the devices with this permission."`
	Overlap    bool              `help:"Only the devices of which two secrets count, after a rotation."`
}

func (s *selection) has(c contract.Credential) bool {
	matches, _ := path.Match(s.Glob, c.ID) // Validate has checked it
	if s.Glob != "" && !matches || s.Permission != "" && !slices.Contains(c.Permissions, s.Permission) ||
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

// Validate checks the pattern; the parser calls it.
func (s *selection) Validate() error {
	if _, err := path.Match(s.Glob, ""); err != nil {
		return fmt.Errorf("%q: %w", s.Glob, err)
	}
	return nil
}

// each passes the selected devices to visit, with the error of a corrupt record, which fails the command at its end.
func (s *selection) each(c *console, visit func(contract.Credential, error) error) error {
	return c.connect(func(ctx context.Context, p *publish.Publisher) error {
		var errs []error
		for device, err := range p.ListDevices(ctx) {
			if err != nil && !errors.Is(err, publish.ErrCorrupt) {
				return err
			}
			if !s.has(device) {
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
	})
}

type deviceListCmd struct {
	JSON bool `name:"json" help:"One JSON object a line."`

	selection `embed:""`
}

// Run lists the devices as they come, so a million take no memory.
func (cmd *deviceListCmd) Run(c *console) error {
	lines := json.NewEncoder(c.stdout)
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	if !cmd.JSON {
		fmt.Fprintln(w, "ID\tVERSION\tSTATE\tNOT-AFTER\tPERMISSIONS\tLABELS")
	}
	count := 0
	err := cmd.each(c, func(device contract.Credential, damage error) error {
		d := view(device, damage)
		if cmd.JSON {
			return lines.Encode(d)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\n", d.ID, d.Version, d.State, orNone(d.NotAfter),
			orNone(strings.Join(d.Permissions, ",")), orNone(contract.FormatLabels(d.Labels)))
		const page = 1000 // of which the columns are aligned
		if count++; count%page == 0 {
			return w.Flush()
		}
		return nil
	})
	return errors.Join(w.Flush(), err)
}

type deviceExportCmd struct {
	selection `embed:""`
}

// Run prints the devices with their hashes.
func (cmd *deviceExportCmd) Run(c *console) error {
	lines := json.NewEncoder(c.stdout)
	return cmd.each(c, func(device contract.Credential, damage error) error {
		d := view(device, damage)
		d.Hashes = device.Hashes
		return lines.Encode(d)
	})
}
