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

// shown is how many names Top has.
const shown = 10

// Top returns the most used and most refused.
func (i *Inspector) Top() operatorapi.Top {
	return operatorapi.Top{Objects: i.hits.top(shown), Refused: i.refused.top(shown), Rates: i.history.rates()}
}

// Used counts hits, and passes them on. It implements the API's Uses.
func (i *Inspector) Used(keys []string) {
	for _, key := range keys {
		i.hits.add(key)
	}
	i.Objects.Used(keys)
}

// Verifier is a [credential.Verifier] whose refusals are counted by network.
type Verifier struct {
	*credential.Verifier
	refused *counts
}

// Watched returns the verifier for the API.
func (i *Inspector) Watched() Verifier { return Verifier{i.Verifier, &i.refused} }

// Verify verifies a credential.
func (v Verifier) Verify(ctx context.Context, id, secret, from string) credential.Result {
	r := v.Verifier.Verify(ctx, id, secret, from)
	if r.Refused() {
		name := "unknown"
		if network, ok := credential.NetworkOf(from); ok {
			name = network.String()
		}
		v.refused.add(name)
	}
	return r
}

// maxCounted bounds the counted names, halfLife is the time in which a count halves.
const (
	maxCounted = 512
	halfLife   = time.Minute
)

// counts counts names. While it is full it ignores new ones, until others have faded. It is safe for concurrent use.
type counts struct {
	mu     sync.Mutex
	of     map[string]float64
	halved time.Time
}

func (c *counts) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.age(time.Now())
	if _, found := c.of[name]; found || len(c.of) < maxCounted {
		c.of[strings.Clone(name)]++ // it may be a part of a whole call
	}
}

// age halves the counts of each half-life that has passed.
func (c *counts) age(now time.Time) {
	if c.of == nil {
		c.of, c.halved = make(map[string]float64), now
	}
	for ; now.Sub(c.halved) >= halfLife && len(c.of) > 0; c.halved = c.halved.Add(halfLife) {
		for name := range c.of {
			if c.of[name] /= 2; c.of[name] <= .5 {
				delete(c.of, name)
			}
		}
	}
	if len(c.of) == 0 {
		c.halved = now
	}
}

// top returns the n most frequent names.
func (c *counts) top(n int) []operatorapi.Count {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.age(time.Now())
	all := make([]operatorapi.Count, 0, len(c.of))
	for name, count := range c.of {
		all = append(all, operatorapi.Count{Name: name, Count: count})
	}
	slices.SortFunc(all, func(a, b operatorapi.Count) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name))
	})
	return all[:min(n, len(all))]
}
