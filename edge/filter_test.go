package edge

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/headermap"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/edge/wire"
)

const rules = `{
	"credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"},
	"rules": ` + rulesOnly + `}`

const rulesOnly = `[
		{"match": {"prefix": "/v1/telemetry"}, "auth": {"permissions": ["telemetry.write"]}},
		{"match": {"prefix": "/v1/both"}, "auth": {}, "cache": {"on_miss": "fetch"}},
		{"match": {"prefix": "/v1/private/"}, "auth": {}, "cache": {"query": ["lang"]}},
		{"match": {"prefix": "/v1/products/"}, "cache": {"on_miss": "fetch"}}]`

var state = wire.State{Epoch: 7, ObjectBuckets: 4, VerdictBuckets: 4}

// send starts a request with the credential of device dev.
func send(e *emulator, path string, more ...[2]string) uint32 {
	headers := [][2]string{{":method", "GET"}, {":path", path}, {"x-device-id", "dev"}, {"x-device-token", "s3cret"}}
	return e.begin(append(headers, more...), true)
}

func allow() []byte {
	return wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Allow, Permissions: "telemetry.write",
		Epoch: state.Epoch})
}

func TestVerifyIsCoalesced(t *testing.T) {
	e := emulate(t, rules)
	var ids []uint32
	for range 50 {
		id := send(e, "/v1/telemetry", [2]string{"x-gatehouse-device", "forged"})
		if e.streams[id].action != Pause {
			t.Fatalf("request %d: got action %v, want a pause", id, e.streams[id].action)
		}
		ids = append(ids, id)
	}
	if len(e.calls) != 1 || e.calls[0].cluster != "gatehouse-sidecar" || e.calls[0].path != verifyPath {
		t.Fatalf("got calls %v, want one to gatehouse-sidecar", e.calls)
	}
	request, err := wire.ParseVerifyRequest(e.calls[0].body)
	if want := (wire.VerifyRequest{DeviceID: "dev", Secret: "s3cret", Source: "203.0.113.7"}); err != nil ||
		request != want {
		t.Fatalf("got %+v, %v; want %+v", request, err, want)
	}
	e.answered(e.calls[0], allow())
	for _, id := range ids {
		x := e.streams[id]
		if !x.went() {
			t.Errorf("request %d: didn't go on after the answer", id)
		}
		if !slices.Contains(x.request, [2]string{policy.DeviceHeader, "dev"}) ||
			slices.Contains(x.request, [2]string{policy.DeviceHeader, "forged"}) {
			t.Errorf("request %d: got headers %v, want the device's identity and no other", id, x.request)
		}
	}
	if len(e.vm.paused)+len(e.vm.pendingCalls)+len(e.vm.calls.inFlight) != 0 {
		t.Error("something is kept when all is answered")
	}
}

// TestPasses: a request that Locate passes must be a request without any work to do.
func TestPasses(t *testing.T) {
	tests := []struct {
		name    string
		path    string
		headers [][2]string
		want    bool
	}{
		{"no rule", "/none", nil, true},
		{"many headers", "/none", device("/none")[2:], true},
		{"names as long as ours", "/none", [][2]string{{"sec-ch-ua-platform", "x"}, {"x-forwarded-client-cert", "x"},
			{":name", "x"}}, true},
		{"a rule", "/v1/private/1", nil, false},
		{"not its method, but its path", "/v1/telemetry", nil, false},
		{"forged", "/none", [][2]string{{"x-gatehouse-device", "dev"}}, false},
		{"forged permissions", "/none", [][2]string{{"x-gatehouse-permissions", "all"}}, false},
		{"another method", "/none", [][2]string{{"x-method-override", "DELETE"}}, false},
		{"another target", "/none", [][2]string{{"x_rewrite_url", "/v1/private/1"}}, false},
		{"forged in another spelling", "/none", [][2]string{{"x.gatehouse_device", "dev"}}, false},
	}
	e := emulate(t, rules)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			raw := headermap.Append(nil, append([][2]string{{":method", "PUT"}, {":path", tt.path}}, tt.headers...))
			fields, ok := headermap.ParseFields(raw)
			if got := e.vm.engine.Locate(fields).Passes; !ok || got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			for end := range raw {
				if _, ok := headermap.ParseFields(raw[:end:end]); ok {
					t.Errorf("can be read when cut at %d of %d", end, len(raw))
				}
			}
		})
	}
	if fields, ok := headermap.ParseFields(headermap.Append(nil, [][2]string{{":method", "CONNECT"}})); !ok ||
		e.vm.engine.Locate(fields).Passes {
		t.Error("passes without a path")
	}
}

func FuzzPasses(f *testing.F) {
	f.Add("GET", "/v2/x", "x-gatehouse-device")
	f.Add("put", "/v1/telemetry?", "user-agent")
	f.Add("GET", "//v1/%70rivate;a/..", ":path")
	var vms []*VM
	for _, config := range []string{rules, `{"default": "deny"}`, `{"rules": [{"match": {"prefix": "/"}, "cache": {}}]}`,
		`{"credentials": {"basic": true}, "rules": [{"match": {"path": "/a/", "methods": ["POST"]}, "auth": {}}, {"match": {"prefix": "/b"}, "auth": {}}]}`} {
		vms = append(vms, emulate(f, config).vm)
	}
	f.Fuzz(func(t *testing.T, method, target, name string) {
		headers := [][2]string{{":method", method}, {":path", target}, {strings.ToLower(name), "value"}}
		for _, v := range vms {
			fields, _ := headermap.ParseFields(headermap.Append(nil, headers))
			at := v.engine.Locate(fields)
			r := at.Read(nil)
			if at.Passes && (r.Governed() || r.Removed != nil) {
				t.Errorf("%q is said to pass, but something is to be done: %+v", headers, r)
			}
		}
	})
}

