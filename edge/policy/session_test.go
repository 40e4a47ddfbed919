package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// claims are a validated token's; asked counts the reads.
type claims struct {
	sub, ver string
	asked    int
}

func (c *claims) Claim(metadata, name string) string {
	c.asked++
	return map[string]string{"gatehouse sub": c.sub, "gatehouse ver": c.ver}[metadata+" "+name]
}

const sessionRules = `{"credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"}, "session": {"metadata": "gatehouse"},
	"rules": [
		{"match": {"path": "/v1/session", "methods": ["POST"]}, "session": "issue"},
		{"match": {"prefix": "/t"}, "auth": {"permissions": ["telemetry.write"]}},
		{"match": {"prefix": "/me"}, "auth": {}, "cache": {"scope": "device"}},
		{"match": {"prefix": "/open"}, "cache": {}}]}`

// decideToken is decide for a request whose token, nil for none, the proxy has validated.
func decideToken(t *testing.T, m *memory, config string, token Claims, answers Answers, lines ...string) Decision {
	t.Helper()
	e := newEdge(t, config)
	if m.state.Epoch != 0 {
		e.SetState(now, m.state)
	}
	r := read(e, lines...)
	r.Token = token
	var d Decision
	r.Decide(&d, now, m, &answers)
	if !slices.ContainsFunc(e.config.Rules, func(r Rule) bool { return r.isAuthTrial() }) &&
		!e.config.WouldDenyByDefault {
		checkTrial(t, config, &d, m, token, answers, lines...)
	}
	return d
}

// session stores a verdict for a token.
func (m *memory) session(id, session string, v wire.Verdict) {
	v.Digest = m.state.Keys.SessionDigest(id, session)
	m.device(id, false, v)
}

func TestDecideToken(t *testing.T) {
	const write = "telemetry.write"
	allow := wire.Verdict{Outcome: wire.Allow, Permissions: write, ExpiresMS: now + 1}
	known := func(v wire.Verdict) func(m *memory) {
		return func(m *memory) { m.session("dev", "7-1", v) }
	}
	good := claims{sub: "dev", ver: "7-1"}
	tests := []authCase{
		{name: "allow", setup: known(allow), token: good, request: []string{"POST /t"}, counter: AuthAllow,
			check: func(d Decision) bool { return d.Device == "dev" && d.Permissions == write }},
		{name: "a permission is missing", setup: known(wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1}),
			token: good, request: []string{"POST /t"}, action: Reply, status: 403, counter: AuthForbidden},
		{name: "revoked", setup: known(wire.Verdict{Outcome: wire.Deny, ExpiresMS: now + 1}), token: good,
			request: []string{"POST /t"}, action: Reply, status: 401, counter: AuthDeny},
		{name: "unknown", token: good, request: []string{"POST /t"}, action: Verify, counter: CallVerify,
			check: func(d Decision) bool { return d.Credential == Credential{ID: "dev", Session: "7-1"} }},
		{name: "of another record", setup: known(allow), token: claims{sub: "dev", ver: "8-1"}, request: []string{"POST /t"},
			action: Verify, counter: CallVerify},
		{name: "a secret's verdict is none for a token", setup: func(m *memory) {
			m.verdict("dev", "7-1", allow)
		}, token: good, request: []string{"POST /t"}, action: Verify, counter: CallVerify},
		{name: "refresh", setup: known(wire.Verdict{Outcome: wire.Allow, Permissions: write, ExpiresMS: now + 1,
			RefreshAfterMS: now}), token: good, request: []string{"POST /t"}, counter: AuthAllow,
			check: func(d Decision) bool {
				return d.Refresh && d.Credential == Credential{ID: "dev", Session: "7-1"}
			}},
		{name: "payload of the device", setup: func(m *memory) {
			known(allow)(m)
			m.put("@dev/me", 0)
		}, token: good, request: []string{"GET /me"}, action: Reply, status: 200, counter: AuthAllow},
		{name: "nothing shown", request: []string{"POST /t"}, action: Reply, status: 401, counter: AuthDeny},
		{name: "no device", setup: known(allow), token: claims{ver: "7-1"}, request: []string{"POST /t"},
			action: Reply, status: 401, counter: AuthDeny},
		{name: "no record", setup: known(allow), token: claims{sub: "dev"}, request: []string{"POST /t"},
			action: Reply, status: 401, counter: AuthDeny},
		{name: "device that can't be", token: claims{sub: "dev/x", ver: "7-1"}, request: []string{"POST /t"},
			action: Reply, status: 401, counter: AuthDeny},
		{name: "device over its limit", token: claims{sub: strings.Repeat("d", limits.MaxDeviceID+1), ver: "7-1"},
			request: []string{"POST /t"}, action: Reply, status: 401, counter: AuthDeny},
		{name: "record over its limit", token: claims{sub: "dev", ver: strings.Repeat("7", limits.MaxSession+1)},
			request: []string{"POST /t"}, action: Reply, status: 401, counter: AuthDeny},
		{name: "a credential counts, not the token beside it", setup: known(allow), token: good,
			request: []string{"POST /t", "x-device-id: other", "x-device-token: s"}, action: Verify, counter: CallVerify,
			check: func(d Decision) bool { return d.Credential == Credential{ID: "other", Secret: "s"} }},
		{name: "half a credential counts too", setup: known(allow), token: good,
			request: []string{"POST /t", "x-device-id: dev"}, action: Reply, status: 401, counter: AuthDeny},
		{name: "that the only right secret is another one says nothing of a token", setup: func(m *memory) {
			m.device("dev", true, allow)
		}, token: good, request: []string{"POST /t"}, action: Verify, counter: CallVerify},
		{name: "of a device that is unknown", setup: func(m *memory) {
			m.neighbour("dev")
		}, token: good, request: []string{"POST /t"}, action: Reply, status: 401, counter: AuthDeny},
		{name: "no token for a wrong secret, as is known", setup: func(m *memory) {
			m.verdict("dev", "s", wire.Verdict{Outcome: wire.Deny, ExpiresMS: now + 1})
		},
			request: []string{"POST /v1/session", "x-device-id: dev", "x-device-token: s"}, action: Reply,
			status: 401, counter: AuthDeny},
		{name: "that a secret was wrong is not known for ever", setup: func(m *memory) {
			m.verdict("dev", "s", wire.Verdict{Outcome: wire.Deny, ExpiresMS: now})
		},
			request: []string{"POST /v1/session", "x-device-id: dev", "x-device-token: s"}, action: Exchange,
			counter: CallVerify},
		{name: "a token for a right secret", setup: func(m *memory) { m.verdict("dev", "s", allow) },
			request: []string{"POST /v1/session", "x-device-id: dev", "x-device-token: s"}, action: Exchange,
			counter: CallVerify},
		{name: "no token for a token", setup: known(allow), token: good, request: []string{"POST /v1/session"},
			action: Reply, status: 401, counter: AuthDeny},
	}
	for _, tt := range tests {
		tt.run(t, sessionRules, &tt.token)
	}
}

