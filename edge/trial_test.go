package edge

import (
	"bytes"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
)

// trialOf returns rules with auth on trial.
func trialOf(rules string) string {
	return strings.NewReplacer(`"auth": {"`, `"auth": {"enforce": false, "`, `"auth": {}`, `"auth": {"enforce": false}`).
		Replace(rules)
}

// TestTrialJudgesAlike sends the same requests to two edges, one of which doesn't enforce its rules, and has the
// sidecar answer both alike. Both make the same calls and count the same refusals, and the second refuses nothing.
func TestTrialJudgesAlike(t *testing.T) {
	counters := map[policy.Counter]policy.Counter{policy.AuthDeny: policy.WouldDeny,
		policy.AuthForbidden: policy.WouldForbid, policy.AuthUnavailable: policy.WouldBeUnavailable,
		policy.AuthThrottled: policy.WouldThrottle, policy.AuthAllow: policy.AuthAllow,
		policy.CallVerify: policy.CallVerify, policy.CallRefresh: policy.CallRefresh, policy.CallFailed: policy.CallFailed}
	seen := map[policy.Counter]uint64{}
	for seed := range int64(60) {
		enforced, trial := guessedEdge(t, rules), guessedEdge(t, trialOf(rules))
		both := []*emulator{enforced, trial}
		random := rand.New(rand.NewSource(seed))
		var ids []uint32
		answered := 0
		answer := func() {
			if answered == len(enforced.calls) || answered == len(trial.calls) {
				return
			}
			var body []byte
			if outcome := wire.Outcome(random.Intn(5)); outcome > 0 {
				body = wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: outcome,
					Permissions: []string{"", "telemetry.write"}[random.Intn(2)], RetryAfterS: 1,
					ThrottleMS: uint32(random.Intn(2) * 20_000), Epoch: state.Epoch})
			}
			for _, e := range both {
				e.answered(e.calls[answered], body)
			}
			answered++
		}
		for range 300 {
			switch n := random.Intn(10); {
			case n < 7:
				headers := [][2]string{{":method", "POST"}, {":path", "/v1/telemetry"},
					{"x-device-id", []string{"dev", "other"}[random.Intn(2)]},
					{"x-device-token", []string{"right", "wrong", "guess"}[random.Intn(3)]}}[:4-random.Intn(6)/5]
				from := fmt.Sprintf("203.0.113.%d", random.Intn(2))
				for _, e := range both {
					e.from = from
				}
				id := enforced.begin(slices.Clone(headers), true)
				if trial.begin(slices.Clone(headers), true) != id {
					t.Fatal("the streams have different ids")
				}
				ids = append(ids, id)
			case n < 9:
				answer()
			default:
				step := random.Int63n(20_000)
				for _, e := range both {
					e.clock += step
				}
			}
		}
		for answered < len(enforced.calls) {
			answer()
		}
		for _, e := range both {
			e.tick()
		}
		if !slices.EqualFunc(enforced.calls, trial.calls, func(a, b sent) bool { return bytes.Equal(a.body, b.body) }) {
			t.Fatalf("seed %d: the sidecar gets %d calls, and %d or others if the rules aren't enforced", seed,
				len(enforced.calls), len(trial.calls))
		}
		for _, id := range ids {
			want, got := enforced.streams[id], trial.streams[id]
			would := slices.IndexFunc(got.notes, func(n string) bool { return strings.HasPrefix(n, "gatehouse_reason: ") })
			if !got.went() || want.went() != (would < 0) {
				t.Fatalf("seed %d: got %+v, enforced %+v", seed, got, want)
			}
			if want.reply != nil {
				_, why, _ := strings.Cut(got.notes[would], "would_deny")
				if !strings.HasSuffix(want.reply.details, why) {
					t.Fatalf("seed %d: got %q, enforced %q", seed, got.notes[would], want.reply.details)
				}
			}
		}
		for refusal, would := range counters {
			if a, b := enforced.counted(refusal), trial.counted(would); a != b {
				t.Fatalf("seed %d: counted %d %s, enforced %d %s", seed, b, would, a, refusal)
			} else {
				seen[refusal] += a
			}
		}
	}
	for counter := range counters {
		if seen[counter] == 0 && counter != policy.CallRefresh {
			t.Errorf("no request was counted as %s", counter)
		}
	}
}

