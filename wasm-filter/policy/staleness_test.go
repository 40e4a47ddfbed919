package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/wire"
)

// TestMaxAuthStaleness: who may have been revoked meanwhile isn't let in, whoever says so.
func TestMaxAuthStaleness(t *testing.T) {
	const bound = 5000
	bounded := strings.Replace(sessionRules, "{", `{"max_auth_staleness": "5s", "verdict_grace": "5s", `, 1)
	allow := wire.Verdict{Outcome: wire.Allow, Permissions: 2, ExpiresMS: now + 60_000}
	said := Answers{Verify: &wire.VerifyResponse{Outcome: wire.Allow, Permissions: 2, Epoch: epoch}}
	credential := []string{"x-device-id: dev", "x-device-token: s3cret"}
	tests := []struct {
		name    string
		verdict *wire.Verdict // of the credential
		token   bool          // there is a verdict for one, and the request shows it
		request string
		answers Answers
		within  int // status within the bound, 0 for upstream, -1 for a call
		beyond  int
	}{
		{name: "a verdict", verdict: &allow, request: "POST /t", within: 0, beyond: 503},
		{name: "a verdict of a token", token: true, request: "POST /t", within: 0, beyond: 503},
		{name: "no verdict", request: "POST /t", within: -1, beyond: 503},
		{name: "the sidecar's word", request: "POST /t", answers: said, within: 0, beyond: 503},
		{name: "within verdict_grace", verdict: &wire.Verdict{Outcome: wire.Allow, Permissions: 2, ExpiresMS: now - 1}, request: "POST /t", answers: Answers{Unreachable: true}, within: 0, beyond: 503},
		{name: "a deny", verdict: &wire.Verdict{Outcome: wire.Deny, ExpiresMS: now + 1}, request: "POST /t", within: 401, beyond: 401},
		{name: "a token is asked for", request: "POST /v1/session", within: -1, beyond: 503},
		{name: "a token was made", request: "POST /v1/session", answers: Answers{Session: &wire.SessionResponse{Outcome: wire.Allow, Body: []byte("{}")}}, within: 200, beyond: 503},
		{name: "no credential needed", request: "GET /open", within: 0, beyond: 0},
	}
	for _, tt := range tests {
		for age, want := range map[int64]int{bound: tt.within, bound + 1: tt.beyond, -1000: tt.within, -1001: tt.beyond} {
			if age < -1000 && tt.beyond == 401 {
				want = 503 // nor is anything known of max_staleness
			}
			t.Run(fmt.Sprintf("%s, %d ms", tt.name, age), func(t *testing.T) {
				m := newMemory()
				m.state.InStepMS = now - age
				m.device("dev", false)
				if tt.verdict != nil {
					m.verdict("dev", "s3cret", *tt.verdict)
				}
				lines, token := append([]string{tt.request}, credential...), &claims{}
				if tt.token {
					m.session("dev", "7-1", allow)
					lines, token = lines[:1], &claims{sub: "dev", ver: "7-1"}
				}
				d := decideToken(t, m, bounded, token, tt.answers, lines...)
				got := map[Action]int{Pass: 0, Reply: d.Status, Verify: -1, Exchange: -1}[d.Action]
				_, later := headerOf(d, "retry-after")
				if got != want || later != (want == 503) {
					t.Errorf("got action %d, status %d, Retry-After: %v; want %d", d.Action, d.Status, later, want)
				}
				if d := decideToken(t, m, sessionRules, token, tt.answers, lines...); tt.within == 0 && tt.answers.Unreachable == false && d.Action != Pass {
					t.Errorf("without a bound: got action %d, status %d; want it to pass", d.Action, d.Status)
				}
			})
		}
	}
}

func TestAddress(t *testing.T) {
	for text, want := range map[string]string{
		"203.0.113.7": "203.0.113.7", "203.0.113.7:4711": "203.0.113.7", " 203.0.113.7\t": "203.0.113.7", "[2001:db8::1]:443": "2001:db8::1",
		"[2001:db8::1]": "2001:db8::1", "2001:DB8::1": "2001:db8::1", "::ffff:203.0.113.7": "203.0.113.7", "fe80::1%eth0": "fe80::1",
		"": "", "unknown": "", "203.0.113.7, 198.51.100.1": "", "203.0.113.256": "", "/run/x.sock": "", "203.0.113.7:": "", "0203.0.113.7": "",
	} {
		if got := Address(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
