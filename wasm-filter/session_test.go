package main

import (
	"slices"
	"testing"

	"github.com/gatehouse/gatehouse/wasm-filter/policy"
	"github.com/gatehouse/gatehouse/wire"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/proxytest"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"
)

const sessionRules = `{
	"credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"}, "session": {"metadata": "gatehouse"},
	"rules": [
		{"match": {"path": "/v1/session", "methods": ["POST"]}, "session": "issue"},
		{"match": {"prefix": "/v1/telemetry"}, "auth": {"permissions": ["telemetry.write"]}}]}`

// validated sets what the proxy's JWT filter would have put aside of a token.
func validated(t *testing.T, e proxytest.HostEmulator, claims map[string]string) {
	t.Helper()
	for name, value := range claims {
		path := []string{"metadata", "filter_metadata", "envoy.filters.http.jwt_authn", "gatehouse", name}
		if err := e.SetProperty(path, []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestToken(t *testing.T) {
	e := emulate(t, sessionRules)
	validated(t, e, map[string]string{"sub": "dev", "ver": "7-1"})
	id := e.InitializeHttpContext()
	forged := [][2]string{{":method", "POST"}, {":path", "/v1/telemetry"}, {policy.DeviceHeader, "forged"}}
	if action := e.CallOnRequestHeaders(id, forged, true); action != types.ActionPause {
		t.Fatalf("got action %v, want a pause", action)
	}
	calls := callouts(e, id)
	if len(calls) != 1 {
		t.Fatalf("got %d calls, want 1", len(calls))
	}
	request, err := wire.ParseVerifyRequest(calls[0].Body)
	if want := (wire.VerifyRequest{DeviceID: "dev", Session: "7-1"}); err != nil || request != want {
		t.Errorf("got %+v, %v; want %+v", request, err, want)
	}
	e.CallOnHttpCallResponse(calls[0].CalloutID, ok, nil, allow())
	headers := e.GetCurrentRequestHeaders(id)
	if !slices.Contains(headers, [2]string{policy.DeviceHeader, "dev"}) || slices.Contains(headers, [2]string{policy.DeviceHeader, "forged"}) {
		t.Errorf("got headers %v, want the token's device and no other", headers)
	}
}

// TestNoToken has claims of another name, as another provider's would be.
func TestNoToken(t *testing.T) {
	e := emulate(t, sessionRules)
	validated(t, e, map[string]string{"subject": "dev", "ver": "7-1"})
	id := e.InitializeHttpContext()
	e.CallOnRequestHeaders(id, [][2]string{{":method", "POST"}, {":path", "/v1/telemetry"}}, true)
	if got := e.GetSentLocalResponse(id); got == nil || got.StatusCode != 401 {
		t.Errorf("got %+v, want a 401", got)
	}
}

func TestExchange(t *testing.T) {
	const token = `{"token":"a.b.c"}`
	tests := []struct {
		name    string
		headers [][2]string
		body    []byte
		want    uint32
	}{
		{"issued", ok, wire.AppendSessionResponse(nil, &wire.SessionResponse{Outcome: wire.Allow, Body: []byte(token)}), 200},
		{"refused", ok, wire.AppendSessionResponse(nil, &wire.SessionResponse{Outcome: wire.Deny}), 401},
		{"busy", ok, wire.AppendSessionResponse(nil, &wire.SessionResponse{Outcome: wire.Unavailable, RetryAfterS: 1}), 503},
		{"a verdict is no token", ok, allow(), 503},
		{"garbage", ok, []byte("garbage"), 503},
		{"no answer", [][2]string{{":status", "503"}}, nil, 503},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := emulate(t, sessionRules)
			ids := make([]uint32, 2)
			for i := range ids {
				ids[i] = e.InitializeHttpContext()
				e.CallOnRequestHeaders(ids[i], [][2]string{{":method", "POST"}, {":path", "/v1/session"}, {"x-device-id", "dev"}, {"x-device-token", "s3cret"}}, true)
			}
			calls := callouts(e, ids...)
			if len(calls) != 1 || !slices.Contains(calls[0].Headers, [2]string{":path", "/v1/session"}) {
				t.Fatalf("got calls %+v, want one to /v1/session", calls)
			}
			if request, err := wire.ParseVerifyRequest(calls[0].Body); err != nil || request != (wire.VerifyRequest{DeviceID: "dev", Secret: "s3cret"}) {
				t.Errorf("got %+v, %v; want the credential", request, err)
			}
			e.CallOnHttpCallResponse(calls[0].CalloutID, tt.headers, nil, tt.body)
			for _, id := range ids {
				got := e.GetSentLocalResponse(id)
				if got == nil || got.StatusCode != tt.want {
					t.Fatalf("got %+v, want a %d", got, tt.want)
				}
				if tt.want == 200 && (string(got.Data) != token || !slices.Contains(got.Headers, [2]string{"cache-control", "no-store"})) {
					t.Errorf("got %q %v, want the token, not to be stored", got.Data, got.Headers)
				}
			}
		})
	}
}