// TestForgedIdentity: a client's identity headers are removed, even if no rule covers the request.
func TestForgedIdentity(t *testing.T) {
	e := emulate(t, rules)
	x := e.streams[send(e, "/open", [2]string{policy.DeviceHeader, "forged"}, [2]string{"x_gatehouse.permissions", "all"})]
	want := [][2]string{{":method", "GET"}, {":path", "/open"}, {"x-device-id", "dev"}, {"x-device-token", "s3cret"}}
	if !x.went() || !slices.Equal(x.request, want) {
		t.Errorf("got %v, want it to go on with %v", x.request, want)
	}
}

// TestConnectionKeepsIdentity: a client can't name the identity headers in Connection, at once and after a call.
func TestConnectionKeepsIdentity(t *testing.T) {
	for _, verdict := range []bool{true, false} {
		e := emulate(t, rules)
		if verdict {
			putVerdict(e, e.clock+1000)
		}
		x := e.streams[send(e, "/v1/telemetry", [2]string{"connection", "Upgrade, " + policy.DeviceHeader},
			[2]string{"connection", policy.PermissionsHeader + ",x-other"})]
		if !verdict {
			e.answered(e.calls[0], allow())
		}
		got := fields(x.request)
		if !x.went() || got["connection"] != "Upgrade" || got[policy.DeviceHeader] != "dev" {
			t.Errorf("verdict %v: got %v (upstream: %v)", verdict, x.request, x.went())
		}
	}
}

// TestSecretStaysHere: requests under an auth rule go upstream without the secret, at once and after a call; others are
// unchanged.
func TestSecretStaysHere(t *testing.T) {
	for _, tt := range []struct {
		name, config, path string
		want               bool // it goes upstream
	}{
		{"an auth rule", rules, "/v1/telemetry", false},
		{"an auth rule, a spelling that it judges", rules, "/v1/%74elemetry", false},
		{"a miss under an auth rule", rules, "/v1/private/1", false},
		{"a rule without auth", rules, "/v1/products/1", true},
		{"no rule", rules, "/open", true},
		{"forwarded", strings.Replace(rules, `"secret_header"`, `"forward": true, "secret_header"`, 1),
			"/v1/telemetry", true},
	} {
		for _, verdict := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, verdict %v", tt.name, verdict), func(t *testing.T) {
				e := emulate(t, tt.config)
				if verdict {
					putVerdict(e, e.clock+1000)
				}
				x := e.streams[send(e, tt.path)]
				for range 2 { // a verification, and a fetch
					if x.action == Pause && !x.resumed {
						body := allow()
						if c := e.calls[len(e.calls)-1]; c.path == fetchPath {
							body = nil
						}
						e.answered(e.calls[len(e.calls)-1], body)
					}
				}
				_, got := fields(x.request)["x-device-token"]
				if !x.went() || got != tt.want || fields(x.request)["x-device-id"] != "dev" {
					t.Errorf("got %v (upstream: %v), want the secret in it: %v", x.request, x.went(), tt.want)
				}
			})
		}
	}
}

// TestDateStaysHere: a request under a cache rule goes upstream without a date that may be the cache's.
func TestDateStaysHere(t *testing.T) {
	for _, tt := range []struct {
		name, path string
		want       bool // it goes upstream
	}{
		{"a miss", "/v1/products/1", false},
		{"a miss under an auth rule", "/v1/private/1", false},
		{"a rule without a cache", "/v1/telemetry", true},
		{"no rule", "/open", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := emulate(t, rules)
			putVerdict(e, e.clock+1000)
			const date = "Tue, 14 Nov 2023 22:13:17 GMT"
			upstream := func(more ...[2]string) map[string]string {
				t.Helper()
				x := e.streams[send(e, tt.path, more...)]
				if x.action == Pause { // a fetch
					e.answered(e.calls[len(e.calls)-1], nil)
				}
				if !x.went() {
					t.Fatalf("%v doesn't go upstream", more)
				}
				return fields(x.request)
			}
			if _, got := upstream([2]string{"if-modified-since", date})["if-modified-since"]; got != tt.want {
				t.Errorf("upstream gets the date: %v, want %v", got, tt.want)
			}
			aRange := [2]string{"range", "bytes=1-"}
			for ifRange, want := range map[string]bool{date: tt.want, `"a"`: true, `W/"a"`: true, "x": tt.want} {
				if _, got := upstream(aRange, [2]string{"if-range", ifRange})["range"]; got != want {
					t.Errorf("If-Range %s: upstream gets the range: %v, want %v", ifRange, got, want)
				}
			}
			if _, got := upstream(aRange)["range"]; !got {
				t.Error("upstream doesn't get a range")
			}
			if _, got := upstream(aRange, [2]string{"if-range", `"a"`}, [2]string{"if-range", `"a"`})["range"]; got != tt.want {
				t.Errorf("upstream gets the range of two If-Ranges: %v, want %v", got, tt.want)
			}
		})
	}
}

