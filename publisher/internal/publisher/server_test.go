package publisher

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"github.com/gatehouse/gatehouse/clients/go/limits"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/await"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// headers are of a request.
type headers map[string]string

func tokenOf(team string) string { return strings.Repeat(team, 16) }

func sum(token string) string {
	digest := sha256.Sum256([]byte(token))
	return hex.EncodeToString(digest[:])
}

var (
	shop  = headers{"Authorization": "Bearer " + tokenOf("shop")}
	slow  = headers{"Authorization": "Bearer " + tokenOf("slow")}
	hosts = headers{"Authorization": "Bearer " + tokenOf("hosts")}
)

func (h headers) with(more headers) headers {
	all := headers{}
	for _, some := range []headers{h, more} {
		for name, value := range some {
			all[name] = value
		}
	}
	return all
}

func teamsFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "teams.yaml")
	text := fmt.Sprintf(`teams:
- {name: shop, tokens: [%s], prefixes: [/v1/products/], tags: ["shop:*", "/v1/products/*", sale], rate: 10000}
- {name: slow, tokens: [%s], prefixes: [/v1/slow/], rate: 0.01}
- {name: hosts, tokens: [%s, %s], prefixes: [//fleet/], rate: 10000}
`, sum(tokenOf("shop")), sum(tokenOf("slow")), sum(tokenOf("hosts")), sum("another"))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// server is a publisher of HTTP with a Redis of its own.
type server struct {
	redis   *redistest.Server
	client  redis.UniversalClient
	p       *publish.Publisher
	address string
	http    *http.Client
	metrics *Metrics
	teams   *Teams
	server  *Server
	log     *logged
}

// logged is a log that can be read while being written.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func start(t *testing.T) *server {
	t.Helper()
	s := &server{redis: redistest.StartServer(t), metrics: NewMetrics(), log: &logged{}}
	var err error
	settings := redisurl.Settings{URL: "redis://" + s.redis.Address, Once: true, Deadlines: true}
	if s.client, err = settings.Connect(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.client.Close() })
	s.p = publish.New(s.client)
	log := slog.New(slog.NewTextHandler(s.log, nil))
	if s.teams, err = ReadTeams(teamsFile(t), s.metrics, log); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.address = listener.Addr().String()
	done := make(chan error, 1)
	ctx := t.Context()
	s.server = New(s.p, s.teams, s.metrics, log)
	go func() { done <- s.server.Serve(ctx, listener, nil) }()
	t.Cleanup(func() { // after the context has ended
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	s.http = &http.Client{Transport: newDescribed(t, transport)}
	return s
}

// answer is what a request got.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request for target as it is.
func (s *server) do(t *testing.T, method, target string, h headers, body string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.address+target, strings.NewReader(body))
	require.NoError(t, err)
	for name, value := range h {
		r.Header.Set(name, value)
	}
	got, err := s.http.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	require.NoError(t, err)
	return answer{got.StatusCode, got.Header, string(text)}
}

var text = headers{"Content-Type": "text/plain"}

// TestObject: get returns a stored object in the form that put takes; after a delete, the object is gone.
func TestObject(t *testing.T) {
	s := start(t)
	const target = "/v1/objects/v1/products/42?b=2&a=1"
	sent := shop.with(text).with(headers{
		"Gatehouse-TTL": "10m", "Gatehouse-Tags": "shop:b, /books/1?x", "Gatehouse-Status": "404",
		"Gatehouse-Header-Cache-Control": "public, max-age=5", "Gatehouse-Header-Link": "</a>, </b>",
	})
	put := s.do(t, "PUT", target, sent, "hello")
	if put.status != 400 || !strings.Contains(put.body, "/v1/products/42?a=1") {
		t.Errorf("a key that isn't canonical: %d %s", put.status, put.body)
	}
	const canonical = "/v1/objects/v1/products/42?a=1&b=2"
	if got := s.do(t, "GET", canonical, shop, ""); got.status != 404 {
		t.Errorf("before: %d", got.status)
	}
	put = s.do(t, "PUT", canonical, sent, "hello")
	if put.status != 201 || put.header.Get("Gatehouse-Version") != "1" || put.header.Get("ETag") == "" {
		t.Fatalf("put: %d %s, %v", put.status, put.body, put.header)
	}
	o, err := s.p.Get(t.Context(), "/v1/products/42?a=1&b=2")
	if err != nil || string(o.Bodies[0].Bytes) != "hello" || o.Status != 404 || o.TTLMS != 600_000 ||
		strings.Join(o.Tags, " ") != "/books/1?x shop:b" ||
		o.Headers != "cache-control: public, max-age=5\nlink: </a>, </b>" {
		t.Errorf("stored %+v, %v", o, err)
	}
	for _, method := range []string{"GET", "HEAD"} {
		got := s.do(t, method, canonical, shop, "")
		if want := map[string]string{"GET": "hello"}[method]; got.status != 200 || got.body != want {
			t.Errorf("%s: %d %q", method, got.status, got.body)
		}
		for name, want := range map[string]string{
			"Content-Type": "text/plain", "Gatehouse-TTL": "10m0s", "Gatehouse-Tags": "/books/1?x, shop:b",
			"Gatehouse-Status": "404", "Gatehouse-Header-Cache-Control": "public, max-age=5",
			"Gatehouse-Header-Link": "</a>, </b>", "Gatehouse-Version": "1",
			"ETag": put.header.Get("ETag"), "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
		} {
			if got.header.Get(name) != want {
				t.Errorf("%s: %s: %q, want %q", method, name, got.header.Get(name), want)
			}
		}
	}
	if got := s.do(t, "GET", canonical, shop.with(headers{"If-None-Match": `"x", W/` + o.ETag}), ""); got.status != 304 {
		t.Errorf("If-None-Match: %d", got.status)
	}
	if got := s.do(t, "PUT", canonical, shop.with(text), ""); got.status != 200 {
		t.Errorf("again: %d", got.status)
	}
	for _, method := range []string{"DELETE", "PURGE"} {
		if got := s.do(t, method, canonical, shop, ""); got.status != 200 {
			t.Errorf("%s: %d %s", method, got.status, got.body)
		}
		if got := s.do(t, "GET", canonical, shop, ""); got.status != 404 {
			t.Errorf("after %s: %d", method, got.status)
		}
	}
	for _, line := range []string{
		`msg=written team=shop operation=put key="/v1/products/42?a=1&b=2" source=127.0.0.1 version=1`,
		`msg=written team=shop operation=delete key="/v1/products/42?a=1&b=2" source=127.0.0.1 version=4`,
		`msg="write refused" team=shop operation=put key="/v1/products/42?b=2&a=1" source=127.0.0.1 status=400`,
	} {
		if !strings.Contains(s.log.String(), line) {
			t.Errorf("no line %s in\n%s", line, s.log)
		}
	}
	if strings.Contains(s.log.String(), tokenOf("shop")) {
		t.Error("the log has a token")
	}
}

