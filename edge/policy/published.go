package policy

import (
	"strings"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// nextHeader returns the first of an object's header lines, and the others.
func nextHeader(lines string) (name, value, rest string) {
	line, rest, _ := strings.Cut(lines, "\n")
	name, value, _ = strings.Cut(line, ": ")
	return name, value, rest
}

// published returns the value of the publisher's header of this name, "" if there is none.
func published(o *wire.Object, name string) string {
	for rest := o.Headers; rest != ""; {
		var n, value string
		if n, value, rest = nextHeader(rest); n == name {
			return value
		}
	}
	return ""
}

// appendPublished appends the publisher's headers, without those that [Engine.serve] has added already. A 304 has only
// those that it must repeat (RFC 9110, section 15.4.5). Private answers lack those that allow some shared cache to
// store them, whatever Cache-Control says (RFC 9213).
//
//go:noinline
func appendPublished(headers [][2]string, rule *Rule, o *wire.Object, notModified bool) [][2]string {
	for rest := o.Headers; rest != ""; {
		var name, value string
		name, value, rest = nextHeader(rest)
		switch {
		case name == "cache-control" || name == "last-modified":
		case notModified && name != "content-location" && name != "expires":
		case rule.private() && (strings.HasSuffix(name, "-cache-control") || name == "surrogate-control" ||
			name == "edge-control"): // of Akamai
		default:
			headers = append(headers, [2]string{name, value})
		}
	}
	return headers
}

// publishedControl returns the publisher's Cache-Control, completed by computed, the edge's own, unless it says itself
// how long an answer is fresh. A shared cache never gets a private answer to store: private comes first, where no
// malformed directive can hide it.
//
//go:noinline
func (e *Engine) publishedControl(directives, computed string, private, ttl bool) string {
	all := e.text
	if private {
		all = append(all, "private"...)
		computed = strings.TrimPrefix(computed, "private, ")
	}
	add := func(directive string) {
		if len(all) > len(e.text) {
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
		add("max-age=0") // no-cache would forbid shared caches what s-maxage allows
	default:
		add(computed)
	}
	return e.compose(all)
}

// nextDirective returns the first element of a list, and those after it. A comma in a quoted string separates nothing.
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
