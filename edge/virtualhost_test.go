package edge

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/edge/wire"
)

// TestVirtualHostsWait has requests of several virtual hosts wait for the sidecar at once: each goes on by the rules,
// credentials and source of its own.
func TestVirtualHostsWait(t *testing.T) {
	const rule = `"rules": [{"name": "all", "match": {"prefix": "/"}, "auth": {}, "cache": {"on_miss": "fetch", "scope": %s}}]`
	e := emulate(t, `{"credentials": {"id_header": "x-id", "secret_header": "x-secret"}, "source": {"header": "x-top"}, `+
		fmt.Sprintf(rule, `"shared"`)+`, "virtual_hosts": {
		"a": {"domains": ["a.example"], "credentials": {"basic": true}, "source": {"header": "x-a"}, `+
		fmt.Sprintf(rule, `["host", "device"]`)+`},
		"b": {"domains": ["*.example"], `+fmt.Sprintf(rule, `"host"`)+`}}}`)
	tests := []struct {
		host, key, device, source, secret string
	}{
		{"other", "/p", "top", "192.0.2.1", "x-secret"},
		{"A.example:80", "@a//a:a.example/p", "a", "192.0.2.2", "authorization"},
		{"B.Example", "//b:b.example/p", "top", "192.0.2.1", "x-secret"},
		{"c.example", "//b:c.example/p", "top", "192.0.2.1", "x-secret"},
	}
	headers := func(i int) [][2]string {
		return [][2]string{{":method", "GET"}, {":authority", tests[i].host}, {":path", "/p"}, {"x-id", "top"},
			{"x-secret", "s"}, {"authorization", "Basic YTpz"}, {"x-top", "192.0.2.1"}, {"x-a", "192.0.2.2"}}
	}
	var streams []*exchange
	for i := range tests {
		streams = append(streams, e.streams[e.begin(headers(i), true)])
	}
	if len(e.calls) != 2 { // b's requests have the top level's credential
		t.Fatalf("got %d calls, want one for each credential", len(e.calls))
	}
	for i, c := range slices.Clone(e.calls) {
		request, err := wire.ParseVerifyRequest(c.body)
		if err != nil || request.DeviceID != tests[i].device || request.Source != tests[i].source {
			t.Errorf("%s: got a verification of %+v, %v", tests[i].host, request, err)
		}
		e.answered(c, wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Allow, Epoch: state.Epoch}))
	}
	fetches := e.calls[2:]
	if len(fetches) != len(tests) {
		t.Fatalf("got %d fetches, want %d", len(fetches), len(tests))
	}
	for len(fetches) > 0 {
		c := fetches[len(fetches)-1] // the last first
		fetches = fetches[:len(fetches)-1]
		key := string(c.body)
		object := newObject(key, len(key))
		e.answered(c, wire.AppendFetchResponse(nil, state.Epoch, &object, [][]byte{[]byte(key)}))
	}
	for len(e.calls) > 6 { // their credentials are verified again, after the fetch
		c := e.calls[6]
		e.calls = slices.Delete(e.calls, 6, 7)
		e.answered(c, wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Allow, Epoch: state.Epoch}))
	}
	for i, x := range streams {
		if x.reply == nil || x.reply.status != 200 || string(x.reply.body) != tests[i].key {
			t.Errorf("%s: got %+v, want %s", tests[i].host, x.reply, tests[i].key)
		}
	}
	// A miss: the upstream gets no secret of the virtual host, and others' credentials as they are.
	for i := range tests {
		from := len(e.calls)
		x := e.streams[e.begin(headers(i), true)]
		for ; from < len(e.calls); from++ {
			if c := e.calls[from]; c.path == fetchPath {
				e.answered(c, wire.AppendFetchResponse(nil, state.Epoch, nil, nil))
			} else {
				e.answered(c, wire.AppendVerifyResponse(nil, &wire.VerifyResponse{Outcome: wire.Allow, Epoch: state.Epoch}))
			}
		}
		got := fields(x.request)
		_, has := got[tests[i].secret]
		other := strings.Trim(strings.Replace("x-secret authorization", tests[i].secret, "", 1), " ")
		if !x.went() || has || got[other] == "" || got["x-gatehouse-device"] != tests[i].device {
			t.Errorf("%s: got %q at the upstream, want no %s but %s", tests[i].host, x.request, tests[i].secret, other)
		}
	}
}
