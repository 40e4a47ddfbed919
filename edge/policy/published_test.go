package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/edge/wire"
)

const publishedRules = `{"credentials": {"id_header": "x-device-id", "secret_header": "x-device-token"}, "rules": [
	{"match": {"prefix": "/private/"}, "auth": {}, "cache": {}},
	{"match": {"prefix": "/origin/"}, "cache": {"origin_headers": true}},
	{"match": {"prefix": "/"}, "cache": {}}]}`

// answerOf returns the answer to a request for an object, and checks that the cached answer is the same.
func answerOf(t *testing.T, o wire.Object, lines ...string) Decision {
	t.Helper()
	m := newMemory()
	m.guard = 1 << 8
	o.Version, o.PublishedMS, o.ETag, o.ContentType = 1, now-5000, `"v1"`, "text/plain"
	m.putObject(o, false)
	m.verdict("dev", "s", wire.Verdict{Outcome: wire.Allow, ExpiresMS: now + 1000})
	e := newEdge(t, publishedRules)
	e.SetState(now, m.state)
	var first, d Decision
	for i := range 4 {
		d = decideRequest(m, read(e, append(lines, "x-device-id: dev", "x-device-token: s")...))
		if i == 0 {
			first = d
			first.Headers, first.Body = slices.Clone(d.Headers), slices.Clone(d.Body)
		} else if d.Status != first.Status || string(d.Headers) != string(first.Headers) ||
			string(d.Body) != string(first.Body) {
			t.Errorf("%q: got %d %q, at first %d %q", lines, d.Status, d.Headers, first.Status, first.Headers)
		}
	}
	return first
}

// TestStatuses: an object's status is the answer's. Preconditions count only for 200 (RFC 9110, section 13.2.1).
func TestStatuses(t *testing.T) {
	for _, status := range []uint16{0, 301, 302, 307, 308, 404, 410} {
		o := wire.Object{Key: "/a", Status: status, Headers: "x-a: 1\nlast-modified: Sun, 06 Nov 1994 08:49:37 GMT"}
		if status/100 == 3 {
			o.Headers += "\nlocation: /b?c"
		}
		want := int(max(status, 200))
		for _, method := range []string{"GET", "HEAD"} {
			d := answerOf(t, o, method+" /a")
			location, _ := headerOf(d, "location")
			if x, _ := headerOf(d, "x-a"); d.Action != Reply || d.Status != want || d.Cache != CacheHit || x != "1" ||
				string(d.Body) != `{"key":"/a"}` || (location == "/b?c") != (status/100 == 3) {
				t.Errorf("%s: got %d %q %q, want %d", method, d.Status, fieldsOf(d), d.Body, want)
			}
		}
		for _, precondition := range []string{`if-none-match: "v1"`, "if-none-match: *",
			"if-modified-since: Sun, 06 Nov 1994 08:49:37 GMT"} {
			d := answerOf(t, o, "GET /a", precondition)
			if status == 0 {
				want = 304
			}
			if d.Status != want {
				t.Errorf("%s: got %d, want %d", precondition, d.Status, want)
			}
		}
	}
}

// TestNotModifiedRepeats: of the publisher's headers, a 304 has only those of RFC 9110, section 15.4.5.
func TestNotModifiedRepeats(t *testing.T) {
	d := answerOf(t, wire.Object{Key: "/a", Headers: "cache-control: max-age=9\nlink: </b>\ncontent-location: /a.en\n" +
		"content-language: en\nexpires: Sun, 06 Nov 1994 08:49:37 GMT\nlast-modified: Sun, 06 Nov 1994 08:49:37 GMT"},
		"GET /a", `if-none-match: "v1"`)
	want := [][2]string{{"cache-status", "gatehouse; hit"}, {"etag", `"v1"`}, {"cache-control", "max-age=9"}, {"age", "1"},
		{"content-location", "/a.en"}, {"expires", "Sun, 06 Nov 1994 08:49:37 GMT"}}
	if got := fieldsOf(d); d.Status != 304 || !slices.Equal(got, want) {
		t.Errorf("got %d %q, want %q", d.Status, got, want)
	}
}

// TestPublishedModified: the publisher's date replaces that of publishing, in both directions.
func TestPublishedModified(t *testing.T) {
	const date = "Sun, 06 Nov 1994 08:49:37 GMT"
	o := wire.Object{Key: "/a", Headers: "last-modified: " + date}
	if got, _ := headerOf(answerOf(t, o, "GET /a"), "last-modified"); got != date {
		t.Errorf("got %q, want %q once", got, date)
	}
	for since, want := range map[string]int{date: 304, "Tue, 14 Nov 2023 22:13:17 GMT": 200} {
		if d := answerOf(t, o, "GET /a", "if-modified-since: "+since); d.Status != want {
			t.Errorf("since %s: got %d, want %d", since, d.Status, want)
		}
	}
}

