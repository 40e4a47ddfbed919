package policy

import (
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// nextHeader returns the first of an object's header lines, and the rest.
func nextHeader(lines string) (name, value, rest string) {
	line, rest, _ := strings.Cut(lines, "\n")
	name, value, _ = strings.Cut(line, ": ")
	return name, value, rest
}

// publishedHeader returns the value of the publisher's header called name, "" for none.
func publishedHeader(o *wire.Object, name string) string {
	for rest := o.Headers; rest != ""; {
		var n, value string
		if n, value, rest = nextHeader(rest); n == name {
			return value
		}
	}
	return ""
}

// appendPublished appends the publisher's headers, except headers that [responder.serveObject] has added already, and
// headers that readers of Redis refuse: an older sidecar may have filled the memory. A 304 has only the headers that a
// 304 must repeat (RFC 9110, section 15.4.5). Private answers lack the headers by which some shared cache may store an
// answer despite Cache-Control (RFC 9213). Headers with an effect on the whole origin need the rule's permission: a
// publisher under one prefix must not decide for the rest of the origin.
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