// TestWhoMayWrite: a team writes only under its prefixes, however the target is spelt, and never without a token.
func TestWhoMayWrite(t *testing.T) {
	s := start(t)
	fleet := headers{"Gatehouse-Virtual-Host": "fleet"}
	for _, test := range []struct {
		name, target string
		headers      headers
		want         int
	}{
		{"its prefix", "/v1/products/1", shop, 201},
		{"a device under its prefix", "/v1/products/1", shop.with(headers{"Gatehouse-Device": "d1"}), 201},
		{"a token after two blanks", "/v1/products/1", headers{"Authorization": "bearer  " + tokenOf("shop")}, 200},
		{"no token", "/v1/products/1", nil, 401},
		{"a wrong token", "/v1/products/1", headers{"Authorization": "Bearer x"}, 401},
		{"the sum of a token", "/v1/products/1", headers{"Authorization": "Bearer " + sum(tokenOf("shop"))}, 401},
		{"another scheme", "/v1/products/1", headers{"Authorization": "Basic " + tokenOf("shop")}, 401},
		{"the prefix without its slash", "/v1/products", shop, 403},
		{"a longer name", "/v1/products2/1", shop, 403},
		{"elsewhere", "/v1/prices/1", shop, 403},
		{"elsewhere, with the prefix in the query", "/v1/prices?/v1/products/", shop, 403},
		{"dots", "/v1/products/../prices/1", shop, 400},
		{"escaped dots", "/v1/products/%2e%2e/prices/1", shop, 400},
		{"escaped slashes", "/v1/products/..%2fprices%2F1", shop, 400},
		{"a backslash", `/v1/products/..%5Cprices`, shop, 400},
		{"dots into the prefix", "/v1/prices/../products/1", shop, 403},
		{"two slashes", "/v1//products/1", shop, 403},
		{"a key of a virtual host in the target", "//fleet/v1/products/1", shop, 400},
		{"a device in the target", "/@d1/v1/products/1", shop, 403},
		{"an escape in the prefix", "/v1/%70roducts/1", shop, 403},
		{"lower case escape", "/v1/products/%c3%a4", shop, 201},
		{"a virtual host of another team", "/v1/products/1", shop.with(fleet), 403},
		{"a host without a virtual host", "/v1/products/1", shop.with(headers{"Gatehouse-Host": "a.example"}), 201},
		{"a slash in the virtual host", "/a", shop.with(headers{"Gatehouse-Virtual-Host": "/v1/products"}), 400},
		{"a slash in the host", "/a", shop.with(headers{"Gatehouse-Host": "/v1/products/"}), 400},
		{"a language", "/v1/products/1", shop.with(headers{"Gatehouse-Language": "en-GB"}), 201},
		{"no language", "/v1/products/1", shop.with(headers{"Gatehouse-Language": "en/../"}), 400},
		{"a slash in the device", "/a", shop.with(headers{"Gatehouse-Device": "d/v1/products/"}), 400},
		{"its virtual host", "/v1/products/1", hosts.with(fleet), 201},
		{"a host of its virtual host", "/v1/products/1", hosts.with(fleet).with(headers{"Gatehouse-Host": "A.example"}), 201},
		{"no virtual host", "/v1/products/9", hosts, 403},
		{"another virtual host", "/a", hosts.with(headers{"Gatehouse-Virtual-Host": "fleet2"}), 403},
		{"no virtual host's name", "/a", hosts.with(headers{"Gatehouse-Virtual-Host": "fleet:a"}), 400},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := s.do(t, "PUT", "/v1/objects"+test.target, test.headers.with(text), "x")
			if got.status != test.want && !(got.status == 200 && test.want == 201) {
				t.Errorf("%d %s, want %d", got.status, got.body, test.want)
			}
			if got.status == 401 && got.header.Get("WWW-Authenticate") != "Bearer" {
				t.Error("no WWW-Authenticate")
			}
			for _, method := range []string{"GET", "DELETE", "PURGE"} {
				if test.want == 401 || test.want == 403 {
					if got := s.do(t, method, "/v1/objects"+test.target, test.headers, ""); got.status != test.want {
						t.Errorf("%s: %d, want %d", method, got.status, test.want)
					}
				}
			}
		})
	}
	written := regexp.MustCompile(`^(@d1|//:a\.example)?/v1/products/[^/#]+(#en-gb)?$|^//fleet(:a\.example)?/v1/products/1$`)
	for entry, err := range s.p.List(t.Context(), "") {
		require.NoError(t, err)
		if !written.MatchString(entry.Key) {
			t.Errorf("%s was written", entry.Key)
		}
	}
}

