package e2e

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/contract"
	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/redistest"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/clients/go/testbed/seed"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// notPublished are headers that a publisher must not set, by the specifications: fields of one connection (RFC 9110,
// sections 6.6.2, 7.6.1, and 11.7), fields that frame and describe the content (8.3, 8.4, 8.6, 8.8.3, 12.5.5, 14.3,
// 14.4), a cache's own (RFC 9111, section 5.1, RFC 9209, 9211), cookies (RFC 6265, 2965), commands to nginx and Envoy
// in front of the edge, and the edge's headers about devices.
var notPublished = strings.Fields(`
	Connection Keep-Alive Proxy-Connection TE Trailer Transfer-Encoding Upgrade
	Proxy-Authenticate Proxy-Authentication-Info
	Content-Type Content-Encoding Content-Length Content-Range ETag Vary Accept-Ranges Date
	Age Cache-Status Proxy-Status Set-Cookie Set-Cookie2
	X-Accel-Redirect X-Accel-Buffering X-Accel-Charset X-Accel-Expires X-Accel-Limit-Rate
	X-Envoy-Overloaded X-Envoy-Upstream-Service-Time X-Envoy-Immediate-Health-Check-Fail
	X-Gatehouse-Device X-Gatehouse-Permissions Gatehouse-Version
	E-Tag`) // another name of ETag for lua-nginx-module

// actOnOrigin are headers with which a page acts on the page's whole origin, from their specifications: RFC 6797, 7469,
// 7838, 8942, 9163, 9842, W3C's Clear Site Data, Service Workers, Reporting and Network Error Logging, FedCM, Device
// Bound Session Credentials, and HTML.
var actOnOrigin = strings.Fields(`
	strict-transport-security public-key-pins alt-svc accept-ch expect-ct use-as-dictionary clear-site-data
	service-worker-allowed report-to nel set-login secure-session-registration sec-session-registration
	origin-agent-cluster`)

// tokenMarks are the characters of a token (RFC 9110, section 5.6.2) that are no letters, digits or "-".
const tokenMarks = "!#$%&'*+.^_`|~"

// asCGI returns a header's name as read by programs that don't distinguish marks: nginx and WSGI read "_" and "-"
// alike, CGI reads all marks alike.
func asCGI(name string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(tokenMarks, r) {
			return '-'
		}
		return r
	}, strings.ToLower(name))
}

// spellingsOf returns all spellings of a header's name to publish: each "-" replaced by each mark and by random marks,
// in lower, upper and mixed case.
func spellingsOf(name string, random *rand.Rand) (all []string) {
	forms := []string{name}
	if strings.Contains(name, "-") {
		mark := func() string { return string(tokenMarks[random.IntN(len(tokenMarks))]) }
		forms = append(forms, strings.Replace(name, "-", mark(), 1), name+mark(), mark()+name)
		for _, c := range tokenMarks + "-" {
			forms = append(forms, strings.ReplaceAll(name, "-", string(c)))
		}
	}
	for _, form := range forms {
		all = append(all, strings.ToLower(form), strings.ToUpper(form), form)
	}
	return all
}

// publishedHeader is a header under a refused name, with the value that writers publish.
type publishedHeader struct{ name, value string }

// TestRefusedHeaders publishes each refused header in each spelling by each writer: none gets into Redis. Where an
// older writer, which has no such check, has published a refused header, no edge sends the header in any spelling.
func TestRefusedHeaders(t *testing.T) {
	t.Parallel()
	e := reuse(t, stack.Options{})
	random := rand.New(rand.NewPCG(seed.Of(t), 0))
	var headers []publishedHeader
	for _, name := range notPublished {
		for _, spelling := range spellingsOf(name, random) {
			value := map[string]string{"transfer-encoding": "chunked", "content-length": "3"}[asCGI(spelling)]
			headers = append(headers, publishedHeader{spelling, cmp.Or(value, "forged")})
		}
	}
	script, err := os.ReadFile("../clients/go/publish/write.lua")
	require.NoError(t, err)
	lax := strings.Replace(string(script), "headers = { 4096, headers }", "headers = { 4096 }", 1)
	if lax == string(script) {
		t.Fatal("write.lua checks headers elsewhere")
	}
	publisher := e.publisherOf(t, "/v1/products/")
	writers := map[string]func(prefix string, headers []publishedHeader){
		"script":         func(prefix string, headers []publishedHeader) { e.writeHeaders(string(script), prefix, headers) },
		"older":          func(prefix string, headers []publishedHeader) { e.writeHeaders(lax, prefix, headers) },
		"Go":             e.putHeaders,
		"HTTP, batch":    publisher.batchHeaders,
		"HTTP, requests": publisher.putHeaders,
	}
	wrong := 0
	report := func(format string, args ...any) {
		if wrong++; wrong <= 20 {
			t.Errorf(format, args...)
		}
	}
	for writer, write := range writers {
		prefix := "/v1/products/" + regexp.MustCompile(`\W`).ReplaceAllString(writer, "")
		write(prefix, append(headers, publishedHeader{"x-frame-options", "deny"}))
		last := fmt.Sprint(prefix, len(headers))
		e.awaitAnswer("published", func(a answer) bool { return a.header.Get("X-Frame-Options") == "deny" }, "GET "+last)
		for i, h := range headers {
			key := fmt.Sprint(prefix, i)
			if stored, _ := e.redis.HGet(t.Context(), contract.Keys{}.RecordKey(contract.ObjectMember(key)),
				contract.FieldHeaders).Result(); stored != "" {
				name, _, _ := strings.Cut(stored, ":")
				if writer != "older" && slices.ContainsFunc(notPublished, same(name)) {
					report("%s: Redis has %q", writer, stored)
				}
			} else if writer != "older" {
				continue
			}
			if got := e.findForgedHeader(key); got != "" {
				report("%s, %s: got %s", writer, h.name, got)
			}
		}
	}
	t.Logf("%d headers by %d writers: %d faults", len(headers), len(writers), wrong)
}

