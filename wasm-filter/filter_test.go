package main

import (
	"io"
	"log"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/wasm-filter/policy"
	"github.com/gatehouse/gatehouse/wire"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/proxytest"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"
)

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // the emulator logs every call
	os.Exit(m.Run())
}

const rules = `{
	"credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"},
	"rules": [
		{"match": {"prefix": "/v1/telemetry"}, "auth": {"permissions": ["telemetry.write"]}},
		{"match": {"prefix": "/v1/both"}, "auth": {}, "cache": {"on_miss": "fetch"}},
		{"match": {"prefix": "/v1/products/"}, "cache": {"on_miss": "fetch"}}]}`

var state = wire.State{Epoch: 7, ObjectBuckets: 4, VerdictBuckets: 4, Permissions: []string{"telemetry.write"}}

// emulated is the SDK's host with Envoy's meaning of a CAS of 0, which is to overwrite:
// the emulator takes it for a mismatch.
type emulated struct{ sdkHost }

func (h emulated) setRecord(region wire.Region, index uint32, value []byte) error {
	key := string(wire.AppendPlace(nil, region, index))
	_, cas, err := proxywasm.GetSharedData(key)
	if err != nil {
		cas = 0
	}
	return proxywasm.SetSharedData(key, value, cas)
}

// emulate starts a plugin in the SDK's emulator, with a state in shared data unless the
// configuration is a push listener's.
func emulate(t *testing.T, config string) proxytest.HostEmulator {
	t.Helper()
	return emulateHost(t, config, emulated{newSDKHost()})
}

func emulateHost(t *testing.T, config string, h host) proxytest.HostEmulator {
	t.Helper()
	opt := proxytest.NewEmulatorOption().WithVMContext(newVM(h)).WithPluginConfiguration([]byte(config))
	emulator, reset := proxytest.NewHostEmulator(opt)
	t.Cleanup(reset)
	if status := emulator.StartPlugin(); status != types.OnPluginStartStatusOK {
		t.Fatalf("plugin start: %v: %v", status, emulator.GetCriticalLogs())
	}
	if !strings.Contains(config, "push_listener") {
		s := state
		s.InStepMS = h.now()
		if err := h.setRecord(wire.RegionState, 0, wire.AppendState(nil, &s)); err != nil {
			t.Fatal(err)
		}
		emulator.Tick()
	}
	return emulator
}

// send starts a request with the credential of device dev.
func send(e proxytest.HostEmulator, path string, more ...[2]string) (id uint32, action types.Action) {
	id = e.InitializeHttpContext()
	headers := append([][2]string{{":method", "GET"}, {":path", path}, {"x-device-id", "dev"}, {"x-device-token", "s3cret"}}, more...)
	return id, e.CallOnRequestHeaders(id, headers, true)
}

var ok = [][2]string{{":status", "200"}}

func allow() []byte {
	return wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Allow, Permissions: 1, Epoch: state.Epoch})
}

// callouts are the calls booked on these contexts; the plugin itself is a context too.
func callouts(e proxytest.HostEmulator, contexts ...uint32) (all []proxytest.HttpCalloutAttribute) {
	for _, id := range contexts {
		all = append(all, e.GetCalloutAttributesFromContext(id)...)
	}
	return all
}