// TestConditions: writes by entity-tag.
func TestConditions(t *testing.T) {
	s := start(t)
	const target = "/v1/objects/v1/products/1"
	put := func(h headers, body string) answer { return s.do(t, "PUT", target, shop.with(text).with(h), body) }
	if got := put(headers{"If-Match": "*"}, "a"); got.status != 412 {
		t.Errorf("If-Match: * without an object: %d", got.status)
	}
	first := put(headers{"If-None-Match": "*"}, "a")
	if first.status != 201 {
		t.Fatalf("create: %d %s", first.status, first.body)
	}
	etag := first.header.Get("ETag")
	for _, test := range []struct {
		h    headers
		want int
	}{
		{headers{"If-None-Match": "*"}, 412},
		{headers{"If-None-Match": etag}, 400},
		{headers{"If-Match": `"x"`}, 412},
		{headers{"If-Match": "W/" + etag}, 412},
		{headers{"If-Match": strings.Trim(etag, `"`)}, 412},
		{headers{"If-Match": etag, "If-None-Match": "*"}, 412},
		{headers{"If-Match": `"x", ` + etag}, 200},
		{headers{"If-Match": etag}, 412}, // it is b now
		{headers{"If-Match": "*"}, 200},
		{headers{"Gatehouse-Version": "2"}, 409},
		{headers{"Gatehouse-Version": "100"}, 200},
		{headers{"Gatehouse-Version": "1e3"}, 400},
		{headers{"Gatehouse-Version": "4503599627370497"}, 400},
		{headers{"Gatehouse-Version": "4503599627370496"}, 200}, // the path stays usable
		{headers{"Gatehouse-TTL": "10"}, 400},
		{headers{"Gatehouse-Tag": "shop:a"}, 400},
		{headers{"Gatehouse-TTL": "-1s"}, 400},
		{headers{"Gatehouse-TTL": "0s"}, 400},
		{headers{"Gatehouse-TTL": "0"}, 400},
		{headers{"Gatehouse-TTL": "1us"}, 400},
		{headers{"Gatehouse-TTL": "1ms"}, 200},
		{headers{"Gatehouse-Status": "200"}, 200},
		{headers{"Gatehouse-Status": "500"}, 400},
		{headers{"Gatehouse-Status": "302"}, 400}, // no location
		{headers{"Gatehouse-Tags": "a b"}, 400},
		{headers{"Gatehouse-Header-Set-Cookie": "a=b"}, 400},
		{headers{"Gatehouse-ETag": "weak"}, 400},
		{headers{"Content-Encoding": "gzip"}, 415},
		{headers{"Content-Range": "bytes 0-1/2"}, 400},
		{headers{"Content-Type": ""}, 400},
	} {
		if got := put(test.h, "b"); got.status != test.want {
			t.Errorf("%v: %d %s, want %d", test.h, got.status, got.body, test.want)
		}
	}
	if got := s.do(t, "DELETE", target, shop.with(headers{"If-Match": etag}), ""); got.status != 412 {
		t.Errorf("delete what changed: %d", got.status)
	}
	now := s.do(t, "GET", target, shop, "").header.Get("ETag")
	if got := s.do(t, "DELETE", target, shop.with(headers{"If-Match": now}), ""); got.status != 200 {
		t.Errorf("delete: %d %s", got.status, got.body)
	}
	// If several writers have read the same object, only one writes.
	created := put(nil, "c").header.Get("ETag")
	var mu sync.Mutex
	var group sync.WaitGroup
	statuses := map[int]int{}
	for i := range 8 {
		group.Go(func() {
			got := put(headers{"If-Match": created}, fmt.Sprint("d", i))
			mu.Lock()
			defer mu.Unlock()
			statuses[got.status]++
		})
	}
	group.Wait()
	if statuses[200] != 1 || statuses[412] != 7 {
		t.Errorf("of 8 writers: %v", statuses)
	}
}

// TestPurge: by prefix, tag and virtual host, within what the team may.
func TestPurge(t *testing.T) {
	s := start(t)
	put := func(h headers, key, tags string) {
		t.Helper()
		got := s.do(t, "PUT", "/v1/objects"+key, h.with(text).with(headers{"Gatehouse-Tags": tags}), "x")
		if got.status != 201 && got.status != 200 {
			t.Fatalf("put %s: %d %s", key, got.status, got.body)
		}
	}
	fleet := hosts.with(headers{"Gatehouse-Virtual-Host": "fleet"})
	for _, test := range []struct {
		team   headers
		body   string
		status int
		gone   string // keys of /v1/products/a and b, //fleet/c
	}{
		{shop, `{"prefix": "/v1/products/a/"}`, 200, "a"},
		{shop, `{"prefix": "/v1/products/"}`, 200, "ab"},
		{shop, `{"tag": "shop:x"}`, 200, "b"},
		{shop, `{"tag": "shop:x", "soft": true}`, 200, ""},
		{shop, `{"tag": "/v1/products/7"}`, 200, ""},
		{shop, `{"tag": "/v1/product"}`, 403, ""},
		{shop, `{"tag": "other"}`, 403, ""},
		{shop, `{"tag": "sale2"}`, 403, ""},
		{shop, `{"tag": "shop:x", "virtual_host": "fleet"}`, 403, ""},
		{shop, `{"all": true}`, 403, ""},
		{shop, `{"prefix": "/v1/"}`, 403, ""},
		{shop, `{"prefix": "/v1/products/../"}`, 400, ""},
		{shop, `{"prefix": "/v1/products"}`, 400, ""},
		{shop, `{"prefix": "/v1/products/", "virtual_host": "fleet"}`, 403, ""},
		{shop, `{"prefix": "//fleet/"}`, 400, ""},
		{shop, `{}`, 400, ""},
		{shop, `{"all": true, "prefix": "/v1/products/"}`, 400, ""},
		{shop, `{"tag": "shop:x", "prefix": "/v1/products/"}`, 400, ""},
		{shop, `{"tags": "shop:x"}`, 400, ""},
		{shop, `{"tag": "shop:x"} {}`, 400, ""},
		{hosts, `{"all": true, "virtual_host": ""}`, 400, ""},
		{hosts, `{"all": true, "virtual_host": "fleet"}`, 200, "c"},
		{hosts, `{"tag": "any", "virtual_host": "fleet"}`, 200, "c"},
		{hosts, `{"all": true}`, 403, ""},
		{hosts, `{"tag": "any"}`, 403, ""},
		{shop, `{"tag": "` + strings.Repeat("a", 5000) + `"}`, 413, ""},
	} {
		put(shop, "/v1/products/a/1", "sale")
		put(shop, "/v1/products/b", "shop:x")
		put(fleet, "/c", "any")
		got := s.do(t, "POST", "/v1/purge", test.team, test.body)
		gone := ""
		for name, at := range map[string]struct {
			h   headers
			key string
		}{"a": {shop, "/v1/products/a/1"}, "b": {shop, "/v1/products/b"}, "c": {fleet, "/c"}} {
			if s.do(t, "GET", "/v1/objects"+at.key, at.h, "").status == 404 {
				gone += name
			}
		}
		if len(gone) == 2 && gone[0] > gone[1] {
			gone = gone[1:] + gone[:1]
		}
		if got.status != test.status || gone != test.gone {
			t.Errorf("%.80s: %d %s, gone %q; want %d, %q", test.body, got.status, got.body, gone, test.status, test.gone)
		}
	}
	if !strings.Contains(s.log.String(), "msg=written team=shop operation=purge key=#shop:x source=127.0.0.1") {
		t.Error("the log has no purge")
	}
}

