package edge

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// guessedEdge returns an edge at which device dev is at work with the secret "right".
func guessedEdge(t *testing.T, rules string) *emulator {
	t.Helper()
	e := emulate(t, rules)
	s := state
	s.InStepMS, s.HeartbeatMS, s.VerdictBuckets = e.clock, e.clock, 1
	e.records[place(wire.RegionState, 0)] = wire.AppendState(nil, &s)
	e.tick()
	_, tag := s.Keys.Device("dev", 1)
	right := wire.Verdict{Digest: s.Keys.Digest("dev", "right"), Outcome: wire.Allow, Permissions: "telemetry.write",
		ExpiresMS: e.clock + 1_000_000}
	e.records[place(wire.RegionVerdicts, 0)] = wire.AppendVerdicts(nil, s.Epoch, []wire.Verdict{right},
		[]wire.Device{{Tag: tag, Closed: true}})
	return e
}

// sidecarSays answers the calls from the n-th on.
func (e *emulator) sidecarSays(n int, outcome wire.Outcome, throttleMS uint32) {
	for _, c := range e.calls[n:] {
		if c.path == sessionPath {
			e.answered(c, wire.AppendSessionResponse(nil, &wire.SessionResponse{Outcome: outcome, RetryAfterS: 12,
				ThrottleMS: throttleMS}))
			continue
		}
		e.answered(c, wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: outcome, Permissions: "telemetry.write",
			RetryAfterS: 12, ThrottleMS: throttleMS, Epoch: state.Epoch}))
	}
}

