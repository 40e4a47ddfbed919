package conformance

import "testing"

// guarded are rules with credentials as in RFC 7617, or API keys as in RFC 6750; a request without a rule is denied.
const guarded = `
sidecar: {cluster: gatehouse-sidecar, timeout: 2s}
credentials: {basic: true, bearer: true}
session: {metadata: gatehouse}
rules:
- {match: {path: /session, methods: [POST]}, session: issue}
- {match: {prefix: /p/}, cache: {}}
- {match: {prefix: /d/}, auth: {}}
- {match: {prefix: /a/}, auth: {permissions: [read]}, cache: {}}
- {match: {path: /sentinel}}
default: deny
`

// basic are cases of the guarded rules. ZGV2OnNlY3JldA== is dev:secret.
var basic = []testCase{
	{"7617 2", "a challenge", "GET /a/doc", 401, "edge", "www-authenticate ~ Basic realm=\".+\".*"},
	{"7617 2", "a good credential", "GET /a/doc\nauthorization: Basic ZGV2OnNlY3JldA==", 200,
		"hit", "etag: \"auth\"\ncache-control: private, no-cache\nvary ~ .*authorization.*"},
	{"7617 2", "with a precondition", "GET /a/doc\nauthorization: Basic ZGV2OnNlY3JldA==\nif-none-match: *",
		304, "hit", "vary ~ .*authorization.*"},
	{"9110 11.1", "a scheme in lower case", "GET /a/doc\nauthorization: basic ZGV2OnNlY3JldA==", 200, "hit", ""},
	{"9110 11.1", "a scheme in upper case", "GET /a/doc\nauthorization: BASIC ZGV2OnNlY3JldA==", 200, "hit", ""},
	{"7617 2", "a wrong secret", "GET /a/doc\nauthorization: Basic ZGV2Ondyb25n", 401, "edge", ""},
	{"7617 2", "no colon", "GET /a/doc\nauthorization: Basic ZGV2", 401, "edge", ""},
	{"7617 2", "nothing behind the scheme", "GET /a/doc\nauthorization: Basic", 401, "edge", ""},
	{"9110 11.4", "another alphabet", "GET /a/doc\nauthorization: Basic ZGV2OnNlY3JldA==!", 401, "edge", ""},
	{"9110 11.4", "another scheme", "GET /a/doc\nauthorization: Bearer ZGV2OnNlY3JldA==", 401, "edge", ""},
	{"6750 2.1", "an API key", "GET /a/doc\nauthorization: Bearer gh_key_KKKKKKKKKKKKKKKKKKKKKKKKKK_5255e654", 200,
		"hit", "cache-control: private, no-cache\nvary ~ .*authorization.*"},
	{"9110 11.1", "its scheme in lower case", "GET /a/doc\nauthorization: bearer " +
		"gh_key_KKKKKKKKKKKKKKKKKKKKKKKKKK_5255e654", 200, "hit", ""},
	{"6750 3.1", "an API key with a wrong checksum",
		"GET /a/doc\nauthorization: Bearer gh_key_KKKKKKKKKKKKKKKKKKKKKKKKKK_5255e653", 401, "edge", ""},
	{"6750 2.3", "no API key in the query", "GET /a/doc?access_token=" +
		"gh_key_KKKKKKKKKKKKKKKKKKKKKKKKKK_5255e654", 401, "edge",
		"www-authenticate ~ Basic .*"},
	{"9110 5.3", "two credentials",
		"GET /a/doc\nauthorization: Basic ZGV2OnNlY3JldA==\nauthorization: Basic ZGV2OnNlY3JldA==", 401, "edge", ""},
	{"9110 11.6.2", "a credential of a proxy's is none",
		"GET /a/doc\nproxy-authorization: Basic ZGV2OnNlY3JldA==", 401, "edge", ""},
	{"9110 15.5.4", "what no rule is about", "GET /elsewhere", 403, "edge", "!www-authenticate"},
	{"9110 15.5.4", "with a credential, too", "GET /elsewhere\nauthorization: Basic ZGV2OnNlY3JldA==", 403, "edge", ""},
	{"9110 9.3.7", "OPTIONS of what no rule is about", "OPTIONS /elsewhere", 403, "edge", ""},
	{"9110 9.3.7", "OPTIONS of the server", "OPTIONS /session", 403, "edge", ""},
	{"6749 5.1", "a token for the credential", "POST /session\nauthorization: Basic ZGV2OnNlY3JldA==",
		200, "edge", "cache-control: no-store\ncontent-type: application/json"},
	{"9110 13.2.1", "a precondition of a token doesn't count",
		"POST /session\nauthorization: Basic ZGV2OnNlY3JldA==\nif-match: \"x\"", 200, "edge", "cache-control: no-store"},
	{"9110 13.2.1", "nor does a date",
		"POST /session\nauthorization: Basic ZGV2OnNlY3JldA==\nif-unmodified-since: Thu, 01 Jan 1970 00:00:00 GMT",
		200, "edge", ""},
	{"9110 15.5.2", "no token without one", "POST /session", 401, "edge", "cache-control: no-store"},
	{"9110 15.5.4", "no token by GET", "GET /session\nauthorization: Basic ZGV2OnNlY3JldA==", 403, "edge", ""},
}

// TestGuarded runs the cases of basic.
func TestGuarded(t *testing.T) {
	s := start(t, guarded)
	s.publishAll(t)
	runCases(t, s, basic, func(c testCase) string { return c.name })
}