// TestDecideTokenBasic uses Authorization for both: jwt_authn removes a token's, so what remains is a credential, or
// invalid.
func TestDecideTokenBasic(t *testing.T) {
	const config = `{"credentials": {"basic": true}, "session": {"metadata": "gatehouse"}, "rules": [{"match": {"prefix": "/"}, "auth": {}}]}`
	for _, tt := range []struct {
		name  string
		lines []string
		want  Credential
	}{
		{"token", nil, Credential{ID: "dev", Session: "7-1"}},
		{"credential", []string{"authorization: Basic ZGV2OnM="}, Credential{ID: "dev", Secret: "s"}},
		{"another scheme", []string{"authorization: Bearer a.b.c"}, Credential{}},
		{"headers of the other kind are none", []string{"x-device-id: other"}, Credential{ID: "dev", Session: "7-1"}},
	} {
		d := decideToken(t, newMemory(), config, &claims{sub: "dev", ver: "7-1"}, Answers{},
			append([]string{"GET /"}, tt.lines...)...)
		if d.Credential != tt.want || (d.Action == Reply) != (tt.want == Credential{}) {
			t.Errorf("%s: got action %d, %+v; want %+v", tt.name, d.Action, d.Credential, tt.want)
		}
	}
}

// TestTokenIsReadWhenWanted counts reads, which cost some microseconds each in a proxy.
func TestTokenIsReadWhenWanted(t *testing.T) {
	const off = `{"credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"}, "rules": [{"match": {"prefix": "/t"}, "auth": {}}]}`
	for _, tt := range []struct {
		name, config string
		request      []string
		want         int
	}{
		{"auth rule", sessionRules, []string{"POST /t"}, 2},
		{"auth rule with a credential", sessionRules, []string{"POST /t", "x-device-id: dev", "x-device-token: s"}, 0},
		{"cache rule", sessionRules, []string{"GET /open"}, 0},
		{"no rule", sessionRules, []string{"GET /"}, 0},
		{"not configured", off, []string{"POST /t"}, 0},
	} {
		token := claims{sub: "dev", ver: "7-1"}
		decideToken(t, newMemory(), tt.config, &token, Answers{}, tt.request...)
		if token.asked != tt.want {
			t.Errorf("%s: got %d reads of claims, want %d", tt.name, token.asked, tt.want)
		}
	}
}

