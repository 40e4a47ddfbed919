// Package conformance checks the whole stack, with a real Envoy and a real Redis, against the specifications of HTTP:
// RFC 9110 (semantics), 9111 (caching), 9112 (HTTP/1), 9113 (HTTP/2) and 9211 (Cache-Status). The package writes
// requests and parses answers octet by octet, by the grammar. Each case names its section, and is sent in every version
// of HTTP that can express the request, by GET and by HEAD.
package conformance

import (
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/redisurl"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// object is an object that a test has published.
type object struct {
	publish.Object
	private bool      // needs a credential
	coded   bool      // is stored in other codings, too
	until   time.Time // when it expires, zero if never
}

type server struct {
	*stack.Stack
	address   string // HOST:PORT
	address2  string // for HTTP/2 with prior knowledge
	publisher *publish.Publisher
	objects   map[string]object // by entity-tag
}

// start runs a stack with these rules until the test ends.
func start(t *testing.T, rules string, options ...func(*stack.Options)) *server {
	t.Helper()
	redisServer, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("%v: these tests run against a real Redis; see scripts/install-packages.sh", err)
	}
	origin := httptest.NewServer(http.HandlerFunc(serveOrigin))
	t.Cleanup(origin.Close)
	opts := stack.Options{
		Dir: t.TempDir(), RedisServerPath: redisServer, Rules: rules, ReadyTimeout: time.Minute,
		ModifyConfig: func(c *stack.Config) error {
			return c.SetAddress(strings.TrimPrefix(origin.URL, "http://"), "static_resources", "clusters", "upstream",
				"load_assignment", "endpoints", "0", "lb_endpoints", "0", "endpoint")
		},
		ModifyNginx: func(config string) string {
			config = regexp.MustCompile(`server 127[.0-9:]*;`).ReplaceAllString(config,
				"server "+strings.TrimPrefix(origin.URL, "http://")+";")
			return alsoHTTP2(config)
		},
	}
	for _, option := range options {
		option(&opts)
	}
	s, err := stack.Start(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			name := string(s.EdgeKind()) + ".log"
			text, _ := os.ReadFile(filepath.Join(s.Dir(), name))
			t.Logf("the end of %s:\n%s", name, text[max(0, len(text)-4000):])
		}
	})
	client, err := redisurl.Connect(s.RedisURL())
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	address := strings.TrimPrefix(s.EdgeURL(), "http://")
	return &server{s, address, addressOfHTTP2(address), publish.New(client), map[string]object{}}
}

// put publishes an object, and stores the object by entity-tag.
func (s *server) put(t *testing.T, o object) {
	t.Helper()
	if _, err := s.publisher.Put(t.Context(), o.Object); err != nil {
		t.Fatal(err)
	}
	if o.TTL != 0 {
		o.until = time.Now().Add(o.TTL)
	}
	s.objects[o.ETag] = o
}

// exchange sends q in a version of HTTP, on its own connection, and returns the answer.
func (s *server) exchange(version string, q request) (*response, error) {
	if version == "HTTP/2" {
		return exchangeHTTP2(s.address2, q)
	}
	return exchangeHTTP1(s.address, version, q)
}

// await waits until the request gets an answer that ok accepts.
func (s *server) await(t *testing.T, text string, ok func(*response) bool) *response {
	t.Helper()
	for begin := time.Now(); ; {
		r, err := s.exchange("HTTP/1.1", parseRequest(text))
		if err == nil && ok(r) {
			return r
		}
		if time.Since(begin) > patience {
			t.Fatalf("%q: not answered as expected within %s: %v %v", text, patience, r, err)
		}
		time.Sleep(time.Millisecond) // yields the processor; nothing depends on the duration
	}
}

// serveOrigin implements an origin server that marks its answers and supports everything that the tables need.
func serveOrigin(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Upstream", "yes")
	name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	switch name {
	case "file":
		w.Header().Set("ETag", `"upstream"`)
		http.ServeContent(w, r, "file.txt", time.Unix(1735689600, 0), strings.NewReader("0123456789"))
		return
	case "aged":
		w.Header().Set("Age", "100")
		w.Header().Set("Cache-Control", "public, max-age=200")
	case "cached":
		w.Header().Set("Cache-Status", "origin; hit; ttl=10")
	case "trailers":
		w.Header().Set("Trailer", "X-Sum")
		_, _ = w.Write([]byte("with trailers"))
		w.Header().Set("X-Sum", "42")
		return
	case "hints":
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
	case "undated":
		w.Header()["Date"] = nil
	case "gone":
		w.WriteHeader(http.StatusGone)
		return
	case "nothing":
		w.WriteHeader(http.StatusNoContent)
		return
	case "unavailable":
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case "sentinel":
		_, _ = io.WriteString(w, "sentinel")
		return
	case "head-with-body":
		bodyAfterHead(w, r)
		return
	case "varied":
		w.Header().Set("Vary", "Origin")
	}
	body := make([]byte, 0, 64)
	buffer := make([]byte, 4096)
	for {
		n, err := r.Body.Read(buffer)
		body = append(body, buffer[:n]...)
		if err != nil {
			break
		}
	}
	w.Header().Set("Content-Type", "text/plain")
	_, _ = fmt.Fprintf(w, "%s %s %s", r.Method, r.RequestURI, body)
	for name, values := range r.Trailer {
		_, _ = fmt.Fprintf(w, " %s=%s", name, values)
	}
}