func TestVerifyIsCoalesced(t *testing.T) {
	e := emulate(t, rules)
	var ids []uint32
	for range 50 {
		id, action := send(e, "/v1/telemetry", [2]string{"x-gatehouse-device", "forged"})
		if action != types.ActionPause {
			t.Fatalf("request %d: got action %v, want a pause", id, action)
		}
		ids = append(ids, id)
	}
	calls := callouts(e, ids...)
	if len(calls) != 1 || calls[0].Upstream != "gatehouse-sidecar" {
		t.Fatalf("got %d calls, want one to gatehouse-sidecar", len(calls))
	}
	request, err := wire.ParseVerifyRequest(calls[0].Body)
	if want := (wire.VerifyRequest{DeviceID: "dev", Secret: "s3cret"}); err != nil || request != want {
		t.Fatalf("got %+v, %v; want %+v", request, err, want)
	}
	e.CallOnHttpCallResponse(calls[0].CalloutID, ok, nil, allow())
	for _, id := range ids {
		if got := e.GetCurrentHttpStreamAction(id); got != types.ActionContinue {
			t.Errorf("request %d: got action %v after the answer, want continue", id, got)
		}
		headers := e.GetCurrentRequestHeaders(id)
		if !slices.Contains(headers, [2]string{policy.DeviceHeader, "dev"}) || slices.Contains(headers, [2]string{policy.DeviceHeader, "forged"}) {
			t.Errorf("request %d: got headers %v, want the device's identity and no other", id, headers)
		}
	}
}

// mute is a host that can't read headers.
type mute struct{ emulated }

func (mute) requestHeaders() [][2]string { return nil }

func TestUnreadableHeaders(t *testing.T) {
	e := emulateHost(t, `{}`, mute{emulated{newSDKHost()}}) // rules that let everything pass
	id, action := send(e, "/open")
	if got := e.GetSentLocalResponse(id); action != types.ActionPause || got == nil || got.StatusCode != 503 {
		t.Errorf("got action %v and %+v, want a 503", action, got)
	}
}

func TestVerifyAnswers(t *testing.T) {
	tests := []struct {
		name    string
		headers [][2]string
		body    []byte
		want    uint32
	}{
		{"deny", ok, wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Deny, Epoch: state.Epoch}), 401},
		{"overloaded", ok, wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Unavailable, RetryAfterS: 2}), 503},
		{"another epoch", ok, wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Allow, Permissions: 1, Epoch: 8}), 503},
		{"without the permission", ok, wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Allow, Epoch: state.Epoch}), 403},
		{"an error page", [][2]string{{":status", "503"}}, []byte("no healthy upstream"), 503},
		{"reset", nil, nil, 503},
		{"garbage", ok, []byte("garbage"), 503},
		{"empty", ok, nil, 503},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := emulate(t, rules)
			id, _ := send(e, "/v1/telemetry")
			e.CallOnHttpCallResponse(callouts(e, id)[0].CalloutID, tt.headers, nil, tt.body)
			got := e.GetSentLocalResponse(id)
			if got == nil || got.StatusCode != tt.want {
				t.Errorf("got %+v, want a %d", got, tt.want)
			}
		})
	}
}

// TestCallerGivesUp ends the stream that a call is booked on: the SDK drops its answer,
// so the next tick has to ask again for those who wait.
func TestCallerGivesUp(t *testing.T) {
	e := emulate(t, rules)
	caller, _ := send(e, "/v1/telemetry")
	waiter, _ := send(e, "/v1/telemetry")
	first := callouts(e, caller)[0]
	e.CompleteHttpContext(caller)
	e.CallOnHttpCallResponse(first.CalloutID, ok, nil, allow())
	if e.GetCurrentHttpStreamAction(waiter) != types.ActionPause {
		t.Fatal("the SDK delivers answers of streams that are gone now: the tick's second call is not needed any more")
	}
	e.Tick()
	again := callouts(e, proxytest.PluginContextID)
	if len(again) != 1 {
		t.Fatalf("got %d calls from the tick, want 1", len(again))
	}
	e.CallOnHttpCallResponse(again[0].CalloutID, ok, nil, allow())
	if got := e.GetCurrentHttpStreamAction(waiter); got != types.ActionContinue {
		t.Errorf("waiter: got action %v, want continue", got)
	}
}

// TestNobodyWaits ends the only stream of a call: nothing is asked again, nothing is kept.
func TestNobodyWaits(t *testing.T) {
	e := emulate(t, rules)
	id, _ := send(e, "/v1/telemetry")
	e.CompleteHttpContext(id)
	e.Tick()
	if calls := callouts(e, proxytest.PluginContextID); len(calls) != 0 {
		t.Errorf("got %d calls from the tick, want none", len(calls))
	}
	again, _ := send(e, "/v1/telemetry")
	if calls := callouts(e, again); len(calls) != 1 {
		t.Errorf("got %d calls of the next request, want 1", len(calls))
	}
}