// TestPrivacy: the upstream's answer to a device gets headers that keep the answer from other clients.
func TestPrivacy(t *testing.T) {
	scoped := strings.Replace(rules, `{"query": ["lang"]}`, `{"scope": "device"}`, 1)
	vary := "gatehouse_vary: x-device-id, x-device-token"
	for _, tt := range []struct {
		name, config, method, path string
		want                       []string
	}{
		{"a miss", rules, "GET", "/v1/private/1", []string{vary, "gatehouse_cache_control: private"}},
		{"a miss, HEAD", rules, "HEAD", "/v1/private/1", []string{vary, "gatehouse_cache_control: private"}},
		{"a miss of a device", scoped, "GET", "/v1/private/1", []string{"gatehouse_vary: *",
			"gatehouse_cache_control: private", "gatehouse_no_store: no-store"}},
		{"auth without a cache", rules, "GET", "/v1/telemetry", []string{vary, "gatehouse_cache_control: private"}},
		{"what is no read", rules, "POST", "/v1/telemetry", nil},
		{"no auth", rules, "PUT", "/v1/products/1", nil},
		{"a token's, too", strings.Replace(rules, "{", `{"session": {"metadata": "gatehouse"}, `, 1),
			"GET", "/v1/telemetry", []string{vary + ", authorization", "gatehouse_cache_control: private"}},
		{"basic", strings.Replace(rules, `{"id_header": "x-device-id", "secret_header": "x-device-token"}`,
			`{"basic": true}`, 1), "GET", "/v1/telemetry", []string{"gatehouse_vary: authorization",
			"gatehouse_cache_control: private"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := emulate(t, tt.config)
			putVerdict(e, e.clock+1000)
			x := e.streams[e.begin([][2]string{{":method", tt.method}, {":path", tt.path}, {"x-device-id", "dev"},
				{"x-device-token", "s3cret"}, {"authorization", "Basic ZGV2OnMzY3JldA=="}}, true)]
			got := slices.DeleteFunc(slices.Clone(x.notes), func(note string) bool {
				return strings.HasPrefix(note, "gatehouse_device: ") || strings.HasPrefix(note, "gatehouse_rule: ")
			})
			if !x.went() || !slices.Equal(got, tt.want) {
				t.Errorf("got %q (upstream: %v), want %q", got, x.went(), tt.want)
			}
		})
	}
}

// TestAccessLog: what access logs have of refused, authenticated and cached requests.
func TestAccessLog(t *testing.T) {
	config := strings.NewReplacer(`"rules"`, `"stale": "serve", "rules"`, `{"match": {"prefix": "/v1/telemetry"}`,
		`{"name": "telemetry", "match": {"prefix": "/v1/telemetry"}`).Replace(rules)
	for _, tt := range []struct {
		name, method, path, secret string
		details                    string
		notes                      []string
	}{
		{"no credential", "POST", "/v1/telemetry", "", "gatehouse_denied_no_credential",
			[]string{"gatehouse_rule: telemetry"}},
		{"wrong secret", "POST", "/v1/telemetry", "another", "gatehouse_unavailable_no_answer",
			[]string{"gatehouse_rule: telemetry", "gatehouse_device: dev"}},
		{"authenticated", "POST", "/v1/telemetry", "s3cret", "", []string{"gatehouse_rule: telemetry",
			"gatehouse_device: dev"}},
		{"a miss", "GET", "/v1/products/2", "", "", []string{"gatehouse_rule: 3"}},
		{"a hit", "GET", "/v1/products/1", "", "gatehouse_hit", nil},
		{"a hit that isn't in step", "GET", "/v1/products/1", "", "gatehouse_hit_stale", nil},
		{"a hit that is logged", "GET", "/v1/products/1", "", "gatehouse_hit", []string{"gatehouse_rule: 3"}},
		{"no rule", "GET", "/open", "", "", nil},
		{"an ambiguous path", "GET", "/v1/products/..%3B/x", "", "gatehouse_forbidden_ambiguous_path",
			[]string{"gatehouse_rule: none"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := emulate(t, strings.Replace(config, "{", fmt.Sprintf(`{"log_hits": %v, `, tt.name == "a hit that is logged"), 1))
			putVerdict(e, e.clock+1000)
			putObject(e, "/v1/products/1", 1024)
			if tt.details == "gatehouse_hit_stale" {
				e.clock += 60_000
			}
			headers := [][2]string{{":method", tt.method}, {":path", tt.path}, {"x-gatehouse-device", "forged"}}
			if tt.secret != "" {
				headers = append(headers, [2]string{"x-device-id", "dev"}, [2]string{"x-device-token", tt.secret})
			}
			x := e.streams[e.begin(headers, true)]
			if len(e.calls) > 0 {
				e.answered(e.calls[len(e.calls)-1], nil)
			}
			details := ""
			if x.reply != nil {
				details = x.reply.details
			}
			if details != tt.details || !slices.Equal(x.notes, tt.notes) {
				t.Errorf("got %q, %q; want %q, %q", details, x.notes, tt.details, tt.notes)
			}
		})
	}
}

