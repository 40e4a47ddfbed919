package ruleschema

import (
	"strings"
	"time"
)

// Descriptions describe the fields for editors, by path. docs/rules.md has more.
var Descriptions = map[string]string{
	"push_listener":   "true, and nothing else, makes Envoy's plugin the listener to which the sidecar pushes.",
	"sidecar":         "How the edge calls the sidecar.",
	"sidecar.cluster": "Envoy's cluster of the sidecar, by default gatehouse-sidecar.",
	"sidecar.timeout": "How long a request waits for a call.",
	"credentials": "Where the credential is: {id_header: NAME, secret_header: NAME}, {basic: true}, " +
		"{api_key_header: NAME} or {bearer: true}.",
	"credentials.id_header":      "Header with the id of the device.",
	"credentials.secret_header":  "Header with its secret.",
	"credentials.basic":          "true: Basic authentication (RFC 7617), in place of headers.",
	"credentials.api_key_header": "Header with an API key, which has id and secret.",
	"credentials.bearer":         "true: an API key in Authorization: Bearer.",
	"credentials.forward":        "true: the upstream gets the secret, too.",
	"source":                     "Where the client's address is: envoy, {header: NAME} or {filter_state: NAME}.",
	"source.header":              "Header that the proxy before Envoy always sets.",
	"source.filter_state":        "Object of Envoy's filter state with the address.",
	"session":                    "Accepts tokens for credentials.",
	"session.metadata":           "payload_in_metadata of Envoy's jwt_authn.",
	"verdict_grace":              "How long an expired allow verdict stays valid while the sidecar is unreachable.",
	"max_staleness":              "How long cached answers are served after the edge was last in step with Redis.",
	"max_auth_staleness":         "How long devices are authenticated out of step with Redis; 0s: without a bound.",
	"stale":                      "Beyond max_staleness: bypass (go upstream) or serve.",
	"rules":                      "The first rule that matches a request applies.",
	"rules.name":                 "Name in counters and logs; without one, the index of the rule.",
	"rules.match":                "Which requests: path or prefix, and methods.",
	"rules.match.path":           "This path, with or without a slash at its end.",
	"rules.match.prefix":         "Each path that begins with it; /a/ also covers /a.",
	"rules.match.methods":        "Only these methods, of which GET includes HEAD; without them, all.",
	"rules.auth":                 "Requires a credential; {}: any good one.",
	"rules.auth.permissions":     "Permissions that the device needs, all of them.",
	"rules.auth.enforce":         "false: a trial, which refuses nobody and counts whom the rule would refuse.",
	"rules.cache":                "Answers GET and HEAD with published objects.",
	"rules.cache.query":          "Parameters that are part of the key; without them, the whole query, sorted.",
	"rules.cache.on_miss":        "On a miss: pass (go upstream), or fetch (read Redis first).",
	"rules.cache.serve":          "false: a trial, which sends all requests upstream and counts what the cache has.",
	"rules.cache.scope":          "Who shares an object: shared (all), device, host, or [host, device].",
	"rules.cache.languages":      "Languages in which objects are published besides, such as de or en-GB.",
	"rules.cache.origin_headers": "true: sends published headers that act on the whole origin, such as Alt-Svc.",
	"rules.session":              "issue: answers POST with a token for the credential.",
	"default":                    "What no rule matches: pass (upstream), deny (403), or would_deny, a trial of deny.",
	"virtual_hosts":              "Rules of their own for the hosts of some domains, by name.",
	"virtual_hosts.domains":      "Hosts, such as shop.example, *.shop.example for all that end so, or *.",
	"strip_override_headers":     "false: keeps headers that override method or target at some upstreams.",
	"log_hits":                   "true: access logs have rule and device of cached answers, too.",
}

// formatDuration returns a duration without units of zero.
func formatDuration(d time.Duration) string {
	text := d.String()
	if cut, found := strings.CutSuffix(text, "m0s"); found {
		text = cut + "m"
	}
	if cut, found := strings.CutSuffix(text, "h0m"); found {
		text = cut + "h"
	}
	return text
}
