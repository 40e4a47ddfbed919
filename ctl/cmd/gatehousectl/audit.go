package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/internal/devicelog"
)

type auditCmd struct {
	Device string `placeholder:"GLOB" help:"Only the devices whose ids match, with * and ? as in a shell."`
	Author string `placeholder:"GLOB" help:"Only the authors that match."`
	Since  string `placeholder:"TIME" help:"Only from then on: a duration such as 24h, or a time such as 2030-01-31T00:00:00Z."`
	Follow bool   `help:"Go on with new changes as they come."`

	jsonFlag `embed:""`
}

// Validate checks the glob patterns. The parser calls Validate.
func (cmd *auditCmd) Validate() error { return checkGlobs(cmd.Device, cmd.Author) }

// Run prints the changes.
func (cmd *auditCmd) Run(c *console) error {
	since, err := parseSince(cmd.Since)
	if err != nil {
		return usagef("--since %w", err)
	}
	return c.withClient(func(ctx context.Context, client redis.UniversalClient) error {
		l := c.deviceLog(client)
		if cmd.Follow {
			return l.FollowAudit(ctx, since, func(change devicelog.Change) error { return cmd.printChange(c, change) },
				func(err error) { fmt.Fprintln(c.stderr, "gatehousectl: tries again:", printableLines(err.Error())) })
		}
		for change, err := range l.Audit(ctx, since) {
			if err == nil {
				err = cmd.printChange(c, change)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// parseSince parses text as a duration before now or as a time. "" is the zero time.
func parseSince(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := parseDuration(text); err == nil {
		return time.Now().Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q: want a duration such as 24h or 30d, or a time such as 2030-01-31T00:00:00Z", text)
	}
	return t, nil
}

// parseDuration parses a duration such as 24h or 30d, 0 at least.
func parseDuration(text string) (time.Duration, error) {
	days, whole := strings.CutSuffix(text, "d")
	unit := time.Duration(1)
	if whole {
		days, unit = days+"h", 24
	}
	d, err := time.ParseDuration(days)
	if err != nil || d < 0 || d > math.MaxInt64/unit {
		return 0, fmt.Errorf("%q: want a duration such as 24h or 30d", text)
	}
	return d * unit, nil
}

func (cmd *auditCmd) printChange(c *console, change devicelog.Change) error {
	if !matchesGlob(cmd.Device, change.Device) || !matchesGlob(cmd.Author, change.Author) {
		return nil
	}
	if cmd.JSON {
		return json.NewEncoder(c.stdout).Encode(change)
	}
	what, fields := printable(change.Change), change.Fields
	switch change.Change {
	case "revoked", "disabled", "enabled": // the change's name already says "disabled"
		fields = slices.DeleteFunc(slices.Clone(fields), func(f string) bool { return f == contract.FieldDisabled })
	case "deleted":
		if contract.IsInvalidation(change.Device) {
			what = "invalidated"
		}
	}
	if len(fields) > 0 {
		what += " " + printable(strings.Join(fields, ","))
	}
	_, err := fmt.Fprintf(c.stdout, "%s  %s version %d: %s, by %s\n", formatTimestamp(change.Time.UnixMilli()),
		printable(change.Device), change.Version, what, cmp.Or(printable(change.Author), "-"))
	return err
}
