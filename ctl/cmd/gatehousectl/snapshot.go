package main

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/internal/snapshot"
)

type snapshotCmd struct {
	jsonFlag    `embed:""`
	Destination string `arg:"" placeholder:"FILE" help:"A path, s3://BUCKET/KEY, or http://… or https://…, which gets a PUT."`
}

// Run writes a snapshot.
func (cmd *snapshotCmd) Run(c *console) error {
	if err := snapshot.CheckLocation(cmd.Destination); err != nil {
		return usagef("DESTINATION: %w", err)
	}
	return c.withClient(func(ctx context.Context, client redis.UniversalClient) error {
		done, err := snapshot.Write(ctx, client, c.redis.keyspace(client), cmd.Destination)
		if err != nil {
			return err
		}
		return cmd.printResult(c, map[string]any{"sha256": done.SHA256, "bytes": done.Bytes, "objects": done.Objects,
			"purges": done.Purges, "devices": done.Devices},
			"%d objects, %d purges and the ids of %d devices: %d bytes, SHA-256 %s\n", done.Objects, done.Purges, done.Devices,
			done.Bytes, done.SHA256)
	})
}