// TestBatch: each line has its own result, in order.
func TestBatch(t *testing.T) {
	s := start(t)
	ndjson := shop.with(headers{"Content-Type": "application/x-ndjson; charset=utf-8"})
	got := s.do(t, "POST", "/v1/batch", ndjson, `
{"op": "put", "key": "/v1/products/1", "content_type": "text/plain", "body": "a", "ttl": "1m", "tags": ["x"]}
{"op": "put", "key": "/v1/products/1", "content_type": "text/plain", "body_base64": "YmI="}
{"op": "delete", "key": "/v1/products/1"}
{"op": "put", "key": "/v1/products/1", "content_type": "text/plain", "body": "c", "if_absent": true}
{"op": "put", "key": "/v1/products/1", "content_type": "text/plain", "body": "d", "if_absent": true}
{"op": "put", "key": "/v1/products/1", "content_type": "text/plain", "body": "e", "if_version": 2}
{"op": "put", "key": "/v1/prices/1", "content_type": "text/plain", "body": "f"}
{"op": "put", "key": "/v1/products/../prices/1", "content_type": "text/plain"}
{"op": "drop", "key": "/v1/products/1"}
{"op": "delete", "key": "/v1/products/1", "body": "x"}
{"op": "put", "key": "/v1/products/2", "kind": "x"}
not JSON
{"op": "put", "key": "/v1/products/4", "content_type": "text/plain", "ttl": "0s"}
{"op": "put", "key": "/v1/products/4", "content_type": "text/plain", "ttl": ""}
{"op": "put", "key": "/v1/products/4", "content_type": "text/plain", "if_version": 0}
{"op": "put", "key": "/v1/products/3", "content_type": "text/plain", "status": 302, "headers": [{"name": "Location", "value": "/b"}]}`)
	if got.status != 207 || got.header.Get("Content-Type") != "application/x-ndjson" {
		t.Fatalf("%d %s", got.status, got.body)
	}
	var statuses, versions []string
	for line := range strings.Lines(got.body) {
		var r lineResult
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		statuses, versions = append(statuses, fmt.Sprint(r.Status)), append(versions, fmt.Sprint(r.Version))
	}
	const want = "200 200 200 200 412 412 403 400 400 400 400 400 400 400 400 200"
	if got := strings.Join(statuses, " "); got != want {
		t.Errorf("statuses %s, want %s", got, want)
	}
	if got, want := strings.Join(versions, " "), "1 2 3 4 0 0 0 0 0 0 0 0 0 0 0 1"; got != want {
		t.Errorf("versions %s, want %s", got, want)
	}
	var many strings.Builder
	for i := range maxLines {
		fmt.Fprintf(&many, "{\"op\":\"delete\",\"key\":\"/v1/products/m/%d\"}\n", i)
	}
	if got := s.do(t, "POST", "/v1/batch", ndjson, many.String()); got.status != 200 ||
		strings.Count(got.body, `"status":200`) != maxLines {
		t.Errorf("%d lines: %d, %d written", maxLines, got.status, strings.Count(got.body, `"status":200`))
	}
	got = s.do(t, "POST", "/v1/batch", ndjson, many.String()+"{}\n")
	const over = `{"status":413,"detail":"a batch has at most 10000 lines"}` + "\n"
	if got.status != 207 || !strings.HasSuffix(got.body, over) {
		t.Errorf("a line more: %d …%s", got.status, got.body[max(len(got.body)-200, 0):])
	}
	if got := s.do(t, "POST", "/v1/batch", ndjson, strings.Repeat("x", maxLine+1)); got.status != 413 {
		t.Errorf("a long line: %d", got.status)
	}
	if got := s.do(t, "POST", "/v1/batch", shop, "{}"); got.status != 415 {
		t.Errorf("another content type: %d", got.status)
	}
}

// TestRawPath: the key is the path as sent, also with characters that URLs should have escaped.
func TestRawPath(t *testing.T) {
	s := start(t)
	for _, path := range []string{"/v1/products/a|b", `/v1/products/"^{}<>` + "`", "/v1/products/%3fA|%C3%A9"} {
		r, err := http.NewRequestWithContext(t.Context(), "PUT", "http://"+s.address, strings.NewReader("x"))
		require.NoError(t, err)
		r.URL.Opaque = "/v1/objects" + path + "?a=|"
		r.Header = http.Header{"Content-Type": {"a"}, "Authorization": {shop["Authorization"]}}
		got, err := new(http.Transport).RoundTrip(r)
		require.NoError(t, err)
		got.Body.Close()
		if o, err := s.p.Get(t.Context(), path+"?a=|"); got.StatusCode != 201 || err != nil {
			t.Errorf("%s: %d, then %s, %v", path, got.StatusCode, o.Key, err)
		}
	}
}

// TestPrefixesRate: a team may make only a few of the purges that make sidecars look at all objects.
func TestPrefixesRate(t *testing.T) {
	s := start(t)
	// No other purge is earned while the test runs.
	s.teams.findTeam(tokenOf("hosts")).purges = rate.NewLimiter(rate.Every(time.Hour), prefixesBurst)
	for i := range prefixesBurst + 1 {
		got := s.do(t, "POST", "/v1/purge", hosts, `{"all": true, "soft": true, "virtual_host": "fleet"}`)
		if want := map[bool]int{true: 200, false: 429}[i < prefixesBurst]; got.status != want ||
			(want == 429) != (got.header.Get("Retry-After") == "1") {
			t.Errorf("purge %d: %d %v, want %d", i, got.status, got.header, want)
		}
	}
	if got := s.do(t, "POST", "/v1/purge", hosts, `{"tag": "a", "virtual_host": "fleet"}`); got.status != 200 {
		t.Errorf("by tag: %d", got.status)
	}
	if got := s.do(t, "POST", "/v1/purge", shop, `{"prefix": "/v1/products/"}`); got.status != 200 {
		t.Errorf("another team: %d", got.status)
	}
}