func TestDecideIssue(t *testing.T) {
	good := []string{"POST /v1/session", "x-device-id: dev", "x-device-token: s3cret"}
	body := []byte(`{"token":"a.b.c"}`)
	tests := []struct {
		name    string
		setup   func(m *memory)
		answers Answers
		request []string
		action  Action
		status  int
		counter Counter
		header  [2]string
	}{
		{name: "asks the sidecar", request: good, action: Exchange, counter: CallVerify},
		{name: "asks the sidecar even where a verdict is known", setup: func(m *memory) {
			m.verdict("dev", "s3cret", wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1})
		}, request: good, action: Exchange, counter: CallVerify},
		{name: "a wrong secret of a device that is in", setup: func(m *memory) {
			m.device("dev", true, wire.Verdict{Digest: m.state.Keys.Digest("dev", "another"), Outcome: wire.Allow,
				ExpiresMS: now + 1})
		}, request: good, action: Reply, status: 401, counter: AuthDeny},
		{name: "issued", answers: Answers{Session: &wire.SessionResponse{Outcome: wire.Allow, Body: body}},
			request: good, action: Reply, status: 200, counter: SessionIssued, header: [2]string{"cache-control", "no-store"}},
		{name: "refused", answers: Answers{Session: &wire.SessionResponse{Outcome: wire.Deny}}, request: good,
			action: Reply, status: 401, counter: AuthDeny},
		{name: "refused by who isn't in step", setup: func(m *memory) {
			m.state.InStepMS = now - 30_001
		}, answers: Answers{Session: &wire.SessionResponse{Outcome: wire.Deny}}, request: good, action: Reply,
			status: 503, counter: AuthUnavailable},
		{name: "a wrong secret, and nobody is in step", setup: func(m *memory) {
			m.device("dev", true, wire.Verdict{Digest: m.state.Keys.Digest("dev", "another"), Outcome: wire.Allow,
				ExpiresMS: now + 1})
			m.state.InStepMS = now - 30_001
		}, request: good, action: Reply, status: 503, counter: AuthUnavailable},
		{name: "busy", answers: Answers{Session: &wire.SessionResponse{Outcome: wire.Unavailable, RetryAfterS: 3}},
			request: good, action: Reply, status: 503, counter: AuthUnavailable, header: [2]string{"retry-after", "3"}},
		{name: "unreachable", answers: Answers{Unreachable: true}, request: good, action: Reply, status: 503,
			counter: AuthUnavailable},
		{name: "no state", setup: func(m *memory) {
			m.state = wire.State{}
		}, request: good, action: Reply, status: 503, counter: AuthUnavailable},
		{name: "no credential", answers: Answers{Session: &wire.SessionResponse{Outcome: wire.Allow, Body: body}},
			request: good[:1], action: Reply, status: 401, counter: AuthDeny},
		{name: "no secret", answers: Answers{Session: &wire.SessionResponse{Outcome: wire.Allow, Body: body}},
			request: good[:2], action: Reply, status: 401, counter: AuthDeny},
		{name: "another method passes", request: []string{"GET /v1/session"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMemory()
			if tt.setup != nil {
				tt.setup(m)
			}
			d := decideToken(t, m, sessionRules, &claims{}, tt.answers, tt.request...)
			if d.Action != tt.action || d.Status != tt.status || d.Auth != tt.counter || d.Device != "" {
				t.Errorf("got action %d, status %d, %q, device %q; want %d, %d, %q and none", d.Action, d.Status,
					d.Auth, d.Device, tt.action, tt.status, tt.counter)
			}
			if tt.status == 200 && string(d.Body) != string(body) {
				t.Errorf("got body %q, want %q", d.Body, body)
			}
			if tt.header[0] != "" && !slices.Contains(fieldsOf(d), tt.header) {
				t.Errorf("got headers %v, want %v among them", fieldsOf(d), tt.header)
			}
		})
	}
}