// TestSource: the address of a request is the configured one, with any other headers.
func TestSource(t *testing.T) {
	with := func(source string) string { return strings.Replace(rules, "{", `{"source": `+source+`, `, 1) }
	tests := []struct {
		name, config string
		lines        [][2]string
		state, want  string
	}{
		{"envoy's", with(`"envoy"`), [][2]string{{"x-forwarded-for", "198.51.100.1"}}, "198.51.100.2", "203.0.113.7"},
		{"by default", rules, [][2]string{{"x-forwarded-for", "198.51.100.1"}}, "198.51.100.2", "203.0.113.7"},
		{"a header's", with(`{"header": "X-Real-IP"}`), [][2]string{{"x-real-ip", "198.51.100.1"}}, "", "198.51.100.1"},
		{"the last of a header", with(`{"header": "x-forwarded-for"}`),
			[][2]string{{"x-forwarded-for", "192.0.2.1, 198.51.100.1"}}, "", "198.51.100.1"},
		{"the last of several lines", with(`{"header": "x-forwarded-for"}`),
			[][2]string{{"x-forwarded-for", "192.0.2.1"}, {"x-forwarded-for", "198.51.100.1:80"}}, "", "198.51.100.1"},
		{"no address last", with(`{"header": "x-forwarded-for"}`),
			[][2]string{{"x-forwarded-for", "192.0.2.1, unknown"}}, "", ""},
		{"no header", with(`{"header": "x-real-ip"}`), nil, "", ""},
		{"the filter state's", with(`{"filter_state": "gatehouse.source"}`), [][2]string{{"x-forwarded-for", "198.51.100.1"}},
			"198.51.100.2", "198.51.100.2"},
		{"no filter state", with(`{"filter_state": "other"}`), nil, "198.51.100.2", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := emulate(t, tt.config)
			e.from, e.states = "203.0.113.7:4711", map[string]string{"gatehouse.source": tt.state}
			send(e, "/v1/telemetry", tt.lines...)
			request, err := wire.ParseVerifyRequest(e.calls[0].body)
			if err != nil || request.Source != tt.want {
				t.Errorf("got source %q, %v; want %q", request.Source, err, tt.want)
			}
		})
	}
}

func TestUnreadableHeaders(t *testing.T) {
	e := emulate(t, `{}`) // rules that pass everything
	e.mute = true
	x := e.streams[send(e, "/open")]
	if x.action != Pause || x.reply == nil || x.reply.status != 503 {
		t.Errorf("got action %v and %+v, want a 503", x.action, x.reply)
	}
	if e.tick(); e.counted(policy.AuthUnavailable) != 1 {
		t.Errorf("got counts %v, want one that could not be verified", e.counts)
	}
}

func TestVerifyAnswers(t *testing.T) {
	tests := []struct {
		name string
		body []byte
		want int
	}{
		{"deny", wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Deny, Epoch: state.Epoch}), 401},
		{"overloaded", wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Unavailable, RetryAfterS: 2}), 503},
		{"another epoch",
			wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Allow, Permissions: "telemetry.write",
				Epoch: 8}), 503},
		{"without the permission",
			wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Allow, Epoch: state.Epoch}), 403},
		{"an error page or a reset", nil, 503},
		{"garbage", []byte("garbage"), 503},
		{"empty", []byte{}, 503},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := emulate(t, rules)
			id := send(e, "/v1/telemetry")
			e.answered(e.calls[0], tt.body)
			if got := e.streams[id].reply; got == nil || got.status != tt.want {
				t.Errorf("got %+v, want a %d", got, tt.want)
			}
		})
	}
}

// TestCallerGivesUp ends the stream of the first request: the waiting requests still get the answer.
func TestCallerGivesUp(t *testing.T) {
	e := emulate(t, rules)
	caller, waiter := send(e, "/v1/telemetry"), send(e, "/v1/telemetry")
	e.end(caller)
	e.answered(e.calls[0], allow())
	if !e.streams[waiter].went() {
		t.Error("the waiter hangs")
	}
	if len(e.calls) != 1 || len(e.vm.paused) != 0 {
		t.Errorf("got %d calls, %d paused streams; want 1 and none", len(e.calls), len(e.vm.paused))
	}
}

func TestNoCallCanBeMade(t *testing.T) {
	e := emulate(t, rules)
	e.full = true
	auth, fetch := send(e, "/v1/telemetry"), send(e, "/v1/products/1")
	if got := e.streams[auth].reply; got == nil || got.status != 503 {
		t.Errorf("auth: got %+v, want a 503", got)
	}
	if !e.streams[fetch].went() {
		t.Error("cache: didn't go upstream")
	}
	e.tick()
	if e.counted(policy.CallFailed) != 2 || len(e.logs) != 1 ||
		!strings.Contains(e.logs[0], `2 calls to the sidecar, cluster "gatehouse-sidecar", failed`) {
		t.Errorf("got %d failures and %q, want 2 and one line", e.counted(policy.CallFailed), e.logs)
	}
	for range reportEveryMS/TickMS + 1 {
		e.clock += TickMS
		send(e, "/v1/telemetry")
		e.tick()
	}
	if len(e.logs) != 2 || !strings.Contains(e.logs[1], fmt.Sprint(reportEveryMS/TickMS, " calls")) {
		t.Errorf("got %q after a minute of failures, want one line more with their number", e.logs)
	}
}

