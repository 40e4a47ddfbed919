package inspect

import (
	"cmp"
	"context"
	"github.com/gatehouse/gatehouse/internal/operatorapi"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gatehouse/gatehouse/sidecar/internal/credential"
)

// topNames is how many names Top has.
const topNames = 10

// Top returns the most used and most refused.
func (i *Inspector) Top() operatorapi.Top {
	return operatorapi.Top{Objects: i.hits.mostFrequent(topNames), Refused: i.refused.mostFrequent(topNames),
		Rates: i.history.edgeRates()}
}

// RecordUses counts hits, and passes the keys on to the object cache. RecordUses implements [api.Uses].
func (i *Inspector) RecordUses(keys []string) {
	for _, key := range keys {
		i.hits.increment(key)
	}
	i.Objects.RecordUses(keys)
}

// Verifier is a [credential.Verifier] whose refusals are counted by network.
type Verifier struct {
	*credential.Verifier
	refused *counts
}

// WatchVerifier returns the verifier for the API.
func (i *Inspector) WatchVerifier() Verifier { return Verifier{i.Verifier, &i.refused} }

// Verify verifies a credential.
func (v Verifier) Verify(ctx context.Context, id, secret, from string) credential.Result {
	r := v.Verifier.Verify(ctx, id, secret, from)
	if r.Refused() {
		name := "unknown"
		if network, ok := credential.NetworkOf(from); ok {
			name = network.String()
		}
		v.refused.increment(name)
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

func (c *counts) increment(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.decay(time.Now())
	if _, found := c.byName[name]; found || len(c.byName) < maxCounted {
		c.byName[strings.Clone(name)]++ // it may be a part of a whole call
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
