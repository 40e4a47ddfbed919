package edge

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// newDeviceEdge returns an edge with a new device and a device that authenticated before.
func newDeviceEdge(t *testing.T, rules string) *emulator {
	t.Helper()
	e := emulate(t, rules)
	s := state
	s.InStepMS, s.HeartbeatMS, s.VerdictBuckets = e.clock, e.clock, 1
	e.records[place(wire.RegionState, 0)] = wire.AppendState(nil, &s)
	e.tick()
	_, isNew := s.Keys.Device("new", 1)
	_, old := s.Keys.Device("old", 1)
	e.records[place(wire.RegionVerdicts, 0)] = wire.AppendVerdicts(nil, s.Epoch, nil,
		[]wire.Device{{Tag: isNew, New: true}, {Tag: old}})
	return e
}

// throttledEdge returns an edge whose source the sidecar throttles.
func throttledEdge(t *testing.T) *emulator {
	t.Helper()
	e := newDeviceEdge(t, rules)
	try(e, "new", "first")
	if len(e.calls) != 1 {
		t.Fatalf("got %d calls, want 1", len(e.calls))
	}
	e.answered(e.calls[0],
		wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Unavailable, RetryAfterS: 5,
			ThrottleMS: 4500, Epoch: state.Epoch}))
	return e
}

// try sends a credential, and returns the answer, nil if the request waits for the sidecar.
func try(e *emulator, device, secret string) *reply {
	id := e.begin([][2]string{{":method", "POST"}, {":path", "/v1/telemetry"}, {"x-device-id", device},
		{"x-device-token", secret}}, true)
	return e.streams[id].reply
}

func TestThrottledSource(t *testing.T) {
	tests := []struct {
		name   string
		change func(e *emulator)
		device string
		wait   string // Retry-After of an answer without a call, "" if there is a call
	}{
		{"a new device", func(*emulator) {}, "new", "5"},
		{"later", func(e *emulator) { e.clock += 4499 }, "new", "1"},
		{"when it is over", func(e *emulator) { e.clock += 4500 }, "new", ""},
		{"when it is over and forgotten", func(e *emulator) { e.clock += 4500; e.tick() }, "new", ""},
		{"still remembered after a tick", func(e *emulator) { e.tick() }, "new", "5"},
		{"a device that was in before", func(*emulator) {}, "old", ""},
		{"from elsewhere", func(e *emulator) { e.from = "203.0.113.8" }, "new", ""},
		{"from nowhere", func(e *emulator) { e.from = "" }, "new", ""},
		{"another epoch", func(e *emulator) {
			s := state
			s.Epoch, s.VerdictBuckets, s.InStepMS, s.HeartbeatMS = 8, 1, e.clock, e.clock
			e.records[place(wire.RegionState, 0)] = wire.AppendState(nil, &s)
			_, tag := s.Keys.Device("new", 1)
			e.records[place(wire.RegionVerdicts, 0)] = wire.AppendVerdicts(nil, s.Epoch, nil,
				[]wire.Device{{Tag: tag, New: true}})
			e.tick()
		}, "new", ""},
		{"a silent sidecar", func(e *emulator) {
			e.vm.calls.throttles.addSource(e.from, e.clock, uint32(time.Hour/time.Millisecond))
			e.clock += 30_001
		}, "new", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := throttledEdge(t)
			tt.change(e)
			got := try(e, tt.device, "second")
			if calls := len(e.calls) - 1; tt.wait == "" && (calls != 1 || got != nil) {
				t.Fatalf("got %d calls, answer %+v; want a call", calls, got)
			}
			if tt.wait == "" {
				return
			}
			if len(e.calls) != 1 || got == nil || got.status != 503 ||
				!slices.Contains(got.headers, [2]string{"retry-after", tt.wait}) {
				t.Errorf("got %d calls, answer %+v; want 503 with Retry-After: %s and no call", len(e.calls)-1, got, tt.wait)
			}
			e.tick()
			if e.counted(policy.AuthUnavailable) != 1 || e.counted(policy.AuthThrottled) != 1 { // the first was asked about
				t.Errorf("got counts %v, want 1 unavailable and 1 throttled", e.counts)
			}
		})
	}
}

// TestThrottledSourceJoins sends a credential whose verification is under way, at no cost.
func TestThrottledSourceJoins(t *testing.T) {
	e := throttledEdge(t)
	e.from = "203.0.113.8"
	try(e, "new", "right")
	e.from = "203.0.113.7"
	if got := try(e, "new", "right"); got != nil || len(e.calls) != 2 {
		t.Errorf("got %+v and %d calls, want to wait for the one of the same credential", got, len(e.calls))
	}
}

// TestThrottledSourceOfSessions exchanges credentials instead: the throttle is the same, and answers to exchanges also
// set it.
func TestThrottledSourceOfSessions(t *testing.T) {
	e := newDeviceEdge(t, sessionRules)
	exchange := func(secret string) *reply {
		id := e.begin([][2]string{{":method", "POST"}, {":path", "/v1/session"}, {"x-device-id", "new"},
			{"x-device-token", secret}}, true)
		return e.streams[id].reply
	}
	if exchange("first"); len(e.calls) != 1 {
		t.Fatalf("got %d calls, want 1", len(e.calls))
	}
	e.answered(e.calls[0],
		wire.AppendSessionResponse(nil, &wire.SessionResponse{Outcome: wire.Unavailable, RetryAfterS: 5, ThrottleMS: 4500}))
	got := exchange("second")
	if len(e.calls) != 1 || got == nil || got.status != 503 ||
		!slices.Contains(got.headers, [2]string{"retry-after", "5"}) {
		t.Errorf("got %d calls, answer %+v; want 503 with Retry-After: 5 and no call", len(e.calls)-1, got)
	}
}

func TestThrottlesAreBounded(t *testing.T) {
	h := throttles{}
	for i := range maxThrottled + 10 {
		h.addSource(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String(), 1000, 5000)
	}
	if len(h) != maxThrottled {
		t.Errorf("got %d, want %d", len(h), maxThrottled)
	}
	for _, source := range []string{"", "nonsense"} {
		if h.addSource(source, 1000, 5000); h.retryAfter(source, 1000) != 0 {
			t.Errorf("%q is throttled", source)
		}
	}
	h.addSource("10.0.0.0", 1000, 1<<32-1)
	if got := h.retryAfter("10.0.0.0", 1000); got != 1<<16-1 {
		t.Errorf("got %d s, want the most that there is room for", got)
	}
	if h.sweep(6000); len(h) != 1 {
		t.Errorf("got %d after all but one have ended, want 1", len(h))
	}
	if h.addSource("2001:db8:0:1::1", 1000, 2000); h.retryAfter("2001:db8:0:1:2:3:4:5", 1500) != 2 {
		t.Error("another address of the same /64 is not throttled")
	}
	if h.retryAfter("2001:db8:0:1::1", 999) != 0 {
		t.Error("still throttled though the clock was set back")
	}
	if h.addSource("10.0.0.1", 1000, 0); h.retryAfter("10.0.0.1", 1000) != 0 {
		t.Error("held for no time")
	}
}