// TestVerifyAfterFetch: a verdict expires while its request waits for an object. The object is kept during the second
// wait, though its bytes came in an earlier callback.
func TestVerifyAfterFetch(t *testing.T) {
	e := emulate(t, rules)
	putVerdict(e, e.clock+1000)
	id := send(e, "/v1/both")
	e.clock += 2000
	object := newObject("/v1/both", 4)
	e.answered(e.calls[0], wire.AppendFetchResponse(nil, 9, &object, [][]byte{[]byte("body")}))
	if len(e.calls) != 2 || e.calls[1].path != verifyPath {
		t.Fatalf("got calls %v, want a verification after the fetch", e.calls)
	}
	e.tick()
	e.answered(e.calls[1], allow())
	if got := e.streams[id].reply; got == nil || got.status != 200 || string(got.body) != "body" {
		t.Errorf("got %+v, want the body", got)
	}
	if e.tick(); e.counted(policy.AuthAllow) != 1 {
		t.Errorf("got counts %v, want one that was let in", e.counts)
	}
}

// TestRevokedWhileFetching revokes a device while its request, authenticated by the sidecar, waits for an object: the
// verdict is not used any more.
func TestRevokedWhileFetching(t *testing.T) {
	e := emulate(t, rules)
	s := state
	s.InStepMS, s.HeartbeatMS, s.DevicesComplete = e.clock, e.clock, true
	e.records[place(wire.RegionState, 0)] = wire.AppendState(nil, &s)
	e.tick()
	id := send(e, "/v1/both")
	e.answered(e.calls[0], allow())
	if len(e.calls) != 2 || e.calls[1].path != fetchPath {
		t.Fatalf("got calls %v, want a fetch after the verification", e.calls)
	}
	bucket, _ := s.Keys.Device("dev", s.VerdictBuckets)
	e.records[place(wire.RegionVerdicts, bucket)] = wire.AppendVerdicts(nil, s.Epoch, nil, nil)
	object := newObject("/v1/both", 4)
	e.answered(e.calls[1], wire.AppendFetchResponse(nil, 9, &object, [][]byte{[]byte("body")}))
	if got := e.streams[id].reply; got == nil || got.status != 401 {
		t.Errorf("got %+v, want a 401", got)
	}
}

// TestFetchesLeaveRoom has the maximum number of fetches in flight: the next one fails, and verifications continue.
func TestFetchesLeaveRoom(t *testing.T) {
	e := emulate(t, rules)
	for i := range maxFetches + 1 {
		send(e, fmt.Sprint("/v1/products/", i))
	}
	if len(e.calls) != maxFetches {
		t.Errorf("got %d fetches, want %d", len(e.calls), maxFetches)
	}
	if last := e.streams[e.nextID]; !last.went() || last.cacheStatus != "gatehouse; fwd=uri-miss; detail=fetch-failed" {
		t.Errorf("one more: got %+v, want it to go upstream", last)
	}
	if send(e, "/v1/telemetry"); len(e.calls) != maxFetches+1 {
		t.Error("a verification was not asked for")
	}
	e.answered(e.calls[0], nil)
	if send(e, "/v1/products/later"); len(e.calls) != maxFetches+2 {
		t.Error("there is no room when a fetch has come back")
	}
}

// TestWaitersAreBounded has more requests wait for one answer than allowed; these are answered as if the sidecar had
// not answered.
func TestWaitersAreBounded(t *testing.T) {
	e := emulate(t, rules)
	for range MaxWaiting + 1 {
		send(e, "/v1/telemetry")
	}
	if last := e.streams[e.nextID]; len(e.calls) != 1 || last.reply == nil || last.reply.status != 503 {
		t.Errorf("got %d calls and %+v, want one and a 503", len(e.calls), last)
	}
	if id := send(e, "/v1/products/1"); len(e.calls) != 1 || !e.streams[id].went() {
		t.Errorf("got %d calls and %+v, want no fetch, and the request upstream", len(e.calls), e.streams[id])
	}
	e.answered(e.calls[0], wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Deny, Epoch: 9}))
	if id := send(e, "/v1/telemetry"); len(e.calls) != 2 || e.streams[id].reply != nil {
		t.Error("there is no place when the answer has come")
	}
}

// TestEndedStreamsLeave: streams end during a wait, many more than there are places. Ended streams free their places,
// and the waiting streams, as later ones, get the answer.
func TestEndedStreamsLeave(t *testing.T) {
	e := emulate(t, rules)
	var alive []uint32
	for i := range 2 * MaxWaiting {
		id := send(e, "/v1/telemetry")
		switch {
		case i%100 == 0:
			alive = append(alive, id)
		case i%2 == 0:
			e.reset(id)
		default:
			e.end(id)
		}
		if i%1000 == 999 { // the proxy is idle
			maps.DeleteFunc(e.streams, func(_ uint32, x *exchange) bool { return x.ended })
		}
	}
	most := len(alive) + 2*sweepLeast + 1000
	if got := len(e.vm.paused); got > most {
		t.Errorf("got %d streams that wait, want %d at most: %d have not ended", got, most, len(alive))
	}
	for _, c := range e.vm.calls.inFlight {
		if got := len(c.waiting); got != len(e.vm.paused) {
			t.Errorf("got %d streams that wait for the call, want %d", got, len(e.vm.paused))
		}
	}
	alive = append(alive, send(e, "/v1/telemetry"))
	e.answered(e.calls[0], allow())
	for _, id := range alive {
		if x := e.streams[id]; !x.went() {
			t.Fatalf("stream %d: got %+v, want it to have gone upstream", id, x.reply)
		}
	}
	if len(e.vm.paused) != 0 || len(e.calls) != 1 {
		t.Errorf("got %d streams that wait and %d calls at the end, want none and 1", len(e.vm.paused), len(e.calls))
	}
}

