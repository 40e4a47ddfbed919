//go:build !race && !wasm

package main

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/proxytest"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/gatehouse/gatehouse/edge"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// wazeroMS is the time at which the clock of proxytest's modules begins, unix ms.
const wazeroMS = 1_640_995_200_000

// TestSDK runs the module of the SDK binding in the SDK's own host emulator. It does not run with -race, with which the
// emulator takes a minute instead of seconds to compile the module.
func TestSDK(t *testing.T) {
	module := buildModule(t, "-tags=sdk")
	t.Run("edge", func(t *testing.T) { testSDKEdge(t, startSDK(t, module, rules)) })
	t.Run("push", func(t *testing.T) { testSDKPush(t, startSDK(t, module, `{"push_listener": true}`)) })
}

func startSDK(t *testing.T, module []byte, config string) proxytest.HostEmulator {
	t.Helper()
	vm, err := proxytest.NewWasmVMContext(module)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = vm.Close() })
	h, reset := proxytest.NewHostEmulator(proxytest.NewEmulatorOption().WithVMContext(vm).
		WithVMConfiguration([]byte(config)).WithProperty([]string{"source", "address"}, []byte("203.0.113.7:1234")))
	t.Cleanup(reset)
	if h.StartVM() != types.OnVMStartStatusOK || h.StartPlugin() != types.OnPluginStartStatusOK ||
		h.GetTickPeriod() != edge.TickMS {
		t.Fatalf("not started: %q", h.GetCriticalLogs())
	}
	return h
}

var sdkState = wire.State{Epoch: epoch, ObjectBuckets: 4, VerdictBuckets: 4, InStepMS: wazeroMS}

func allow() []byte {
	return wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Allow, Epoch: epoch})
}

// object returns the records of an object, by their places.
func object(key string, length int) map[string][]byte {
	o := wire.Object{Key: key, Version: 1, ETag: `"a"`, ContentType: "text/plain"}
	o.AddVariant(wire.Variant{Encoding: wire.Identity, Length: uint32(length), Stamp: 1})
	bucket, tag := sdkState.Keys.Place(key, sdkState.ObjectBuckets)
	return map[string][]byte{
		place(wire.RegionObjects, bucket): wire.FinishRecord(
			wire.AppendObject(wire.AppendObjectsHeader(nil, epoch, 1), tag, &o), 0),
		place(wire.RegionBodies, 0): wire.AppendBody(nil, epoch, 1, bytes.Repeat([]byte("b"), length)),
	}
}

// device returns the headers of a request with the credential of device dev.
func device(path string, more [2]string) [][2]string {
	return [][2]string{{":method", "GET"}, {":path", path}, {"x-device-id", "dev"}, {"x-device-token", "s3cret"}, more}
}

func testSDKEdge(t *testing.T, h proxytest.HostEmulator) {
	records := object("/v1/products/1", 1024)
	records[place(wire.RegionState, 0)] = wire.AppendState(nil, &sdkState)
	for key, record := range records {
		if err := proxywasm.SetSharedData(key, record, 0); err != nil {
			t.Fatal(err)
		}
	}
	h.Tick()
	for _, tt := range []struct {
		path   string
		more   [2]string
		status uint32 // 0: goes upstream
		size   int
	}{
		{"/v1/products/1", [2]string{"accept", "*/*"}, 200, 1024},
		{"/v1/products/1", [2]string{"if-none-match", `"a"`}, 304, 0},
		{"/none", [2]string{"accept", "*/*"}, 0, 0},
		{"/v1/telemetry", [2]string{"x-device-id", "another"}, 401, -1},
	} {
		id := h.InitializeHttpContext()
		action := h.CallOnRequestHeaders(id, device(tt.path, tt.more), true)
		got := h.GetSentLocalResponse(id)
		if tt.status == 0 {
			if got != nil || action != types.ActionContinue {
				t.Errorf("%s: got %+v, %v; want it to go upstream", tt.path, got, action)
			}
			continue
		}
		if got == nil || action != types.ActionPause || got.StatusCode != tt.status || tt.size >= 0 &&
			len(got.Data) != tt.size {
			t.Errorf("%s %v: got %+v, %v; want %d of %d bytes", tt.path, tt.more, got, action, tt.status, tt.size)
		}
		h.CompleteHttpContext(id)
	}
	testSDKCalls(t, h)
}

