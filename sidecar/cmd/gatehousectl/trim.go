package main

import (
	"context"
	"fmt"

	"github.com/gatehouse/gatehouse/sidecar/publish"
)

type trimCmd struct{}

// Run trims the logs.
func (cmd *trimCmd) Run(c *console) error {
	return c.connect(func(ctx context.Context, p *publish.Publisher) error {
		done, err := p.Trim(ctx)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.stdout,
			"%d members: %d entries of records that are gone removed, %d expired objects deleted, %d purged objects and %d "+
				"needless purges\n", done.Members, done.Removed, done.Expired, done.Purged, done.Purges)
		return err
	})
}
