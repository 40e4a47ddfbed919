package main

import (
	"context"
	"fmt"

	"github.com/gatehouse/gatehouse/clients/go/publish"
)

type acceptLossCmd struct {
	jsonFlag `embed:""`
}

// Run accepts the data loss of all shards that are empty or without their log.
func (cmd *acceptLossCmd) Run(c *console) error {
	return c.withPublisher(func(ctx context.Context, p *publish.Publisher) error {
		accepted, err := p.AcceptLoss(ctx)
		if err != nil {
			return err
		}
		shards := max(c.redis.Shards, 1)
		text := "no shard is empty or has lost its log: nothing to accept"
		if accepted > 0 {
			text = fmt.Sprintf("%d of %d shards were empty or had lost the log: edges drop what they had of them, and refuse "+
				"devices that are not in Redis", accepted, shards)
		}
		return cmd.printResult(c, map[string]any{"accepted": accepted, "shards": shards}, "%s\n", text)
	})
}
