package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/edge/wire/apikey"
)

var (
	keySecret      = apikey.Secret(strings.Repeat("K", 26))
	otherKeySecret = apikey.Secret(strings.Repeat("O", 26))
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
		all    = in + `"id_header": "x-id", "secret_header": "x-secret", "api_key_header": "x-api-key", "bearer": true` + rules
		basic  = in + `"basic": true, "bearer": true, "api_key_header": "x-api-key"` + rules
	)
	dev := Credential{ID: "dev", Secret: keySecret}
	right, wrong := apiKeyOf("dev"), "gh_dev"+keySecret[2:len(keySecret)-1]+"-"
	token := claims{sub: "tok", ver: "7-1"}
	tests := []struct {
		name, config string
		lines        []string
		token        claims
		want         Credential // of a call; none: 401
	}{
		{"header", header, []string{"x-api-key: " + right}, claims{}, dev},
		{"header, an id with _", header, []string{"x-api-key: " + apiKeyOf("a_b_")}, claims{}, Credential{ID: "a_b_", Secret: keySecret}},
		{"bearer", bearer, []string{"authorization: Bearer " + right}, claims{}, dev},
		{"bearer, the scheme's case and spaces", bearer, []string{"authorization: bEARER   " + right}, claims{}, dev},
		{"with two ways", both, []string{"x-api-key: " + right}, claims{}, dev},
		{"with four ways", all, []string{"authorization: Bearer " + right}, claims{}, dev},
		{"Basic beside bearer", basic, []string{"authorization: Basic ZGV2OnM="}, claims{}, Credential{ID: "dev", Secret: "s"}},
		{"bearer beside Basic", basic, []string{"authorization: Bearer " + right}, claims{}, dev},
		{"headers beside keys", all, []string{"x-id: dev", "x-secret: s"}, claims{}, Credential{ID: "dev", Secret: "s"}},
		{"another's token beside a key", all, []string{"x-api-key: " + right, "authorization: Bearer eyJ"}, claims{}, dev},
		{"another's token beside headers", all, []string{"x-id: dev", "x-secret: s", "authorization: Bearer eyJ"}, claims{},
			Credential{ID: "dev", Secret: "s"}},
		{"a key, not the token", both, []string{"x-api-key: " + right}, token, dev},
		{"a token that is forwarded", both, []string{"authorization: Bearer eyJ"}, token, Credential{ID: "tok", Session: "7-1"}},
		{"a token", both, nil, token, Credential{ID: "tok", Session: "7-1"}},

		{"nothing", both, nil, claims{}, Credential{}},
		{"a key where none is read", bearer, []string{"x-api-key: " + right}, claims{}, Credential{}},
		{"a bearer where none is read", header, []string{"authorization: Bearer " + right}, claims{}, Credential{}},
		{"the header with a scheme", header, []string{"x-api-key: Bearer " + right}, claims{}, Credential{}},
		{"bearer without a scheme", bearer, []string{"authorization: " + right}, claims{}, Credential{}},
		{"another's token", bearer, []string{"authorization: Bearer eyJ"}, claims{}, Credential{}},
		{"the key twice", header, []string{"x-api-key: " + right, "x-api-key: " + right}, claims{}, Credential{}},
		{"the bearer twice", bearer, []string{"authorization: Bearer " + right, "authorization: Bearer " + right}, claims{}, Credential{}},
		{"the bearer, then another", bearer, []string{"authorization: Bearer " + right, "authorization: Basic Og=="}, claims{}, Credential{}},
		{"another, then the bearer", bearer, []string{"authorization: Basic Og==", "authorization: Bearer " + right}, claims{}, Credential{}},
		{"folded", header, []string{"x-api-key: " + right + ", " + right}, claims{}, Credential{}},
		{"in both ways", both, []string{"x-api-key: " + right, "authorization: Bearer " + right}, claims{}, Credential{}},
		{"another key in each way", both, []string{"x-api-key: " + right, "authorization: Bearer " + apiKeyOf("b")}, claims{}, Credential{}},
		{"a key and headers", all, []string{"x-api-key: " + right, "x-id: dev", "x-secret: " + keySecret}, claims{}, Credential{}},
		{"a key and an id", all, []string{"x-api-key: " + right, "x-id: dev"}, claims{}, Credential{}},
		{"a bearer and a secret", all, []string{"authorization: Bearer " + right, "x-secret: s"}, claims{}, Credential{}},
		{"a key and Basic", basic, []string{"x-api-key: " + right, "authorization: Basic ZGV2OnM="}, claims{}, Credential{}},
		{"a bad key, not the token", both, []string{"x-api-key: "}, token, Credential{}},
		{"a bad bearer, not the token", both, []string{"authorization: Bearer gh_"}, token, Credential{}},
		{"a wrong checksum", header, []string{"x-api-key: " + wrong}, claims{}, Credential{}},
		{"a wrong checksum, as bearer", bearer, []string{"authorization: Bearer " + wrong}, claims{}, Credential{}},
		{"an id of another form", header, []string{"x-api-key: " + apiKeyOf("a/b")}, claims{}, Credential{}},
		{"the secret alone", header, []string{"x-api-key: " + keySecret}, claims{}, Credential{}},
	}
	for _, tt := range tests {
		m := newMemory()
		for _, id := range []string{"dev", "a_b_", "tok"} {
			m.device(id, false)
		}
		d := decideToken(t, m, tt.config, &tt.token, Answers{}, append([]string{"GET /x"}, tt.lines...)...)
		refused := d.Action == Reply && d.Status == 401 && d.Reason == NoCredential
		if called := d.Action == Verify; called == refused || d.Credential != tt.want || called != (tt.want != Credential{}) {
			t.Errorf("%s: got action %d, %d %s, credential %+v, want %+v", tt.name, d.Action, d.Status, d.Reason,
				d.Credential, tt.want)
		}
	}
}

