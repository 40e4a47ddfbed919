package credential

import (
	"context"
	mathrand "math/rand/v2"
	"time"
)

// maxAwait is how long a verification waits, in all, for runs of bcrypt in other sidecars; then it runs bcrypt itself.
const maxAwait = 5 * time.Second

// Fleet is the other sidecars of the same Redis, which share what bcrypt found. Only matches are shared. Its methods
// are safe for concurrent use, take a fraction of a second at most, and report no match if Redis does not answer.
type Fleet interface {
	// Find returns the match that a sidecar has shared for c, nil if there is none.
	Find(c *Question) *Match
	// Begin must be called with a worker, before bcrypt runs. It returns a match that was shared meanwhile; or end, to
	// be called with the result of the run, nil for no match; or neither, if another sidecar runs bcrypt for c.
	Begin(c *Question) (known *Match, end func(*Match))
	// Await waits while another sidecar runs bcrypt for c, until ctx ends or wanted returns false.
	Await(ctx context.Context, c *Question, wanted func() bool) *Match
}

// Question is that a secret is right by one version of a device's record. Another version, or
// another hash, is another claim: a result for a record says nothing about its successor.
type Question struct {
	Device, Secret string
	Version        uint64
	Hashes         []string // all of the record, in its order
}

// Match is what makes a claim true.
type Match struct {
	Hash  string    // the hash that the secret matches
	Until time.Time // valid without bcrypt until then
}

// question returns the attempt's question; there is none if the record has changed.
func (v *Verifier) question(a *attempt) (*Question, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	r := v.records[a.id]
	if r == nil || r.generation != a.generation {
		return nil, false
	}
	c := &Question{Device: a.id, Secret: a.secret, Version: r.version}
	for i := range r.hashes {
		c.Hashes = append(c.Hashes, r.hashes[i].bcrypt)
	}
	return c, true
}

// match returns the match that bcrypt has just found. Its end is jittered, so that secrets confirmed at one time don't
// expire at one time.
func (v *Verifier) match(hash string) *Match {
	life := time.Duration(float64(v.PinTTL) * (1 - pinJitter*mathrand.Float64()))
	return &Match{Hash: hash, Until: time.Now().Add(life)}
}

// alone is the Fleet of a sidecar that shares nothing.
type alone struct{}

func (alone) Find(*Question) *Match                                       { return nil }
func (alone) Begin(*Question) (*Match, func(*Match))                      { return nil, func(*Match) {} }
func (alone) Await(context.Context, *Question, func() bool) (none *Match) { return nil }
