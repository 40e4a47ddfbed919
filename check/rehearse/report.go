package rehearse

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/edge/policy"
)

// Class is a kind of changes. A request with several has the most serious one.
type Class uint8

// The classes, most serious first.
const (
	same Class = iota
	// Opens: the request was refused or needed a credential, and passes without one.
	Opens
	// NeedsLess: the request needs a credential, but not all permissions that it needed.
	NeedsLess
	// NeedsOther: the request needs a credential with other permissions, so other devices get in.
	NeedsOther
	// NotRefused: the request was refused, and needs a credential.
	NotRefused
	// Refused: no request like it passes any more.
	Refused
	// Protected: the request passed, and needs a credential.
	Protected
	// NeedsMore: the request needs all permissions that it needed, and others.
	NeedsMore
	// OtherCredentials: the request shows its credential elsewhere.
	OtherCredentials
	// Cached: the cache answers it now.
	Cached
	// OtherKey: the cache answers it with another object.
	OtherKey
	// NotCached: the cache doesn't answer it any more.
	NotCached
	// OtherRule: another rule decides, with the same result but for counters and logs.
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

// Weakens reports whether who was kept out may get in.
func (c Class) Weakens() bool { return c == Opens || c == NeedsLess || c == NeedsOther }

// Change is one kind of changes below one prefix.
type Change struct {
	Class Class `json:"class"`
	// From and To are names of rules, "none" for requests that pass without one, or why they are refused without one.
	From string `json:"from"`
	To   string `json:"to"`
	// Prefix has the path's first two segments, or is [Others]; for samples it is the path of their rule.
	Prefix string `json:"prefix"`
	// Count is the number of requests, or of samples.
	Count   int     `json:"count"`
	Example Request `json:"example"` // the first
}

// Others is the prefix of paths beyond maxPrefixes.
const Others = "(others)"

// maxPrefixes bounds the prefixes of one pair of rules and one class in a log.
const maxPrefixes = 50

// Comparison compares how two configurations judge requests. It is not safe for concurrent use.
type Comparison struct {
	from, to *judge
	classes  map[pair]Class
	prefixes map[kind]int
	changes  map[place]*Change
	order    []*Change
}

type pair struct{ from, to judgement }

type kind struct {
	class    Class
	from, to string
}

type place struct {
	kind
	prefix string
}

// NewComparison returns a comparison without requests.
func NewComparison(from, to *policy.Config) *Comparison {
	return &Comparison{newJudge(from), newJudge(to), map[pair]Class{}, map[kind]int{}, map[place]*Change{}, nil}
}

// Add judges a request, which it doesn't keep.
func (c *Comparison) Add(r *Request) { c.add(r, "") }

// add is Add for a sample of the path of a rule, "" for a request of a log.
func (c *Comparison) add(r *Request, of string) {
	p := pair{c.from.judge(r), c.to.judge(r)}
	class, known := c.classes[p]
	if !known {
		class = c.class(p)
		c.classes[p] = class
	}
	if class == same {
		return
	}
	prefix := of
	if of == "" {
		prefix = prefixOf(r.Path)
	}
	at := place{kind{class, c.from.name(p.from), c.to.name(p.to)}, prefix}
	change := c.changes[at]
	if change == nil && of == "" && c.prefixes[at.kind] >= maxPrefixes {
		at.prefix = Others
		change = c.changes[at]
	}
	if change == nil {
		c.prefixes[at.kind]++
		at.prefix = strings.Clone(at.prefix)
		change = &Change{class, at.from, at.to, at.prefix, 0,
			Request{strings.Clone(r.Method), strings.Clone(r.Host), strings.Clone(r.Path)}}
		c.changes[at] = change
		c.order = append(c.order, change)
	}
	change.Count++
}

func (c *Comparison) class(p pair) Class {
	was, is := c.from.need(p.from), c.to.need(p.to)
	old, now := c.from.cached(p.from), c.to.cached(p.to)
	switch {
	case was.Refused && is.Refused:
		return same // whatever the reason: the answer is 403
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
	case is.Credential && c.from.shown(p.from) != c.to.shown(p.to):
		return OtherCredentials
	case old == "" && now != "":
		return Cached
	case old != "" && now == "":
		return NotCached
	case old != now:
		return OtherKey
	case !alike(c.from.rule(p.from), c.to.rule(p.to)):
		return OtherRule
	}
	return same
}

// alike reports whether two rules are one rule, perhaps renamed, moved, or with other matches.
func alike(a, b *policy.Rule) bool {
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

// Weakened reports whether one of the changes lets somebody in who was kept out.
func Weakened(changes []Change) bool {
	return slices.ContainsFunc(changes, func(c Change) bool { return c.Class.Weakens() })
}

// Text returns a request for messages: method, and host and path as they are in a URL.
func (r *Request) Text() string { return fmt.Sprintf("%s %s%s", r.Method, r.Host, r.Path) }