// TestBatchLeavesRoom: while a batch takes the team's rate, its other writes go on.
func TestBatchLeavesRoom(t *testing.T) {
	s := start(t)
	team := s.teams.findTeam(tokenOf("shop"))
	team.Rate, team.limiter = 100, rate.NewLimiter(100, 100)
	body, lines := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+s.address+"/v1/batch", body)
	require.NoError(t, err)
	r.Header = http.Header{"Content-Type": {"application/x-ndjson"}, "Authorization": {shop["Authorization"]}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if got, err := new(http.Transport).RoundTrip(r); err != nil || got.StatusCode != 200 {
			t.Errorf("batch: %v, %v", got, err)
		}
	}()
	enough := make(chan struct{})
	go func() { // always more than the rate allows
		defer lines.Close()
		const line = `{"op":"delete","key":"/v1/products/1"}` + "\n"
		for more := 300; ; more = 15 {
			if _, err := io.WriteString(lines, strings.Repeat(line, more)); err != nil {
				return
			}
			select {
			case <-enough:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	await.Until(t, "the batch to take the burst", func() bool { return team.limiter.Tokens() < 50 })
	written := 0
	await.Until(t, "five other writes during the batch", func() bool {
		if s.do(t, "DELETE", "/v1/objects/v1/products/2", shop, "").status == 200 {
			written++
		}
		return written == 5
	})
	select {
	case <-done:
		t.Error("the batch ended before the other writes")
	default:
	}
	close(enough)
	<-done
}

// TestTokenEndsDuringBatch: lines that come after a token was removed are not written.
func TestTokenEndsDuringBatch(t *testing.T) {
	s := start(t)
	body, lines := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+s.address+"/v1/batch", body)
	require.NoError(t, err)
	r.Header = http.Header{"Content-Type": {"application/x-ndjson"}, "Authorization": {slow["Authorization"]}}
	go func() {
		line := `{"op": "put", "key": "/v1/slow/%d", "content_type": "a"}` + "\n"
		fmt.Fprintf(lines, line, 1)
		for deadline := time.Now().Add(await.Deadline); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if _, err := s.p.Get(t.Context(), "/v1/slow/1"); err == nil {
				break
			}
		}
		if err := os.WriteFile(s.teams.file, []byte("teams: []"), 0o600); err != nil {
			t.Error(err)
		}
		if err := s.teams.readFile(); err != nil {
			t.Error(err)
		}
		fmt.Fprintf(lines, line, 2)
		lines.Close()
	}()
	got, err := s.http.Do(r)
	require.NoError(t, err)
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	if want := `"status":401,"detail":"the token was removed; the rest was not written"}` + "\n"; err != nil ||
		got.StatusCode != 207 || strings.Count(string(text), "\n") != 2 || !strings.HasSuffix(string(text), want) {
		t.Errorf("%d %q, %v", got.StatusCode, text, err)
	}
	if _, err := s.p.Get(t.Context(), "/v1/slow/2"); err == nil {
		t.Error("written without a token")
	}
}

// TestLargeLines: neither memory, answer nor log grows with large values of a batch.
func TestLargeLines(t *testing.T) {
	s := start(t)
	large := strings.Repeat("9", maxLine/2)
	var body strings.Builder
	lines := []string{
		`{"op": "put", "content_type": "a", "key": "/v1/products/LARGE"}`, `{"op": "delete", "key": "/v1/products/LARGE"}`,
		`{"op": "put", "key": "/v1/prices/LARGE"}`, `{"op": "LARGE"}`, `{"LARGE": 1}`, `{"version": LARGE}`,
		`{"op": "put", "key": "/v1/products/1", "content_type": "LARGE\u0000"}`,
		`{"op": "put", "key": "/v1/products/1", "content_type": "a", "etag": "LARGE"}`,
		`{"op": "put", "key": "/v1/products/1", "content_type": "a", "ttl": "LARGE"}`,
		`{"op": "put", "key": "/v1/products/1", "content_type": "a", "tags": ["LARGE"]}`,
		`{"op": "put", "key": "/v1/products/1", "content_type": "a", "headers": [{"name": "LARGE", "value": "LARGE"}]}`,
	}
	for _, line := range lines {
		body.WriteString(strings.ReplaceAll(line, "LARGE", large[:(maxLine/2-200)/strings.Count(line, "LARGE")]) + "\n")
	}
	ndjson := shop.with(headers{"Content-Type": "application/x-ndjson"})
	got := s.do(t, "POST", "/v1/batch", ndjson, body.String())
	if n := strings.Count(got.body, `"status":400`); got.status != 207 || n != len(lines) {
		t.Errorf("%d, %d refused, want %d", got.status, n, len(lines))
	}
	if len(got.body) > 1000*len(lines) || len(s.log.String()) > 1000*len(lines) {
		t.Errorf("%d bytes of answer, %d of log", len(got.body), len(s.log.String()))
	}
	one := &call{s: s.server, team: s.teams.findTeam(tokenOf("shop")), r: &http.Request{}}
	part, more, p := one.readPart(t.Context(), bufio.NewReader(strings.NewReader(body.String())), 0)
	if len(part) > 2 || !more || p != nil {
		t.Errorf("%d lines at once, %v, %v", len(part), more, p)
	}
}

// TestLimits: large bodies, and more writes and requests than a team may.
func TestLimits(t *testing.T) {
	s := start(t)
	const target = "/v1/objects/v1/products/1"
	if got := s.do(t, "PUT", target, shop.with(text), strings.Repeat("x", limits.MaxBody)); got.status != 201 {
		t.Errorf("the largest body: %d", got.status)
	}
	if got := s.do(t, "PUT", target, shop.with(text), strings.Repeat("x", limits.MaxBody+1)); got.status != 413 {
		t.Errorf("a larger body: %d", got.status)
	}
	if got := s.do(t, "PUT", "/v1/objects/v1/slow/1", slow.with(text), "x"); got.status != 201 {
		t.Errorf("the first write of a slow team: %d", got.status)
	}
	if got := s.do(t, "PUT", "/v1/objects/v1/slow/2", slow.with(text), "x"); got.status != 429 ||
		got.header.Get("Retry-After") != "100" {
		t.Errorf("the second: %d, Retry-After %q", got.status, got.header.Get("Retry-After"))
	}
	// Requests whose bodies don't come.
	var conns []net.Conn
	for range maxRequests {
		conn, err := net.Dial("tcp", s.address)
		require.NoError(t, err)
		defer conn.Close()
		fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: a\r\nAuthorization: %s\r\nContent-Type: a\r\nContent-Length: 5\r\n\r\nx",
			target, shop["Authorization"])
		conns = append(conns, conn)
	}
	running := s.teams.findTeam(tokenOf("shop")).running
	await.Until(t, "the requests to run", func() bool { return len(running) == maxRequests })
	if got := s.do(t, "GET", target, shop, ""); got.status != 429 || got.header.Get("Retry-After") != "1" {
		t.Errorf("a request more: %d, Retry-After %q", got.status, got.header.Get("Retry-After"))
	}
	fleet := hosts.with(headers{"Gatehouse-Virtual-Host": "fleet"})
	if got := s.do(t, "GET", "/v1/objects/a", fleet, ""); got.status != 404 {
		t.Errorf("another team meanwhile: %d", got.status)
	}
	for _, conn := range conns {
		conn.Close()
	}
	await.Until(t, "places", func() bool { return s.do(t, "GET", target, shop, "").status == 200 })
	// Headers that don't come end the connection.
	conn, err := net.Dial("tcp", s.address)
	require.NoError(t, err)
	defer conn.Close()
	fmt.Fprint(conn, "PUT / HTTP/1.1\r\nHost: a\r\n")
	conn.SetReadDeadline(time.Now().Add(3 * headerTimeout))
	if _, err := io.ReadAll(conn); err != nil {
		t.Errorf("after slow headers: %v, want the end", err)
	}
	s.http.Transport = s.http.Transport.(*described).next // Go's server answers, without a problem
	long := shop.with(headers{"X": strings.Repeat("x", maxHeader+8192)})
	if got := s.do(t, "GET", "/v1/objects/a", long, ""); got.status != 431 && got.status != 405 {
		t.Errorf("large headers: %d", got.status)
	}
}

