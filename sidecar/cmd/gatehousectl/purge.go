package main

import (
	"context"
	"fmt"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/publish"
)

type purgeCmd struct {
	Tag         string `xor:"what" required:"" placeholder:"T" help:"Objects with this tag."`
	Prefix      string `xor:"what" required:"" placeholder:"P" help:"Objects whose paths begin with this, such as /v1/products/."`
	All         bool   `xor:"what" required:"" help:"All objects."`
	VirtualHost string `placeholder:"NAME" help:"Those of this virtual host. Default: those of none."`
	Soft        bool   `help:"Keep them, but as expired: edges with stale: serve answer with them."`
	DryRun      bool   `help:"Only count them."`
}

// Run purges, or counts what it would purge.
func (cmd *purgeCmd) Run(c *console) error {
	if cmd.All {
		cmd.Prefix = "/"
	}
	u := publish.Purge{Tag: cmd.Tag, Prefix: cmd.Prefix, VirtualHost: cmd.VirtualHost, Soft: cmd.Soft}
	purge, err := u.ID()
	if err != nil {
		return err
	}
	return c.connect(func(ctx context.Context, p *publish.Publisher) error {
		if !cmd.DryRun {
			receipts, err := p.Purge(ctx, u)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.stdout, "%s: purged in %d shards\n", purge, len(receipts))
			return err
		}
		keys := map[string]bool{} // one may come twice
		for entry, err := range p.List(ctx, "") {
			if err != nil {
				return err
			}
			contract.VisitPurges(entry.Key, entry.Tags, func(id []byte) bool {
				keys[entry.Key] = keys[entry.Key] || string(id) == purge
				return !keys[entry.Key]
			})
			if !keys[entry.Key] {
				delete(keys, entry.Key)
			}
		}
		_, err := fmt.Fprintf(c.stdout, "%s: %d objects would be purged\n", purge, len(keys))
		return err
	})
}