// TestFetchesLeavePlaces: requests wait for a fetch, and there is still room for requests that wait for a verification.
func TestFetchesLeavePlaces(t *testing.T) {
	e := emulate(t, rules)
	for range MaxWaiting {
		send(e, "/v1/products/1")
	}
	if last := e.streams[e.nextID]; !last.went() || len(e.vm.paused) != MaxWaiting/2 {
		t.Errorf("got %d that wait and %+v, want %d, and the last one upstream", len(e.vm.paused), last, MaxWaiting/2)
	}
	if id := send(e, "/v1/telemetry"); len(e.calls) != 2 || e.streams[id].reply != nil {
		t.Errorf("got %d calls and %+v, want a verification that is asked for", len(e.calls), e.streams[id])
	}
}

// TestRepliesAreBounded: in one callback not all requests for a large object get a copy, but all clients with the
// object in cache get a 304.
func TestRepliesAreBounded(t *testing.T) {
	const waiting = 100
	object := newObject("/v1/products/1", limits.MaxBody)
	e := emulate(t, rules)
	for range waiting {
		send(e, "/v1/products/1")
		send(e, "/v1/products/1", [2]string{"if-none-match", object.ETag})
	}
	for i := range 2 { // the second one is for those that came after the first
		e.answered(e.calls[i], wire.AppendFetchResponse(nil, 9, &object, [][]byte{make([]byte, limits.MaxBody)}))
	}
	got := map[string]int{}
	for _, x := range e.streams {
		switch {
		case x.reply != nil:
			got[fmt.Sprint(x.reply.status)]++
		case x.went():
			got[x.cacheStatus]++
		}
	}
	const most = MaxReplied/limits.MaxBody + 1 // the first call answered one of these
	if want := map[string]int{"200": most, "304": waiting,
		"gatehouse; fwd=bypass; detail=crowded": waiting - most}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if id := send(e, "/v1/products/1"); e.streams[id].action != Pause {
		t.Errorf("later: got %+v, want another fetch", e.streams[id])
	}
}

// TestUnreadIsBounded: a host tells how much clients have yet to read; replies beyond the bound go upstream, except
// small replies.
func TestUnreadIsBounded(t *testing.T) {
	for _, tt := range []struct {
		unread, length int
		want           string // Cache-Status of a request that went upstream
	}{
		{MaxReplied - limits.MaxBody, limits.MaxBody, ""},
		{MaxReplied - limits.MaxBody + 1, limits.MaxBody, "gatehouse; fwd=bypass; detail=crowded"},
		{MaxReplied, SmallBody, ""},
		{MaxReplied, SmallBody + 1, "gatehouse; fwd=bypass; detail=crowded"},
	} {
		object := newObject("/v1/products/1", tt.length)
		e := emulate(t, rules)
		id := send(e, "/v1/products/1")
		e.vm.SetUnread(tt.unread)
		e.answered(e.calls[0], wire.AppendFetchResponse(nil, 9, &object, [][]byte{make([]byte, tt.length)}))
		if x := e.streams[id]; x.cacheStatus != tt.want || (x.reply != nil) != (tt.want == "") {
			t.Errorf("%d unread, %d more: got %+v", tt.unread, tt.length, x)
		}
	}
}

// TestBadToken: a host that validates tokens has a request refused, whatever the rules say.
func TestBadToken(t *testing.T) {
	for _, tt := range []struct {
		hasKeys bool
		status  int
		details string
		counter policy.Counter
	}{
		{true, 401, "gatehouse_denied_token", policy.AuthDeny},
		{false, 503, "gatehouse_unavailable_no_answer", policy.AuthUnavailable},
	} {
		e := emulate(t, rules)
		id := send(e, "/elsewhere")
		if a := e.vm.RefuseToken(id, tt.hasKeys); a != Pause {
			t.Errorf("got action %v", a)
		}
		got := e.streams[id].reply
		if got == nil || got.status != tt.status || got.details != tt.details ||
			e.vm.tallies[0].counts[tt.counter] != 1 {
			t.Errorf("keys %v: got %+v", tt.hasKeys, got)
		}
	}
}

func TestFetch(t *testing.T) {
	object := newObject("/v1/products/1", 4)
	e := emulate(t, rules)
	found, absent := send(e, "/v1/products/1"), send(e, "/v1/products/2")
	if e.streams[found].action != Pause || len(e.calls) != 2 {
		t.Fatalf("got action %v and %d calls, want a pause and 2", e.streams[found].action, len(e.calls))
	}
	e.answered(e.calls[0], wire.AppendFetchResponse(nil, 9, &object, [][]byte{[]byte("body")}))
	if got := e.streams[found].reply; got == nil || got.status != 200 || string(got.body) != "body" {
		t.Errorf("got %+v, want the body", got)
	}
	e.answered(e.calls[1], wire.AppendFetchResponse(nil, 9, nil, nil))
	if !e.streams[absent].went() {
		t.Error("not found: didn't go on")
	}
	if got := e.streams[absent].cacheStatus; got != "gatehouse; fwd=uri-miss" {
		t.Errorf("got cache-status %q, want gatehouse; fwd=uri-miss", got)
	}
}

