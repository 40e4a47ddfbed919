package policy

import (
	"strings"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// isPrivate reports whether answers from the cache need a credential, and are for one client only.
func (r *Rule) isPrivate() bool { return r.Auth != nil && (!r.Auth.Trial || r.Cache.PerDevice) }

// cacheControl returns the Cache-Control of an answer: clients and caches may store the answer for the rest of its ttl,
// and without a ttl must revalidate each time. Answers that need a credential are private. A client that subtracts Age
// from max-age (RFC 9111, section 4.2.3) stores the answer for less time; no client stores the answer longer than the
// object lives.
//
// A publisher's Cache-Control takes precedence, see publishedControl, except for an object that was purged
// softly: clients must revalidate it.
func (p *responder) cacheControl(nowMS int64, rule *Rule, o *wire.Object) string {
	computed := p.computedControl(nowMS, rule, o)
	if o.Headers != "" && !o.Stale {
		if directives := publishedHeader(o, "cache-control"); directives != "" {
			return p.publishedControl(directives, computed, rule.isPrivate(), o.TTLMS != 0)
		}
	}
	return computed
}

func (p *responder) computedControl(nowMS int64, rule *Rule, o *wire.Object) string {
	left := min(o.PublishedMS+int64(o.TTLMS)-nowMS, int64(o.TTLMS)) / 1000 // over the ttl if the clock was set back
	switch {
	case o.TTLMS != 0 && rule.isPrivate():
		return p.text.formatDecimal("private, max-age=", left)
	case o.TTLMS != 0:
		return p.text.formatDecimal("max-age=", left)
	case rule.isPrivate():
		return "private, no-cache"
	default:
		return "no-cache"
	}
}

// publishedControl returns the publisher's Cache-Control, completed by computed, the edge's own, unless it says itself
// how long an answer is fresh. A shared cache never gets a private answer to store: private comes first, where no
// malformed directive can hide it.
//
//go:noinline
func (p *responder) publishedControl(directives, computed string, private, ttl bool) string {
	all := p.text
	if private {
		all = append(all, "private"...)
		computed = strings.TrimPrefix(computed, "private, ")
	}
	add := func(directive string) {
		if len(all) > len(p.text) {
			all = append(all, ", "...)
		}
		all = append(all, directive...)
	}
	fresh, shared := false, false
	for directives != "" {
		var directive string
		directive, directives = nextDirective(directives)
		name, _, argument := strings.Cut(directive, "=")
		name = strings.ToLower(strings.TrimSpace(name))
		switch name {
		case "":
			continue
		case "max-age", "no-store":
			fresh = true
		case "no-cache": // with names of headers it is about these (RFC 9111, section 5.2.2.4)
			fresh = fresh || !argument
		case "public", "stale-while-revalidate", "stale-if-error":
			if private {
				continue
			}
		case "s-maxage":
			if private {
				continue
			}
			shared = true
		case "private":
			if private {
				continue
			}
		}
		add(directive)
	}
	switch {
	case fresh:
	case shared && !ttl:
		add("max-age=0") // no-cache would override s-maxage in shared caches
	default:
		add(computed)
	}
	return p.text.compose(all)
}

// nextDirective returns the first element of a list, and the rest. A comma in a quoted string doesn't separate.
func nextDirective(list string) (first, rest string) {
	quoted := false
	for i := 0; i < len(list); i++ {
		switch c := list[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == ',' && !quoted:
			return strings.TrimSpace(list[:i]), list[i+1:]
		}
	}
	return strings.TrimSpace(list), ""
}
