package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// TestMaxAuthStaleness: a device that may have been revoked meanwhile is not authenticated, by any answer.
func TestMaxAuthStaleness(t *testing.T) {
	const bound = 5000
	bounded := strings.Replace(sessionRules, "{", `{"max_auth_staleness": "5s", "verdict_grace": "5s", `, 1)
	allow := wire.Verdict{Outcome: wire.Allow, Permissions: "telemetry.write", ExpiresMS: now + 60_000}
	said := Answers{Verify: &wire.VerifyResponse{Outcome: wire.Allow, Permissions: "telemetry.write", Epoch: epoch}}
	credential := []string{"x-device-id: dev", "x-device-token: s3cret"}
	tests := []struct {
		name    string
		verdict *wire.Verdict // of the credential
		token   bool          // there is a verdict for a token, and the request has it
		request string
		answers Answers
		within  int // status within the bound, 0 for upstream, -1 for a call
		beyond  int
	}{
		{name: "a verdict", verdict: &allow, request: "POST /t", within: 0, beyond: 503},
		{name: "a verdict of a token", token: true, request: "POST /t", within: 0, beyond: 503},
		{name: "no verdict", request: "POST /t", within: -1, beyond: 503},
		{name: "the sidecar's word", request: "POST /t", answers: said, within: 0, beyond: 503},
		{name: "within verdict_grace",
			verdict: &wire.Verdict{Outcome: wire.Allow, Permissions: "telemetry.write", ExpiresMS: now - 1},
			request: "POST /t", answers: Answers{Unreachable: true}, within: 0, beyond: 503},
		{name: "a deny", verdict: &wire.Verdict{Outcome: wire.Deny, ExpiresMS: now + 1}, request: "POST /t",
			within: 401, beyond: 401},
		{name: "a token is asked for", request: "POST /v1/session", within: -1, beyond: 503},
		{name: "a token was made", request: "POST /v1/session",
			answers: Answers{Session: &wire.SessionResponse{Outcome: wire.Allow, Body: []byte("{}")}}, within: 200, beyond: 503},
		{name: "no credential needed", request: "GET /open", within: 0, beyond: 0},
	}
	for _, tt := range tests {
		for age, want := range map[int64]int{bound: tt.within, bound + 1: tt.beyond, -1000: tt.within, -1001: tt.beyond} {
			if age < -1000 && tt.beyond == 401 {
				want = 503 // nor does max_staleness hold
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
				if d := decideToken(t, m, sessionRules, token, tt.answers, lines...); tt.within == 0 &&
					tt.answers.Unreachable == false && d.Action != Pass {
					t.Errorf("without a bound: got action %d, status %d; want it to pass", d.Action, d.Status)
				}
			})
		}
	}
}

// TestClockSetBack: a time in the future has an unknown age, even after the clock has reached the time. The same holds
// for a time read before the clock was set back.
func TestClockSetBack(t *testing.T) {
	const back = 10_000
	c := mustParse(t, strings.Replace(sessionRules, "{", `{"max_auth_staleness": "5s", `, 1))
	allow := wire.Verdict{Outcome: wire.Allow, Permissions: "telemetry.write", ExpiresMS: now + 60_000}
	tests := []struct {
		name, line        string
		inStep, heartbeat bool // is written again after the clock was set back
		want              int  // status, 0 for upstream, -1 for a call
	}{
		{name: "neither", line: "POST /t", want: 503},
		{name: "a heartbeat", line: "POST /t", heartbeat: true, want: 503},
		{name: "in step", line: "POST /t", inStep: true, heartbeat: true, want: 0},
		{name: "in step, by a sidecar of another clock", line: "POST /t", inStep: true, want: 0},
		{name: "unknown device, both", line: "POST /t", inStep: true, heartbeat: true, want: 401},
		{name: "unknown device, no heartbeat", line: "POST /t", inStep: true, want: -1},
	}
	ask := func(e *Engine, m *memory, at int64, line string) int {
		r := read(e, line, "x-device-id: dev", "x-device-token: s3cret")
		var d Decision
		r.Decide(&d, at, m, &Answers{})
		return map[Action]int{Pass: 0, Reply: d.Status, Verify: -1}[d.Action]
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, m := NewEngine(c), newMemory()
			if strings.HasPrefix(tt.name, "unknown") {
				m.neighbour("dev")
			} else {
				m.verdict("dev", "s3cret", allow)
			}
			at := int64(now) - back
			m.state.InStepMS, m.state.HeartbeatMS = now, now // written just before
			e.SetState(at, m.state)
			if got := ask(e, m, at, tt.line); got != 503 {
				t.Errorf("right after the clock was set back: got %d, want 503", got)
			}
			at = now // it has reached them
			if tt.inStep {
				m.state.InStepMS -= 1
			}
			if tt.heartbeat {
				m.state.HeartbeatMS -= 1
			}
			e.SetState(at, m.state)
			if got := ask(e, m, at, tt.line); got != tt.want {
				t.Errorf("after it has caught up: got %d, want %d", got, tt.want)
			}
		})
	}
	t.Run("by less than the state's age", func(t *testing.T) {
		e, m := NewEngine(c), newMemory()
		m.verdict("dev", "s3cret", allow)
		const written, before, after = now - 4000, now, now - 3000
		for _, step := range []struct {
			name            string
			readMS, askedMS int64
			inStepMS        int64
			want            int
		}{
			{"before it", before, before, written, 0},
			{"not read since", before, after, written, 503},
			{"read since", after, after, written, 503},
			{"read again", after + 200, after + 200, written, 503},
			{"in step again", after + 400, after + 400, after + 300, 0},
		} {
			m.state.InStepMS, m.state.HeartbeatMS = step.inStepMS, step.inStepMS
			e.SetState(step.readMS, m.state)
			if got := ask(e, m, step.askedMS, "POST /t"); got != step.want {
				t.Errorf("%s: got %d, want %d", step.name, got, step.want)
			}
		}
	})
}

func TestAddress(t *testing.T) {
	for text, want := range map[string]string{
		"203.0.113.7": "203.0.113.7", "203.0.113.7:4711": "203.0.113.7", " 203.0.113.7\t": "203.0.113.7",
		"[2001:db8::1]:443": "2001:db8::1",
		"[2001:db8::1]":     "2001:db8::1", "2001:DB8::1": "2001:db8::1", "::ffff:203.0.113.7": "203.0.113.7",
		"fe80::1%eth0": "fe80::1",
		"":             "", "unknown": "", "203.0.113.7, 198.51.100.1": "", "203.0.113.256": "", "/run/x.sock": "",
		"203.0.113.7:": "", "0203.0.113.7": "",
	} {
		if got := CanonicalAddress(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
