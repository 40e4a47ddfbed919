package policy

import (
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// nextHeader returns the first of an object's header lines, and the others.
func nextHeader(lines string) (name, value, rest string) {
	line, rest, _ := strings.Cut(lines, "\n")
	name, value, _ = strings.Cut(line, ": ")
	return name, value, rest
}

// publishedHeader returns the value of the publisher's header of this name, "" if there is none.
func publishedHeader(o *wire.Object, name string) string {
	for rest := o.Headers; rest != ""; {
		var n, value string
		if n, value, rest = nextHeader(rest); n == name {
			return value
		}
	}
	return ""
}

// appendPublished appends the publisher's headers, without those that [Engine.serve] has added already, and those that
// readers of Redis refuse: memory may have been filled by an older sidecar. A 304 has only those that it must repeat
// (RFC 9110, section 15.4.5). Private answers lack those that allow some shared cache to store them, whatever
// Cache-Control says (RFC 9213). What acts on the whole origin needs the rule's permission: who publishes under one
// prefix must not decide for others.
//
//go:noinline
func appendPublished(headers [][2]string, rule *Rule, o *wire.Object, notModified bool) [][2]string {
	for rest := o.Headers; rest != ""; {
		var name, value string
		name, value, rest = nextHeader(rest)
		switch {
		case name == "cache-control" || name == "last-modified":
		case !limits.ValidHeaderName(name) || limits.RefusedHeader(name):
		case limits.OriginHeader(name) && !rule.Cache.OriginHeaders:
		case notModified && name != "content-location" && name != "expires":
		case rule.isPrivate() && (strings.HasSuffix(name, "-cache-control") || name == "surrogate-control" ||
			name == "edge-control"): // of Akamai
		default:
			headers = append(headers, [2]string{name, value})
		}
	}
	return headers
}