// TestTrialUpstream: the upstream gets the identity of an authenticated device and no forged one, and every secret.
// Nothing is added to its answer.
func TestTrialUpstream(t *testing.T) {
	e := guessedEdge(t, trialOf(rules))
	for _, tt := range []struct {
		path, secret string
		device       string // that the upstream gets
		notes        []string
	}{
		{"/v1/telemetry", "right", "dev", []string{"gatehouse_rule: 0", "gatehouse_device: dev"}},
		{"/v1/telemetry", "wrong", "", []string{"gatehouse_rule: 0", "gatehouse_device: dev",
			"gatehouse_reason: gatehouse_would_deny_wrong_secret"}},
		{"/v1/private/x", "right", "dev", []string{"gatehouse_rule: 2", "gatehouse_device: dev"}},
	} {
		x := e.streams[e.begin([][2]string{{":method", "GET"}, {":path", tt.path}, {"x-device-id", "dev"},
			{"x-device-token", tt.secret}, {"x-gatehouse-device", "forged"}, {"x_gatehouse_permissions", "forged"}}, true)]
		got := fields(x.request)
		if _, forged := got["x_gatehouse_permissions"]; forged || !x.went() || got["x-device-token"] != tt.secret ||
			got[policy.DeviceHeader] != tt.device {
			t.Errorf("%s, %s: the upstream gets %v", tt.path, tt.secret, x.request)
		}
		if !slices.Equal(x.notes, tt.notes) {
			t.Errorf("%s, %s: got notes %q, want %q", tt.path, tt.secret, x.notes, tt.notes)
		}
	}
}

// TestTrialFetches: a request with a would-be refusal waits for the object like any request, but isn't judged again,
// and not twice for a silent sidecar.
func TestTrialFetches(t *testing.T) {
	get := func(e *emulator, secret string) *exchange {
		return e.streams[e.begin([][2]string{{":method", "GET"}, {":path", "/v1/both"}, {"x-device-id", "dev"},
			{"x-device-token", secret}}, true)]
	}
	absent := wire.AppendFetchResponse(nil, state.Epoch, nil, nil)

	e := guessedEdge(t, trialOf(rules))
	x := get(e, "wrong") // the first wrong one: the edge knows that
	if len(e.calls) != 1 || e.calls[0].path != fetchPath {
		t.Fatalf("got calls %v, want a fetch", e.calls)
	}
	e.answered(e.calls[0], absent)
	if !x.went() || len(e.calls) != 1 {
		t.Errorf("after the fetch: got %+v, calls %v", x, e.calls)
	}
	y := get(e, "guess") // the second one: the sidecar decides
	if len(e.calls) != 2 || e.calls[1].path != verifyPath {
		t.Fatalf("got calls %v, want a verification", e.calls)
	}
	e.sidecarSays(1, wire.Throttled, 12_000)
	if len(e.calls) != 3 || e.calls[2].path != fetchPath {
		t.Fatalf("got calls %v, want another fetch", e.calls)
	}
	z := get(e, "right") // throttled; it came after the fetch was made, and has another one made
	e.answered(e.calls[2], absent)
	e.answered(e.calls[3], absent)
	for _, s := range []*exchange{y, z} {
		if !s.went() {
			t.Errorf("got %+v", s)
		}
	}
	e.tick()
	a, b, c := e.counted(policy.WouldDeny), e.counted(policy.WouldBeUnavailable), e.counted(policy.WouldThrottle)
	if len(e.calls) != 4 || a != 1 || b != 1 || c != 1 {
		t.Errorf("got %d calls, counted %d, %d and %d; want 4, and 1 of each", len(e.calls), a, b, c)
	}

	e = emulate(t, trialOf(rules))
	x = get(e, "s3cret")
	e.answered(e.calls[0], nil)
	if !x.went() || len(e.calls) != 1 || x.cacheStatus != "gatehouse; fwd=uri-miss; detail=fetch-failed" {
		t.Errorf("without an answer: got %+v, calls %v", x, e.calls)
	}
}