// TestSecondCallOutlivesItsCaller lets a waiter go on to a second call while the callback
// of another stream's call runs: the SDK books it on that stream, which then ends.
func TestSecondCallOutlivesItsCaller(t *testing.T) {
	e := emulate(t, rules)
	caller, _ := send(e, "/v1/both/caller")
	waiter, _ := send(e, "/v1/both/waiter")
	e.CallOnHttpCallResponse(callouts(e, caller)[0].CalloutID, ok, nil, allow())
	fetches := callouts(e, caller, waiter)[1:]
	if len(fetches) != 2 {
		t.Fatalf("got %d fetches, want 2", len(fetches))
	}
	e.CompleteHttpContext(caller)
	e.Tick()
	again := callouts(e, proxytest.PluginContextID)
	if len(again) != 1 || string(again[0].Body) != "/v1/both/waiter" {
		t.Fatalf("got calls %v from the tick, want the waiter's fetch", again)
	}
	e.CallOnHttpCallResponse(again[0].CalloutID, ok, nil, wire.AppendFetchResponse(nil, 9, nil, nil))
	if got := e.GetCurrentHttpStreamAction(waiter); got != types.ActionContinue {
		t.Errorf("waiter: got action %v, want continue", got)
	}
}

func TestFetch(t *testing.T) {
	object := wire.Object{Key: "/v1/products/1", Version: 1, ETag: `"a"`, ContentType: "text/plain"}
	object.AddVariant(wire.Variant{Encoding: wire.Identity, Length: 4})
	e := emulate(t, rules)
	first, action := send(e, "/v1/products/1")
	second, _ := send(e, "/v1/products/1")
	other, _ := send(e, "/v1/products/2")
	calls := callouts(e, first, second, other)
	if action != types.ActionPause || len(calls) != 2 {
		t.Fatalf("got action %v and %d calls, want a pause and 2", action, len(calls))
	}
	e.CallOnHttpCallResponse(calls[0].CalloutID, ok, nil, wire.AppendFetchResponse(nil, 9, &object, [][]byte{[]byte("body")}))
	for _, id := range []uint32{first, second} {
		if got := e.GetSentLocalResponse(id); got == nil || got.StatusCode != 200 || string(got.Data) != "body" {
			t.Errorf("request %d: got %+v, want the body", id, got)
		}
	}
	e.CallOnHttpCallResponse(calls[1].CalloutID, ok, nil, wire.AppendFetchResponse(nil, 9, nil, nil))
	if got := e.GetCurrentHttpStreamAction(other); got != types.ActionContinue {
		t.Errorf("not found: got action %v, want continue", got)
	}
	e.CallOnResponseHeaders(other, ok, true)
	if want := [2]string{"cache-status", "gatehouse; fwd=uri-miss"}; !slices.Contains(e.GetCurrentResponseHeaders(other), want) {
		t.Errorf("got response headers %v, want %v", e.GetCurrentResponseHeaders(other), want)
	}
}