const rules = `
sidecar: {cluster: gatehouse-sidecar, timeout: 2s}
credentials: {id_header: x-device-id, secret_header: x-device-token}
max_staleness: 10s
rules:
- {match: {prefix: /p/}, cache: {query: [lang]}}
- {match: {prefix: /q/}, cache: {}}
- {match: {prefix: /f/}, cache: {on_miss: fetch}}
- {match: {prefix: /l/}, cache: {languages: [de, en-GB, sr-Latn]}}
- {match: {path: /w, methods: [POST]}, auth: {permissions: [write]}}
- {match: {prefix: /a/}, auth: {permissions: [read]}, cache: {}}
- {match: {prefix: /d/}, auth: {}, cache: {scope: device}}
`

// publishAll publishes the objects and devices that the tables need, and waits until the edge has all of them.
func (s *server) publishAll(t *testing.T) {
	t.Helper()
	for _, id := range []string{"late", "dev", "poor", "key"} { // late is not verified while there is a sidecar
		device := publish.Device{ID: id, Secret: "secret", Cost: 4}
		if id == "key" {
			device.Secret = "gh_KKKKKKKKKKKKKKKKKKKKKKKKKK_5255e654"
		}
		if id != "poor" {
			device.Permissions = []string{"read", "write"}
		}
		if _, err := s.publisher.PutDevice(t.Context(), device); err != nil {
			t.Fatal(err)
		}
	}
	s.publishAnswers(t)
	// The awaited object is last, because events arrive in order.
	text := `{"text":"` + strings.Repeat("the quick brown fox jumps over the lazy dog; ", 30) + `"}`
	for _, o := range []struct{ key, tag, body, kind string }{
		{"/p/42", "42", text, "application/json"}, {"/p/42?lang=de", "de", "deutsch", "text/plain"},
		{"/p/plain", "plain", "plain", "image/png"}, {"/p/empty", "empty", "", "text/plain"},
		{"/p/AbC", "AbC", "AbC", `text/plain; charset="utf-8"`}, {"/p/comma", "a,b", "comma", "text/plain"},
		{"/p/star", "*", "star", "text/plain"}, {"/p/blank", "", "blank", "text/plain"},
		{"/p/weakish", "W/x", "weakish", "text/plain"}, {"/p/backslash", `a\`, "backslash", "text/plain"},
		{"/p/ttl", "ttl", "ttl", "text/plain"},
		{"/q/s", "q", "q", "text/plain"}, {"/q/s?a=1&b=2", "q-a1b2", "q-a1b2", "text/plain"},
		{"/q/s?x=2&x=1", "q-x2x1", "q-x2x1", "text/plain"}, {"/q/s?a", "q-a", "q-a", "text/plain"},
		{"/q/s?a=", "q-a=", "q-a=", "text/plain"}, {"/q/s?n=a+b", "q-plus", "q-plus", "text/plain"},
		{"/q/s?n=a%20b", "q-space", "q-space", "text/plain"}, {"/q/s?n=%C3%A9", "q-escaped", "q-escaped", "text/plain"},
		{"/q/s?n=a=b", "q-equals", "q-equals", "text/plain"}, {"/q/s?n=?", "q-question", "q-question", "text/plain"},
		{"/q/s?n=/../x", "q-dots", "q-dots", "text/plain"}, {"/q/%C3%A9", "path-escaped", "path-escaped", "text/plain"},
		{"/q/~me", "tilde", "tilde", "text/plain"}, {"/q/a:b@c!$'()*+,=", "signs", "signs", "text/plain"},
		{"/f/doc", "fetched", "fetched", "text/plain"}, {"/p/big", "big", bigBody(), "application/octet-stream"},
		{"/l/doc", "any", "any language", "text/plain"}, {"/l/doc#de", "l-de", "Deutsch", "text/plain"},
		{"/l/doc#en-gb", "l-gb", "British", "text/plain"}, {"/l/doc?a=1#sr-latn", "l-sr", "srpski", "text/plain"},
		{"/l/german#de", "l-only", "nur Deutsch", "text/plain"},
		{"/a/doc", "auth", text, "application/json"}, {"@dev/d/me", "own", "own", "text/plain"},
		{"/p/last", "last", "last", "text/plain"},
	} {
		object := object{
			Object:  publish.Object{Key: o.key, ETag: `"` + o.tag + `"`, Body: []byte(o.body), ContentType: o.kind},
			private: strings.HasPrefix(o.key, "/a/") || o.key[0] == '@',
			coded:   o.body == text,
		}
		if o.tag == "ttl" {
			object.TTL = time.Hour
		}
		s.put(t, object)
	}
	// The last object has its date when all have. The workers set the date within 200 ms of each other.
	dated := 0
	s.await(t, "GET /p/last", func(r *response) bool {
		if dated++; r.source() != "hit" || r.get("last-modified") == "" {
			dated = 0
		}
		return dated == 32
	})
	for _, id := range []string{"dev", "poor"} { // verified once, so that no case waits for it
		s.await(t, "GET /d/other\nx-device-id: "+id+"\nx-device-token: secret\nauthorization: Basic "+
			base64.StdEncoding.EncodeToString([]byte(id+":secret")), func(r *response) bool { return r.status == 200 })
	}
}

// tables are the cases of a healthy stack, by topic, and outages those of a stack with a failure.
var (
	tables = map[string][]testCase{
		"preconditions": preconditions, "negotiation": negotiation, "caching": caching, "keys": keys, "refusals": refusals,
		"ranges": ranges, "languages": spoken,
		"answers": answers,
	}
	outages = map[string][]testCase{"lately": lately, "not in step": notInStep, "no state": noState}
)

// TestConformance runs all tables against one stack.
func TestConformance(t *testing.T) {
	s := start(t, rules)
	s.publishAll(t)
	for topic, cases := range tables {
		t.Run(topic, func(t *testing.T) { runCases(t, s, cases, func(c testCase) string { return c.name }) })
	}
	t.Run("dates", func(t *testing.T) { runCases(t, s, s.dateCases(t), func(c testCase) string { return c.name }) })
	t.Run("messages", func(t *testing.T) { runCases(t, s, messages, func(m message) string { return m.name }) })
	t.Run("messages of HTTP/2", func(t *testing.T) {
		runCases(t, s, messages2, func(m message2) string { return m.name })
	})
	t.Run("connections", func(t *testing.T) { runCases(t, s, dialogues, func(d dialogue) string { return d.name }) })
	t.Run("another representation", func(t *testing.T) { s.checkRepresentations(t) })
	t.Run("a lifetime", func(t *testing.T) { s.checkLifetime(t) })
	t.Run("streams", func(t *testing.T) { checkStreams(t, s) })
	t.Run("pipelined hits", func(t *testing.T) { pipelinedHits(t, s) })
	t.Run("HEAD with a body", func(t *testing.T) { headWithBody(t, s) })
	t.Run("older clients", func(t *testing.T) { olderClients(t, s) })
	t.Run("without a sidecar", func(t *testing.T) { s.checkWithoutSidecar(t) })
}

func runCases[C interface{ run(*testing.T, *server) }](t *testing.T, s *server, cases []C, name func(C) string) {
	for _, c := range cases {
		t.Run(name(c), func(t *testing.T) { c.run(t, s) })
	}
}

// enough is the minimum number of cases.
const enough = 250

// TestCases: the tables have enough cases, each case names a section, and no two cases are the same. Each of nginx's
// answers belongs to a case, and differs from the case's answer.
func TestCases(t *testing.T) {
	section := regexp.MustCompile(
		`^(3986|4647|6265|6749|6750|7617|9110|9111|9112|9113|9211|9213) [1-9][0-9]*(\.[1-9][0-9]*)*$`)
	seen := map[string]bool{}
	total := 0
	differ := map[string]bool{} // names of cases to which nginx has another answer
	check := func(topic, of, name string, nginxDiffers bool) {
		total++
		differ[name] = differ[name] || nginxDiffers
		if key := topic + name; seen[key] || !section.MatchString(of) {
			t.Errorf("%s, %q, of RFC %q: a second one of this name, or no section", topic, name, of)
		} else {
			seen[key] = true
		}
	}
	for _, of := range []map[string][]testCase{tables, outages, {"basic": basic, "dates": datesOf(time.Now())}} {
		for topic, cases := range of {
			for _, c := range cases {
				nginx, found := nginxAnswers[c.name]
				check(topic, c.section, c.name, found && (nginx.status != c.status || nginx.from != c.from ||
					nginx.fields != c.fields))
			}
		}
	}
	for _, m := range messages {
		nginx, found := nginxStatuses[m.name]
		check("messages", m.section, m.name, found && !slices.Equal(nginx.statuses, m.statuses))
	}
	for _, m := range messages2 {
		nginx, found := nginxStatuses[m.name]
		check("messages of HTTP/2", m.section, m.name, found && !slices.Equal(nginx.statuses, m.statuses))
	}
	for _, d := range dialogues {
		nginx, found := nginxDialogues[d.name]
		check("connections", d.section, d.name, found &&
			(nginx.stays != d.stays || !slices.Equal(nginx.statuses, d.statuses)))
	}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(nginxAnswers)), slices.Collect(maps.Keys(nginxStatuses)),
		slices.Collect(maps.Keys(nginxDialogues))) {
		if !differ[name] {
			t.Errorf("%q: nginx answers no such case otherwise", name)
		}
	}
	if t.Logf("%d cases, %d otherwise on nginx", total, len(nginxAnswers)+len(nginxStatuses)+
		len(nginxDialogues)); total < enough {
		t.Errorf("got %d cases, want %d", total, enough)
	}
}
