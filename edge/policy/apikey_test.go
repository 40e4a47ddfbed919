package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/apikey"
	"github.com/gatehouse/gatehouse/edge/wire"
)

var (
	keySecret = apikey.Secret(strings.Repeat("K", 26))
)

// apiKeyOf returns the API key of a device with keySecret.
func apiKeyOf(id string) string { return "gh_" + id + keySecret[2:] }

func TestDecideAPIKey(t *testing.T) {
	const (
		in     = `{"credentials": {`
		rules  = `}, "session": {"metadata": "gatehouse"}, "rules": [{"match": {"prefix": "/"}, "auth": {}}]}`
		header = in + `"api_key_header": "x-api-key"` + rules
		bearer = in + `"bearer": true` + rules
		both   = in + `"api_key_header": "X-Api-Key", "bearer": true` + rules
		all    = in + `"id_header": "x-id", "secret_header": "x-secret", "api_key_header": "x-api-key",
			"bearer": true` + rules
		basic = in + `"basic": true, "bearer": true, "api_key_header": "x-api-key"` + rules
	)
	const key, authorization = "x-api-key: ", "authorization: Bearer "
	dev := Credential{ID: "dev", Secret: keySecret}
	right, wrong := apiKeyOf("dev"), "gh_dev"+keySecret[2:len(keySecret)-1]+"-"
	var none claims
	var nobody Credential
	token := claims{sub: "tok", ver: "7-1"}
	tests := []struct {
		name, config string
		lines        []string
		token        claims
		want         Credential // of a call; none: 401
	}{
		{"header", header, []string{key + right}, none, dev},
		{"header, an id with _", header, []string{key + apiKeyOf("a_b_")}, none,
			Credential{ID: "a_b_", Secret: keySecret}},
		{"bearer", bearer, []string{authorization + right}, none, dev},
		{"bearer, the scheme's case and spaces", bearer, []string{"authorization: bEARER   " + right}, none, dev},
		{"with two ways", both, []string{key + right}, none, dev},
		{"with four ways", all, []string{authorization + right}, none, dev},
		{"Basic beside bearer", basic, []string{"authorization: Basic ZGV2OnM="}, none,
			Credential{ID: "dev", Secret: "s"}},
		{"bearer beside Basic", basic, []string{authorization + right}, none, dev},
		{"headers beside keys", all, []string{"x-id: dev", "x-secret: s"}, none, Credential{ID: "dev", Secret: "s"}},
		{"another's token beside a key", all, []string{key + right, "authorization: Bearer eyJ"}, none, dev},
		{"another's token beside headers", all, []string{"x-id: dev", "x-secret: s", "authorization: Bearer eyJ"}, claims{},
			Credential{ID: "dev", Secret: "s"}},
		{"a key, not the token", both, []string{key + right}, token, dev},
		{"a token that is forwarded", both, []string{"authorization: Bearer eyJ"}, token,
			Credential{ID: "tok", Session: "7-1"}},
		{"a token", both, nil, token, Credential{ID: "tok", Session: "7-1"}},

		{"nothing", both, nil, none, nobody},
		{"a key where none is read", bearer, []string{key + right}, none, nobody},
		{"a bearer where none is read", header, []string{authorization + right}, none, nobody},
		{"the header with a scheme", header, []string{"x-api-key: Bearer " + right}, none, nobody},
		{"bearer without a scheme", bearer, []string{"authorization: " + right}, none, nobody},
		{"another's token", bearer, []string{"authorization: Bearer eyJ"}, none, nobody},
		{"the key twice", header, []string{key + right, key + right}, none, nobody},
		{"the bearer twice", bearer, []string{authorization + right, authorization + right}, none, nobody},
		{"the bearer, then another", bearer, []string{authorization + right, "authorization: Basic Og=="}, none, nobody},
		{"another, then the bearer", bearer, []string{"authorization: Basic Og==", authorization + right}, none, nobody},
		{"headers beside another's token, then a bearer", all,
			[]string{"x-id: dev", "x-secret: s", "authorization: Bearer eyJ", authorization + right}, none, nobody},
		{"folded", header, []string{key + right + ", " + right}, none, nobody},
		{"in both ways", both, []string{key + right, authorization + right}, none, nobody},
		{"another key in each way", both, []string{key + right, authorization + apiKeyOf("b")}, none, nobody},
		{"a key and headers", all, []string{key + right, "x-id: dev", "x-secret: " + keySecret}, none, nobody},
		{"a key and an id", all, []string{key + right, "x-id: dev"}, none, nobody},
		{"a bearer and a secret", all, []string{authorization + right, "x-secret: s"}, none, nobody},
		{"a key and Basic", basic, []string{key + right, "authorization: Basic ZGV2OnM="}, none, nobody},
		{"a bad key, not the token", both, []string{"x-api-key: "}, token, nobody},
		{"a bad bearer, not the token", both, []string{"authorization: Bearer gh_"}, token, nobody},
		{"a wrong checksum", header, []string{key + wrong}, none, nobody},
		{"a wrong checksum, as bearer", bearer, []string{authorization + wrong}, none, nobody},
		{"an id of another form", header, []string{key + apiKeyOf("a/b")}, none, nobody},
		{"the secret alone", header, []string{key + keySecret}, none, nobody},
	}
	for _, tt := range tests {
		m := newMemory()
		for _, id := range []string{"dev", "a_b_", "tok"} {
			m.device(id, false)
		}
		d := decideToken(t, m, tt.config, &tt.token, Answers{}, append([]string{"GET /x"}, tt.lines...)...)
		refused := d.Action == Reply && d.Status == 401 && d.Reason == NoCredential
		called := d.Action == Verify
		if called == refused || d.Credential != tt.want || called != (tt.want != nobody) {
			t.Errorf("%s: got action %d, %d %s, credential %+v, want %+v", tt.name, d.Action, d.Status, d.Reason,
				d.Credential, tt.want)
		}
	}
}