// TestAPIKeyByVerdict: what memory tells about an API key is what it tells about its id and secret.
func TestAPIKeyByVerdict(t *testing.T) {
	const rules = `{"credentials": {"api_key_header": "x-api-key"}, "rules": [
		{"match": {"path": "/s", "methods": ["POST"]}, "session": "issue"}, {"match": {"prefix": "/"}, "auth": {}}]}`
	allow := wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1}
	deny := wire.Verdict{Outcome: wire.Deny, ExpiresMS: now + 1}
	typo := keySecret[:len(keySecret)-1] + "_" // the checksum doesn't matter where there is a verdict
	for _, tt := range []struct {
		name   string
		setup  func(m *memory)
		lines  []string
		action Action
		reason Reason
	}{
		{"allowed", func(m *memory) { m.verdict("dev", keySecret, allow) }, []string{"GET /x", "x-api-key: " + apiKeyOf("dev")}, Pass, 0},
		{"denied", func(m *memory) { m.verdict("dev", keySecret, deny) }, []string{"GET /x", "x-api-key: " + apiKeyOf("dev")}, Reply, Denied},
		{"denied, a wrong checksum", func(m *memory) { m.verdict("dev", typo, deny) }, []string{"GET /x", "x-api-key: gh_dev" + typo[2:]}, Reply, Denied},
		{"wrong", func(m *memory) { m.device("dev", true, allow) }, []string{"GET /x", "x-api-key: " + apiKeyOf("dev")}, Reply, WrongSecret},
		{"wrong, and its checksum", func(m *memory) { m.device("dev", true, allow) }, []string{"GET /x", "x-api-key: gh_dev" + typo[2:]}, Reply, NoCredential},
		{"unknown", func(m *memory) { m.neighbour("dev") }, []string{"GET /x", "x-api-key: " + apiKeyOf("dev")}, Reply, UnknownDevice},
		{"for a token", func(m *memory) { m.verdict("dev", keySecret, allow) }, []string{"POST /s", "x-api-key: " + apiKeyOf("dev")}, Exchange, 0},
		{"for a token, a wrong checksum", func(m *memory) { m.device("dev", false) }, []string{"POST /s", "x-api-key: gh_dev" + typo[2:]}, Reply, NoCredential},
	} {
		m := newMemory()
		tt.setup(m)
		d := decideToken(t, m, rules, &claims{}, Answers{}, tt.lines...)
		if d.Action != tt.action || d.Action == Reply && d.Reason != tt.reason || d.Action == Pass && d.Device != "dev" {
			t.Errorf("%s: got action %d, %s, device %q, want %d, %s", tt.name, d.Action, d.Reason, d.Device, tt.action, tt.reason)
		}
	}
}

// TestAPIKeyOfHosts: each virtual host reads its own credentials.
func TestAPIKeyOfHosts(t *testing.T) {
	const rules = `{"credentials": {"id_header": "x-id", "secret_header": "x-secret"},
		"rules": [{"match": {"prefix": "/"}, "auth": {}}], "virtual_hosts": {
		"a": {"domains": ["a"], "credentials": {"api_key_header": "x-api-key"}, "rules": [{"match": {"prefix": "/"}, "auth": {}}]},
		"b": {"domains": ["b"], "credentials": {"bearer": true}, "rules": [{"match": {"prefix": "/"}, "auth": {}}]}}}`
	c, err := parseJSON(t, rules)
	if err != nil {
		t.Fatal(err)
	}
	e := NewEngine(c)
	m := newMemory()
	m.verdict("dev", keySecret, wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1})
	e.SetState(now, m.state)
	ways := map[string][]string{"edge": {"x-id: dev", "x-secret: " + keySecret}, "a": {"x-api-key: " + apiKeyOf("dev")},
		"b": {"authorization: Bearer " + apiKeyOf("dev")}}
	for host, challenge := range map[string]string{"edge": "Device", "a": "Device", "b": "Bearer"} {
		for of, lines := range ways {
			all := request(append([]string{"GET /x"}, lines...)...)
			all[2][1] = host
			fields, _ := headermap.ParseFields(headermap.Append(nil, all))
			at, r := e.Locate(fields), e.Read(fields, nil)
			e.Govern(&r, &at)
			var d Decision
			e.Decide(&d, now, &r, m, &Answers{})
			if passed := d.Action == Pass && d.Device == "dev"; passed != (of == host) {
				t.Errorf("the credential of %s at %s: got action %d, device %q", of, host, d.Action, d.Device)
			}
			if d.Status == 401 && !slices.Contains(fieldsOf(d), [2]string{"www-authenticate", challenge + ` realm="gatehouse"`}) {
				t.Errorf("at %s: got %q, want the challenge %s", host, fieldsOf(d), challenge)
			}
		}
	}
}
