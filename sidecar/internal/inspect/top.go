package inspect

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gatehouse/gatehouse/internal/operatorapi"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// topNames is how many names Top has.
const topNames = 10

// Top returns the most used and most refused.
func (i *Inspector) Top() operatorapi.Top {
	return operatorapi.Top{Objects: i.hits.mostFrequent(topNames), Refused: i.refused.mostFrequent(topNames),
		Edges: i.calls.mostFrequent(topNames), Rates: i.history.edgeRates()}
}

// Uses receives the hits of an edge, and implements [api.Uses].
type Uses struct {
	inspector *Inspector
	edge      string
}

// WatchUses returns the receiver of an edge's hits for the API.
func (i *Inspector) WatchUses(edge string) Uses { return Uses{i, edge} }

// RecordUses counts hits, and passes the keys on to the object cache.
func (u Uses) RecordUses(keys []string) {
	i := u.inspector
	for _, key := range keys {
		i.hits.increment(key)
	}
	if u.edge != "" {
		i.calls.add(u.edge, float64(len(keys)))
	}
	i.Objects.RecordUses(keys)
}

// Verifier is a [credential.Verifier] for an edge; refusals are counted by network.
type Verifier struct {
	*credential.Verifier
	inspector *Inspector
	edge      string
}

// WatchVerifier returns an edge's verifier for the API, "" is the only edge. Call RemoveEdge when the edge has gone.
func (i *Inspector) WatchVerifier(edge string) Verifier {
	if edge == "" {
		return Verifier{i.Verifier, i, edge}
	}
	return Verifier{i.Verifier.AddEdge(), i, edge}
}

// Verify verifies a credential.
func (v Verifier) Verify(ctx context.Context, id, secret, from string) credential.Result {
	if v.edge != "" {
		v.inspector.calls.increment(v.edge)
	}
	r := v.Verifier.Verify(ctx, id, secret, from)
	if r.Refused() {
		name := "unknown"
		if network, ok := credential.NetworkOf(from); ok {
			name = network.String()
		}
		v.inspector.refused.increment(name)
	}
	return r
}

// maxCounted bounds the counted names; halfLife is the time in which a count halves.
const (
	maxCounted = 512
	halfLife   = time.Minute
)

// counts counts names, and is safe for concurrent use. While full, counts ignores new names until old ones have faded.
type counts struct {
	mu     sync.Mutex
	byName map[string]float64
	halved time.Time
}

func (c *counts) increment(name string) { c.add(name, 1) }

func (c *counts) add(name string, n float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.decay(time.Now())
	if _, found := c.byName[name]; found || len(c.byName) < maxCounted {
		c.byName[strings.Clone(name)] += n // it may be a part of a whole call
	}
}

// decay halves the counts once per elapsed half-life.
func (c *counts) decay(now time.Time) {
	if c.byName == nil {
		c.byName, c.halved = make(map[string]float64), now
	}
	for ; now.Sub(c.halved) >= halfLife && len(c.byName) > 0; c.halved = c.halved.Add(halfLife) {
		for name := range c.byName {
			if c.byName[name] /= 2; c.byName[name] <= .5 {
				delete(c.byName, name)
			}
		}
	}
	if len(c.byName) == 0 {
		c.halved = now
	}
}

// mostFrequent returns the n most frequent names.
func (c *counts) mostFrequent(n int) []operatorapi.Count {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.decay(time.Now())
	all := make([]operatorapi.Count, 0, len(c.byName))
	for name, count := range c.byName {
		all = append(all, operatorapi.Count{Name: name, Count: count})
	}
	slices.SortFunc(all, func(a, b operatorapi.Count) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name))
	})
	return all[:min(n, len(all))]
}