func same(name string) func(string) bool {
	return func(other string) bool { return asCGI(other) == asCGI(name) }
}

// findForgedHeader returns the fault of the edge's answer, octet by octet: a header of a publisher's in any spelling,
// or a length beside Transfer-Encoding.
func (e *edge) findForgedHeader(key string) string {
	head, body, _ := strings.Cut(e.readOctets("GET "+key+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), "\r\n\r\n")
	seen := map[string]int{}
	for line := range strings.SplitSeq(head, "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		name, value = asCGI(name), strings.TrimSpace(value)
		seen[name]++
		if slices.ContainsFunc(notPublished, same(name)) && (seen[name] > 1 || value == "forged") ||
			name == "content-length" && value != fmt.Sprint(len(body)) {
			return strconv.Quote(line)
		}
	}
	if seen["transfer-encoding"] > 0 && seen["content-length"] > 0 {
		return "Transfer-Encoding and Content-Length"
	}
	return ""
}

// readOctets sends a request over a new connection and returns all octets of the answer.
func (e *edge) readOctets(request string) string {
	e.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(e.EdgeURL(), "http://"))
	require.NoError(e.t, err)
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, request); err != nil {
		e.t.Fatal(err)
	}
	text, err := io.ReadAll(c)
	require.NoError(e.t, err)
	return string(text)
}

// writeHeaders publishes an object for each header by a script, and nothing else of ours. Refusals are no errors.
func (e *edge) writeHeaders(script, prefix string, headers []publishedHeader) {
	e.t.Helper()
	keys := contract.Keys{}
	pipe := e.redis.Pipeline()
	for i, h := range headers {
		m := contract.ObjectMember(fmt.Sprint(prefix, i))
		pipe.Eval(e.t.Context(), script, []string{keys.RecordKey(m), keys.SeqKey(), keys.LogKey(), keys.DataEpochKey(),
			keys.ChainKey()}, "replace", "0", "beef", m.String(), "0", keys.EventsChannel(), "PUBLISH", "", "etag", `"1"`,
			"content-type", "text/plain", "body", "0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", "headers", h.name+": "+h.value)
	}
	results, _ := pipe.Exec(e.t.Context())
	require.NoError(e.t, results[len(results)-1].Err())
}

func (h publishedHeader) object(key string) publish.Object {
	return publish.Object{Key: key, ContentType: "text/plain", Body: []byte("abc"),
		Headers: []contract.Header{{Name: h.name, Value: h.value}}}
}

// putHeaders publishes an object for each header by the Go client.
func (e *edge) putHeaders(prefix string, headers []publishedHeader) {
	var all []publish.Object
	for i, h := range headers {
		all = append(all, h.object(fmt.Sprint(prefix, i)))
	}
	results := e.publisher.PutAll(e.t.Context(), all)
	require.NoError(e.t, results[len(results)-1].Err)
}

const publisherToken = "0123456789abcdef0123456789abcdef"

type httpPublisher struct {
	t   *testing.T
	url string
}