// TestGuessesOfAnActiveDevice sends secrets of a device with a verdict on the right secret. A worker itself refuses the
// first wrong secret. From the second on the sidecar decides, about the right secret, too, from the same network.
func TestGuessesOfAnActiveDevice(t *testing.T) {
	const other, unknown = "203.0.113.8", ""
	deny := func(e *emulator) { e.sidecarSays(0, wire.Deny, 0) }
	throttled := func(e *emulator) { e.sidecarSays(0, wire.Throttled, 12_000) }
	own := func(e *emulator) { e.sidecarSays(0, wire.Deny, 1000) }
	silent := func(e *emulator) { e.answered(e.calls[0], nil) }
	later := func(say func(*emulator), ms int64) func(*emulator) {
		return func(e *emulator) {
			say(e)
			e.clock += ms
			s := *e.vm.engine.State()
			s.InStepMS, s.HeartbeatMS = e.clock, e.clock
			e.records[place(wire.RegionState, 0)] = wire.AppendState(nil, &s)
			e.vm.readState()
		}
	}
	vain := func(secret string) func(*emulator) { // asks at the end of a guess's life, and gets no answer
		return func(e *emulator) {
			later(silent, guessLifeMS-1)(e)
			try(e, "dev", secret)
			e.answered(e.calls[1], nil)
		}
	}
	tests := []struct {
		name   string
		change func(e *emulator) // after the first two wrong secrets
		secret string
		from   string
		status int // without a call; 200: goes upstream, 0: there is a call
		retry  int
	}{
		{"wrong, while the sidecar is asked", func(*emulator) {}, "wrong3", "", 0, 0},
		{"right, while the sidecar is asked", func(*emulator) {}, "right", "", 0, 0},
		{"right, from elsewhere, meanwhile", func(*emulator) {}, "right", other, 200, 0},
		{"wrong, within the limit", deny, "wrong3", "", 0, 0},
		{"right, within the limit", deny, "right", "", 0, 0},
		{"right, when that was long ago", later(deny, guessLifeMS), "right", "", 200, 0},
		{"wrong, when that was long ago", later(deny, guessLifeMS), "wrong3", "", 401, 0},
		{"right, when the clock was set back", later(deny, -1), "right", "", 200, 0},
		{"wrong, beyond the limit", throttled, "wrong3", "", 503, 12},
		{"right, beyond the limit", throttled, "right", "", 503, 12},
		{"right, beyond the limit, later", later(throttled, 11_999), "right", "", 503, 1},
		{"right, after the throttle", later(throttled, 12_000), "right", "", 0, 0},
		{"right, long after the throttle", later(throttled, 12_000+guessLifeMS), "right", "", 200, 0},
		{"right, from elsewhere, beyond the limit", throttled, "right", other, 200, 0},
		{"wrong, from elsewhere, beyond the limit", throttled, "wrong3", other, 401, 0},
		{"right, after a tick", func(e *emulator) { throttled(e); e.tick() }, "right", "", 503, 12},
		{"right, where the device authenticated before", own, "right", "", 200, 0},
		{"wrong, where the device authenticated before", own, "wrong3", "", 401, 0},
		{"wrong, there, a second later", later(own, 1000), "wrong3", "", 0, 0},
		{"right, the sidecar gave no answer", silent, "right", "", 0, 0},
		{"right, from elsewhere, the sidecar gave no answer", silent, "right", other, 200, 0},
		{"right, the sidecar gave no answer, but told before that the device is at home", func(e *emulator) {
			e.sidecarSays(0, wire.Deny, 1000)
			e.clock += 1000
			try(e, "dev", "wrong3")
			e.answered(e.calls[1], nil)
		}, "right", "", 200, 0},
		{"right, the sidecar gave no answer to it, where the device is at home", func(e *emulator) {
			later(own, 1000)(e)
			try(e, "dev", "right")
			e.answered(e.calls[1], nil)
		}, "right", "", 200, 0},
		{"right, long after the last guess, though it was shown in between", later(vain("right"), 1), "right", "", 200, 0},
		{"right, long after the second guess, but there was another", later(vain("wrong3"), 1), "right", "", 0, 0},
		{"right, the sidecar accepted it", func(e *emulator) {
			deny(e)
			try(e, "dev", "right")
			e.sidecarSays(1, wire.Allow, 0)
		}, "right", "", 200, 0},
		{"right, another epoch", func(e *emulator) {
			throttled(e)
			s := *e.vm.engine.State()
			s.Epoch++
			e.records[place(wire.RegionState, 0)] = wire.AppendState(nil, &s)
			e.tick()
		}, "right", "", 0, 0}, // without a verdict
	}
	for _, rule := range []string{"auth", "session"} {
		for _, tt := range tests {
			t.Run(rule+": "+tt.name, func(t *testing.T) {
				if rule == "session" && (tt.status == 200 || tt.name == "right, the sidecar accepted it") {
					return // the sidecar makes each token
				}
				e, path := guessedEdge(t, sessionRules), "/v1/telemetry"
				if rule == "session" {
					path = "/v1/session"
				}
				show := func(secret string) *exchange {
					return e.streams[e.begin([][2]string{{":method", "POST"}, {":path", path}, {"x-device-id", "dev"},
						{"x-device-token", secret}}, true)]
				}
				if x := show("wrong1"); x.reply == nil || x.reply.status != 401 || len(e.calls) != 0 {
					t.Fatalf("the first wrong secret: got %+v and %d calls, want a 401 and none", x.reply, len(e.calls))
				}
				if show("wrong2"); len(e.calls) != 1 {
					t.Fatalf("the second one: got %d calls, want 1", len(e.calls))
				}
				tt.change(e)
				if tt.from != "" {
					e.from = tt.from
				}
				before := len(e.calls)
				x := show(tt.secret)
				calls := len(e.calls) - before
				switch {
				case tt.status == 0:
					if calls != 1 || x.action != Pause || x.reply != nil {
						t.Errorf("got %d calls, answer %+v; want a call", calls, x.reply)
					}
				case tt.status == 200:
					if calls != 0 || !x.went() {
						t.Errorf("got %d calls, answer %+v; want that it goes upstream", calls, x.reply)
					}
				case calls != 0 || x.reply == nil || x.reply.status != tt.status:
					t.Errorf("got %d calls, answer %+v; want %d", calls, x.reply, tt.status)
				case tt.status == 503 && (!slices.Contains(x.reply.headers, [2]string{"retry-after", strconv.Itoa(tt.retry)}) ||
					x.reply.details != "gatehouse_unavailable_throttled"):
					t.Errorf("got %+v, want Retry-After: %d", x.reply, tt.retry)
				}
				if tt.status == 503 {
					if e.tick(); e.counted(policy.AuthThrottled) != 1 {
						t.Errorf("got counts %v, want 1 throttled", e.counts)
					}
				}
			})
		}
	}
}

