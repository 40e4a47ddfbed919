package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

const apiKeyRules = `
sidecar: {cluster: gatehouse-sidecar}
credentials: {id_header: x-device-id, secret_header: x-device-token, api_key_header: x-api-key, bearer: true}
session: {metadata: gatehouse}
rules:
- {name: session, match: {path: /v1/session, methods: [POST]}, session: issue}
- {name: telemetry, match: {prefix: /v1/telemetry}, auth: {permissions: [telemetry.write]}}
- {name: trial, match: {prefix: /v1/trial}, auth: {enforce: false}}
`

// TestAuthAPIKey: an API key counts as its id and secret, beside credentials and tokens.
func TestAuthAPIKey(t *testing.T) {
	t.Parallel()
	config, err := sessionConfig()
	if err != nil {
		t.Fatal(err)
	}
	e := start(t, stack.Options{ConfigPath: config, Rules: apiKeyRules, SidecarArgs: []string{"--session.secret-file",
		writeFile(t, "secret", sessionSecret+"\n")}})
	generate := func(id string) string {
		key, _, _ := strings.Cut(e.ctl("device", "put", id, "--generate", "--api-key", "--permissions", "telemetry.write",
			"--cost", "4"), "\n")
		return key
	}
	key, other := generate("a_b"), generate("other")
	secret := "gh_" + strings.TrimPrefix(key, "gh_a_b_")
	header, bearer := "x-api-key: "+key, "authorization: Bearer "+key
	e.awaitAnswer("a key", hasStatus(200), "POST /v1/telemetry", header)
	k := e.awaitToken("tokens", "secret", "telemetry.write")
	for _, way := range [][]string{{header}, {bearer}, {"authorization: bearer " + key}, credential("a_b", secret)} {
		seen := e.send("POST /v1/telemetry", append(slices.Clone(way), "x-gatehouse-device: forged",
			"x-gatehouse-permissions: all")...).seenByUpstream(t).Headers
		if !slices.Equal(seen["x-gatehouse-device"], []string{"a_b"}) ||
			!slices.Equal(seen["x-gatehouse-permissions"], []string{"telemetry.write"}) {
			t.Errorf("%.25s: the upstream saw %q", way, seen)
		}
		for name, values := range seen {
			if strings.Contains(strings.Join(values, " "), secret[3:]) {
				t.Errorf("%.25s: the upstream saw the secret in %s", way, name)
			}
		}
		got := e.send("POST /v1/trial", way...).seenByUpstream(t).Headers["x-gatehouse-device"]
		if !slices.Equal(got, []string{"a_b"}) {
			t.Errorf("%.25s: in a trial the upstream saw device %q", way, got)
		}
		if got := e.send("POST /v1/session", way...); got.status != 200 {
			t.Errorf("%.25s: got %d for a token, want 200", way, got.status)
		}
	}
	verified, calls := e.metric("gatehouse_bcrypt_total"), e.metric("gatehouse_api_requests_total")
	before := e.UpstreamRequests()
	last := key[:len(key)-1]
	typo := last + string("10"[strings.Count(key[len(key)-1:], "1")])
	for name, lines := range map[string][]string{
		"a wrong checksum":             {"x-api-key: " + typo},
		"a wrong checksum, as bearer":  {"authorization: Bearer " + typo},
		"a part":                       {"x-api-key: " + last},
		"the secret":                   {"x-api-key: " + secret},
		"as a bearer in its header":    {"x-api-key: Bearer " + key},
		"without a scheme":             {"authorization: " + key},
		"both ways":                    {header, bearer},
		"two devices' keys":            {header, "authorization: Bearer " + other},
		"twice":                        {header, header},
		"a key and a credential":       append(credential("a_b", secret), header),
		"a key and an id":              {header, "x-device-id: a_b"},
		"a bearer and an id":           {bearer, "x-device-id: a_b"},
		"a bad key beside a token":     {"x-api-key: x", k.headerLine()},
		"another device's id":          {"x-api-key: gh_nobody_" + secret[3:]},
		"no key but a forged identity": {"x-gatehouse-device: a_b", "authorization: Bearer gh_"},
	} {
		if a := e.send("POST /v1/telemetry", lines...); a.status != 401 ||
			!strings.HasPrefix(a.header.Get("Www-Authenticate"), "Bearer ") {
			t.Errorf("%s: got %d %q, want 401", name, a.status, a.header)
		}
	}
	for name, lines := range map[string][]string{
		"a key and a token": {bearer, k.headerLine()}, "a token and a key": {k.headerLine(), "authorization: bearer " + key},
		"the bearer twice": {bearer, bearer},
	} {
		want := 401
		if onNginx() {
			want = 400 // it refuses two such lines
		}
		if a := e.send("POST /v1/telemetry", lines...); a.status != want {
			t.Errorf("%s: got %d, want %d", name, a.status, want)
		}
	}
	if got := e.UpstreamRequests() - before; got != 0 {
		t.Errorf("the upstream saw %d of them, want none", got)
	}
	// The edge's own calls for keys of tokens and hits come meanwhile, but none of them runs bcrypt.
	if got := e.metric("gatehouse_bcrypt_total") - verified; got != 0 {
		t.Errorf("got %v runs of bcrypt for %v calls, want none", got, e.metric("gatehouse_api_requests_total")-calls)
	}
	if got := e.send("POST /v1/trial", "x-api-key: "+typo).seenByUpstream(t).Headers["x-gatehouse-device"]; got != nil {
		t.Errorf("a wrong checksum in a trial: the upstream saw device %q, want none", got)
	}
	if a := e.send("POST /v1/telemetry", k.headerLine()); a.status != 200 {
		t.Errorf("a token: got %d, want 200", a.status)
	}
	e.ctl("device", "revoke", "a_b")
	for _, line := range []string{header, bearer} {
		e.awaitAnswer("revocation", hasStatus(401), "POST /v1/telemetry", line)
	}
}
