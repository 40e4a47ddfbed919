// Package presence lists the running sidecars in Redis, for operators: gatehousectl edges. No other feature depends on
// the list.
package presence

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse/gatehouse/clients/go/contract"
)

const (
	// writeEvery is the interval at which a sidecar writes its entry.
	writeEvery = 5 * time.Second
	// Gone is the age of an entry whose sidecar counts as gone.
	Gone = 3 * writeEvery
	// forgetAfter is the age at which other sidecars remove an entry; cleanEvery is the interval of the removals.
	forgetAfter = time.Hour
	cleanEvery  = 10 * time.Minute
	callTimeout = 2 * time.Second
)

// Edge is the entry of a sidecar.
type Edge struct {
	ID      string    `json:"id"` // of the host and the push socket
	Host    string    `json:"host"`
	Version string    `json:"version"`
	Seen    time.Time `json:"seen"` // by the sidecar's clock
	Ready   bool      `json:"ready"`
	Problem string    `json:"problem,omitempty"` // the worst one
	Seq     uint64    `json:"seq"`               // of the last applied write; with several shards, the sum
	LagS    float64   `json:"lag_s"`             // age of what the edge has, -1: nothing yet
	Objects int       `json:"objects"`
	Devices int       `json:"devices"`
}

// List returns the entries of a keyspace, by host.
func List(ctx context.Context, client redis.UniversalClient, k contract.Keyspace) ([]Edge, error) {
	fields, err := client.HGetAll(ctx, k.EdgesKey()).Result()
	if err != nil {
		return nil, err
	}
	edges := make([]Edge, 0, len(fields))
	for id, text := range fields {
		var e Edge
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			e = Edge{Problem: "its entry can't be read"}
		}
		if e.ID = id; time.Until(e.Seen) > Gone {
			e.Seen = time.Time{} // of a wrong clock: it counts as gone
		}
		edges = append(edges, e)
	}
	slices.SortFunc(edges, func(a, b Edge) int { return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.ID, b.ID)) })
	return edges, nil
}

// Presence writes the entry of this sidecar.
type Presence struct {
	client   redis.UniversalClient
	keyspace contract.Keyspace
	now      func() Edge
	id       string
	host     string
	log      *slog.Logger
}

// New returns a Presence; now returns the entry, without ID, Host and Seen. socket is the edge's push socket, which
// distinguishes the sidecars of a host.
func New(client redis.UniversalClient, k contract.Keyspace, socket string, now func() Edge,
	log *slog.Logger) *Presence {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\n%s", host, socket)
	return &Presence{client, k, now, fmt.Sprintf("%016x", h.Sum64()), host, log}
}

// Run writes the entry until ctx ends, and then removes the entry.
func (p *Presence) Run(ctx context.Context) error {
	tick := time.NewTicker(writeEvery)
	defer tick.Stop()
	var cleaned time.Time
	logged := false // the refusal by Redis
	for {
		err := p.writeEntry(ctx)
		if err == nil && time.Since(cleaned) > cleanEvery {
			cleaned = time.Now()
			err = p.removeOldEntries(ctx)
		}
		if refused := redis.IsPermissionError(err); refused && !logged {
			p.log.Info("redis does not permit to list this sidecar: gatehousectl edges does not show it", "error", err)
			logged = true
		} else if err != nil {
			p.log.Debug("sidecar is not listed", "error", err)
		}
		select {
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
			defer cancel()
			p.client.HDel(ctx, p.keyspace.EdgesKey(), p.id) // otherwise it counts as gone, for an hour
			return nil
		case <-tick.C:
		}
	}
}

func (p *Presence) writeEntry(ctx context.Context) error {
	e := p.now()
	e.ID, e.Host, e.Seen = p.id, p.host, time.Now().UTC()
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return p.client.HSet(ctx, p.keyspace.EdgesKey(), p.id, text).Err()
}

// removeOldEntries removes entries that no sidecar has written for an hour.
func (p *Presence) removeOldEntries(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	edges, err := List(ctx, p.client, p.keyspace)
	if err != nil {
		return err
	}
	for _, e := range edges {
		if time.Since(e.Seen) > forgetAfter {
			if err := p.client.HDel(ctx, p.keyspace.EdgesKey(), e.ID).Err(); err != nil {
				return err
			}
		}
	}
	return nil
}