// TestTrialIsCounted: metrics tell what isn't enforced before the first request.
func TestTrialIsCounted(t *testing.T) {
	e := emulate(t, `{"default": "would_deny"}`)
	e.tick()
	const name = "gatehouse.rule=.=none;.;outcome=.=forbidden;.;would_deny_requests_total"
	if n, found := e.counts[name]; !found || n != 0 {
		t.Errorf("got %v, want %s", e.counts, name)
	}
	if x := e.streams[send(e, "/x")]; !x.went() ||
		!slices.Contains(x.notes, "gatehouse_reason: gatehouse_would_deny_default") {
		t.Errorf("got %+v", x)
	}
	if e.tick(); e.counts[name] != 1 {
		t.Errorf("got %v, want %s once", e.counts, name)
	}
	e = emulate(t, `{"default": "would_deny", "rules": [{"match": {"prefix": "/a"}, "cache": {}}]}`)
	x := e.streams[send(e, "/%61")] // some read /a
	if e.tick(); !x.went() || e.counts[name] != 1 || !slices.Contains(x.notes, "gatehouse_rule: 0") {
		t.Errorf("readings: got %+v, %v", x, e.counts)
	}
}

// TestTriedCache: a request that the cache would answer goes upstream unchanged, nothing is added to its response, and
// it is counted by the response's entity-tag.
func TestTriedCache(t *testing.T) {
	const config = `{"credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"}, "rules": [
		{"name": "a", "match": {"prefix": "/a"}, "cache": {"serve": false}},
		{"name": "b", "match": {"prefix": "/b"}, "auth": {"enforce": false}, "cache": {"serve": false, "on_miss": "fetch"}}]}`
	e := emulate(t, config)
	s := state
	s.InStepMS = e.clock
	for _, key := range []string{"/a", "/b"} {
		bucket, record := objects(&s, version(key, `"v1"`))
		e.records[place(wire.RegionObjects, bucket)] = record
	}
	begin := func(path string) uint32 {
		headers := [][2]string{{":method", "GET"}, {":path", path}, {"if-modified-since", "x"}, {"if-none-match", `"v1"`}}
		id := e.begin(slices.Clone(headers), true)
		x := e.streams[id]
		if !x.went() || x.cacheStatus != "" || !slices.Equal(x.request, headers) {
			t.Errorf("%s: got %+v, want it to go upstream unchanged", path, x)
		}
		return id
	}
	const different = "gatehouse_reason: gatehouse_would_hit_different"
	for _, tt := range []struct {
		path, etag string
		notes      []string
	}{
		{"/a", `"v1"`, []string{"gatehouse_rule: a"}},
		{"/a", `W/"v1"`, []string{"gatehouse_rule: a"}},
		{"/a", `"v2"`, []string{"gatehouse_rule: a", different}},
		{"/a", "", []string{"gatehouse_rule: a"}},
		{"/b", `"v2"`, []string{"gatehouse_rule: b", "gatehouse_reason: gatehouse_would_deny_no_credential"}},
	} {
		id := begin(tt.path)
		for range 2 { // the second end has no effect
			e.respond(id, tt.etag)
		}
		if x := e.streams[id]; !x.awaited || !slices.Equal(x.notes, tt.notes) {
			t.Errorf("%s, %s: got notes %q, want %q", tt.path, tt.etag, x.notes, tt.notes)
		}
	}
	if id := begin("/a/none"); e.streams[id].awaited {
		t.Error("a miss awaits its response")
	}
	e.end(begin("/a"))
	e.vm.EndStream(begin("/a"))
	waits := begin("/a")
	e.tick()
	if len(e.vm.trials) != 1 {
		t.Errorf("%d requests are kept, want the one that waits", len(e.vm.trials))
	}
	e.respond(waits, `"v1"`)
	e.blind = true
	begin("/a")
	e.tick()
	for counter, want := range map[policy.Counter]uint64{policy.WouldHitSame: 3, policy.WouldHitDifferent: 2,
		policy.WouldHitNoETag: 1, policy.WouldHitNotCompared: 3, policy.CacheMiss: 1, policy.CacheHit: 0,
		policy.CacheNotModified: 0, policy.WouldDeny: 1} {
		if got := e.counted(counter); got != want {
			t.Errorf("%s: got %d, want %d", counter, got, want)
		}
	}
	if len(e.calls) != 0 || len(e.vm.hits.report) == 0 {
		t.Errorf("got %d calls, %d bytes of hits for the sidecar; want none, and some", len(e.calls), len(e.vm.hits.report))
	}
}
