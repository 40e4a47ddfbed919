package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/internal/presence"
)

type edgesCmd struct {
	jsonFlag `embed:""`
}

// listedEdge is an edge with its state. Redis' clock decides whether the edge is gone.
type listedEdge struct {
	presence.Edge
	Gone bool `json:"gone"`
}

// Run lists the sidecars.
func (cmd *edgesCmd) Run(c *console) error {
	return c.withClient(func(ctx context.Context, client redis.UniversalClient) error {
		edges, err := presence.List(ctx, client, c.redis.keyspace(client))
		if err != nil {
			return err
		}
		now, err := client.Time(ctx).Result()
		if err != nil { // no permission
			now = time.Now()
		}
		list := []listedEdge{}
		for _, e := range edges {
			list = append(list, listedEdge{e, now.Sub(e.Seen) > presence.Gone})
		}
		if cmd.JSON {
			return printLines(c, list)
		}
		if len(list) == 0 {
			_, err := fmt.Fprintln(c.stdout,
				"no sidecar has listed itself here: none follows this Redis and namespace, or its user may not write the list "+
					"(docs/redis-contract.md, Redis itself)")
			return err
		}
		return printEdges(c, list)
	})
}

func printEdges(c *console, list []listedEdge) error {
	w := c.newTable()
	fmt.Fprintln(w, "HOST\tID\tVERSION\tSTATE\tLAG\tLAST WRITE\tOBJECTS\tDEVICES\tPROBLEM")
	for _, e := range list {
		state := "ready"
		switch {
		case e.Gone:
			state = "gone since " + e.Seen.Format(time.RFC3339)
		case !e.Ready:
			state = "not ready"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\n", printable(e.Host), printable(e.ID), printable(e.Version),
			state, formatAge(e.LagS), e.Seq, e.Objects, e.Devices, cmp.Or(printable(e.Problem), "-"))
	}
	return w.Flush()
}

// printable returns text for a terminal, quoted if a character is not printable.
func printable(text string) string {
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

// printableLines applies printable to each line of text.
func printableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return strings.Join(lines, "\n")
}
