package main

import (
	"context"

	"github.com/gatehouse/gatehouse/clients/go/publish"
)

type trimCmd struct {
	jsonFlag `embed:""`
}

// Run trims the logs.
func (cmd *trimCmd) Run(c *console) error {
	return c.withPublisher(func(ctx context.Context, p *publish.Publisher) error {
		done, err := p.Trim(ctx)
		if err != nil {
			return err
		}
		return cmd.printResult(c, map[string]any{"members": done.Members, "removed": done.Removed, "expired": done.Expired,
			"purged": done.Purged, "purges": done.Purges},
			"%d members: %d entries of records that are gone removed, %d expired objects deleted, %d purged objects and %d "+
				"needless purges\n", done.Members, done.Removed, done.Expired, done.Purged, done.Purges)
	})
}
