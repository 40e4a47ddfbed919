package conformance

import "strings"

func long(n int) string { return strings.Repeat("x", n) }

func pairs(n int) string { return strings.TrimSuffix(strings.Repeat("a=1&", n), "&") }

// refusals are answers to requests that need a credential, or that a filter before the upstream must not change.
var refusals = []testCase{
	{"9110 15.5.2", "no credential", "POST /w\n\nx", 401, "edge", "!etag\n!set-cookie"},
	{"9110 11.6.1", "a challenge", "POST /w", 401, "edge", "www-authenticate ~ .+"},
	{"9110 11.4", "half a credential", "POST /w\nx-device-id: dev", 401, "edge", ""},
	{"9110 11.4", "the other half", "POST /w\nx-device-token: secret", 401, "edge", ""},
	{"9110 11.4", "a wrong secret", "POST /w\nx-device-id: dev\nx-device-token: wrong", 401, "edge", ""},
	{"9110 11.4", "an unknown device", "POST /w\nx-device-id: nobody\nx-device-token: secret", 401, "edge", ""},
	{"9110 5.3", "a doubled id", "POST /w\nx-device-id: dev\nx-device-id: dev\nx-device-token: secret", 401, "edge", ""},
	{"9110 5.3", "a doubled secret", "POST /w\nx-device-id: dev\nx-device-token: secret\nx-device-token: secret", 401, "edge", ""},
	{"9110 5.5", "an empty secret", "POST /w\nx-device-id: dev\nx-device-token:", 401, "edge", ""},
	{"9110 5.5", "spaces around values are none of them", "POST /w\nx-device-id:  dev \nx-device-token: \tsecret ", 200, "upstream", ""},
	{"9110 5.1", "names of fields in any case", "POST /w\nX-Device-ID: dev\nX-DEVICE-TOKEN: secret", 200, "upstream", ""},
	{"9110 11.6.2", "Authorization of another scheme isn't the credential", "POST /w\nauthorization: Basic ZGV2OnNlY3JldA==", 401, "edge", ""},
	{"9110 15.5.4", "without the permission", "POST /w\nx-device-id: poor\nx-device-token: secret", 403, "edge", "!www-authenticate\n!etag"},
	{"9110 15.5.4", "without the permission, cached", "GET /a/doc\nx-device-id: poor\nx-device-token: secret", 403, "edge", "!etag"},
	{"9110 15.3.1", "with the credential", "POST /w\nx-device-id: dev\nx-device-token: secret\n\ncontent", 200, "upstream", "content: POST /w content"},
	{"9110 15.3.1", "with the credential, cached", "GET /a/doc\nx-device-id: dev\nx-device-token: secret", 200, "hit", `etag: "auth"`},
	{"9110 15.5.2", "a refusal of what is cached has nothing of it", "GET /a/doc", 401, "edge", "!etag\n!last-modified"},
	{"9110 9.1", "a method that the rule doesn't name", "PUT /w\n\nx", 200, "upstream", ""},
	{"3986 6.2.2.3", "dot segments don't get by", "POST /x/../w", 401, "edge", ""},
	{"3986 6.2.2.2", "escapes don't get by", "POST /%77", 401, "edge", ""},
	{"3986 6.2.2.3", "doubled slashes don't get by", "POST //w", 401, "edge", ""},
	{"3986 3.3", "parameters of a segment don't get by", "POST /w;x=1", 401, "edge", ""},
	{"3986 3.3", "a slash at the end doesn't get by", "POST /w/", 401, "edge", ""},
	{"3986 3.4", "a query doesn't get by", "POST /w?a=1", 401, "edge", ""},
	{"3986 2.2", "an escaped slash is refused", "POST /x%2F..%2Fw", 400, "edge", ""},
	{"3986 2.2", "an escaped backslash is refused", "POST /x%5C..%5Cw", 400, "edge", ""},
	{"9110 11.7", "401, not 407: the edge is the origin's", "GET /a/doc\nproxy-authorization: Basic ZGV2OnNlY3JldA==", 401, "edge", "!proxy-authenticate"},
	{"9110 15.5.2", "a refusal isn't stored", "GET /a/doc", 401, "edge", "cache-control: no-store"},
	{"9110 15.5.4", "nor is the other one", "GET /a/doc\nx-device-id: poor\nx-device-token: secret", 403, "edge", "cache-control: no-store"},
	{"9110 7.6.1", "an identity that a client made up is removed", "GET /elsewhere\nx-gatehouse-device: forged", 200, "upstream", ""},
	{"9110 8.3", "gRPC goes upstream, whose answers have its form", "GET /p/42\ncontent-type: application/grpc", 200, "fwd=bypass", ""},
	{"9110 8.3", "gRPC with a format", "GET /p/42\ncontent-type: application/grpc+proto", 200, "fwd=bypass", ""},
	{"9110 8.3", "what begins like gRPC, too", "GET /p/42\ncontent-type: application/grpcx", 200, "fwd=bypass", ""},
	{"9110 10.1.4", "TE: trailers", "GET /p/42\nte: trailers", 200, "hit", ""},
	{"9110 10.1.4", "trailers of the upstream, on a miss", "GET /p/trailers\nte: trailers", 200, "fwd=uri-miss", ""},
	{"9110 6.5", "trailers without a rule", "GET /trailers\nte: trailers", 200, "upstream", ""},
	{"9110 10.1.1", "an expectation of a hit", "GET /p/42\nexpect: 100-continue", 200, "hit", ""},
	{"9110 15.2", "an early hint of the upstream", "GET /hints", 200, "upstream", ""},
	{"9110 10.1.5", "User-Agent has no say", "GET /p/42\nuser-agent: curl/8", 200, "hit", ""},
	{"9110 10.1.3", "Referer has no say", "GET /p/42\nreferer: https://example.com/", 200, "hit", ""},
	{"6265 5.4", "cookies have no say", "GET /p/42\ncookie: a=1; b=2", 200, "hit", "!set-cookie"},
	{"9110 7.6.3", "Via has no say", "GET /p/42\nvia: 1.1 proxy", 200, "hit", ""},
	{"9110 7.6.2", "Max-Forwards is of TRACE and OPTIONS", "GET /p/42\nmax-forwards: 0", 200, "hit", ""},
	{"9110 7.8", "Upgrade may be ignored", "GET /p/42\nconnection: upgrade\nupgrade: h2c", 200, "hit", ""},
}