func TestPublishedControl(t *testing.T) {
	for _, test := range []struct {
		published     string
		ttlMS         uint64
		open, private string
	}{
		{"max-age=5", 0, "max-age=5", "private, max-age=5"},
		{"Max-Age=5", 60_000, "Max-Age=5", "private, Max-Age=5"},
		{"no-store", 0, "no-store", "private, no-store"},
		{"no-cache", 60_000, "no-cache", "private, no-cache"},
		{"must-revalidate", 60_000, "must-revalidate, max-age=55", "private, must-revalidate, max-age=55"},
		{"immutable", 0, "immutable, no-cache", "private, immutable, no-cache"},
		{"public, max-age=5,s-maxage=9 ,stale-while-revalidate=3, stale-if-error=4", 0,
			"public, max-age=5, s-maxage=9, stale-while-revalidate=3, stale-if-error=4", "private, max-age=5"},
		{"PUBLIC, S-MAXAGE=9", 60_000, "PUBLIC, S-MAXAGE=9, max-age=55", "private, max-age=55"},
		{"public, s-maxage=9", 0, "public, s-maxage=9, max-age=0", "private, no-cache"}, // no-cache would be for all
		{"private", 0, "private, no-cache", "private, no-cache"},
		{`private="x-a, x-b", max-age=5`, 0, `private="x-a, x-b", max-age=5`, "private, max-age=5"},
		{`no-cache="x-a"`, 60_000, `no-cache="x-a", max-age=55`, `private, no-cache="x-a", max-age=55`},
		{`a="max-age=5, no-store", b`, 0, `a="max-age=5, no-store", b, no-cache`,
			`private, a="max-age=5, no-store", b, no-cache`},
		{`a="\", public, max-age=1`, 0, `a="\", public, max-age=1, no-cache`, `private, a="\", public, max-age=1, no-cache`},
		{",, max-age=5, ,", 0, "max-age=5", "private, max-age=5"},
		{",", 0, "no-cache", "private, no-cache"},
	} {
		for path, want := range map[string]string{"/a": test.open, "/private/a": test.private} {
			d := answerOf(t, wire.Object{Key: path, TTLMS: test.ttlMS, Headers: "cache-control: " + test.published}, "GET "+path)
			if got, _ := headerOf(d, "cache-control"); got != want {
				t.Errorf("%s, %s: got %s, want %s", test.published, path, got, want)
			}
		}
	}
}

// TestPrivateIsForNoCache: no header of the publisher lets a shared cache store a private answer (RFC 9213).
func TestPrivateIsForNoCache(t *testing.T) {
	const targeted = "cdn-cache-control: max-age=600\nsurrogate-control: max-age=600\nedge-control: max-age=600\n" +
		"x-a: b\nacme-cache-control: public"
	for path, want := range map[string]int{"/a": 4, "/private/a": 0} {
		d, got := answerOf(t, wire.Object{Key: path, Headers: targeted}, "GET "+path), 0
		for _, h := range fieldsOf(d) {
			if strings.HasSuffix(h[0], "-control") && h[0] != "cache-control" {
				got++
			}
		}
		if x, _ := headerOf(d, "x-a"); got != want || x != "b" {
			t.Errorf("%s: got %q, want %d that let caches store it", path, fieldsOf(d), want)
		}
	}
}

// TestPublishedNames: whatever memory has, the edge sends no name that a reader of Redis refuses, and what acts on the
// whole origin where the rule permits it.
func TestPublishedNames(t *testing.T) {
	for headers, want := range map[string][2]int{ // how many lines are sent, without and with the permission
		"x-a: b":   {1, 1},
		"link: b":  {1, 1},
		"x_a: b":   {0, 0},
		"x.a: b":   {0, 0},
		"x-a~: b":  {0, 0},
		"X-A: b":   {0, 0},
		"é: b":     {0, 0},
		": b":      {0, 0},
		"e-tag: b": {0, 0},
		"set-cookie: b\nset_cookie: b\ntransfer_encoding: chunked\ntransfer-encoding: chunked\nx-accel-redirect: /": {0, 0},
		"x-envoy-a: b\nproxy-status: b\ngatehouse-a: b\nx-gatehouse-device: b\ncontent-length: 3":                   {0, 0},
		"alt-svc: b": {0, 1},
		"strict-transport-security: b\nclear-site-data: b\nservice-worker-allowed: /\nreport-to: b\nnel: b": {0, 5},
		"accept-ch: b\norigin-agent-cluster: b\nset-login: b\npublic-key-pins: b\nexpect-ct: b":             {0, 5},
		"use-as-dictionary: b\nsec-session-registration: b\nsecure-session-registration: b":                 {0, 3},
		"content-security-policy: b\nreporting-endpoints: b\npermissions-policy: b":                         {3, 3},
	} {
		for i, path := range []string{"/a", "/origin/a"} {
			plain := len(fieldsOf(answerOf(t, wire.Object{Key: path}, "GET "+path)))
			if got := fieldsOf(answerOf(t, wire.Object{Key: path, Headers: headers}, "GET "+path)); len(got)-plain != want[i] {
				t.Errorf("%s, %q: got %q, want %d of these", path, headers, got, want[i])
			}
		}
	}
}

// TestMostHeaders: an answer with the longest headers, and with most lines, is whole, kept or not.
func TestMostHeaders(t *testing.T) {
	var lines []string
	for i := range limits.MaxHeaderLines {
		lines = append(lines, fmt.Sprintf("x-%02d: %s", i, strings.Repeat("v", 121)))
	}
	headers := strings.Join(lines, "\n")
	headers += strings.Repeat("v", limits.MaxHeaders-len(headers))
	d := answerOf(t, wire.Object{Key: "/a", Headers: headers}, "GET /a")
	var got []string
	for _, h := range fieldsOf(d) {
		if strings.HasPrefix(h[0], "x-") {
			got = append(got, h[0]+": "+h[1])
		}
	}
	if strings.Join(got, "\n") != headers {
		t.Errorf("got %q, want %q", got, headers)
	}
}
