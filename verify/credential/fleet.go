package credential

import (
	"context"
	"time"
)

// fleetPatience bounds a verification's total wait for runs of bcrypt in other sidecars; afterwards this sidecar runs
// bcrypt.
const fleetPatience = 5 * time.Second

// Fleet is the other sidecars of the same Redis, which share the results of bcrypt, matches only. Its methods are safe
// for concurrent use, take at most a fraction of a second, and return no match if Redis does not answer. Find and Begin
// use the span of their context, but ignore its end.
type Fleet interface {
	// Find returns the match that a sidecar has shared for c, nil for none.
	Find(ctx context.Context, c *Question) *Match
	// Begin claims the run of bcrypt for c; its caller must have a worker. It returns a match that was shared
	// meanwhile; or end, to be called with the result of the run, nil for no match; or nil for both, if another sidecar
	// runs bcrypt for c.
	Begin(ctx context.Context, c *Question) (shared *Match, end func(*Match))
	// Await waits while another sidecar runs bcrypt for c, until ctx ends or wanted returns false.
	Await(ctx context.Context, c *Question, wanted func() bool) *Match
}

// Question asks whether a secret is right for a single version of a device's record. Versions and hashes distinguish
// questions: a result for a record does not apply to its successor.
type Question struct {
	Device, Secret string
	Version        uint64
	Hashes         []string // all hashes of the record, in the record's order

	// Authority: the authority decides, since Redis has no record. Version and PublishedMS are those of the device's
	// tombstone, 0 for none. Invalidations changes with each invalidation of several devices.
	Authority     bool
	PublishedMS   int64
	Invalidations uint64
	Timeout       time.Duration // how long the answer may take
}

// Match is a positive answer to a question.
type Match struct {
	Hash      string          // the hash that the secret matches
	Until     time.Time       // until then, the match needs no bcrypt and no call of the authority
	Authority *AuthorityAllow // set if an authority decided; nil: Hash is set
}

// AuthorityAllow has the contents of an authority's allow.
type AuthorityAllow struct {
	Permissions []string
	Ends        time.Time // of the verdict
	NotAfter    time.Time // zero: never
	Labels      map[string]string
}

// newQuestion returns the attempt's question; false if the attempt must start over.
func (d *Devices) newQuestion(a *attempt) (*Question, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.findJudged(a, time.Now())
	switch {
	case !ok:
		return nil, false
	case a.byAuthority:
		return d.answers.newQuestion(a, r, d.config.authorityTimeout()), true
	}
	c := &Question{Device: a.id, Secret: a.secret, Version: r.version}
	for i := range r.hashes {
		c.Hashes = append(c.Hashes, r.hashes[i].text)
	}
	return c, true
}

// noFleet is the Fleet of a sidecar that shares nothing.
type noFleet struct{}

func (noFleet) Find(context.Context, *Question) *Match { return nil }
func (noFleet) Begin(context.Context, *Question) (*Match, func(*Match)) {
	return nil, func(*Match) {}
}
func (noFleet) Await(context.Context, *Question, func() bool) (none *Match) { return nil }
