package rehearse

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/edge/policy"
)

// Class is a kind of change. A request with several changes has the most serious class.
type Class uint8

// The classes, most serious first.
const (
	unchanged Class = iota
	// Opens: the request was refused or needed a credential, and passes without one.
	Opens
	// NeedsLess: the request needs a credential, with fewer permissions than before.
	NeedsLess
	// NeedsOther: the request needs a credential with different permissions, so different devices get in.
	NeedsOther
	// NotRefused: the request was refused, and needs a credential.
	NotRefused
	// Refused: the request is refused, whatever its credential.
	Refused
	// Protected: the request passed, and needs a credential.
	Protected
	// NeedsMore: the request needs all permissions of before, and more.
	NeedsMore
	// OtherCredentials: the request has its credential elsewhere.
	OtherCredentials
	// Cached: the cache answers the request now.
	Cached
	// OtherKey: the cache answers the request with another object.
	OtherKey
	// NotCached: the cache no longer answers the request.
	NotCached
	// OtherRule: another rule decides; only counters and logs differ.
	OtherRule
)

var classNames = [...]string{
	Opens: "becomes open", NeedsLess: "needs fewer permissions", NeedsOther: "needs other permissions",
	NotRefused: "no longer refused", Refused: "becomes refused", Protected: "becomes protected",
	NeedsMore:        "needs more permissions",
	OtherCredentials: "needs other credentials", Cached: "becomes cached", OtherKey: "cached by another key",
	NotCached: "no longer cached", OtherRule: "judged by another rule",
}

func (c Class) String() string { return classNames[c] }

// MarshalText implements [encoding.TextMarshaler].
func (c Class) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// Weakens reports whether clients that were refused may get in.
func (c Class) Weakens() bool { return c == Opens || c == NeedsLess || c == NeedsOther }

// Change is one kind of change below one prefix.
type Change struct {
	Class Class `json:"class"`
	// From and To are names of rules. Without a rule they are "none", or the reason of the refusal.
	From string `json:"from"`
	To   string `json:"to"`
	// Prefix has the path's first two segments, or is [Others]; for samples, Prefix is the path of the sample's rule.
	Prefix string `json:"prefix"`
	// Count is the number of requests, or of samples.
	Count   int     `json:"count"`
	Example Request `json:"example"` // the first
}

// Others is the prefix of paths beyond maxPrefixes.
const Others = "(others)"

// maxPrefixes bounds the prefixes of one pair of rules and one class in a log.
const maxPrefixes = 50

// Comparison compares the outcomes of requests under two configurations. A Comparison is not safe for concurrent use.
type Comparison struct {
	from, to *evaluator
	classes  map[outcomePair]Class
	prefixes map[changeKind]int
	changes  map[changeKey]*Change
	order    []*Change
}

type outcomePair struct{ from, to outcome }

type changeKind struct {
	class    Class
	from, to string
}

type changeKey struct {
	changeKind
	prefix string
}

// NewComparison returns a comparison without requests.
func NewComparison(from, to *policy.Config) *Comparison {
	return &Comparison{newEvaluator(from), newEvaluator(to), map[outcomePair]Class{}, map[changeKind]int{},
		map[changeKey]*Change{}, nil}
}

// Add compares the outcomes of a request. Add doesn't keep the request.
func (c *Comparison) Add(r *Request) { c.addSample(r, "") }

// addSample adds a sample of the path of a rule; of is "" for a request from a log.
func (c *Comparison) addSample(r *Request, of string) {
	p := outcomePair{c.from.evaluate(r), c.to.evaluate(r)}
	class, known := c.classes[p]
	if !known {
		class = c.classify(p)
		c.classes[p] = class
	}
	if class == unchanged {
		return
	}
	prefix := of
	if of == "" {
		prefix = prefixOf(r.Path)
	}
	at := changeKey{changeKind{class, c.from.outcomeName(p.from), c.to.outcomeName(p.to)}, prefix}
	change := c.changes[at]
	if change == nil && of == "" && c.prefixes[at.changeKind] >= maxPrefixes {
		at.prefix = Others
		change = c.changes[at]
	}
	if change == nil {
		c.prefixes[at.changeKind]++
		at.prefix = strings.Clone(at.prefix)
		change = &Change{class, at.from, at.to, at.prefix, 0,
			Request{strings.Clone(r.Method), strings.Clone(r.Host), strings.Clone(r.Path)}}
		c.changes[at] = change
		c.order = append(c.order, change)
	}
	change.Count++
}

func (c *Comparison) classify(p outcomePair) Class {
	was, is := c.from.needOf(p.from), c.to.needOf(p.to)
	old, now := c.from.cacheKey(p.from), c.to.cacheKey(p.to)
	switch {
	case was.Refused && is.Refused:
		return unchanged // the answer is 403 whatever the reason
	case is.Refused:
		return Refused
	case !is.Credential && (was.Refused || was.Credential):
		return Opens
	case was.Refused:
		return NotRefused
	case !was.Credential && is.Credential:
		return Protected
	case is.Weaker(was) && was.Weaker(is):
		return NeedsOther
	case is.Weaker(was):
		return NeedsLess
	case was.Weaker(is):
		return NeedsMore
	case is.Credential && c.from.credentialLocation(p.from) != c.to.credentialLocation(p.to):
		return OtherCredentials
	case old == "" && now != "":
		return Cached
	case old != "" && now == "":
		return NotCached
	case old != now:
		return OtherKey
	case !isSameRule(c.from.ruleOf(p.from), c.to.ruleOf(p.to)):
		return OtherRule
	}
	return unchanged
}

// isSameRule reports whether two rules are one rule, perhaps renamed, moved, or with other matches.
func isSameRule(a, b *policy.Rule) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.IssueSession == b.IssueSession && (a.Name == b.Name || reflect.DeepEqual(a.Match, b.Match))
}

// prefixOf returns the first two segments of a path.
func prefixOf(path string) string {
	slashes := 0
	for i := range len(path) {
		switch path[i] {
		case '?':
			return path[:i]
		case '/':
			if slashes++; slashes > 2 {
				return path[:i]
			}
		}
	}
	return path
}

// Changes returns all changes, most serious and most frequent first.
func (c *Comparison) Changes() []Change {
	all := make([]Change, 0, len(c.order))
	for _, change := range c.order {
		all = append(all, *change)
	}
	slices.SortStableFunc(all, func(a, b Change) int {
		return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(b.Count, a.Count))
	})
	return all
}

// Weakened reports whether one of the changes lets in clients that were refused.
func Weakened(changes []Change) bool {
	return slices.ContainsFunc(changes, func(c Change) bool { return c.Class.Weakens() })
}

// Describe returns method, host and path of a request for messages, in the form of a URL.
func (r *Request) Describe() string { return fmt.Sprintf("%s %s%s", r.Method, r.Host, r.Path) }