// TestFetchedBeforeItCame: requests arrive during a call whose answer may be older than an object that the clients
// have. The requests are answered from shared memory, or by one more call for all of them.
func TestFetchedBeforeItCame(t *testing.T) {
	const path = "/v1/products/1"
	object := newObject(path, 4)
	one := wire.AppendFetchResponse(nil, 9, &object, [][]byte{[]byte("v  1")})
	two := wire.AppendFetchResponse(nil, 9, &object, [][]byte{[]byte("v  2")})
	body := func(e *emulator, id uint32) string {
		if got := e.streams[id].reply; got != nil && got.status == 200 {
			return string(got.body)
		}
		return ""
	}
	t.Run("shared memory has it", func(t *testing.T) {
		e := emulate(t, rules)
		first, late := send(e, path), send(e, path)
		putObject(e, path, 4)
		e.answered(e.calls[0], one)
		if got := body(e, first); got != "v  1" {
			t.Errorf("got %q, want what its call brought", got)
		}
		if got := body(e, late); got != "bbbb" || len(e.calls) != 1 {
			t.Errorf("got %q and %d calls, want what shared memory has, and no other call", got, len(e.calls))
		}
	})
	t.Run("shared memory hasn't", func(t *testing.T) {
		e := emulate(t, rules)
		send(e, path)
		late := []uint32{send(e, path), send(e, path)}
		e.answered(e.calls[0], one)
		if len(e.calls) != 2 {
			t.Fatalf("got %d calls, want a second one for all that came late", len(e.calls))
		}
		later := send(e, path)
		e.answered(e.calls[1], two)
		for _, id := range late {
			if got := body(e, id); got != "v  2" {
				t.Errorf("request %d: got %q, want what the second call brought", id, got)
			}
		}
		if e.streams[later].reply != nil || len(e.calls) != 3 {
			t.Errorf("got %+v and %d calls, want a third one for what came after the second",
				e.streams[later].reply, len(e.calls))
		}
	})
	t.Run("headers in another order", func(t *testing.T) { // than that of ids, as a filter before this one may hold some
		e := emulate(t, rules)
		held := uint32(pluginID + 1)
		e.nextID = held
		send(e, path)
		late := send(e, path)
		e.streams[held] = &exchange{request: [][2]string{{":method", "GET"}, {":path", "/elsewhere"}}}
		e.callback(held, func() { e.vm.RequestHeaders(held, true) })
		e.answered(e.calls[0], one)
		e.answered(e.calls[1], two)
		if got := body(e, late); got != "v  2" || len(e.calls) != 2 {
			t.Errorf("got %q and %d calls, want what the second call brought, and no third", got, len(e.calls))
		}
	})
	t.Run("no answer", func(t *testing.T) {
		e := emulate(t, rules)
		first, late := send(e, path), send(e, path)
		e.answered(e.calls[0], nil)
		if !e.streams[first].went() || !e.streams[late].went() || len(e.calls) != 1 {
			t.Errorf("got %d calls, want one, and both requests to have gone upstream", len(e.calls))
		}
	})
}

func TestRefreshRunsBehind(t *testing.T) {
	e := emulate(t, rules)
	digest := state.Keys.Digest("dev", "s3cret")
	verdict := wire.Verdict{Digest: digest, Outcome: wire.Allow, Permissions: "telemetry.write", ExpiresMS: e.clock +
		60_000, RefreshAfterMS: 1}
	bucket, _ := state.Keys.Device("dev", state.VerdictBuckets)
	e.records[place(wire.RegionVerdicts, bucket)] = wire.AppendVerdicts(nil, state.Epoch, []wire.Verdict{verdict}, nil)
	for range 3 {
		if x := e.streams[send(e, "/v1/telemetry")]; x.action != Continue {
			t.Fatalf("got action %v, want to continue", x.action)
		}
	}
	if len(e.calls) != 1 || e.calls[0].path != verifyPath {
		t.Fatalf("got calls %v, want one verification", e.calls)
	}
	e.tick()
	if e.counted(policy.AuthAllow) != 3 || e.counts[policy.CallRefresh.StatName("0")] != 1 {
		t.Errorf("got counts %v, want 3 allowed and 1 refresh", e.counts)
	}
	e.answered(e.calls[0], nil)
	send(e, "/v1/telemetry")
	if len(e.calls) != 2 {
		t.Errorf("got %d calls after a failed one, want 2", len(e.calls))
	}
}

// TestHitsAreReported answers an object many times: a sample of the hits is sent after a second of ticks, and nothing
// when there are none.
func TestHitsAreReported(t *testing.T) {
	e := emulate(t, rules)
	putObject(e, "/v1/products/1", 4)
	for range 100 * sampleEvery {
		send(e, "/v1/products/1")
	}
	for range 3 * reportTicks {
		e.tick()
	}
	if len(e.calls) != 1 {
		t.Fatalf("got %d reports, want 1", len(e.calls))
	}
	keys, err := wire.ParseHits(e.calls[0].body)
	// Thirty are five standard deviations.
	if err != nil || len(keys) < 70 || len(keys) > 130 || slices.IndexFunc(keys, func(k string) bool {
		return k != "/v1/products/1"
	}) >= 0 {
		t.Errorf("got %d keys, %.200q, %v; want about 100 times the object's", len(keys), keys, err)
	}
}