func counted(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	require.NoError(t, c.Write(&m))
	return m.GetCounter().GetValue()
}

// TestNothingIsFree: every request counts for the team's rate and in the metrics, whether or not the request succeeds.
func TestNothingIsFree(t *testing.T) {
	s := start(t)
	const target = "/v1/objects/v1/products/1"
	for _, tt := range []struct {
		method, target string
		h              headers
		body           string
		status         int
		cost           float64
	}{
		{"PUT", target, text, "x", 201, 1},
		{"GET", target, nil, "", 200, 1},
		{"HEAD", target, nil, "", 200, 1},
		{"GET", target, headers{"If-None-Match": "*"}, "", 304, 1},
		{"GET", "/v1/objects/v1/products/2", nil, "", 404, 1},
		{"GET", "/v1/objects/v1/prices/1", nil, "", 403, 1},
		{"PUT", "/v1/objects/v1/prices/1", text, "x", 403, 1},
		{"PUT", target, headers{"Gatehouse-Vhost": "a"}, "x", 400, 1},
		{"PUT", target, headers{"Gatehouse-Host": "!"}, "x", 400, 1},
		{"PUT", target, text, strings.Repeat("x", limits.MaxBody+1), 413, 1},
		{"POST", target, nil, "", 405, 1},
		{"GET", "/v1/purge", nil, "", 405, 1},
		{"POST", "/v1/purge", nil, `{"tag": "other"}`, 403, 1},
		{"POST", "/v1/purge", nil, `{`, 400, 1},
		{"GET", "/v1/nothing", nil, "", 404, 1},
		{"GET", "/v1/batch", nil, "", 405, 1},
		{"POST", "/v1/batch", nil, "", 415, 1},
		{"POST", "/v1/batch", headers{"Content-Type": "application/x-ndjson"}, "{}\n{}\n", 207, 2},
	} {
		team := s.teams.findTeam(tokenOf("shop"))
		team.limiter = rate.NewLimiter(rate.Every(time.Hour), 100)
		got := s.do(t, tt.method, tt.target, shop.with(tt.h), tt.body)
		if cost := 100 - team.limiter.Tokens(); got.status != tt.status || cost < tt.cost-.1 || cost > tt.cost {
			t.Errorf("%s %s: %d, costs %.1f; want %d and %v", tt.method, tt.target, got.status, cost, tt.status, tt.cost)
		}
	}
	for labels, want := range map[string]float64{"get ok": 3, "get refused": 2, "put refused": 6, "put ok": 1} {
		operation, result, _ := strings.Cut(labels, " ")
		if got := counted(t, s.metrics.Records.WithLabelValues(operation, result)); got != want {
			t.Errorf("records, %s: %v, want %v", labels, got, want)
		}
	}
	s.server.anonymous.SetLimit(rate.Every(time.Hour)) // no other request is earned while the test runs
	for i := range anonymousBurst + 1 {
		h, target := headers{"Authorization": "Bearer wrong"}, target
		if i%2 == 0 {
			h, target = nil, "/openapi.json"
		}
		want := map[int]int{0: 200, 1: 401}[i%2]
		if i == anonymousBurst {
			want = 429
		}
		if got := s.do(t, "GET", target, h, ""); got.status != want {
			t.Fatalf("stranger %d: %d, want %d", i, got.status, want)
		}
	}
	if got := s.do(t, "GET", target, shop, ""); got.status != 200 {
		t.Errorf("a team after many strangers: %d", got.status)
	}
	if got := counted(t, s.metrics.Requests.WithLabelValues("other", "unauthorized")); got < anonymousBurst/2 {
		t.Errorf("%v are counted as unauthorized, want %d at least", got, anonymousBurst/2)
	}
}

// TestBytes: a team that has used up its bytes, published or read, waits or is refused; a second team isn't.
func TestBytes(t *testing.T) {
	s := start(t)
	team := s.teams.findTeam(tokenOf("shop"))
	const target, large = "/v1/objects/v1/products/1", 1 << 20
	body := strings.Repeat("x", large)
	ndjson := shop.with(headers{"Content-Type": "application/x-ndjson"})
	reset := func() { team.Bytes, team.volume = 1000, rate.NewLimiter(1000, minBurstBytes) }
	reset()
	for n, write := range []func() int{
		func() int { return s.do(t, "PUT", target, shop.with(text), body).status },
		func() int { return s.do(t, "GET", target, shop, "").status },
		func() int {
			return s.do(t, "PUT", target, shop.with(text).with(headers{"If-Match": `"x"`}), "").status - 212
		},
	} {
		reset()
		for i := range 6 {
			got := write()
			if got/100 != 2 {
				t.Errorf("%d, request %d: %d", n, i, got)
			}
			debt := -team.volume.Tokens()
			if debt > 0 {
				break
			}
		}
		if debt := -team.volume.Tokens(); debt <= 0 || debt > 2*large {
			t.Errorf("%d: the debt is %.0f", n, debt)
		}
		if got := s.do(t, "GET", target, shop, ""); got.status != 429 || got.header.Get("Retry-After") == "" {
			t.Errorf("%d: %d %v, want 429 and Retry-After", n, got.status, got.header)
		}
	}
	if got := s.do(t, "PUT", "/v1/objects/a", hosts.with(text).with(headers{"Gatehouse-Virtual-Host": "fleet"}),
		body); got.status != 201 {
		t.Errorf("another team: %d", got.status)
	}
	// A batch waits until the debt is paid.
	team.Bytes, team.volume = 1<<20, rate.NewLimiter(1<<20, minBurstBytes)
	begin := time.Now()
	team.volume.ReserveN(begin, minBurstBytes)
	team.volume.ReserveN(begin, 200<<10)
	if got := s.do(t, "POST", "/v1/batch", ndjson, `{"op": "delete", "key": "/v1/products/1"}`); got.status != 200 {
		t.Errorf("a batch after a debt: %d %s", got.status, got.body)
	} else if took := time.Since(begin); took < 100*time.Millisecond {
		t.Errorf("a batch waited %v for a debt of 0.2 s", took)
	}
	for direction, least := range map[string]float64{"published": 5 * large, "read": 8 * large} {
		if got := counted(t, s.metrics.Bytes.WithLabelValues(direction)); got < least {
			t.Errorf("%v bytes are counted as %s, want %v at least", got, direction, least)
		}
	}
}

