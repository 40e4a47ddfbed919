package conformance

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A testCase is one rule of HTTP, a request in the rule's scope, and the required answer.
type testCase struct {
	// section is the section with the rule: "9110 13.1.2" is section 13.1.2 of RFC 9110.
	section string
	name    string
	// request is the request line without a version, field lines, and after an empty line the content.
	request string
	status  int
	// from is the answer's source: "hit", the edge with a stored object; "fwd=…", the upstream, with this member of
	// Cache-Status; "upstream", without such a member; "edge", the edge itself.
	from string
	// fields are lines that the answer must have ("name: value"), have in this form ("name ~ regexp"), or not have
	// ("!name"). "content: text" is about the content, "trailer name: value" about a trailer field.
	fields string
}

// run sends the case in every version of HTTP that can express the request, by its own method and, after GET, by HEAD.
func (c testCase) run(t *testing.T, s *server) {
	t.Helper()
	if instead, found := nginxAnswers[c.name]; found && onNginx() {
		if instead.status == 0 {
			t.Skip("not on nginx: ", instead.why)
		}
		c.status, c.from, c.fields = instead.status, instead.from, instead.fields
	}
	q := parseRequest(c.request)
	for _, version := range versionsFor(q) {
		get, err := s.exchange(version, q)
		if err != nil {
			t.Errorf("RFC %s: %s %s: %v", c.section, version, q.method, err)
			continue
		}
		c.checkAnswer(t, version, q, get)
		s.checkStrictly(t, version, q, get)
		if get.status == 304 && c.from == "hit" {
			s.notModified(t, version, q, get)
		}
		if q.method != "GET" {
			continue
		}
		h := q
		h.method = "HEAD"
		head, err := s.exchange(version, h)
		if err != nil {
			t.Errorf("RFC %s: %s HEAD: %v", c.section, version, err)
			continue
		}
		if isPart(get) {
			testCase{"9110 14.2", c.name, c.request, 200, "hit", "!content-range"}.checkAnswer(t, version, h, head)
			s.checkStrictly(t, version, h, head)
			continue
		}
		c.checkAnswer(t, version, h, head)
		s.checkStrictly(t, version, h, head)
		compareHead(t, version, q, get, head)
	}
}

// versionsFor returns every version of HTTP in which q has the same meaning.
func versionsFor(q request) []string {
	out := []string{"HTTP/1.1"}
	if !q.hasField("connection") && !q.hasField("expect") && !q.hasField("te") && !q.hasField("transfer-encoding") {
		out = append(out, "HTTP/1.0")
	}
	if _, ok := q.encodeHTTP2(); ok {
		out = append(out, "HTTP/2")
	}
	return out
}

// checkAnswer compares the answer with the case's expectations.
func (c testCase) checkAnswer(t *testing.T, version string, q request, r *response) {
	t.Helper()
	failed := func(format string, args ...any) {
		t.Helper()
		t.Errorf("RFC %s: %s %s: %s\n%s", c.section, version, q.method, fmt.Sprintf(format, args...), r)
	}
	if r.status != c.status {
		failed("got %d, want %d", r.status, c.status)
		return
	}
	if got := r.source(); got != c.from {
		failed("got an answer of %q, want of %q", got, c.from)
	}
	for line := range strings.SplitSeq(c.fields, "\n") {
		if why := r.differsFrom(line, q.method); why != "" {
			failed("%s", why)
		}
	}
}

// ttl matches the Cache-Status of a hit with a lifetime (RFC 9211, section 2.5).
var ttl = regexp.MustCompile(`; ttl=\d+$`)

// source returns where the answer comes from, as in testCase.
func (r *response) source() string {
	upstream := r.get("x-upstream") != ""
	own := ""
	for _, member := range r.fieldLines("cache-status") {
		if rest, ok := strings.CutPrefix(member, "gatehouse; "); ok {
			own += strings.TrimSuffix(rest, ttl.FindString(rest))
		}
	}
	switch {
	case upstream == (own != "hit" && own != "") && own != "":
		return own
	case own != "":
		return fmt.Sprintf("%s, upstream: %t", own, upstream)
	case upstream:
		return "upstream"
	}
	return "edge"
}

