package main

import (
	"context"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
)

type purgeCmd struct {
	Tag         string   `xor:"what" required:"" placeholder:"TAG" help:"Objects with this tag."`
	Prefix      string   `xor:"what" required:"" placeholder:"PREFIX" help:"Objects whose paths begin with this, such as /v1/products/."`
	All         bool     `xor:"what" required:"" help:"All objects."`
	VirtualHost nonEmpty `placeholder:"NAME" help:"Those of this virtual host. Default: those of none."`
	Soft        bool     `help:"Keep them, but as expired: edges with stale: serve answer with them."`
	DryRun      bool     `help:"Only count them."`

	jsonFlag `embed:""`
}

// Run purges, or counts the objects that a purge would remove.
func (cmd *purgeCmd) Run(c *console) error {
	if cmd.All {
		cmd.Prefix = "/"
	}
	u := publish.Purge{Tag: cmd.Tag, Prefix: cmd.Prefix, VirtualHost: string(cmd.VirtualHost), Soft: cmd.Soft}
	purge, err := u.ID()
	if err != nil {
		return err
	}
	return c.withPublisher(func(ctx context.Context, p *publish.Publisher) error {
		if !cmd.DryRun {
			receipts, err := p.Purge(ctx, u)
			if err != nil {
				return err
			}
			return cmd.printResult(c, map[string]any{"purge": purge, "shards": len(receipts)}, "%s: purged\n", purge)
		}
		keys := map[string]bool{} // List may repeat an entry
		for entry, err := range p.List(ctx, "") {
			if err != nil {
				return err
			}
			if contract.Concerns(purge, entry.Key, entry.Tags) {
				keys[entry.Key] = true
			}
		}
		return cmd.printResult(c, map[string]any{"purge": purge, "objects": len(keys)},
			"%s: objects that it would purge: %d\n", purge, len(keys))
	})
}
