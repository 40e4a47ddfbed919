package e2e

import (
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
	"github.com/gatehouse/gatehouse/testbed/upstream"
)

// TestTrialOfCache: a cache in a trial changes neither a request nor the response, and counts the answers that the
// cache would have given, by the entity-tag of the upstream's answer, which the Wasm module doesn't see.
func TestTrialOfCache(t *testing.T) {
	t.Parallel()
	compares := onNative() || onNginx()
	e := start(t, stack.Options{Rules: `
sidecar: {cluster: gatehouse-sidecar}
credentials: {id_header: x-device-id, secret_header: x-device-token}
rules:
- {name: served, match: {prefix: /served}, cache: {}}
- {name: tried, match: {prefix: /tried}, cache: {serve: false, on_miss: fetch}}
- {name: own, match: {prefix: /own}, auth: {}, cache: {serve: false, scope: device}}
`, ConfigPath: logsTrials(t), EnvoyArgs: []string{"--file-flush-interval-msec", "10"}})
	e.putDevice("dev", "secret", 4)
	good := credential("dev", "secret")
	for _, key := range []string{"/served", "/tried/a", "/tried/b", "@dev/own/a"} {
		if _, err := e.publisher.Put(t.Context(), publish.Object{Key: key, Body: []byte("cached"), ETag: `"v1"`,
			ContentType: "text/plain"}); err != nil {
			t.Fatal(err)
		}
	}
	e.awaitAnswer("the objects are at the edge", hasBody("cached"), "GET /served")
	e.awaitAnswer("the device", hasStatus(200), "GET /own/x", good...)
	e.awaitPushed()

	const etag, answer = upstream.ETagHeader + ": ", upstream.StatusHeader + ": "
	type counted struct{ counter, rule, outcome string }
	want := map[counted]int{}
	for _, tt := range []struct {
		first   string
		lines   []string
		rule    string
		outcome string // of would_hit, or of the cache
	}{
		{"GET /tried/a", []string{etag + `"v1"`}, "tried", "same"},
		{"HEAD /tried/a", []string{etag + `W/"v1"`}, "tried", "same"},
		{"GET /tried/a", []string{etag + `"v1"`, `if-none-match: "v1"`, answer + "304"}, "tried", "same"},
		{"GET /tried/a", []string{etag + `"v1"`, "if-modified-since: Thu, 01 Jan 2026 00:00:00 GMT"}, "tried", "same"},
		{"GET /tried/b", []string{etag + `"v2"`}, "tried", "different"},
		{"GET /tried/a", []string{"accept-encoding: gzip"}, "tried", "no_etag"},
		{"GET /tried/a", []string{answer + "404"}, "tried", "no_etag"},
		{"GET /tried/c", []string{etag + `"v1"`}, "tried", "miss"},
		{"POST /tried/a", []string{etag + `"v1"`}, "tried", "bypass"},
		{"GET /own/a", append([]string{etag + `"v1"`}, good...), "own", "same"},
		{"GET /own/a", append([]string{etag + `"v3"`}, good...), "own", "different"},
	} {
		got := e.send(tt.first, tt.lines...)
		direct, err := sendTo(t.Context(), shared, e.UpstreamURL(), "", tt.first, tt.lines...)
		require.NoError(t, err)
		added := []string{"Etag", "Content-Type", "Cache-Status", "Age", "Last-Modified", "Vary", "Cache-Control"}
		if tt.rule == "own" {
			added = added[:5]
			if got.header.Get("Vary") == "*" || got.header.Get("Cache-Control") != "private" {
				t.Errorf("%s: got headers %v, want those of a rule without a cache", tt.first, got.header)
			}
		}
		if got.status != direct.status || slices.ContainsFunc(added, func(name string) bool {
			return !slices.Equal(got.header[name], direct.header[name])
		}) {
			t.Errorf("%s %q: got %d %v, want the upstream's answer %d %v", tt.first, tt.lines, got.status, got.header,
				direct.status, direct.header)
		}
		for _, line := range tt.lines {
			name, value, _ := strings.Cut(line, ": ")
			if got.body != "" && name != "x-device-token" &&
				!slices.Equal(got.seenByUpstream(t).Headers[name], []string{value}) {
				t.Errorf("%s: the upstream sees %v, want %s", tt.first, got.seenByUpstream(t).Headers, line)
			}
		}
		counter := "would_hit"
		if tt.outcome == "miss" || tt.outcome == "bypass" {
			counter = "cache"
		} else if !compares {
			tt.outcome = "not_compared"
		}
		want[counted{counter, tt.rule, tt.outcome}]++
	}

	// A client that leaves before the upstream, which waits for the rest of the body, has answered.
	c, err := net.Dial("tcp", strings.TrimPrefix(e.EdgeURL(), "http://"))
	require.NoError(t, err)
	requests := e.UpstreamRequests()
	if _, err := c.Write([]byte("GET /tried/a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{")); err != nil {
		t.Fatal(err)
	}
	await(t, "the upstream has the request", patience, func() error {
		if e.UpstreamRequests() == requests {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	_ = c.Close()
	want[counted{"would_hit", "tried", "not_compared"}]++

	await(t, "the counters", patience, func() error {
		got := map[counted]int{}
		for _, counter := range []string{"would_hit", "cache"} {
			for j, n := range e.countOutcomes(t, counter) {
				if j.rule != "served" && (j != judged{"own", "miss"}) { // before
					got[counted{counter, j.rule, j.outcome}] = n
				}
			}
		}
		if !reflect.DeepEqual(got, want) {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return nil
	})
	if !compares {
		return
	}
	await(t, "the log", patience, func() error {
		if l := e.accessLog()["/tried/b"]; l.Rule != "tried" ||
			!strings.Contains(l.Reason+" "+l.Trial, "gatehouse_would_hit_different") {
			return fmt.Errorf("got %+v", l)
		}
		return nil
	})
}