// unfinished starts a push without the body.
func unfinished(e *emulator) uint32 {
	return e.begin([][2]string{{":method", "POST"}, {":path", "/v1/apply"}}, false)
}

// TestSweep begins more pushes than entries are kept, most of which end without a body. The remaining ones still work,
// and finished ones leave nothing behind.
func TestSweep(t *testing.T) {
	e := emulate(t, `{"push_listener": true}`)
	var alive []uint32
	for i := range 4 * sweepLeast {
		id := unfinished(e)
		if i%8 == 0 {
			alive = append(alive, id)
			continue
		}
		e.end(id)
		if i%100 == 0 {
			e.tick()
		}
	}
	if got, most := len(e.vm.pushes), sweepLeast+2*len(alive)+100; got > most {
		t.Errorf("got %d entries for %d streams, want at most %d", got, len(alive), most)
	}
	if most := 2 * 4 * sweepLeast; e.enters > most {
		t.Errorf("got %d questions whether a stream is there, want at most %d", e.enters, most)
	}
	e.records[place(wire.RegionState, 0)] = wire.AppendState(nil, &wire.State{Epoch: 7})
	for _, id := range alive {
		e.body = batch(7, 7)
		if e.callback(id, func() { e.vm.RequestBody(id, len(e.body), true) }); e.streams[id].reply == nil ||
			e.streams[id].reply.status != 200 {
			t.Fatalf("stream %d: got %+v, want 200", id, e.streams[id].reply)
		}
		if e.vm.pushes[id] != nil {
			t.Fatalf("stream %d is finished and still kept", id)
		}
	}
}

// TestIDComesAgain gives a stream the id of a push that ended without a body.
func TestIDComesAgain(t *testing.T) {
	for _, endOfStream := range []bool{false, true} {
		e := emulate(t, `{"push_listener": true}`)
		id := unfinished(e)
		e.end(id)
		e.streams[id] = &exchange{request: [][2]string{{":method", "GET"}, {":path", "/"}}}
		e.callback(id, func() { e.vm.RequestHeaders(id, endOfStream) })
		if got := e.streams[id].reply; got == nil || got.status != 404 {
			t.Fatalf("got %+v, want 404", got)
		}
		e.body = batch(7, 0)
		e.callback(id, func() { e.vm.RequestBody(id, len(e.body), true) }) // a second reply would be a panic
		if len(e.vm.pushes) != 0 {
			t.Errorf("got %d entries, want none", len(e.vm.pushes))
		}
	}
}

// TestDefault: no rule matches the request.
func TestDefault(t *testing.T) {
	for config, want := range map[string]int{`{}`: 0, `{"default": "pass"}`: 0, `{"default": "deny"}`: 403} {
		e := emulate(t, config)
		x := e.streams[send(e, "/open")]
		if got := x.reply; want == 0 && !x.went() || want != 0 && (got == nil || got.status != want) {
			t.Errorf("%s: got action %d, reply %+v; want status %d, 0 for upstream", config, x.action, got, want)
		}
	}
}

func TestBadConfiguration(t *testing.T) {
	for _, tt := range []struct{ name, config, want string }{
		{"unknown field", `{"rules": [{"match": {"path": "/a"}, "cash": {}}]}`,
			"configuration is invalid:\n  rules[0].cash: unknown field"},
		{"none", "", "configuration is invalid"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := New(emulate(t, `{}`)).Start([]byte(tt.config), "configuration"); err == nil ||
				!strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// TestStartedAgain starts a VM again while a request waits, as for another listener with the same rules.
func TestStartedAgain(t *testing.T) {
	e := emulate(t, rules)
	id := send(e, "/v1/telemetry")
	e.callback(pluginID+1000, func() {
		if err := e.vm.Start(e.config, "configuration"); err != nil {
			t.Fatal(err)
		}
	})
	e.answered(e.calls[0], allow())
	if !e.streams[id].went() {
		t.Error("the request that waited was not sent on")
	}
}

// TestPluginGoes removes a listener, and thereby the calls of the listener's streams, while a request at another
// listener of the VM waits for one of the calls.
func TestPluginGoes(t *testing.T) {
	e := emulate(t, rules)
	e.end(send(e, "/v1/telemetry"))
	id := send(e, "/v1/telemetry")
	if len(e.calls) != 1 {
		t.Fatalf("got %d calls, want one for both requests", len(e.calls))
	}
	e.clock += 2000 + lateMS
	e.tick()
	if got := e.streams[id].reply; got != nil {
		t.Fatalf("got %+v while the answer may come", got)
	}
	e.clock++
	e.tick()
	if got := e.streams[id].reply; got == nil || got.status != 503 {
		t.Fatalf("got %+v, want 503", got)
	}
	if len(e.vm.paused)+len(e.vm.pendingCalls)+len(e.vm.calls.inFlight) != 0 {
		t.Error("something is kept when nobody waits")
	}
	id = send(e, "/v1/telemetry")
	e.answered(e.calls[1], allow())
	if !e.streams[id].went() {
		t.Error("the next request was not sent on")
	}
	e.answered(e.calls[0], allow()) // no request waits for it any more
}
