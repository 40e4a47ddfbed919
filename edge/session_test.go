package edge

import (
	"slices"
	"testing"

	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
)

const sessionRules = `{
	"credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"}, "session": {"metadata": "gatehouse"},
	"rules": [
		{"match": {"path": "/v1/session", "methods": ["POST"]}, "session": "issue"},
		{"match": {"prefix": "/v1/telemetry"}, "auth": {"permissions": ["telemetry.write"]}}]}`

func TestToken(t *testing.T) {
	e := emulate(t, sessionRules)
	e.claims = map[string]string{"sub": "dev", "ver": "7-1"}
	x := e.streams[e.begin([][2]string{{":method", "POST"}, {":path", "/v1/telemetry"},
		{policy.DeviceHeader, "forged"}}, true)]
	if x.action != Pause || len(e.calls) != 1 {
		t.Fatalf("got action %v and %d calls, want a pause and a call", x.action, len(e.calls))
	}
	request, err := wire.ParseVerifyRequest(e.calls[0].body)
	if want := (wire.VerifyRequest{DeviceID: "dev", Session: "7-1", Source: "203.0.113.7"}); err != nil ||
		request != want {
		t.Errorf("got %+v, %v; want %+v", request, err, want)
	}
	e.answered(e.calls[0], allow())
	if !slices.Contains(x.request, [2]string{policy.DeviceHeader, "dev"}) ||
		slices.Contains(x.request, [2]string{policy.DeviceHeader, "forged"}) {
		t.Errorf("got headers %v, want the token's device and no other", x.request)
	}
}

// TestNoToken has claims under another name, such as another provider's.
func TestNoToken(t *testing.T) {
	e := emulate(t, sessionRules)
	e.claims = map[string]string{"subject": "dev", "ver": "7-1"}
	x := e.streams[e.begin([][2]string{{":method", "POST"}, {":path", "/v1/telemetry"}}, true)]
	if x.reply == nil || x.reply.status != 401 {
		t.Errorf("got %+v, want a 401", x.reply)
	}
}

func TestExchange(t *testing.T) {
	const token = `{"token":"a.b.c"}`
	tests := []struct {
		name string
		body []byte
		want int
	}{
		{"issued", wire.AppendSessionResponse(nil, &wire.SessionResponse{Outcome: wire.Allow, Body: []byte(token)}), 200},
		{"refused", wire.AppendSessionResponse(nil, &wire.SessionResponse{Outcome: wire.Deny}), 401},
		{"busy", wire.AppendSessionResponse(nil, &wire.SessionResponse{Outcome: wire.Unavailable, RetryAfterS: 1}), 503},
		{"a verdict is no token", allow(), 503},
		{"garbage", []byte("garbage"), 503},
		{"no answer", nil, 503},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := emulate(t, sessionRules)
			ids := make([]uint32, 2)
			for i := range ids {
				ids[i] = e.begin([][2]string{{":method", "POST"}, {":path", "/v1/session"}, {"x-device-id", "dev"},
					{"x-device-token", "s3cret"}}, true)
			}
			if len(e.calls) != 1 || e.calls[0].path != "/v1/session" {
				t.Fatalf("got calls %+v, want one to /v1/session", e.calls)
			}
			if request, err := wire.ParseVerifyRequest(e.calls[0].body); err != nil || request.DeviceID != "dev" ||
				request.Secret != "s3cret" || request.Session != "" {
				t.Errorf("got %+v, %v; want the credential", request, err)
			}
			e.answered(e.calls[0], tt.body)
			for _, id := range ids {
				got := e.streams[id].reply
				if got == nil || got.status != tt.want {
					t.Fatalf("got %+v, want a %d", got, tt.want)
				}
				if tt.want == 200 &&
					(string(got.body) != token || !slices.Contains(got.headers, [2]string{"cache-control", "no-store"})) {
					t.Errorf("got %q %v, want the token, not to be stored", got.body, got.headers)
				}
			}
		})
	}
}
