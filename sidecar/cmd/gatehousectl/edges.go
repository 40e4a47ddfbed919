package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/sidecar/contract"
	"github.com/gatehouse/gatehouse/sidecar/internal/presence"
)

type edgesCmd struct {
	JSON bool `name:"json" help:"Print the list as JSON."`
}

// listedEdge is an edge with its state by Redis.
type listedEdge struct {
	presence.Edge
	Behind uint64 `json:"behind"` // writes in Redis that it had not applied
	Gone   bool   `json:"gone"`
}

// Run lists the sidecars.
func (cmd *edgesCmd) Run(c *console) error {
	return c.client(func(ctx context.Context, client redis.UniversalClient) error {
		edges, err := presence.List(ctx, client)
		if err != nil {
			return err
		}
		var seq uint64
		for i := range contract.Shards(c.redis.Shards).Count() {
			n, err := client.Get(ctx, contract.ShardKeys(i).SeqKey()).Uint64()
			if err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			seq += n
		}
		list := []listedEdge{}
		for _, e := range edges {
			l := listedEdge{Edge: e, Gone: time.Since(e.Seen) > presence.Gone}
			if seq > e.Seq {
				l.Behind = seq - e.Seq
			}
			list = append(list, l)
		}
		if cmd.JSON {
			encoder := json.NewEncoder(c.stdout)
			encoder.SetIndent("", "  ")
			return encoder.Encode(list)
		}
		return printEdges(c, list)
	})
}

func printEdges(c *console, list []listedEdge) error {
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "HOST\tID\tVERSION\tSTATE\tLAG\tWRITES BEHIND\tOBJECTS\tDEVICES\tPROBLEM")
	for _, e := range list {
		state := "ready"
		switch {
		case e.Gone:
			state = "gone since " + e.Seen.Format(time.RFC3339)
		case !e.Ready:
			state = "not ready"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\n", e.Host, e.ID, e.Version, state, age(e.LagS), e.Behind, e.Objects, e.Devices, dash(e.Problem))
	}
	return w.Flush()
}