// TestAPIKeyByVerdict: memory says the same about an API key as about the key's id and secret.
func TestAPIKeyByVerdict(t *testing.T) {
	const rules = `{"credentials": {"api_key_header": "x-api-key"}, "rules": [
		{"match": {"path": "/s", "methods": ["POST"]}, "session": "issue"}, {"match": {"prefix": "/"}, "auth": {}}]}`
	allow := wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1}
	deny := wire.Verdict{Outcome: wire.Deny, ExpiresMS: now + 1}
	right := apiKeyOf("dev")
	typo := keySecret[:len(keySecret)-1] + "_" // the checksum doesn't matter where there is a verdict
	wrong := "gh_dev" + typo[2:]
	for _, tt := range []struct {
		name       string
		setup      func(m *memory)
		first, key string
		action     Action
		reason     Reason
	}{
		{"allowed", func(m *memory) { m.verdict("dev", keySecret, allow) },
			"GET /x", right, Pass, 0},
		{"denied", func(m *memory) { m.verdict("dev", keySecret, deny) },
			"GET /x", right, Reply, Denied},
		{"denied, a wrong checksum", func(m *memory) { m.verdict("dev", typo, deny) },
			"GET /x", wrong, Reply, Denied},
		{"wrong", func(m *memory) { m.device("dev", true, allow) },
			"GET /x", right, Reply, WrongSecret},
		{"wrong, and its checksum", func(m *memory) { m.device("dev", true, allow) },
			"GET /x", wrong, Reply, NoCredential},
		{"unknown", func(m *memory) { m.neighbour("dev") },
			"GET /x", right, Reply, UnknownDevice},
		{"for a token", func(m *memory) { m.verdict("dev", keySecret, allow) },
			"POST /s", right, Exchange, 0},
		{"for a token, a wrong checksum", func(m *memory) { m.device("dev", false) },
			"POST /s", wrong, Reply, NoCredential},
	} {
		m := newMemory()
		tt.setup(m)
		d := decideToken(t, m, rules, &claims{}, Answers{}, tt.first, "x-api-key: "+tt.key)
		if d.Action != tt.action || d.Action == Reply && d.Reason != tt.reason || d.Action == Pass && d.Device != "dev" {
			t.Errorf("%s: got action %d, %s, device %q, want %d, %s", tt.name, d.Action, d.Reason, d.Device,
				tt.action, tt.reason)
		}
	}
}

// TestAPIKeyOfHosts: each virtual host reads its own kind of credentials.
func TestAPIKeyOfHosts(t *testing.T) {
	const rules = `{"credentials": {"id_header": "x-id", "secret_header": "x-secret"},
		"rules": [{"match": {"prefix": "/"}, "auth": {}}], "virtual_hosts": {
		"a": {"domains": ["a"], "credentials": {"api_key_header": "x-api-key"},
			"rules": [{"match": {"prefix": "/"}, "auth": {}}]},
		"b": {"domains": ["b"], "credentials": {"bearer": true}, "rules": [{"match": {"prefix": "/"}, "auth": {}}]}}}`
	e, m := newEdge(t, rules), newMemory()
	m.verdict("dev", keySecret, wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1})
	e.SetState(now, m.state)
	ways := map[string][]string{"edge": {"x-id: dev", "x-secret: " + keySecret}, "a": {"x-api-key: " + apiKeyOf("dev")},
		"b": {"authorization: Bearer " + apiKeyOf("dev")}}
	for host, challenge := range map[string]string{"edge": "Device", "a": "Device", "b": "Bearer"} {
		for of, lines := range ways {
			all := request(append([]string{"GET /x"}, lines...)...)
			all[2][1] = host
			d := decideRequest(m, readHeaders(e, all))
			if passed := d.Action == Pass && d.Device == "dev"; passed != (of == host) {
				t.Errorf("the credential of %s at %s: got action %d, device %q", of, host, d.Action, d.Device)
			}
			want := [2]string{"www-authenticate", challenge + ` realm="gatehouse"`}
			if d.Status == 401 && !slices.Contains(fieldsOf(d), want) {
				t.Errorf("at %s: got %q, want the challenge %s", host, fieldsOf(d), challenge)
			}
		}
	}
}