func TestRefreshRunsBehind(t *testing.T) {
	e := emulate(t, rules)
	h := newSDKHost()
	digest := state.Keys.Digest("dev", "s3cret")
	verdict := wire.Verdict{Digest: digest, Outcome: wire.Allow, Permissions: 1, ExpiresMS: h.now() + 60_000, RefreshAfterMS: 1}
	bucket, _ := state.Keys.Device("dev", state.VerdictBuckets)
	if err := h.setRecord(wire.RegionVerdicts, bucket, wire.AppendVerdicts(nil, state.Epoch, []wire.Verdict{verdict}, nil)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		id, action := send(e, "/v1/telemetry")
		if action != types.ActionContinue || len(callouts(e, id)) != 0 {
			t.Fatalf("got action %v and %d calls, want to continue without one", action, len(callouts(e, id)))
		}
	}
	e.Tick()
	if calls := callouts(e, proxytest.PluginContextID); len(calls) != 1 {
		t.Fatalf("got %d calls from the tick, want 1", len(calls))
	}
	for counter, want := range map[policy.Counter]uint64{policy.AuthAllow: 3, policy.AuthRefresh: 1} {
		if got, err := e.GetCounterMetric(counter.String()); err != nil || got != want {
			t.Errorf("%s: got %d, %v; want %d", counter, got, err, want)
		}
	}
}

// TestHitsAreReported answers a fetched object many times: a sample of the hits is sent
// after a second of ticks, and nothing more when there are none.
func TestHitsAreReported(t *testing.T) {
	object := wire.Object{Key: "/v1/products/1", Version: 1, ETag: `"a"`, ContentType: "text/plain"}
	object.AddVariant(wire.Variant{Encoding: wire.Identity, Length: 4})
	e := emulate(t, rules)
	for range 100 * sampleEvery {
		id, _ := send(e, "/v1/products/1")
		e.CallOnHttpCallResponse(callouts(e, id)[0].CalloutID, ok, nil, wire.AppendFetchResponse(nil, 9, &object, [][]byte{[]byte("body")}))
	}
	for range 3 * reportTicks {
		e.Tick()
	}
	calls := callouts(e, proxytest.PluginContextID)
	if len(calls) != 1 {
		t.Fatalf("got %d reports, want 1", len(calls))
	}
	keys, err := wire.ParseHits(calls[0].Body)
	// Fifty is five standard deviations away from a hundred.
	if err != nil || len(keys) < 50 || len(keys) > 150 || slices.IndexFunc(keys, func(k string) bool { return k != "/v1/products/1" }) >= 0 {
		t.Errorf("got %d keys, %.200q, %v; want about 100 times the object's", len(keys), keys, err)
	}
}

func TestBadConfiguration(t *testing.T) {
	opt := proxytest.NewEmulatorOption().WithVMContext(newVM(newSDKHost())).WithPluginConfiguration([]byte(`{"rules": [{"match": {"path": "/a"}, "cash": {}}]}`))
	e, reset := proxytest.NewHostEmulator(opt)
	defer reset()
	if status := e.StartPlugin(); status != types.OnPluginStartStatusFailed {
		t.Errorf("got %v, want failed", status)
	}
	if logs := strings.Join(e.GetCriticalLogs(), ""); !strings.Contains(logs, "rules[0].cash: unknown field") {
		t.Errorf("got %q, want the path of the field", logs)
	}
}

func TestBodyCache(t *testing.T) {
	var c bodyCache
	variant := func(slot uint32, length int) wire.Variant {
		return wire.Variant{Slot: slot, Stamp: uint64(slot) + 1, Length: uint32(length)}
	}
	c.put(1, variant(0, 4), []byte("body"))
	if got := c.get(1, variant(0, 4)); string(got) != "body" {
		t.Errorf("got %q, want body", got)
	}
	other := variant(0, 4)
	other.Stamp = 99
	if c.get(2, variant(0, 4)) != nil || c.get(1, other) != nil || c.get(1, variant(1, 4)) != nil {
		t.Error("a body was given for another epoch, stamp or slot")
	}
	const length = 1 << 20
	for slot := range uint32(3 * maxBodies / length) {
		c.put(1, variant(slot, length), make([]byte, length))
		if c.get(1, variant(slot, length)) == nil {
			t.Fatalf("slot %d isn't there right after it was put", slot)
		}
	}
	total := 0
	for _, e := range c.entries {
		total += len(e.bytes)
	}
	if c.size != total || c.size > maxBodies {
		t.Errorf("got a size of %d for %d bytes, want them equal and at most %d", c.size, total, maxBodies)
	}
}