// TestGuessWithoutASidecar: while the sidecar gives no answer, the edge's answers don't tell which guess is right.
func TestGuessWithoutASidecar(t *testing.T) {
	e := guessedEdge(t, rules)
	try(e, "dev", "wrong1")
	for _, secret := range []string{"wrong2", "right", "wrong3"} {
		id := e.begin([][2]string{{":method", "POST"}, {":path", "/v1/telemetry"}, {"x-device-id", "dev"},
			{"x-device-token", secret}}, true)
		e.answered(e.calls[len(e.calls)-1], nil)
		if got := e.streams[id].reply; got == nil || got.status != 503 {
			t.Errorf("%s: got %+v, want 503", secret, got)
		}
	}
	e.full = true // no call can be made
	for _, secret := range []string{"wrong4", "right"} {
		if got := try(e, "dev", secret); got == nil || got.status != 503 {
			t.Errorf("%s, without a call: got %+v, want 503", secret, got)
		}
	}
}

// TestGuessFromNowhere: without an address there is nothing to count by.
func TestGuessFromNowhere(t *testing.T) {
	e := guessedEdge(t, rules)
	e.from = ""
	for i := range 10 {
		if got := try(e, "dev", fmt.Sprint("wrong", i)); got == nil || got.status != 401 {
			t.Fatalf("got %+v, want 401", got)
		}
	}
	if len(e.calls) != 0 {
		t.Errorf("got %d calls, want none", len(e.calls))
	}
}

// TestGuessesAreBounded: what a worker remembers about guesses is bounded, and lives for a while.
func TestGuessesAreBounded(t *testing.T) {
	g := newGuesses()
	at := func(i int) deviceNetwork {
		return deviceNetwork{fmt.Sprint("dev", i%5000), netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}
	}
	for round, want := range []int{maxOnce, 0} { // a flood doesn't make anything a first one again
		got := 0
		for i := range 10 * maxOnce {
			if g.rememberFirst(at(i), 1000) {
				got++
			}
		}
		if got != want || len(g.wrongOnce) != maxOnce {
			t.Errorf("round %d: %d first ones of %d, want %d of %d", round, got, len(g.wrongOnce), want, maxOnce)
		}
	}
	if g.sweep(1000 + guessLifeMS - 1); len(g.wrongOnce) != maxOnce {
		t.Errorf("%d with one wrong secret before the end, want %d", len(g.wrongOnce), maxOnce)
	}
	if g.sweep(1000 + guessLifeMS); len(g.wrongOnce) != 0 || !g.rememberFirst(at(0), 1000+guessLifeMS) {
		t.Errorf("%d with one wrong secret after the end, want none", len(g.wrongOnce))
	}
	for i := range 3 * maxGuessed {
		g.recordAnswer(at(i), 1000, wire.Throttled, 5000, false)
	}
	count := func() (n int) {
		for _, networks := range g.devices {
			n += len(networks)
		}
		return n
	}
	if n := count(); n != maxGuessed || g.count != n {
		t.Errorf("%d remembered, counted %d; want %d", n, g.count, maxGuessed)
	}
	if g.sweep(1000 + 5000 + guessLifeMS - 1); g.count != maxGuessed {
		t.Errorf("%d remembered before the end, want %d", g.count, maxGuessed)
	}
	if g.sweep(1000 + 5000 + guessLifeMS); count() != 0 || g.count != 0 || len(g.devices) != 0 {
		t.Errorf("%d remembered after the end, counted %d", count(), g.count)
	}
	g.dropGuess(at(0)) // isn't there
	g.recordAnswer(at(0), 1000, wire.Throttled, 1<<32-1, false)
	if k, _ := g.findGuess(at(0), 1000); k.throttledS(1000) != 1<<16-1 {
		t.Errorf("throttled for %d s, want the most that there is room for", k.throttledS(1000))
	}
}