// testSDKCalls ends the stream that a call is assigned to: the requests that wait for it get the answer of a second
// call.
func testSDKCalls(t *testing.T, h proxytest.HostEmulator) {
	status := [][2]string{{":status", "200"}}
	gone, waits := h.InitializeHttpContext(), h.InitializeHttpContext()
	for _, id := range []uint32{gone, waits} {
		if got := h.CallOnRequestHeaders(id, device("/v1/telemetry", [2]string{policy.DeviceHeader, "forged"}),
			true); got != types.ActionPause {
			t.Fatalf("request %d: got action %v, want a pause", id, got)
		}
	}
	calls := h.GetCalloutAttributesFromContext(gone)
	if len(calls) != 1 || len(h.GetCalloutAttributesFromContext(waits)) != 0 {
		t.Fatalf("got %d calls, want one", len(calls))
	}
	h.CompleteHttpContext(gone)
	h.CallOnHttpCallResponse(calls[0].CalloutID, status, nil, allow())
	if got := h.GetCurrentHttpStreamAction(waits); got != types.ActionPause {
		t.Fatalf("got action %v: the emulator doesn't drop the answer", got)
	}
	h.Tick()
	again := h.GetCalloutAttributesFromContext(proxytest.PluginContextID)
	if len(again) != 1 || fmt.Sprint(again[0].Headers, again[0].Body) != fmt.Sprint(calls[0].Headers, calls[0].Body) {
		t.Fatalf("got calls %v, want %v once more", again, calls)
	}
	request, err := wire.ParseVerifyRequest(again[0].Body)
	if want := (wire.VerifyRequest{DeviceID: "dev", Secret: "s3cret", Source: "203.0.113.7"}); err != nil ||
		request != want {
		t.Errorf("got %+v, %v; want %+v", request, err, want)
	}
	h.CallOnHttpCallResponse(again[0].CalloutID, status, nil, allow())
	headers := h.GetCurrentRequestHeaders(waits)
	if h.GetCurrentHttpStreamAction(waits) != types.ActionContinue ||
		!slices.Contains(headers, [2]string{policy.DeviceHeader, "dev"}) ||
		slices.ContainsFunc(headers, func(x [2]string) bool { return x[0] == "x-device-token" || x[1] == "forged" }) {
		t.Errorf("got %v, want it to go upstream with the device's identity and no secret", headers)
	}
	h.Tick()
	// The emulator still lets a module enter a stream that has gone, so it counts, too.
	for name, want := range map[string]uint64{policy.CacheNotModified.StatName("1"): 1, policy.CallVerify.StatName("0"): 2,
		policy.AuthAllow.StatName("0"): 2, policy.CacheBypass.StatName("1"): 0} {
		if got, err := h.GetCounterMetric(name); err != nil || got != want {
			t.Errorf("%s: got %d, %v; want %d", name, got, err, want)
		}
	}
}

// testSDKPush writes each record once: the emulator refuses a second write without a compare-and-swap number.
func testSDKPush(t *testing.T, h proxytest.HostEmulator) {
	apply := func(batch []byte) *proxytest.LocalHttpResponse {
		id := h.InitializeHttpContext()
		h.CallOnRequestHeaders(id, [][2]string{{":method", "POST"}, {":path", "/v1/apply"}}, false)
		h.CallOnRequestBody(id, batch[:10], false)
		h.CallOnRequestBody(id, batch[10:], true)
		return h.GetSentLocalResponse(id)
	}
	if got := apply(batch(7, 6)); got == nil || got.StatusCode != 409 {
		t.Errorf("another epoch: got %+v, want 409", got)
	}
	bucket, _ := sdkState.Keys.Place("/v1/products/1", sdkState.ObjectBuckets)
	record := object("/v1/products/1", 1024)[place(wire.RegionObjects, bucket)]
	first := wire.AppendOp(batch(7, 0), wire.RegionObjects, bucket, func(dst []byte) []byte {
		return append(dst, record...)
	})
	if got := apply(first); got == nil || got.StatusCode != 200 {
		t.Fatalf("takeover: got %+v, want 200", got)
	}
	if got, _, err := proxywasm.GetSharedData(place(wire.RegionObjects, bucket)); err != nil ||
		string(got) != string(record) {
		t.Errorf("got object %x, %v; want %x", got, err, record)
	}
	if got, err := h.GetGaugeMetric(guardGauge); err != nil || got != 1<<8 {
		t.Errorf("got guard %d, %v; want it lowered after one batch", got, err)
	}
	state := wire.AppendOp(wire.BeginBatch(nil, 7, 7), wire.RegionState, 0, func(dst []byte) []byte {
		return wire.AppendState(dst, &wire.State{Epoch: 7, InStepMS: 1})
	})
	if got := apply(state); got == nil || got.StatusCode != 200 {
		t.Errorf("a state by its number: got %+v, want 200", got)
	}
}