// TestSpelledFields: a header that a program could read as Gatehouse's is refused in each spelling.
func TestSpelledFields(t *testing.T) {
	s := start(t)
	send := func(method, target, name string) int {
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.address+target, strings.NewReader("{}"))
		require.NoError(t, err)
		r.Header = http.Header{"Authorization": {shop["Authorization"]}, "Content-Type": {"application/x-ndjson"},
			name: {"1"}}
		got, err := s.http.Do(r)
		require.NoError(t, err)
		got.Body.Close()
		return got.StatusCode
	}
	n := 0
	for _, field := range append([]string{"Gatehouse-Header-X-A", "Gatehouse-Header-Set-Cookie", "Gatehouse-Other"},
		putFields...) {
		for _, mark := range "!#$%&'*+.^_`|~" {
			for _, name := range []string{strings.ReplaceAll(field, "-", string(mark)),
				strings.Replace(field, "-", string(mark), 1)} {
				for _, name := range []string{name, strings.ToLower(name), strings.ToUpper(name)} {
					n++
					if got := send("PUT", "/v1/objects/v1/products/1", name); got != 400 {
						t.Errorf("PUT with %s: %d, want 400", name, got)
					}
				}
			}
		}
	}
	t.Logf("%d spellings", n)
	for _, target := range []string{"/v1/purge", "/v1/batch"} { // in which the body says all
		if got := send("POST", target, "gatehouse-virtual-host"); got != 400 {
			t.Errorf("POST %s: %d, want 400", target, got)
		}
	}
	for entry := range s.p.List(t.Context(), "") {
		t.Errorf("%s was written", entry.Key)
	}
}