// differsFrom returns the answer's difference from an expectation's line, or "".
func (r *response) differsFrom(line, method string) string {
	fields := r.fields
	if rest, ok := strings.CutPrefix(line, "trailer "); ok {
		fields, line = r.trailers, rest
	}
	switch name, want, ok := strings.Cut(line, ": "); {
	case line == "":
	case strings.HasPrefix(line, "!"):
		if got := valuesOf(fields, line[1:]); len(got) > 0 {
			return fmt.Sprintf("got %s: %q, want none", line[1:], got)
		}
	case name == "content":
		if method != "HEAD" && string(r.content) != want {
			return fmt.Sprintf("got content %q, want %q", r.content, want)
		}
	case ok:
		if got := strings.Join(valuesOf(fields, name), ", "); got != want {
			return fmt.Sprintf("got %s: %q, want %q", name, got, want)
		}
	default:
		name, pattern, _ := strings.Cut(line, " ~ ")
		if got := strings.Join(valuesOf(fields, name), ", "); !regexp.MustCompile("^(?:" + pattern + ")$").MatchString(got) {
			return fmt.Sprintf("got %s: %q, want %s", name, got, pattern)
		}
	}
	return ""
}

// compareHead compares the answer to HEAD with the answer to GET (RFC 9110, section 9.3.2). HEAD may omit only fields
// that are known after the content has been generated, and only for answers of an upstream.
func compareHead(t *testing.T, version string, q request, get, head *response) {
	t.Helper()
	drop := []string{"date", "x-envoy-upstream-service-time", "x-upstream", "connection"}
	if get.source() != "hit" || len(get.content) == 0 { // for empty content, see the README

		drop = append(drop, "content-length", "transfer-encoding", "trailer")
	}
	got, want := sortedFields(head.fields, drop), sortedFields(get.fields, drop)
	if get.status != head.status || !slices.Equal(got, want) {
		t.Errorf("RFC 9110 9.3.2: %s %s: HEAD was answered\n%d %q, GET\n%d %q", version, q.target,
			head.status, got, get.status, want)
	}
}

// notModified compares a 304 with the 200 to the request without preconditions (RFC 9110, section 15.4.5).
func (s *server) notModified(t *testing.T, version string, q request, got *response) {
	t.Helper()
	full, err := s.exchange(version, q.withoutFields("if-none-match", "if-modified-since", "range"))
	if err != nil || full.status != 200 {
		t.Errorf("RFC 9110 15.4.5: %s: the same without preconditions: %v %v", q.target, full, err)
		return
	}
	for _, name := range []string{"cache-control", "content-location", "etag", "expires", "vary"} {
		if a, b := got.get(name), full.get(name); a != b && !differInSeconds(a, b) {
			t.Errorf("RFC 9110 15.4.5: %s %s: the 304 has %s: %q, the 200 %q", version, q.target, name, a, b)
		}
	}
	for _, name := range []string{"content-type", "content-encoding", "content-language", "content-range",
		"transfer-encoding"} {
		if value := got.get(name); value != "" {
			t.Errorf("RFC 9110 15.4.5: %s %s: the 304 has %s: %q", version, q.target, name, value)
		}
	}
	if value := got.get("last-modified"); value != "" && (got.get("etag") != "" || value != full.get("last-modified")) {
		t.Errorf("RFC 9110 15.4.5: %s %s: the 304 has an entity-tag %q and last-modified %q, the 200 %q",
			version, q.target, got.get("etag"), value, full.get("last-modified"))
	}
	if n := got.get("content-length"); n != "" && n != full.get("content-length") {
		t.Errorf("RFC 9110 8.6: %s %s: the 304 has content-length %s, the 200 %s", version, q.target,
			n, full.get("content-length"))
	}
}

var maxAge = regexp.MustCompile(`max-age=[0-9]+`)

// differInSeconds reports whether two values of Cache-Control differ only in seconds, which depend on the time.
func differInSeconds(a, b string) bool {
	return maxAge.MatchString(a) && maxAge.ReplaceAllString(a, "") == maxAge.ReplaceAllString(b, "")
}

// seconds are numbers that depend on the time.
var seconds = regexp.MustCompile(`(^age: |max-age=|ttl=)[0-9]+`)

// sortedFields returns the fields except those in drop, in an order independent of the order of lines.
func sortedFields(fields []field, drop []string) []string {
	var lines []string
	for _, f := range fields {
		if name := strings.ToLower(f.name); !slices.Contains(drop, name) {
			lines = append(lines, seconds.ReplaceAllString(name+": "+f.value, "$1"))
		}
	}
	slices.Sort(lines)
	return lines
}

func (r *response) String() string {
	if r == nil {
		return "no answer"
	}
	return fmt.Sprintf("%s %d %q %.300q", r.version, r.status, r.fields, r.content)
}
