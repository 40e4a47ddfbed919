package api_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/edge/wire"
	"github.com/gatehouse/gatehouse/internal/metrics/metricstest"
	"github.com/gatehouse/gatehouse/verify/credential"
	"github.com/gatehouse/gatehouse/verify/token"
)

func (f fixture) exchange(t *testing.T, r wire.VerifyRequest) wire.SessionResponse {
	t.Helper()
	status, answer := f.post(t, "/v1/session", wire.AppendVerifyRequest(nil, &r))
	got, err := wire.ParseSessionResponse(answer)
	if status != http.StatusOK || err != nil {
		t.Fatalf("%+v: got %d %q, %v", r, status, answer, err)
	}
	return got
}

func TestSession(t *testing.T) {
	f := start(t, verdicts{
		"good s 192.0.2.1": {Outcome: wire.Allow, Permissions: "telemetry.write", Session: "7-1",
			NotAfter: time.Now().Add(30 * time.Second)},
		"gone s":        {Outcome: wire.Allow, Permissions: "telemetry.write", Session: "6-1"},
		"gone gone 6-1": {},
		"busy s": {Outcome: wire.Unavailable, RetryAfter: 1500 * time.Millisecond,
			ThrottleFor: 4500 * time.Millisecond},
		"theirs s": {Outcome: wire.Allow, Permissions: "telemetry.write", Session: "a1", ByAuthority: true},
		"away s":   {Outcome: wire.Away, RetryAfter: time.Second},
	})
	got := f.exchange(t, wire.VerifyRequest{DeviceID: "good", Secret: "s", Source: "192.0.2.1"})
	var token token.Token
	if err := json.Unmarshal(got.Body, &token); got.Outcome != wire.Allow || err != nil || token.Type != "Bearer" ||
		token.ExpiresIn < 28 || token.ExpiresIn > 30 {
		t.Fatalf("got %v %q, %v; want a token for the 30 s that the device has", got.Outcome, got.Body, err)
	}
	claims, err := base64.RawURLEncoding.DecodeString(strings.Split(token.Token, ".")[1])
	for _, want := range []string{`"sub":"good"`, `"ver":"7-1"`, `"permissions":"telemetry.write"`} {
		if err != nil || !strings.Contains(string(claims), want) {
			t.Errorf("got claims %s, %v; want %s in them", claims, err, want)
		}
	}
	if got := f.exchange(t, wire.VerifyRequest{DeviceID: "good", Secret: "wrong"}); got.Outcome != wire.Deny {
		t.Errorf("wrong secret: got %+v, want deny", got)
	}
	if got := f.exchange(t, wire.VerifyRequest{DeviceID: "busy", Secret: "s"}); got.Outcome != wire.Unavailable ||
		got.RetryAfterS != 2 || got.ThrottleMS != 4500 {
		t.Errorf("busy: got %+v, want unavailable, 2 s, and held for 4.5 s", got)
	}
	if got := f.exchange(t, wire.VerifyRequest{DeviceID: "gone", Secret: "s"}); got.Outcome != wire.Unavailable ||
		got.RetryAfterS != 1 || len(got.Body) > 0 {
		t.Errorf("its record has changed meanwhile: got %+v, want unavailable", got)
	}
	if got := f.exchange(t, wire.VerifyRequest{DeviceID: "theirs", Secret: "s"}); got.Outcome != wire.Deny {
		t.Errorf("an authority's device: got %+v, want deny", got)
	}
	if got := f.exchange(t, wire.VerifyRequest{DeviceID: "away", Secret: "s"}); got.Outcome != wire.Unavailable {
		t.Errorf("without the authority: got %+v, want unavailable", got)
	}
	for result, want := range map[string]float64{"issued": 1, "refused": 2, "unavailable": 3} {
		if got := metricstest.Value(t, f.metrics, "gatehouse_sessions_total", "result", result); got != want {
			t.Errorf("%v %s, want %v", got, result, want)
		}
	}
}

func TestSessionIsVerified(t *testing.T) {
	f := start(t, verdicts{"d session 7-1": {Outcome: wire.Allow, Permissions: "telemetry.write"},
		"d s": {Outcome: wire.Allow, Permissions: "telemetry.write", Session: "7-1"}})
	for session, want := range map[string]wire.Outcome{"7-1": wire.Allow, "7-2": wire.Deny} {
		_, answer := f.post(t, "/v1/verify", wire.AppendVerifyRequest(nil,
			&wire.VerifyRequest{DeviceID: "d", Session: session}))
		if got, err := wire.ParseVerifyResponse(answer); err != nil || got.Outcome != want {
			t.Errorf("%s: got %+v, %v; want %v", session, got, err, want)
		}
	}
	// A token can't be exchanged for a token.
	status, answer := f.post(t, "/v1/session", wire.AppendVerifyRequest(nil,
		&wire.VerifyRequest{DeviceID: "d", Session: "7-1"}))
	if status != http.StatusBadRequest || !strings.Contains(string(answer), "a token can't be exchanged") {
		t.Errorf("got %d %q, want a refusal", status, answer)
	}
}

func TestSessionMalformed(t *testing.T) {
	f := start(t, verdicts{"": credential.Result{Outcome: wire.Allow}})
	for _, test := range []struct {
		body   []byte
		status int
	}{{nil, 400}, {[]byte("x"), 400}, {make([]byte, 5000), 413}} {
		if status, answer := f.post(t, "/v1/session", test.body); status != test.status {
			t.Errorf("%d bytes: got %d %q, want %d", len(test.body), status, answer, test.status)
		}
	}
}

func TestKeys(t *testing.T) {
	f := start(t, verdicts{})
	want, err := f.sessions.Keys()
	if err != nil {
		t.Fatal(err)
	}
	got := httptest.NewRecorder()
	f.handler.ServeHTTP(got, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/session/jwks", nil))
	if got.Code != 200 || got.Body.String() != string(want) ||
		got.Header().Get("Content-Type") != "application/jwk-set+json" {
		t.Errorf("got %d %q %v, want %q", got.Code, got.Body, got.Header(), want)
	}
}