// TestRedis: a full Redis, an unreachable Redis, and a Redis with a different number of shards.
func TestRedis(t *testing.T) {
	s := start(t)
	const target = "/v1/objects/v1/products/1"
	put := func() answer { return s.do(t, "PUT", target, shop.with(text), strings.Repeat("x", 1000)) }
	if got := put(); got.status != 201 {
		t.Fatalf("put: %d", got.status)
	}
	require.NoError(t, s.client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	if got := put(); got.status != 507 || !strings.Contains(got.body, "maxmemory") {
		t.Errorf("full: %d %s", got.status, got.body)
	}
	if got := s.do(t, "DELETE", target, shop, ""); got.status != 200 {
		t.Errorf("delete in a full Redis: %d %s", got.status, got.body)
	}
	s.redis.Kill()
	batch := func() answer {
		line := `{"op": "put", "key": "/v1/products/1", "content_type": "a"}` + "\n"
		return s.do(t, "POST", "/v1/batch", shop.with(headers{"Content-Type": "application/x-ndjson"}),
			strings.Repeat(line, partLines+1))
	}
	for what, got := range map[string]answer{"put": put(), "get": s.do(t, "GET", target, shop, ""),
		"purge": s.do(t, "POST", "/v1/purge", shop, `{"tag": "sale"}`)} {
		if got.status != 503 || got.header.Get("Retry-After") == "" || strings.Contains(got.body, s.redis.Port()) {
			t.Errorf("%s without Redis: %d %s", what, got.status, got.body)
		}
	}
	if got := batch(); got.status != 207 || strings.Count(got.body, `"status":503`) != partLines+1 ||
		!strings.Contains(got.body, "the rest was not read") {
		t.Errorf("a batch without Redis: %d, %d lines", got.status, strings.Count(got.body, "\n"))
	}
	if !strings.Contains(s.log.String(), `msg="write failed" team=shop operation=put key=/v1/products/1`) {
		t.Error("the log has no failure")
	}
	s.redis.Restart()
	await.Until(t, "writes again", func() bool { return put().status == 201 })
	if got := batch(); got.status != 200 {
		t.Errorf("a batch: %d", got.status)
	}
}

// TestTeams: the file is read again after a change; a bad file changes nothing.
func TestTeams(t *testing.T) {
	s := start(t)
	s.teams.interval = time.Millisecond
	go s.teams.Run(t.Context())
	get := func() int { return s.do(t, "GET", "/v1/objects/v1/products/1", shop, "").status }
	write := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(s.teams.file, []byte(text), 0o600))
	}
	write("teams: [{name: shop}]")
	await.Until(t, "an error", func() bool { return strings.Contains(s.log.String(), "tokens: none") })
	if get() != 404 {
		t.Error("a bad file ended the teams of before")
	}
	write("teams:\n- {name: new, tokens: [" + sum("new") + "], prefixes: [/]}\n")
	await.Until(t, "the old token to end", func() bool { return get() == 401 })
	if got := s.do(t, "GET", "/v1/objects/a", headers{"Authorization": "bearer new"}, ""); got.status != 404 {
		t.Errorf("the new token: %d", got.status)
	}
	for text, want := range map[string]string{
		"teams: [{name: A, tokens: [x], prefixes: [/]}]":                                  "name: want",
		"teams: [{name: a, tokens: [" + tokenOf("a") + "], prefixes: [/]}]":               "want the SHA-256",
		"teams: [{name: a, tokens: [" + sum("a") + "]}]":                                  "prefixes: none",
		"teams: [{name: a, tokens: [" + sum("a") + "], prefixes: [/a]}]":                  `prefixes: "/a"`,
		"teams: [{name: a, tokens: [" + sum("a") + "], prefixes: [/a/../b/]}]":            "prefixes:",
		"teams: [{name: a, tokens: [" + sum("a") + "], prefixes: ['//a:host/']}]":         "prefixes:",
		"teams: [{name: a, tokens: [" + sum("a") + "], prefixes: ['@d/']}]":               "prefixes:",
		"teams: [{name: a, tokens: [" + sum("a") + "], prefixes: ['#tag']}]":              "prefixes:",
		"teams: [{name: a, tokens: [" + sum("a") + "], prefixes: [/], tags: ['*']}]":      "tags:",
		"teams: [{name: a, tokens: [" + sum("a") + "], prefixes: [/], rate: -1}]":         "rate:",
		"teams: [{name: a, tokens: [" + sum("a") + "], prefixes: [/], rate: .nan}]":       "rate:",
		"teams: [{name: a, tokens: [" + sum("a") + "], prefixes: [/], bytes: -1}]":        "bytes:",
		"teams: [{name: a, tokens: [" + sum("a") + ", " + sum("a") + "], prefixes: [/]}]": "comes twice",
		"teams: [{name: a, token: x}]":                                                    "not found",
		"teams: [~]":                                                                      "team 1: empty",
		"":                                                                                "teams: missing",
	} {
		if _, err := parseTeams([]byte(text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if all, err := parseTeams([]byte("teams: []"), nil); err != nil || len(all) != 0 {
		t.Errorf("no teams: %v", err)
	}
}

// TestDeleteVersion: a late delete with a version of its own deletes nothing newer, and a misspelt header never deletes
// another object.
func TestDeleteVersion(t *testing.T) {
	s := start(t)
	const target = "/v1/objects/v1/products/1"
	put := s.do(t, "PUT", target, shop.with(text).with(headers{"Gatehouse-Version": "6"}), "x")
	for _, tt := range []struct {
		method string
		more   headers
		want   int
	}{
		{"DELETE", headers{"Gatehouse-Version": "5"}, 409},
		{"PURGE", headers{"Gatehouse-Version": "6"}, 409},
		{"DELETE", headers{"Gatehouse-Version": "x"}, 400},
		{"DELETE", headers{"Gatehouse-Version": "7", "If-Match": put.header.Get("ETag")}, 400},
		{"DELETE", headers{"Gatehouse-Vhost": "fleet"}, 400},
		{"GET", headers{"Gatehouse-Vhost": "fleet"}, 400},
		{"GET", nil, 200},
		{"DELETE", headers{"Gatehouse-Version": "8"}, 200},
		{"GET", nil, 404},
	} {
		got := s.do(t, tt.method, target, shop.with(tt.more), "")
		if got.status != tt.want {
			t.Errorf("%s %v: %d %s, want %d", tt.method, tt.more, got.status, got.body, tt.want)
		}
		if tt.method == "DELETE" && got.status == 200 && !strings.Contains(got.body, `"version":8`) {
			t.Errorf("deleted: %s", got.body)
		}
	}
}

// TestFields: an empty or repeated field is refused: an object meant for a single device must not be for all devices.
func TestFields(t *testing.T) {
	s := start(t)
	for name, value := range map[string]string{
		"Gatehouse-Device": "d1", "Gatehouse-Etag": `"a"`, "Gatehouse-Host": "a.example", "Gatehouse-Language": "de",
		"Gatehouse-Status": "404", "Gatehouse-Tags": "", "Gatehouse-Ttl": "1m", "Gatehouse-Version": "1",
		"Gatehouse-Virtual-Host": "",
	} {
		for _, values := range [][]string{{""}, {value, value}} {
			r, err := http.NewRequestWithContext(t.Context(), "PUT", "http://"+s.address+"/v1/objects/v1/products/1",
				http.NoBody)
			require.NoError(t, err)
			r.Header = http.Header{"Authorization": {shop["Authorization"]}, "Content-Type": {"a"}, name: values}
			got, err := s.http.Do(r)
			require.NoError(t, err)
			got.Body.Close()
			if got.StatusCode != 400 {
				t.Errorf("%s %q: %d, want 400", name, values, got.StatusCode)
			}
		}
	}
	for entry := range s.p.List(t.Context(), "") {
		t.Errorf("%s was written", entry.Key)
	}
}

// TestBatchUTF8: a body that isn't UTF-8, or has half of a surrogate pair, is refused, not changed.
func TestBatchUTF8(t *testing.T) {
	s := start(t)
	const line = `{"op": "put", "key": "/v1/products/%d", "content_type": "text/plain", "body": "caf%s"}` + "\n"
	got := s.do(t, "POST", "/v1/batch", shop.with(headers{"Content-Type": "application/x-ndjson"}),
		fmt.Sprintf(line+line+line+line, 1, "\xe9", 2, "é", 3, `\ud83d`, 4, `\ud83d\ude00`))
	if got.status != 207 || strings.Count(got.body, "body_base64") != 2 {
		t.Errorf("%d %s", got.status, got.body)
	}
	for i, want := range []answer{
		{status: 404}, {status: 200, body: "café"}, {status: 404}, {status: 200, body: "caf😀"},
	} {
		got := s.do(t, "GET", fmt.Sprint("/v1/objects/v1/products/", i+1), shop, "")
		if got.status != want.status || want.status == 200 && got.body != want.body {
			t.Errorf("line %d: %d %q", i+1, got.status, got.body)
		}
	}
}

// TestGetConditions: a GET has its conditions (RFC 9110, sections 13.1.1 and 13.1.2), also of several header lines.
func TestGetConditions(t *testing.T) {
	s := start(t)
	const target = "/v1/objects/v1/products/1"
	tag := s.do(t, "PUT", target, shop.with(text), "x").header.Get("ETag")
	for _, tt := range []struct {
		name   string
		values []string
		want   int
	}{
		{"If-Match", []string{`"no"`}, 412}, {"If-Match", []string{`"no"`, tag}, 200}, {"If-Match", []string{"*"}, 200},
		{"If-Match", []string{"W/" + tag}, 412}, {"If-None-Match", []string{`"no"`, tag}, 304},
		{"If-None-Match", []string{`"no"`}, 200},
	} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+s.address+target, http.NoBody)
		require.NoError(t, err)
		r.Header = http.Header{"Authorization": {shop["Authorization"]}, tt.name: tt.values}
		got, err := s.http.Do(r)
		require.NoError(t, err)
		got.Body.Close()
		if got.StatusCode != tt.want {
			t.Errorf("%s %q: %d, want %d", tt.name, tt.values, got.StatusCode, tt.want)
		}
	}
}