// publisherOf runs gatehouse-publisher for a team with this prefix.
func (e *edge) publisherOf(t *testing.T, prefix string) httpPublisher {
	t.Helper()
	teams := writeFile(t, "teams.yaml", fmt.Sprintf("teams: [{name: a, tokens: [%x], prefixes: [%s], rate: 100000}]",
		sha256.Sum256([]byte(publisherToken)), prefix))
	p := httpPublisher{t, "http://" + redistest.FreeAddress(t)}
	program := exec.Command("../build/gatehouse-publisher", "--teams.file="+teams, "--redis.url="+e.RedisURL(),
		"--listen.address="+strings.TrimPrefix(p.url, "http://"), "--admin.address="+redistest.FreeAddress(t))
	program.Stderr = new(bytes.Buffer)
	require.NoError(t, program.Start())
	t.Cleanup(func() {
		_ = program.Process.Kill()
		_ = program.Wait()
		if t.Failed() {
			text := program.Stderr.(*bytes.Buffer).String()
			t.Logf("the end of the publisher's log:\n%s", text[max(0, len(text)-2000):])
		}
	})
	await(t, "the publisher listens", patience, func() error {
		response, err := http.Get(p.url + "/openapi.json")
		if err == nil {
			err = response.Body.Close()
		}
		return err
	})
	return p
}

// send sends a request and returns the status of the answer.
func (p httpPublisher) send(method, path, contentType, body string, headers map[string]string) int {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), method, p.url+path, strings.NewReader(body))
	require.NoError(p.t, err)
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("Authorization", "Bearer "+publisherToken)
	for name, value := range headers {
		r.Header[name] = []string{value} // as it is
	}
	response, err := http.DefaultClient.Do(r)
	require.NoError(p.t, err)
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode
}

func (p httpPublisher) batchHeaders(prefix string, headers []publishedHeader) {
	p.t.Helper()
	var lines bytes.Buffer
	for i, h := range headers {
		line, _ := json.Marshal(map[string]any{"op": "put", "key": fmt.Sprint(prefix, i), "content_type": "text/plain",
			"body": "abc", "headers": []map[string]string{{"name": h.name, "value": h.value}}})
		lines.Write(append(line, '\n'))
	}
	if got := p.send("POST", "/v1/batch", "application/x-ndjson", lines.String(), nil); got != 207 {
		p.t.Errorf("got %d for a batch of refused headers and one good one, want 207", got)
	}
}

func (p httpPublisher) putHeaders(prefix string, headers []publishedHeader) {
	p.t.Helper()
	for i, h := range headers {
		want := 400
		if i == len(headers)-1 {
			want = 201
		}
		if got := p.send("PUT", fmt.Sprint("/v1/objects", prefix, i), "text/plain", "abc",
			map[string]string{"Gatehouse-Header-" + h.name: h.value}); got != want && !p.t.Failed() {
			p.t.Errorf("Gatehouse-Header-%s: got %d, want %d", h.name, got, want)
		}
	}
}

// TestOriginHeaders: without the rule's origin_headers, headers that act on the whole origin are not sent; the rest of
// the object is. TestHeadersStayAtTheEdge has a rule that permits origin_headers.
func TestOriginHeaders(t *testing.T) {
	t.Parallel()
	e := reuse(t, stack.Options{})
	e.putOriginHeaders("/v1/products/sw.js")
	a := e.send("GET /v1/products/sw.js")
	for _, name := range actOnOrigin {
		if got := a.header.Get(name); got != "" {
			t.Errorf("got %s: %s, want the rule's permission to be needed", name, got)
		}
	}
	if onNginx() {
		return // explain takes Envoy's rules from Envoy
	}
	e.wantNotSent("/v1/products/sw.js", actOnOrigin)
	got := e.ctl("explain", "/v1/products/sw.js", "--sidecar", strings.TrimPrefix(e.SidecarAdminURL(), "http://"))
	if !strings.Contains(got, "alt-svc, ") || !strings.Contains(got, "cache.origin_headers of the rule allows them") {
		t.Errorf("explain: got %s, want the headers that are not sent, and the field that allows them", got)
	}
}

// wantNotSent compares the headers of an object that explain lists as omitted with names.
func (e *edge) wantNotSent(key string, names []string) {
	e.t.Helper()
	var got explained
	e.decodeCtl(&got, "explain", key)
	if got.Object == nil || !slices.Equal(slices.Sorted(slices.Values(got.Object.NotSent)),
		slices.Sorted(slices.Values(names))) {
		e.t.Errorf("explain %s: got %+v, want %q not to be sent", key, got.Object, names)
	}
}

// putOriginHeaders publishes an object with all of actOnOrigin, and waits until the edge serves the object.
func (e *edge) putOriginHeaders(key string) {
	e.t.Helper()
	o := publish.Object{Key: key, ContentType: "text/javascript", Body: []byte("abc"),
		Headers: []contract.Header{{Name: "x-frame-options", Value: "deny"}}}
	for _, name := range actOnOrigin {
		o.Headers = append(o.Headers, contract.Header{Name: name, Value: "all"})
	}
	if _, err := e.publisher.Put(e.t.Context(), o); err != nil {
		e.t.Fatal(err)
	}
	e.awaitAnswer("published", func(a answer) bool { return a.header.Get("X-Frame-Options") == "deny" }, "GET "+key)
}
